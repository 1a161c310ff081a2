//! Withdraws parties whose time is over. Acts in the leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::EvictionRequest;
use jiff::Timestamp;

use super::{Asked, Party, Target};
use crate::context::Context;
use crate::informer::{Change, ObjectKey, key_of};
use crate::stores::Informers;
use crate::work_queue::{Outcome, WorkQueue};

/// Withdraws one party.
#[derive(Debug)]
pub struct Controller {
    context: Arc<Context>,
    party: Party,
    /// How long a request lives whose annotation cannot be read.
    lifetime: Duration,
}

impl Controller {
    /// A controller.
    #[must_use]
    pub fn new(context: Arc<Context>, party: Party, lifetime: Duration) -> Self {
        Self {
            context,
            party,
            lifetime,
        }
    }

    /// Withdraws from one request when its time is up.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let Some(request) = self.context.stores.requests.get(&key.0, &key.1) else {
            return Outcome::Wait(None);
        };
        let Some(until) = expires_at(&request, self.party, self.lifetime) else {
            return Outcome::Wait(None);
        };
        if self.context.clock.now() < until {
            return Outcome::Wait(Some(until));
        }
        let pod = request.spec.target.pod.clone().unwrap_or_default();
        let known = self.context.stores.pods.get(&key.0, &pod.name);
        let target = match known.filter(|known| known.uid() == pod.uid) {
            Some(known) => Target::of(&known, &self.context.labels),
            None => Target {
                namespace: key.0.clone(),
                name: pod.name,
                uid: pod.uid,
                labels: BTreeMap::new(),
            },
        };
        match self
            .party
            .withdraw(&self.context.clients.drydock, &request, &target)
            .await
        {
            Ok(()) => {
                self.context.metrics.count_withdrawal(self.party.requester);
                tracing::info!(
                    namespace = key.0,
                    pod = target.name,
                    requester = self.party.requester,
                    "withdrawn from an eviction request: its time is over"
                );
                Outcome::Wait(None)
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Outcome::Wait(None),
            Err(error) => {
                let cause = error.cause();
                tracing::warn!(namespace = key.0, name = key.1, %error, cause, "withdrawing a request failed");
                Outcome::Retry
            }
        }
    }
}

/// When the party leaves the request; `None` if it is no requester, or cannot leave. Others may use the name of its requester:
/// only the annotation says that the request is its own.
fn expires_at(request: &EvictionRequest, party: Party, lifetime: Duration) -> Option<Timestamp> {
    let annotations = request.metadata.annotations.as_ref();
    let is_own = party.is_requester(request)
        && annotations.is_some_and(|annotations| annotations.contains_key(party.annotation));
    if !is_own || request.is_finished() || request.is_cancellation_forbidden() {
        return None;
    }
    Asked::of(request, party).map(|asked| asked.until).or_else(|| {
        let created = request.metadata.creation_timestamp.as_ref()?;
        created.0.checked_add(lifetime).ok()
    })
}

/// Queues the requests of a party when they change.
pub fn add_handlers(informers: &mut Informers, queue: &Arc<WorkQueue<ObjectKey>>, party: Party) {
    let queue = Arc::clone(queue);
    informers
        .requests
        .add_handler(move |change: &Change<EvictionRequest>| {
            if let Some(request) = change.latest()
                && change.states().any(|request| party.is_requester(request))
            {
                queue.add(key_of(&**request));
            }
        });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{api_double, clock_at, context, empty_stores, merge, typed};
    use crate::informer::Store;

    const PARTY: Party = Party {
        requester: "party.example.com",
        manager: "party",
        annotation: "party.example.com/asked",
    };

    fn asked_until(second: i64) -> Value {
        let until = Timestamp::from_second(second).unwrap().to_string();
        json!({"metadata": {"annotations": {PARTY.annotation: json!({"by": "admin", "until": until}).to_string()}}})
    }

    /// Reconciles a request of the party, changed by merge patches. Returns the body of the apply, if there was one.
    async fn reconcile(patches: &[&Value], second: i64) -> Option<Value> {
        let mut request = json!({
            "metadata": {
                "name": "uid-1", "namespace": "shop", "uid": "request-1", "creationTimestamp": "1970-01-01T00:00:00Z",
            },
            "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": PARTY.requester}]},
        });
        for patch in patches {
            merge(&mut request, patch);
        }
        let mut stores = empty_stores();
        stores.requests = Store::synced_with(vec![typed(request)]);
        let (clients, received) = api_double(|request| (200, request.body.clone()));
        let context = context(stores, clients, &clock_at(second));
        let controller = Controller::new(context, PARTY, Duration::from_mins(15));
        controller
            .reconcile(("shop".to_owned(), "uid-1".to_owned()))
            .await;
        let received = received.lock().unwrap();
        received.last().map(|request| request.body.clone())
    }

    #[tokio::test]
    async fn parties_are_withdrawn_when_their_time_is_over() {
        let asked = asked_until(800);
        let damaged = json!({"metadata": {"annotations": {PARTY.annotation: "{"}}});
        let others = json!({"spec": {"requesters": [{"name": "other.example.com"}]}});
        let forbidden = json!({"status": {"evictionRequestCancellationPolicy": "Forbid"}});
        let finished = json!({"status": {"conditions": [{
            "type": "Canceled", "status": "True", "reason": "X", "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }]}});
        for (patches, second, expected) in [
            (vec![&asked], 799, false),
            (vec![&asked], 800, true),
            // With an annotation that cannot be read, from when it was created.
            (vec![&damaged], 899, false),
            (vec![&damaged], 900, true),
            // That of another program with the same requester.
            (vec![], 1_000_000, false),
            (vec![&asked, &others], 800, false),
            (vec![&asked, &forbidden], 800, false),
            (vec![&asked, &finished], 800, false),
        ] {
            let written = reconcile(&patches, second).await;
            assert_eq!(written.is_some(), expected, "{patches:?} at {second}");
            if let Some(written) = written {
                assert_eq!(written["spec"].get("requesters"), None);
                assert_eq!(written["metadata"]["uid"], "request-1");
                assert_eq!(written["metadata"]["annotations"].get(PARTY.annotation), None);
            }
        }
    }
}
