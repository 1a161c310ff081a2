//! What the filters know of a request while it passes.

use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use tokio::time::Instant;

use crate::{
    metrics::{Metrics, RequestLabels},
    request::{Query, RequestInfo, Warnings},
};

/// A request from its first filter to its last.
pub(super) struct RequestState {
    pub(super) info: RequestInfo,
    pub(super) query: Query,
    pub(super) audit_id: HeaderValue,
    pub(super) received: Instant,
    pub(super) warnings: Warnings,
    /// None when the request names nothing that is served.
    pub(super) labels: Option<RequestLabels>,
    authorized: AtomicBool,
}

impl RequestState {
    pub(super) fn new(
        info: RequestInfo,
        query: Query,
        audit_id: HeaderValue,
        received: Instant,
        warnings: Warnings,
        metrics: &Metrics,
    ) -> Self {
        let labels = metrics.labels(&info, query.first("dryRun") == Some("All"));
        Self {
            info,
            query,
            audit_id,
            received,
            warnings,
            labels,
            authorized: AtomicBool::new(false),
        }
    }

    pub(super) fn set_authorized(&self) {
        self.authorized.store(true, Ordering::Relaxed);
    }

    /// Whether the request passed every filter. Requests that a filter rejected are not counted as API requests.
    pub(super) fn is_authorized(&self) -> bool {
        self.authorized.load(Ordering::Relaxed)
    }
}
