//! What the filters know of a request while it passes.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use http::HeaderValue;
use tokio::time::Instant;

use crate::{
    audit::Trail,
    metrics::{Metrics, RequestLabels},
    request::{AuditRecord, Query, RequestInfo, Warnings},
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
    /// Whether the client asks for another protocol.
    pub(super) is_upgrade: bool,
    authorized: AtomicBool,
    direct: AtomicBool,
    trail: OnceLock<Arc<Trail>>,
    panic: OnceLock<String>,
}

impl RequestState {
    pub(super) fn new(
        info: RequestInfo,
        query: Query,
        audit_id: HeaderValue,
        received: Instant,
        is_upgrade: bool,
        metrics: &Metrics,
    ) -> Self {
        let labels = metrics.labels(&info, query.first("dryRun") == Some("All"));
        Self {
            info,
            query,
            audit_id,
            received,
            warnings: Warnings::default(),
            labels,
            is_upgrade,
            authorized: AtomicBool::new(false),
            direct: AtomicBool::new(false),
            trail: OnceLock::new(),
            panic: OnceLock::new(),
        }
    }

    /// A client with a credential sent the request without the front proxy.
    pub(super) fn set_direct(&self) {
        self.direct.store(true, Ordering::Relaxed);
    }

    /// Whether it is a write of an object, by a client with a credential and without the front proxy.
    pub(super) fn is_direct_write(&self) -> bool {
        let is_write = self.info.resource.is_some() && self.info.is_mutating();
        is_write && self.direct.load(Ordering::Relaxed)
    }

    /// The request is audited.
    pub(super) fn audit_with(&self, trail: Arc<Trail>) {
        // The audit of a request begins once.
        self.trail.set(trail).ok();
    }

    /// Its audit events, if it is audited.
    pub(super) fn trail(&self) -> Option<&Arc<Trail>> {
        self.trail.get()
    }

    /// What the audit log records of it.
    pub(super) fn audit(&self) -> AuditRecord {
        self.trail
            .get()
            .map(|trail| trail.record().clone())
            .unwrap_or_default()
    }

    /// The request panicked with this text.
    pub(super) fn set_panicked(&self, text: String) {
        // The first panic ends the request.
        self.panic.set(text).ok();
    }

    /// The text of the panic that ended the request, if one did.
    pub(super) fn panic(&self) -> Option<&str> {
        self.panic.get().map(String::as_str)
    }

    pub(super) fn set_authorized(&self) {
        self.authorized.store(true, Ordering::Relaxed);
    }

    /// Whether the request passed every filter. Requests that a filter rejected are not counted as API requests.
    pub(super) fn is_authorized(&self) -> bool {
        self.authorized.load(Ordering::Relaxed)
    }
}
