//! The metric of watches that fail, computed at each scrape.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::stores::Stores;

/// For how long the watch of each kind has failed. Register it with [`crate::metrics::Metrics::register_collector`].
#[derive(Debug)]
pub struct WatchFailures(pub Stores);

impl Collector for WatchFailures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let failing: BTreeMap<_, _> = self.0.failing_watches().into_iter().collect();
        let mut family = encoder.encode_descriptor(
            "drydock_controller_watch_failing_seconds",
            "For how long the watch of a kind has failed; 0 while it works",
            None,
            MetricType::Gauge,
        )?;
        for kind in Stores::KINDS {
            let seconds = failing
                .get(kind)
                .map_or(0.0, |failure| failure.lasting.as_secs_f64());
            ConstGauge::new(seconds).encode(family.encode_family(&[("resource", *kind)])?)?;
        }
        Ok(())
    }
}
