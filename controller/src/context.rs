//! What all controllers share.

use std::sync::Arc;

use drydock_machinery::clock::Clock;

use crate::api::Clients;
use crate::events::EventRecorder;
use crate::metrics::Metrics;
use crate::request_labels::RequestLabels;
use crate::stores::Stores;

/// The parts of the process that controllers use.
#[derive(Debug)]
pub struct Context {
    /// The last known state of the watched kinds.
    pub stores: Stores,
    /// The clients of both APIs.
    pub clients: Clients,
    /// The recorder of Events.
    pub events: EventRecorder,
    /// The metrics.
    pub metrics: Metrics,
    /// Which labels requests have from their pods.
    pub labels: RequestLabels,
    /// The clock. It shows the time of drydock-apiserver, which rejects times that differ from its own.
    pub clock: Arc<dyn Clock>,
}
