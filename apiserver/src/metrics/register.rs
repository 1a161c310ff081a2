//! Creates metrics and registers them, so that a struct of metrics is a table with a row for each.

use prometheus_client::{
    metrics::{
        family::{Family, MetricConstructor},
        histogram::Histogram,
    },
    registry::{Metric, Registry},
};

/// Histograms by label set, all with the same buckets.
pub type Histograms<L> = Family<L, Histogram, Buckets>;

/// Upper bounds of the buckets of a histogram.
#[derive(Clone, Debug)]
pub struct Buckets(Vec<f64>);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// Registers a metric in its initial state, and returns it.
pub fn new<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    add(registry, name, help, M::default())
}

/// Registers a histogram, and returns it.
pub fn histogram(
    registry: &mut Registry,
    name: &str,
    help: &str,
    buckets: impl IntoIterator<Item = f64>,
) -> Histogram {
    add(registry, name, help, Histogram::new(buckets))
}

/// Registers histograms by label set, and returns them.
pub fn histograms<L>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    buckets: impl IntoIterator<Item = f64>,
) -> Histograms<L>
where
    L: Clone + Eq + std::hash::Hash,
    Histograms<L>: Metric,
{
    let buckets = Buckets(buckets.into_iter().collect());
    add(registry, name, help, Family::new_with_constructor(buckets))
}

/// Registers a metric, and returns it.
pub fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}
