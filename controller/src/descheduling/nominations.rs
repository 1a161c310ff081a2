//! `POST /descheduling/nominations`: a program names pods that should leave, and Drydock requests those that fit into the limits.
//! For programs that speak neither evictions nor EvictionRequests themselves; `docs/neighbours.md` describes the protocol.
//!
//! ```text
//! program ──pods──▶ authenticate, may evict? ──▶ plan (pure) ──▶ requests ──▶ outcome of each pod
//! ```
//!
//! The state is in the requests alone: what is in flight is counted from them, so that it survives restarts. Only the leader
//! answers, one call at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use drydock_proto::kinds::evictionrequest::{CANCELED, EvictionRequest};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::plan::{Candidate, InFlight, Limits, Outcome, Place, plan};
use crate::access::{Access, Refusal};
use crate::context::Context;
use crate::lease_fence::LeaseFence;
use crate::pod::Pod;
use crate::request_labels::NOMINATIONS_MANAGER;
use crate::sync::lock;
use crate::temporary_requests::{Asked, Party, Target};

/// Under which names pods are requested.
pub const PARTY: Party = Party {
    requester: "descheduler.k8s.io",
    manager: NOMINATIONS_MANAGER,
    annotation: "evictionrequest.coordination.k8s.io/descheduling",
};
/// The path.
pub const PATH: &str = "/descheduling/nominations";
/// The largest body, in bytes.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// The most pods of one call.
const MAX_NOMINATIONS: usize = 100;
/// The deadline of a call.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long a request that was written counts without being seen in the watch.
const UNSEEN: Duration = Duration::from_mins(1);
/// How long a request that was written counts against the limit of an hour.
const HOUR: Duration = Duration::from_hours(1);

/// What the requester is configured with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How many evictions may be in flight.
    pub limits: Limits,
    /// How long a request lives. It is not renewed: what takes longer is given up.
    pub lifetime: Duration,
}

/// The requester.
#[derive(Debug)]
pub struct Requester {
    context: Arc<Context>,
    access: Arc<Access>,
    fence: Arc<LeaseFence>,
    options: Options,
    /// One call at a time: each counts what the one before has requested.
    turn: Semaphore,
    memory: Mutex<Memory>,
}

/// What this process has requested. The stored requests say the same, except for what the watch has not delivered yet, or what
/// was deleted meanwhile.
#[derive(Debug, Default)]
struct Memory {
    /// Requests that the watch may not have delivered yet, by the UID of their pod.
    unseen: HashMap<String, (Place, Timestamp)>,
    /// When pods were requested within the last hour, by UID.
    recent: HashMap<String, Timestamp>,
}

/// The body of a call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nominations {
    nominations: Vec<Nomination>,
}

/// A pod that should leave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nomination {
    namespace: String,
    name: String,
    uid: String,
}

/// What becomes of a nomination.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    pod: &'a Nomination,
    outcome: Outcome,
}

impl Requester {
    /// A requester. It acts while the fence is open.
    #[must_use]
    pub fn new(context: Arc<Context>, access: Arc<Access>, fence: Arc<LeaseFence>, options: Options) -> Self {
        Self {
            context,
            access,
            fence,
            options,
            turn: Semaphore::new(1),
            memory: Mutex::default(),
        }
    }

    /// Answers a request for [`PATH`].
    pub async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let answered = tokio::time::timeout(DEADLINE, self.read_and_answer(request)).await;
        let (status, text) = match answered {
            Ok(Ok(text)) => (StatusCode::OK, text),
            Ok(Err(refusal)) => refusal,
            Err(_) => (StatusCode::GATEWAY_TIMEOUT, "the call took too long\n".to_owned()),
        };
        let content_type = if status == StatusCode::OK {
            "application/json"
        } else {
            "text/plain; charset=utf-8"
        };
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static(content_type),
        );
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }

    async fn read_and_answer(&self, request: Request<Incoming>) -> Result<String, Refusal> {
        if request.method() != Method::POST {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "only POST\n".to_owned()));
        }
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.and_then(|header| header.to_str().ok());
        let user = self.access.authenticate(PATH, authorization).await?;
        let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
        let invalid = |why: String| (StatusCode::BAD_REQUEST, format!("{why}\n"));
        let body = body
            .map_err(|_| invalid("the body cannot be read".to_owned()))?
            .to_bytes();
        let Nominations { nominations } =
            serde_json::from_slice(&body).map_err(|error| invalid(error.to_string()))?;
        if nominations.len() > MAX_NOMINATIONS {
            return Err(invalid(format!("more than {MAX_NOMINATIONS} nominations")));
        }
        let outcomes = self.nominate(&user, &nominations).await?;
        let answers: Vec<Answer<'_>> = nominations
            .iter()
            .zip(outcomes)
            .map(|(pod, outcome)| Answer { pod, outcome })
            .collect();
        Ok(serde_json::json!({ "results": answers }).to_string())
    }

    /// Requests the pods that fit into the limits. Returns the outcome of each nomination.
    async fn nominate(&self, user: &UserInfo, nominations: &[Nomination]) -> Result<Vec<Outcome>, Refusal> {
        let not_leading = || {
            let text = "this replica does not lead, or is not ready: try again\n";
            (StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
        };
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await.map_err(|_| not_leading())?;
        // What is in flight is counted from what is watched: a watch that fails may have missed some of it.
        if !self.fence.is_open() || self.context.stores.not_ready(Duration::ZERO).is_some() {
            return Err(not_leading());
        }
        let mut allowed: HashMap<&str, bool> = HashMap::new();
        for nomination in nominations {
            let namespace = nomination.namespace.as_str();
            if !allowed.contains_key(namespace) {
                allowed.insert(namespace, self.access.may_evict(user, namespace).await?);
            }
        }
        let now = self.context.clock.now();
        let found: Vec<Option<Arc<Pod>>> = nominations.iter().map(|one| self.pod(one)).collect();
        let is_allowed = |one: &Nomination| allowed.get(one.namespace.as_str()) == Some(&true);
        let candidates: Vec<Candidate> = nominations
            .iter()
            .zip(&found)
            .filter(|(nomination, _)| is_allowed(nomination))
            .filter_map(|(_, pod)| Some(self.candidate(pod.as_deref()?)))
            .collect();
        let limits = &self.options.limits;
        let planned = plan(&candidates, &self.in_flight(now), self.recent(now), limits, now);
        let mut planned = planned.into_iter();
        let mut outcomes = Vec::with_capacity(nominations.len());
        for (nomination, pod) in nominations.iter().zip(&found) {
            let outcome = match pod {
                _ if !is_allowed(nomination) => Outcome::Forbidden,
                None => Outcome::NotApplicable,
                Some(pod) => match planned.next().unwrap_or(Outcome::Failed) {
                    Outcome::Requested => self.request(user, pod, now).await,
                    outcome => outcome,
                },
            };
            self.context.metrics.count_nomination(outcome.name());
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// The pod of a nomination, if it is there and can be requested to leave.
    fn pod(&self, nomination: &Nomination) -> Option<Arc<Pod>> {
        let pod = self
            .context
            .stores
            .pods
            .get(&nomination.namespace, &nomination.name)?;
        let is_meant = pod.uid() == nomination.uid;
        let stays = pod.is_terminating()
            || pod.is_terminal()
            || pod.is_mirror()
            || pod.is_grouped()
            || pod.is_daemon_set_pod();
        (is_meant && !stays).then_some(pod)
    }

    fn candidate(&self, pod: &Pod) -> Candidate {
        let request = self.context.stores.requests.get(pod.namespace(), pod.uid());
        Candidate {
            uid: pod.uid().to_owned(),
            place: place_of(pod),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            request_ended: request.as_deref().and_then(canceled_at),
        }
    }

    /// The pods whose eviction is in flight, whoever requested it.
    fn in_flight(&self, now: Timestamp) -> InFlight {
        let stores = &self.context.stores;
        let mut memory = lock(&self.memory);
        memory.unseen.retain(|uid, (place, written)| {
            let is_seen = stores
                .requests
                .get(&place.namespace, uid)
                .is_some_and(|request| !request.is_finished());
            !is_seen && now.duration_since(*written).as_secs_f64() < UNSEEN.as_secs_f64()
        });
        let mut in_flight: InFlight = memory
            .unseen
            .iter()
            .map(|(uid, (place, _))| (uid.clone(), place.clone()))
            .collect();
        drop(memory);
        for request in stores.requests.all() {
            let Some(target) = &request.spec.target.pod else {
                continue;
            };
            if request.is_finished() {
                continue;
            }
            let namespace = request.metadata.namespace.clone().unwrap_or_default();
            let pod = stores.pods.get(&namespace, &target.name);
            if let Some(pod) = pod.filter(|pod| pod.uid() == target.uid) {
                in_flight.insert(target.uid.clone(), place_of(&pod));
            }
        }
        in_flight
    }

    /// How many pods were requested within the last hour, also before this process was started.
    fn recent(&self, now: Timestamp) -> usize {
        let is_recent = |at: Timestamp| now.duration_since(at).as_secs_f64() < HOUR.as_secs_f64();
        let mut memory = lock(&self.memory);
        memory.recent.retain(|_, at| is_recent(*at));
        let requests = self.context.stores.requests.all();
        let stored = requests.iter().filter(|request| {
            let created = request.metadata.creation_timestamp.as_ref();
            PARTY.is_requester(request)
                && created.is_some_and(|created| is_recent(created.0))
                && !memory
                    .recent
                    .contains_key(request.metadata.name.as_deref().unwrap_or_default())
        });
        memory.recent.len() + stored.count()
    }

    async fn request(&self, user: &UserInfo, pod: &Pod, now: Timestamp) -> Outcome {
        let request = self.context.stores.requests.get(pod.namespace(), pod.uid());
        let ended = request.as_deref().filter(|request| request.is_finished());
        let asked = Asked::now(
            user.username.as_deref().unwrap_or_default(),
            now,
            self.options.lifetime,
        );
        let drydock = &self.context.clients.drydock;
        let target = Target::of(pod, &self.context.labels);
        match PARTY.request(drydock, &target, &asked, ended).await {
            Ok(()) => {
                let mut memory = lock(&self.memory);
                memory.unseen.insert(pod.uid().to_owned(), (place_of(pod), now));
                memory.recent.insert(pod.uid().to_owned(), now);
                drop(memory);
                self.context.metrics.count_evacuation(PARTY.requester);
                Outcome::Requested
            }
            Err(error) => {
                let cause = error.cause();
                tracing::warn!(namespace = pod.namespace(), pod = pod.name(), %error, cause, "requesting a nominated pod failed");
                Outcome::Failed
            }
        }
    }
}

fn place_of(pod: &Pod) -> Place {
    Place {
        node: pod.spec.node_name.clone().unwrap_or_default(),
        namespace: pod.namespace().to_owned(),
    }
}

/// When a request was canceled.
fn canceled_at(request: &EvictionRequest) -> Option<Timestamp> {
    let mut conditions = request.status.iter().flat_map(|status| &status.conditions);
    let canceled = conditions.find(|condition| condition.type_ == CANCELED && condition.status == "True")?;
    Some(canceled.last_transition_time.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::access::tests::host;
    use crate::fixtures::{api_double, clock_at, context, empty_stores, merge, pod, typed};
    use crate::informer::Store;
    use crate::stores::Stores;

    const NOW: i64 = 10_000;

    fn user() -> UserInfo {
        UserInfo {
            username: Some("reader".to_owned()),
            ..UserInfo::default()
        }
    }

    fn pods(names: &[&str]) -> Vec<Pod> {
        let patch = |name: &&str| json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "creationTimestamp": "1970-01-01T00:00:00Z"}});
        names.iter().map(|name| pod(&patch(name))).collect()
    }

    fn nominations(names: &[&str]) -> Vec<Nomination> {
        let nominate = |name: &&str| Nomination {
            namespace: "shop".to_owned(),
            name: (*name).to_owned(),
            uid: format!("uid-{name}"),
        };
        names.iter().map(nominate).collect()
    }

    fn request(name: &str, patch: &Value) -> EvictionRequest {
        let uid = format!("uid-{name}");
        let mut request = json!({
            "metadata": {"name": uid, "namespace": "shop"}, "spec": {"target": {"pod": {"name": name, "uid": uid}}},
        });
        merge(&mut request, patch);
        typed(request)
    }

    fn requester(stores: Stores, fence: LeaseFence) -> (Requester, crate::fixtures::Received) {
        let clock = clock_at(NOW);
        let (clients, received) = api_double(|request| (200, request.body.clone()));
        let access = Access::new(host(), Vec::new(), Arc::clone(&clock) as _);
        let options = Options {
            limits: Limits {
                per_node: 2,
                per_namespace: 9,
                total: 9,
                per_hour: 9,
                pause: Duration::from_mins(5),
            },
            lifetime: Duration::from_hours(1),
        };
        let context = context(stores, clients, &clock);
        let requester = Requester::new(context, Arc::new(access), Arc::new(fence), options);
        (requester, received)
    }

    #[tokio::test]
    async fn nominated_pods_are_requested_within_the_limits() {
        use Outcome::{InProgress, NodeLimit, NotApplicable, Requested};
        let mut stores = empty_stores();
        stores.pods = Store::synced_with(pods(&["a", "b", "c"]));
        stores.requests = Store::synced_with(vec![request("a", &json!({}))]);
        let (requester, received) = requester(stores, LeaseFence::open());
        let outcomes = requester
            .nominate(&user(), &nominations(&["a", "b", "c", "gone"]))
            .await
            .unwrap();
        assert_eq!(outcomes, [InProgress, Requested, NodeLimit, NotApplicable]);
        // The watch has not delivered it yet, and it counts.
        let outcomes = requester
            .nominate(&user(), &nominations(&["b", "c"]))
            .await
            .unwrap();
        assert_eq!(outcomes, [InProgress, NodeLimit]);
        let received = received.lock().unwrap();
        assert_eq!(received.len(), 1);
        let written = &received[0].body;
        assert_eq!(
            written["spec"]["requesters"],
            json!([{"name": "descheduler.k8s.io"}])
        );
        let asked = written["metadata"]["annotations"][PARTY.annotation]
            .as_str()
            .unwrap();
        assert!(asked.contains("1970-01-01T03:46:40Z"), "{asked}");
    }

    #[tokio::test]
    async fn a_loop_of_nominations_is_limited_also_across_restarts() {
        use Outcome::{HourlyLimit, Requested};
        let ended = |created: &'static str| {
            let ended = json!({
                "metadata": {"creationTimestamp": created},
                "spec": {"requesters": [{"name": PARTY.requester}]},
                "status": {"conditions": [{
                    "type": "Evicted", "status": "True", "reason": "X", "message": "", "lastTransitionTime": created,
                }]},
            });
            (0..7).map(move |number| request(&format!("gone-{created}-{number}"), &ended))
        };
        let mut stores = empty_stores();
        stores.pods = Store::synced_with(pods(&["a", "b", "c"]));
        // Those of the last hour count, although their pods are long gone.
        let requests = ended("1970-01-01T01:46:41Z").chain(ended("1970-01-01T01:46:40Z"));
        stores.requests = Store::synced_with(requests.collect());
        let in_store = stores.clone();
        let (requester, _) = requester(stores, LeaseFence::open());
        let mut outcomes = Vec::new();
        for name in ["a", "b", "c"] {
            outcomes.extend(requester.nominate(&user(), &nominations(&[name])).await.unwrap());
            // It leaves at once, and so frees its places.
            in_store.pods.delete("shop", name);
            lock(&requester.memory).unseen.clear();
        }
        assert_eq!(outcomes, [Requested, Requested, HourlyLimit]);
        let metrics = requester.context.metrics.render();
        let line = "descheduling_nominations_total{outcome=\"HourlyLimit\"} 1";
        assert!(metrics.lines().any(|found| found == line), "{metrics}");
    }

    #[tokio::test]
    async fn pods_whose_request_ended_are_left_alone_for_a_while() {
        for (ended, expected) in [
            ("1970-01-01T02:45:00Z", Outcome::Pausing),
            ("1970-01-01T02:40:00Z", Outcome::Requested),
        ] {
            let mut stores = empty_stores();
            stores.pods = Store::synced_with(pods(&["a"]));
            let canceled = json!({"status": {"conditions": [{
                "type": "Canceled", "status": "True", "reason": "X", "message": "", "lastTransitionTime": ended,
            }]}});
            stores.requests = Store::synced_with(vec![request("a", &canceled)]);
            let (requester, received) = requester(stores, LeaseFence::open());
            let outcomes = requester.nominate(&user(), &nominations(&["a"])).await.unwrap();
            assert_eq!(outcomes, [expected], "{ended}");
            let methods: Vec<String> = received
                .lock()
                .unwrap()
                .iter()
                .map(|one| one.method.clone())
                .collect();
            let replaced = ["DELETE".to_owned(), "PATCH".to_owned()];
            assert_eq!(
                methods,
                if expected == Outcome::Requested {
                    &replaced[..]
                } else {
                    &[]
                }
            );
        }
    }

    #[tokio::test]
    async fn users_who_may_not_evict_and_replicas_that_do_not_lead_request_nothing() {
        let stores = || {
            let mut stores = empty_stores();
            stores.pods = Store::synced_with(pods(&["a"]));
            stores
        };
        let other = UserInfo {
            username: Some("other".to_owned()),
            ..UserInfo::default()
        };
        let (requester_of_leader, received) = requester(stores(), LeaseFence::open());
        let outcomes = requester_of_leader
            .nominate(&other, &nominations(&["a"]))
            .await
            .unwrap();
        assert_eq!(outcomes, [Outcome::Forbidden]);
        assert_eq!(received.lock().unwrap().len(), 0);
        let behind = stores();
        behind.requests.health().failed("unavailable (503)".to_owned());
        let (behind, _) = requester(behind, LeaseFence::open());
        let (status, _) = behind.nominate(&user(), &nominations(&["a"])).await.unwrap_err();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let (standby, _) = requester(stores(), LeaseFence::closed());
        let (status, _) = standby.nominate(&user(), &nominations(&["a"])).await.unwrap_err();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
