//! What becomes of a write if a webhook cannot or may not be called. Calls that succeed are tested with the real host.

use futures_util::future::BoxFuture;

use super::faces::V1;
use super::*;
use crate::admission::attributes::Attributes;
use crate::admission::conditions::Unevaluated;
use crate::admission::plugin::{MutatingPlugin, Plugin, ValidatingPlugin};
use crate::admission::webhook::{MUTATING, MutatingWebhooks, VALIDATING, ValidatingWebhooks, WebhookContext};
use crate::host::Followed;
use crate::http::client::{Client, SystemResolver};
use crate::registry::admission::{Operation, WriteAttributes};

/// A configuration with one webhook for every write, with these members instead of the usual. It has no valid address.
fn configuration(members: &Value) -> Value {
    let mut webhook = json!({
        "name": "w.example.com", "clientConfig": {"url": "http://insecure.example.com"},
        "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v2", "v1"],
    });
    webhook
        .as_object_mut()
        .unwrap()
        .extend(members.as_object().unwrap().clone());
    json!({"metadata": {"name": "c"}, "webhooks": [webhook]})
}

/// The test's kind under one webhook, mutating or validating.
pub(super) async fn under(members: &Value, is_mutating: bool) -> Served {
    let followed = Followed::new(if is_mutating { MUTATING } else { VALIDATING });
    followed.replace(vec![Arc::new(configuration(members))]);
    let followed = Arc::new(followed);
    let served = Served::with_policy(&[V1], MemoryStore::new(), |host, clock, metrics| {
        let context = WebhookContext {
            client: Arc::new(Client::new(SystemResolver)),
            metrics: metrics.clone(),
            conditions: Arc::new(Unevaluated),
            credentials: Arc::default(),
        };
        let (mut mutating, mut validating) = (
            Vec::<Box<dyn MutatingPlugin>>::new(),
            Vec::<Box<dyn ValidatingPlugin>>::new(),
        );
        if is_mutating {
            mutating.push(Box::new(MutatingWebhooks::new(followed, context)));
        } else {
            validating.push(Box::new(ValidatingWebhooks::new(followed, context)));
        }
        ClusterPolicy::new(host, clock, metrics, mutating, validating)
    });
    served.ready().await;
    served
}

/// The code and the message of a create; a created object has no message.
async fn outcome(members: Value, query: &str) -> Vec<(u16, String)> {
    let mut outcomes = Vec::new();
    for is_mutating in [true, false] {
        let served = under(&members, is_mutating).await;
        let answer = served
            .send(&format!("POST {}{query}", V1.path), &V1.object(1))
            .await;
        let code = answer.code;
        let body = answer.json(code).await;
        outcomes.push((code, body["message"].as_str().unwrap_or_default().to_owned()));
    }
    outcomes
}

fn both(code: u16, message: &str) -> Vec<(u16, String)> {
    vec![(code, message.to_owned()), (code, message.to_owned())]
}

#[tokio::test]
async fn a_webhook_that_cannot_be_called_follows_its_failure_policy() {
    let failed = "Internal error occurred: failed calling webhook \"w.example.com\": failed to call webhook: could not \
                  get REST client: the url \"http://insecure.example.com\" is not one of https";
    assert_eq!(outcome(json!({}), "").await, both(500, failed));
    assert_eq!(
        outcome(json!({"failurePolicy": "Ignore"}), "").await,
        both(201, "")
    );
    let unknown = "Internal error occurred: failed calling webhook \"w.example.com\": could not create admission \
                   objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
    assert_eq!(
        outcome(json!({"admissionReviewVersions": ["v2"]}), "").await,
        both(500, unknown)
    );
    let unreadable = json!({"rules": "none", "failurePolicy": "Ignore"});
    assert_eq!(outcome(unreadable, "").await, both(201, ""));
    assert_eq!(
        outcome(json!({"rules": "none"}), "").await[0].0,
        500,
        "it is not skipped"
    );
}

#[tokio::test]
async fn match_conditions_that_cannot_be_evaluated_follow_the_failure_policy() {
    let conditions = json!([{"name": "c", "expression": "true"}]);
    let refused = format!(
        "foos.coordination.k8s.io \"{}\" is forbidden: this server cannot evaluate matchConditions",
        (V1.name)(1)
    );
    assert_eq!(
        outcome(json!({"matchConditions": conditions}), "").await,
        both(403, &refused)
    );
    let open = json!({"matchConditions": conditions, "failurePolicy": "Ignore"});
    assert_eq!(outcome(open, "").await, both(201, ""));
}

/// Checklist 57.
#[tokio::test]
async fn a_webhook_with_side_effects_is_not_called_for_a_dry_run() {
    let refused = "admission webhook \"w.example.com\" does not support dry run";
    for effects in ["Some", "Unknown"] {
        let members = json!({"sideEffects": effects, "failurePolicy": "Ignore"});
        assert_eq!(outcome(members.clone(), "?dryRun=All").await, both(400, refused));
        assert_eq!(outcome(members, "").await, both(201, ""));
    }
    let allowed = json!({"sideEffects": "NoneOnDryRun", "failurePolicy": "Ignore"});
    assert_eq!(outcome(allowed, "?dryRun=All").await, both(201, ""));
}

/// Checklist 52: what a rule names decides before anything else is looked at.
#[tokio::test]
async fn rules_match_operations_resources_and_scope() {
    let rule = |member: &str, value: Value| {
        let mut rule = json!({"apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"], "resources": ["foos"],
            "operations": ["CREATE"]});
        rule[member] = value;
        json!({"rules": [rule]})
    };
    let cases = [
        (rule("operations", json!(["CREATE", "UPDATE"])), true),
        (rule("operations", json!(["UPDATE", "DELETE"])), false),
        (rule("apiGroups", json!(["", "apps"])), false),
        (rule("apiVersions", json!(["v1alpha1"])), true),
        (rule("apiVersions", json!(["v2"])), false),
        (rule("resources", json!(["foos/status", "foos/*"])), true),
        (rule("resources", json!(["foos/status", "*/status"])), false),
        (rule("resources", json!(["*"])), true),
        (rule("resources", json!(["bars", "*/*"])), true),
        (rule("scope", json!("Namespaced")), true),
        (rule("scope", json!("Cluster")), false),
        (rule("scope", json!("*")), true),
    ];
    for (members, matches) in cases {
        let code = if matches { 500 } else { 201 };
        let found: Vec<u16> = outcome(members.clone(), "")
            .await
            .iter()
            .map(|(code, _)| *code)
            .collect();
        assert_eq!(found, [code, code], "{members}");
    }
}

/// Records the revision of the object that each update replaces, and lets the first two updates go on together.
struct Meeting {
    source: Arc<Followed>,
    both: tokio::sync::Barrier,
    replaced: std::sync::Mutex<Vec<u64>>,
}

impl Plugin for Arc<Meeting> {
    fn name(&self) -> &'static str {
        "Meeting"
    }

    fn sources(&self) -> Vec<&Arc<Followed>> {
        vec![&self.source]
    }

    fn concerns(&self, write: &WriteAttributes<'_>) -> bool {
        write.operation == Operation::Update
    }
}

impl ValidatingPlugin for Arc<Meeting> {
    fn plugin(&self) -> &dyn Plugin {
        self
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let number = {
                let mut replaced = self.replaced.lock().unwrap();
                replaced.push(attributes.write().revision.unwrap().0);
                replaced.len()
            };
            if number <= 2 {
                self.both.wait().await;
            }
            Ok(())
        })
    }
}

/// Checklist 63.
#[tokio::test]
async fn an_update_that_conflicts_is_admitted_again_with_the_newer_object() {
    let followed = Followed::new(VALIDATING);
    followed.replace(Vec::new());
    let meeting = Arc::new(Meeting {
        source: Arc::new(followed),
        both: tokio::sync::Barrier::new(2),
        replaced: std::sync::Mutex::default(),
    });
    let plugin = Arc::clone(&meeting);
    let served = Served::with_policy(&[V1], MemoryStore::new(), |host, clock, metrics| {
        ClusterPolicy::new(host, clock, metrics, Vec::new(), vec![Box::new(plugin)])
    });
    served.ready().await;
    let created = revision(&served.create(&V1, 1).await);
    let line = format!("PATCH {}", V1.item(1));
    let (size, label) = (
        json!({"spec": {"size": 7}}),
        json!({"metadata": {"labels": {"l": "x"}}}),
    );
    let (one, other) = tokio::join!(served.send(&line, &size), served.send(&line, &label));
    one.json(200).await;
    other.json(200).await;
    let after = served.get(&V1.item(1)).await.json(200).await;
    assert_eq!(
        (&after["spec"]["size"], &after["metadata"]["labels"]["l"]),
        (&json!(7), &json!("x"))
    );
    let replaced = meeting.replaced.lock().unwrap().clone();
    assert!(
        replaced.len() == 3 && replaced[..2] == [created, created] && replaced[2] > created,
        "{replaced:?}"
    );
}
