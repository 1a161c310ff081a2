//! An audit log in memory, for tests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use drydock_machinery::clock::Clock;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use super::policy::Policy;
use super::sink::{Encoded, Output, Sink};
use super::{Auditor, LOG, Mode};
use crate::metrics::AuditMetrics;

/// The events of an audit log.
#[derive(Default)]
pub(crate) struct Memory {
    events: Mutex<Vec<Value>>,
    /// Whether every event is lost from now on.
    pub(crate) fails: AtomicBool,
}

impl Output for Memory {
    fn deliver(&self, events: &[Arc<Encoded>]) -> BoxFuture<'_, Result<(), String>> {
        let result = if self.fails.load(Ordering::Relaxed) {
            Err("told to fail".to_owned())
        } else {
            let decoded = events
                .iter()
                .map(|event| serde_json::from_slice(&event.json).unwrap());
            self.events.lock().unwrap().extend(decoded);
            Ok(())
        };
        Box::pin(std::future::ready(result))
    }
}

impl Memory {
    /// The events since the last call.
    pub(crate) fn take(&self) -> Vec<Value> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

/// An audit log with the rules of a policy.
pub(crate) fn auditor(
    rules: &str,
    mode: Mode,
    max_event_bytes: Option<usize>,
    clock: Arc<dyn Clock>,
    metrics: &AuditMetrics,
) -> (Arc<Auditor>, Arc<Memory>) {
    let memory = Arc::new(Memory::default());
    let mut sink = Sink::new(
        LOG,
        Arc::clone(&memory) as _,
        mode,
        |_| unreachable!("tests use the blocking modes"),
        metrics.clone(),
    );
    sink.max_event_bytes = max_event_bytes;
    let auditor = Auditor {
        policy: Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap(),
        sinks: vec![sink],
        clock,
        metrics: metrics.clone(),
        late: TaskTracker::new(),
    };
    (Arc::new(auditor), memory)
}
