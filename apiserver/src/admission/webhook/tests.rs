//! What is left of calls that failed.

use prometheus_client::registry::Registry;

use super::*;
use crate::admission::attributes::Phase;
use crate::admission::conditions::Unevaluated;
use crate::admission::creation::Creation;
use crate::fixtures::{FakeHost, noon};
use crate::host::{AuthenticationConfig, Host};
use crate::http::client::SystemResolver;
use crate::metrics::Metrics;

/// Webhooks that cannot be called, and that need not be: one for pods, and two for everything.
fn configurations(kind: FollowedKind) -> Arc<Followed> {
    let webhook = |name: &str, resources: &str| {
        json!({
            "name": name, "clientConfig": {"url": "http://insecure.example.com"}, "failurePolicy": "Ignore",
            "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": [resources], "operations": ["*"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        })
    };
    let webhooks = [
        webhook("pods.example.com", "pods"),
        webhook("w.example.com", "*"),
        webhook("x.example.com", "*"),
    ];
    let configuration = json!({"metadata": {"name": "c"}, "webhooks": webhooks});
    let followed = Followed::new(kind);
    followed.replace(vec![Arc::new(configuration)]);
    Arc::new(followed)
}

/// Checklist 56.
#[tokio::test]
async fn webhooks_that_are_passed_over_are_counted_and_recorded() {
    let mut registry = Registry::default();
    let context = WebhookContext {
        client: Arc::new(Client::new(SystemResolver)),
        metrics: Metrics::register(&mut registry, []).admission().clone(),
        conditions: Arc::new(Unevaluated),
        credentials: Arc::default(),
    };
    let host: Arc<dyn Host> = FakeHost::new(AuthenticationConfig::default());
    let creation = Creation::new();
    let attributes = |phase| Attributes::new(creation.write(), phase, &host, noon());
    let mutating = MutatingWebhooks::new(configurations(MUTATING), context.clone());
    let mut mutation = Mutation::new(attributes(Phase::Mutating));
    mutating.admit(&mut mutation).await.unwrap();
    let validating = ValidatingWebhooks::new(configurations(VALIDATING), context);
    validating.validate(&attributes(Phase::Validating)).await.unwrap();
    let contents = creation.audit.contents();
    let annotation = |key: &str| contents.annotations[key].as_str();
    // kube-apiserver counts mutating webhooks among all of them, and validating ones among those that it calls.
    let places = [
        ("mutation", 1, "w"),
        ("mutation", 2, "x"),
        ("validating", 0, "w"),
        ("validating", 1, "x"),
    ];
    for (phase, index, name) in places {
        let key = format!("failed-open.{phase}.webhook.admission.k8s.io/round_0_index_{index}");
        assert_eq!(annotation(&key), format!("{name}.example.com"));
    }
    let failed_open = |key: &&String| key.starts_with("failed-open.");
    assert_eq!(
        contents.annotations.keys().filter(failed_open).count(),
        places.len()
    );
    let mutated = annotation("mutation.webhook.admission.k8s.io/round_0_index_1");
    assert_eq!(
        serde_json::from_str::<Value>(mutated).unwrap(),
        json!({"configuration": "c", "webhook": "w.example.com", "mutated": false})
    );
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for step in ["admit", "validating"] {
        let line = format!(
            "apiserver_admission_webhook_fail_open_count{{name=\"w.example.com\",type=\"{step}\"}} 1"
        );
        assert!(text.contains(&line), "{line} is not in {text}");
    }
}
