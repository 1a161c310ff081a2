//! Metrics of the audit log, with the names of Kubernetes.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::register::new;
use crate::request::AuditLevel;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    plugin: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AuditLevelLabels {
    level: &'static str,
}

/// The metrics of the audit log. Clones share them.
#[derive(Clone, Debug)]
pub struct AuditMetrics {
    events: Counter,
    errors: Family<PluginLabels, Counter>,
    levels: Family<AuditLevelLabels, Counter>,
    rejected: Counter,
}

impl AuditMetrics {
    #[rustfmt::skip] // A table with a row per metric.
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            events: new(r, "apiserver_audit_event", "Audit events that were made"),
            errors: new(r, "apiserver_audit_error", "Audit events that were lost, by what lost them"),
            levels: new(r, "apiserver_audit_level", "Requests by the level that the audit policy has for them"),
            rejected: new(r, "apiserver_audit_requests_rejected", "Requests rejected because their audit event could not be stored"),
        }
    }

    /// Counts a request at the level that the policy has for it.
    pub fn decided(&self, level: AuditLevel) {
        let level = level.as_str();
        self.levels.get_or_create(&AuditLevelLabels { level }).inc();
    }

    /// Counts an event.
    pub fn made(&self) {
        self.events.inc();
    }

    /// Counts events that `plugin` lost, and returns how many it has lost so far.
    #[must_use]
    pub fn lost(&self, plugin: &'static str, events: usize) -> u64 {
        let errors = self.errors.get_or_create(&PluginLabels { plugin });
        let events = events as u64;
        errors.inc_by(events) + events
    }

    /// Counts a request that was rejected because its event could not be stored.
    pub fn rejected(&self) {
        self.rejected.inc();
    }

    /// How many events `plugin` lost.
    #[cfg(test)]
    pub(crate) fn losses(&self, plugin: &'static str) -> u64 {
        self.errors.get_or_create(&PluginLabels { plugin }).get()
    }
}
