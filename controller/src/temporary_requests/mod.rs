//! Requests that end by themselves: a party that may go away without a word asks for the eviction of a pod for a time, and
//! the request says until when. [`expiry`] withdraws the party when that time is over.
//!
//! Each party applies under a manager of its own, so that the requesters of others are never part of a write.

pub mod expiry;

use std::collections::BTreeMap;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::EvictionRequest;
use jiff::Timestamp;
use kube::api::Preconditions;
use kube::{Api, Client, Resource};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::api::{self, Error};
use crate::pod::Pod;
use crate::request_labels::{self, RequestLabels};

/// The longest name of a user that is recorded, in bytes.
const MAX_USER_BYTES: usize = 253;

/// A party that asks for evictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// Its name among the requesters.
    pub requester: &'static str,
    /// The name under which it owns fields.
    pub manager: &'static str,
    /// The annotation of a request that says who asked last, and until when.
    pub annotation: &'static str,
}

/// The pod that is asked to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, which is the name of the request.
    pub uid: String,
    /// Its labels, as far as its request has them.
    pub labels: BTreeMap<String, String>,
}

impl Target {
    /// A pod.
    #[must_use]
    pub fn of(pod: &Pod, rules: &RequestLabels) -> Self {
        Self {
            labels: rules.of_pod(pod.labels()),
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
        }
    }

    /// What a request says about it.
    fn reference(&self) -> Value {
        json!({ "pod": { "name": self.name, "uid": self.uid } })
    }
}

/// Who asked last for the eviction, and how long the request lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The user.
    #[serde(rename = "by")]
    pub user: String,
    /// When the request ends if nobody asks again.
    pub until: Timestamp,
}

impl Asked {
    /// A user asks now.
    #[must_use]
    pub fn now(user: &str, now: Timestamp, lifetime: Duration) -> Self {
        let mut end = user.len().min(MAX_USER_BYTES);
        while !user.is_char_boundary(end) {
            end -= 1;
        }
        let until = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
        Self {
            user: user.get(..end).unwrap_or_default().to_owned(),
            // Whole seconds are enough, and short.
            until: Timestamp::from_second(until.as_second()).unwrap_or(until),
        }
    }

    /// What a request says about a party. `None` without its annotation, or when that is not its.
    #[must_use]
    pub fn of(request: &EvictionRequest, party: Party) -> Option<Self> {
        let annotations = request.metadata.annotations.as_ref()?;
        serde_json::from_str(annotations.get(party.annotation)?).ok()
    }

    /// Whether the request lives almost as long with what it says already: at least two thirds of the lifetime, so that
    /// asking again and again writes seldom.
    #[must_use]
    pub fn is_fresh(&self, now: Timestamp, lifetime: Duration) -> bool {
        let left = self.until.duration_since(now).as_secs_f64();
        left * 3.0 >= lifetime.as_secs_f64() * 2.0
    }
}

impl Party {
    /// Whether it is among the requesters.
    #[must_use]
    pub fn is_requester(self, request: &EvictionRequest) -> bool {
        let mut requesters = request.spec.requesters.iter();
        requesters.any(|requester| requester.name == self.requester)
    }

    /// Creates or joins the request of a pod, and writes who asked. `ended` is a request of the pod that has ended without it,
    /// which is replaced.
    ///
    /// # Errors
    ///
    /// [`Error`]; a conflict when somebody else changed an ended request, or the object was replaced meanwhile.
    pub async fn request(
        self,
        drydock: &Client,
        target: &Target,
        asked: &Asked,
        ended: Option<&EvictionRequest>,
    ) -> Result<(), Error> {
        let requests: Api<EvictionRequest> = Api::namespaced(drydock.clone(), &target.namespace);
        if let Some(ended) = ended {
            let preconditions = Preconditions {
                uid: ended.metadata.uid.clone(),
                resource_version: ended.metadata.resource_version.clone(),
            };
            match api::delete(&requests, &target.uid, preconditions).await {
                Err(error) if error.is_not_found() => {}
                deleted => deleted?,
            }
        }
        let who = (self.annotation.to_owned(), json!(asked).to_string());
        let spec = json!({ "target": target.reference(), "requesters": [{ "name": self.requester }] });
        self.apply(&requests, target, Map::new(), Some(who), &spec).await
    }

    /// Withdraws from the request of a pod.
    ///
    /// # Errors
    ///
    /// [`Error`]; not found when the request is gone.
    pub async fn withdraw(
        self,
        drydock: &Client,
        request: &EvictionRequest,
        target: &Target,
    ) -> Result<(), Error> {
        let requests: Api<EvictionRequest> = Api::namespaced(drydock.clone(), &target.namespace);
        // An apply removes what this manager owned and leaves out. The UID keeps it from creating the request, the version
        // from withdrawing one that was renewed a moment ago.
        let preconditions = json!({
            "uid": request.metadata.uid,
            "resourceVersion": request.metadata.resource_version,
        });
        let preconditions = preconditions.as_object().cloned().unwrap_or_default();
        let spec = json!({ "target": target.reference() });
        self.apply(&requests, target, preconditions, None, &spec).await
    }

    /// Applies a request with this spec. It has the labels of its pod from the beginning, which saves a write, unless somebody else
    /// has given them other values.
    async fn apply(
        self,
        requests: &Api<EvictionRequest>,
        target: &Target,
        mut metadata: Map<String, Value>,
        who: Option<(String, String)>,
        spec: &Value,
    ) -> Result<(), Error> {
        metadata.insert("name".to_owned(), json!(target.uid));
        metadata.insert("namespace".to_owned(), json!(target.namespace));
        let config = |metadata: &Map<String, Value>| {
            json!({
                "apiVersion": EvictionRequest::api_version(&()),
                "kind": EvictionRequest::kind(&()),
                "metadata": metadata,
                "spec": spec,
            })
        };
        let mut described = metadata.clone();
        let mut annotations = request_labels::annotations();
        annotations.extend(who.clone());
        described.insert("annotations".to_owned(), json!(annotations));
        if !target.labels.is_empty() {
            described.insert("labels".to_owned(), json!(target.labels));
        }
        match api::apply(requests, &target.uid, self.manager, &config(&described)).await {
            Err(error) if error.is_field_conflict() => {}
            applied => return applied.map(drop),
        }
        if let Some((annotation, who)) = who {
            metadata.insert("annotations".to_owned(), json!({ annotation: who }));
        }
        api::apply(requests, &target.uid, self.manager, &config(&metadata)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{api_double, failure, pod, typed};

    const PARTY: Party = Party {
        requester: "party.example.com",
        manager: "party",
        annotation: "party.example.com/asked",
    };

    #[test]
    fn asking_again_renews_after_a_third_of_the_lifetime() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let lifetime = Duration::from_mins(15);
        let asked = Asked::now(&"ä".repeat(200), at(0), lifetime);
        assert_eq!((asked.user.len(), asked.until), (252, at(900)));
        assert!(asked.is_fresh(at(300), lifetime));
        assert!(!asked.is_fresh(at(301), lifetime));
        // The descheduler needs more than a person has left.
        assert!(!asked.is_fresh(at(0), Duration::from_hours(2)));
        let annotation = serde_json::to_string(&asked).unwrap();
        let mut request: EvictionRequest = typed(json!({"metadata": {"name": "uid-1"}}));
        request.metadata.annotations = Some([(PARTY.annotation.to_owned(), annotation)].into());
        assert_eq!(Asked::of(&request, PARTY), Some(asked));
        request.metadata.annotations = Some([(PARTY.annotation.to_owned(), "{".to_owned())].into());
        assert_eq!(Asked::of(&request, PARTY), None);
    }

    #[tokio::test]
    async fn requests_have_the_labels_of_their_pods_unless_somebody_gave_them_others() {
        let labels = json!({"app": "web", "argocd.argoproj.io/instance": "shop"});
        let web = pod(&json!({"metadata": {"labels": labels}}));
        let target = Target::of(&web, &RequestLabels::default());
        let asked = Asked::now("admin", Timestamp::UNIX_EPOCH, Duration::from_mins(15));
        for is_taken in [false, true] {
            let (clients, received) = api_double(move |request| {
                if is_taken && !request.body["metadata"]["labels"].is_null() {
                    let cause =
                        json!({"reason": "FieldManagerConflict", "message": "conflict with \"other\""});
                    return failure(409, "Conflict", "conflict", json!({"causes": [cause]}));
                }
                (200, request.body.clone())
            });
            PARTY
                .request(&clients.drydock, &target, &asked, None)
                .await
                .unwrap();
            let received = received.lock().unwrap();
            let metadata = &received.last().unwrap().body["metadata"];
            let expected = if is_taken {
                Value::Null
            } else {
                json!({"app": "web"})
            };
            assert_eq!(metadata["labels"], expected);
            assert!(metadata["annotations"][PARTY.annotation].is_string());
            assert_eq!(received.len(), 1 + usize::from(is_taken));
        }
    }
}
