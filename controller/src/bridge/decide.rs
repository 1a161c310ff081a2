//! Whether an eviction passes, or waits until the interceptors of its pod are done. Pure functions.

use drydock_proto::kinds::evictionrequest::{
    DAEMON_SET_INTERCEPTOR, EVICTED, EvictionRequest, IMPERATIVE_EVICTION,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::evictionrequest::interceptors::TooManyInterceptors;
use crate::pod::Pod;

/// The words by which the descheduler knows that an eviction is in progress and has not failed.
pub const IN_PROGRESS: &str = "Eviction triggered evacuation";
/// The range of the delays after which clients are told to try again.
const RETRY_SECONDS: std::ops::RangeInclusive<i64> = 1..=10;

/// Why an eviction goes on without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The controller itself evicts.
    Own,
    /// The host finds no such pod, or one with another UID.
    Absent,
    /// The pod is being deleted, has ended, or cannot be requested: it is static, or belongs to a group of pods.
    NotApplicable,
    /// No interceptor acts before the pod is evicted.
    NoInterceptors,
    /// All interceptors are done.
    Done,
}

impl Pass {
    /// The outcome in metrics.
    #[must_use]
    pub const fn outcome(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Absent => "absent",
            Self::NotApplicable => "not_applicable",
            Self::NoInterceptors => "no_interceptors",
            Self::Done => "done",
        }
    }
}

/// What an eviction waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Pass(Pass),
    /// These interceptors.
    Wait(Wait),
    /// The pod cannot be requested: its interceptors are too many.
    Refuse(TooManyInterceptors),
}

/// Interceptors that are not done yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Their names, in order; empty while it is unknown which they are.
    pub pending: Vec<String>,
    /// The active one, and since when, if one is active.
    pub active: Option<(String, Option<Timestamp>)>,
    /// Since when the request waits.
    pub since: Option<Timestamp>,
}

/// What is known about the interceptors of a pod without a request that has ordered them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declared {
    /// Their names in order, those of the controller among them.
    Known(Vec<String>),
    /// There are too many.
    TooMany(TooManyInterceptors),
    /// A rule cannot be evaluated. An error must not let a pod be evicted sooner.
    Unknown,
}

/// Whether the eviction of a pod is no matter of requests, whatever its interceptors are.
#[must_use]
pub fn passes_anyway(pod: &Pod, precondition: Option<&str>) -> Option<Pass> {
    if precondition.is_some_and(|uid| uid != pod.uid()) {
        return Some(Pass::Absent);
    }
    (pod.is_terminating() || pod.is_terminal() || pod.is_mirror() || pod.is_grouped())
        .then_some(Pass::NotApplicable)
}

/// The interceptors that the pod's request has ordered; `None` if there is no request that is still processed, or none are
/// ordered yet.
#[must_use]
pub fn by_request(request: &EvictionRequest) -> Option<Verdict> {
    let status = request.status.as_ref()?;
    if is_evicted(request) {
        return Some(Verdict::Pass(Pass::Done));
    }
    if request.is_finished() || status.target_interceptors.is_empty() {
        return None;
    }
    let pending: Vec<String> = status
        .target_interceptors
        .iter()
        .map(|target| &target.name)
        .filter(|name| !status.processed_interceptors.contains(name) && !is_built_in(name))
        .cloned()
        .collect();
    if pending.is_empty() {
        return Some(Verdict::Pass(Pass::Done));
    }
    let active = status.active_interceptors.first().map(|name| {
        let report = status.interceptors.iter().find(|report| report.name == *name);
        let since = report.and_then(|report| time(report.activation_time.as_ref()));
        (name.clone(), since)
    });
    Some(Verdict::Wait(Wait {
        pending,
        active,
        since: time(request.metadata.creation_timestamp.as_ref()),
    }))
}

/// The verdict for a pod whose request has not ordered its interceptors.
#[must_use]
pub fn by_declaration(declared: Declared) -> Verdict {
    let pending = match declared {
        Declared::Known(names) => {
            let pending: Vec<String> = names.into_iter().filter(|name| !is_built_in(name)).collect();
            if pending.is_empty() {
                return Verdict::Pass(Pass::NoInterceptors);
            }
            pending
        }
        Declared::TooMany(excess) => return Verdict::Refuse(excess),
        Declared::Unknown => Vec::new(),
    };
    Verdict::Wait(Wait {
        pending,
        active: None,
        since: None,
    })
}

/// Whether an interceptor is part of the controller: it acts for maintenances, and not for other evictions.
fn is_built_in(name: &str) -> bool {
    [IMPERATIVE_EVICTION, DAEMON_SET_INTERCEPTOR].contains(&name)
}

fn is_evicted(request: &EvictionRequest) -> bool {
    let conditions = request.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == EVICTED && condition.status == "True")
}

fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

impl Wait {
    /// The message for the client. `pod` is `NAMESPACE/NAME`.
    #[must_use]
    pub fn message(&self, pod: &str) -> String {
        let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
        let turn = match (&self.active, self.pending.as_slice()) {
            (Some((active, since)), _) => {
                let since = since.map_or_else(String::new, |since| format!(" since {since:.0}"));
                let waiting = self.pending.iter().filter(|name| *name != active).count();
                let after = match waiting {
                    0 => String::new(),
                    1 => ", and 1 more follows".to_owned(),
                    more => format!(", and {more} more follow"),
                };
                format!("it is the turn of {active}{since}{after}")
            }
            (None, []) => "it is not known yet which they are".to_owned(),
            (None, pending) => format!("they are {}", pending.join(", ")),
        };
        format!(
            "{IN_PROGRESS}: pod {pod} can leave when its interceptors are done; {turn}. See: kubectl drydock explain -n \
             {namespace} {name}"
        )
    }

    /// When the client should try again: soon after the beginning, seldom when it takes long.
    #[must_use]
    pub fn retry_after_seconds(&self, now: Timestamp) -> u32 {
        let waited = self.since.map_or(0, |since| now.duration_since(since).as_secs());
        let seconds = (waited / 4).clamp(*RETRY_SECONDS.start(), *RETRY_SECONDS.end());
        u32::try_from(seconds).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{pod, typed};

    fn request(status: &Value) -> EvictionRequest {
        typed(json!({
            "metadata": {"name": "uid-1", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": status,
        }))
    }

    fn names(names: &[&str]) -> Vec<Value> {
        names.iter().map(|name| json!({ "name": name })).collect()
    }

    #[test]
    fn pods_that_leave_anyway_pass() {
        for (patch, precondition, expected) in [
            (json!({}), None, None),
            (json!({}), Some("uid-1"), None),
            (json!({}), Some("uid-2"), Some(Pass::Absent)),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
                None,
                Some(Pass::NotApplicable),
            ),
            (
                json!({"status": {"phase": "Failed"}}),
                None,
                Some(Pass::NotApplicable),
            ),
            (
                json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": ""}}}),
                None,
                Some(Pass::NotApplicable),
            ),
            (
                json!({"spec": {"workloadRef": {"name": "w"}}}),
                None,
                Some(Pass::NotApplicable),
            ),
        ] {
            assert_eq!(passes_anyway(&pod(&patch), precondition), expected, "{patch}");
        }
    }

    #[test]
    fn evictions_wait_while_declared_interceptors_are_not_processed() {
        let targets = names(&[
            "a.example.com",
            DAEMON_SET_INTERCEPTOR,
            "b.example.com",
            IMPERATIVE_EVICTION,
        ]);
        let status = |active: &str, processed: &[&str]| {
            json!({
                "targetInterceptors": targets, "activeInterceptors": [active], "processedInterceptors": processed,
                "interceptors": [{"name": active, "activationTime": "2026-01-01T00:01:00Z"}],
            })
        };
        let Some(Verdict::Wait(first)) = by_request(&request(&status("a.example.com", &[]))) else {
            panic!("it waits")
        };
        assert_eq!(first.pending, ["a.example.com", "b.example.com"]);
        assert_eq!(
            first.message("shop/web"),
            "Eviction triggered evacuation: pod shop/web can leave when its interceptors are done; it is the turn of \
             a.example.com since 2026-01-01T00:01:00Z, and 1 more follows. See: kubectl drydock explain -n shop web"
        );
        let second = by_request(&request(&status(DAEMON_SET_INTERCEPTOR, &["a.example.com"])));
        assert!(matches!(second, Some(Verdict::Wait(wait)) if wait.pending == ["b.example.com"]));
        let done = ["a.example.com", DAEMON_SET_INTERCEPTOR, "b.example.com"];
        let done = by_request(&request(&status(IMPERATIVE_EVICTION, &done)));
        assert_eq!(done, Some(Verdict::Pass(Pass::Done)));
    }

    #[test]
    fn requests_that_ended_or_have_no_order_decide_nothing() {
        let ended = |type_: &str| {
            request(&json!({
                "targetInterceptors": names(&["a.example.com", IMPERATIVE_EVICTION]),
                "conditions": [{"type": type_, "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            }))
        };
        assert_eq!(by_request(&ended("Canceled")), None);
        assert_eq!(by_request(&ended(EVICTED)), Some(Verdict::Pass(Pass::Done)));
        assert_eq!(by_request(&request(&json!({}))), None);
        assert_eq!(by_request(&request(&Value::Null)), None);
    }

    #[test]
    fn only_declared_interceptors_delay_a_pod() {
        let known = |names: &[&str]| Declared::Known(names.iter().map(|name| (*name).to_owned()).collect());
        let none = Verdict::Pass(Pass::NoInterceptors);
        assert_eq!(by_declaration(known(&[IMPERATIVE_EVICTION])), none);
        assert_eq!(
            by_declaration(known(&[DAEMON_SET_INTERCEPTOR, IMPERATIVE_EVICTION])),
            none
        );
        let Verdict::Wait(wait) = by_declaration(known(&["a.example.com", IMPERATIVE_EVICTION])) else {
            panic!("it waits")
        };
        assert_eq!(wait.pending, ["a.example.com"]);
        assert!(wait.message("shop/web").contains("they are a.example.com."));
        let Verdict::Wait(unknown) = by_declaration(Declared::Unknown) else {
            panic!("it waits")
        };
        assert!(unknown.message("shop/web").contains("not known yet"));
    }

    #[test]
    fn clients_try_again_soon_at_first_and_seldom_later() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let wait = |since| Wait {
            pending: Vec::new(),
            active: None,
            since,
        };
        assert_eq!(wait(None).retry_after_seconds(at(5)), 1);
        for (now, expected) in [(0, 1), (4, 1), (20, 5), (40, 10), (4000, 10), (-9, 1)] {
            assert_eq!(wait(Some(at(0))).retry_after_seconds(at(now)), expected, "{now}");
        }
    }
}
