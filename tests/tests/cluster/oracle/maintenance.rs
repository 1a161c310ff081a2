//! Random valid content of NodeMaintenances, and the rules about their changes.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// See [`super::subject::Subject::transitions`].
pub(super) const TRANSITIONS: &[(&str, &str)] = &[
    (
        "/properties/spec",
        "has(self.drainPlan) == has(oldSelf.drainPlan) && (!has(self.drainPlan) || self.drainPlan == oldSelf.drainPlan)",
    ),
    (
        "/properties/spec",
        "self.nodeSelector == oldSelf.nodeSelector || oldSelf.stage == 'Idle'",
    ),
    (
        "/properties/spec",
        "self.stage == oldSelf.stage || oldSelf.stage == 'Idle' || oldSelf.stage == 'Cordon' && self.stage != 'Idle' || \
         oldSelf.stage == 'Drain' && self.stage == 'Complete'",
    ),
    (
        "/properties/status",
        "!has(oldSelf.stageStatuses) || has(self.stageStatuses) && oldSelf.stageStatuses.all(old, \
         self.stageStatuses.exists(new, new.name == old.name && (!has(old.startTimestamp) || \
         has(new.startTimestamp) && new.startTimestamp == old.startTimestamp)))",
    ),
];

/// See [`super::subject::Subject::limits`].
pub(super) const LIMITS: &[(&str, u32)] = &[
    ("/properties/spec/properties/drainPlan", 64),
    ("/properties/status/properties/stageStatuses", 4),
];

const STAGES: [&str; 4] = ["Idle", "Cordon", "Drain", "Complete"];

/// The spec of every object: with the complete plan, since a custom resource does not complete one.
pub(super) fn spec() -> Value {
    json!({ "nodeSelector": selector("a"), "drainPlan": plan("web") })
}

/// Members of a spec. Most of them are accepted.
pub(super) fn random_spec(rng: &mut Rng) -> Map<String, Value> {
    let mut spec = Map::new();
    if rng.bool() {
        let reason = rng.choice(["disk", "kernel", "firmware"]);
        spec.insert("reason".to_owned(), reason.into());
    }
    if rng.u8(0..6) == 0 {
        spec.insert("stage".to_owned(), rng.choice(STAGES).into());
    }
    if rng.u8(0..4) == 0 {
        let node = rng.choice(["a", "b"]).unwrap_or("a");
        spec.insert("nodeSelector".to_owned(), selector(node));
    }
    if rng.u8(0..12) == 0 {
        spec.insert("drainPlan".to_owned(), plan("other"));
    }
    spec
}

/// Members of a status.
pub(super) fn random_status(rng: &mut Rng) -> Map<String, Value> {
    let mut status = Map::new();
    for name in ["selectedNodes", "drainedNodes"] {
        if rng.u8(0..3) == 0 {
            status.insert(name.to_owned(), rng.u32(0..3).into());
        }
    }
    if rng.u8(0..4) == 0 {
        let started = rng.usize(1..=STAGES.len());
        let stages = STAGES.iter().take(started).map(|name| {
            if rng.u8(0..4) == 0 {
                json!({ "name": name })
            } else {
                json!({ "name": name, "startTimestamp": "2026-01-01T00:00:00Z" })
            }
        });
        status.insert("stageStatuses".to_owned(), stages.collect());
    }
    if rng.u8(0..3) == 0 {
        let mut nodes = vec!["node-a", "node-b", "node-c"];
        rng.shuffle(&mut nodes);
        nodes.truncate(rng.usize(1..4));
        status.insert("cordonedBefore".to_owned(), nodes.into());
    }
    if rng.u8(0..3) == 0 {
        status.insert("drainStatus".to_owned(), progress(rng, "reachedDrainTargets"));
    }
    if rng.u8(0..3) == 0 {
        let nodes = (0..rng.usize(1..3)).map(|number| {
            let mut node = progress(rng, "drainTargets");
            node["nodeRef"] = json!({ "name": format!("node-{number}") });
            node
        });
        status.insert("nodeStatuses".to_owned(), nodes.collect());
    }
    if rng.u8(0..3) == 0 {
        let blocker = json!({
            "node": "node-a",
            "pod": rng.choice(["pod-a", "pod-b"]),
            "reason": "Budget",
            "since": "2026-01-01T00:00:00Z",
        });
        status.insert("blockers".to_owned(), json!([blocker]));
    }
    status
}

/// The progress of a drain, with the targets under this name.
fn progress(rng: &mut Rng, targets: &str) -> Value {
    let mut progress = Map::new();
    if rng.bool() {
        let target = json!({ "podType": "Default", "podPriority": rng.u32(0..3) });
        progress.insert(targets.to_owned(), json!([target]));
    }
    if rng.bool() {
        progress.insert("drainMessage".to_owned(), "waits for 2 pods".into());
    }
    for name in ["podsPendingEvictionRequest", "activeEvictionRequests"] {
        // Both have a default.
        if rng.bool() {
            progress.insert(name.to_owned(), rng.u32(0..3).into());
        }
    }
    progress.into()
}

fn selector(node: &str) -> Value {
    let field = json!({ "key": "metadata.name", "operator": "In", "values": [format!("node-{node}")] });
    json!({ "nodeSelectorTerms": [{ "matchFields": [field] }] })
}

/// A complete plan in order: an entry for the pods of an application, and those that every plan has.
fn plan(application: &str) -> Value {
    let labels = json!({ "app": application });
    let mut entries = vec![json!({
        "podType": "Default",
        "podPriority": 100,
        "podSelector": { "matchLabels": labels },
    })];
    for pod_type in ["Default", "DaemonSet", "Static"] {
        for priority in [1_000_000_000, 2_000_000_000, 2_000_001_000, i32::MAX] {
            entries.push(json!({ "podType": pod_type, "podPriority": priority }));
        }
    }
    entries.into()
}
