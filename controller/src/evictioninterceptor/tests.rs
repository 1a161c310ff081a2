use super::*;
use crate::fixtures::{api_double, clock_at, context, empty_stores, pod, typed};
use crate::informer::Store;
use serde_json::{Value, json};

fn interceptor(generation: i64, status: &Value) -> Arc<EvictionInterceptor> {
    Arc::new(typed(json!({
        "metadata": {"name": "a.example.com", "uid": "rule-1", "generation": generation},
        "spec": {
            "interceptorName": "a.example.com",
            "podSelector": {"matchLabels": {"app": "db"}},
            "matchConditions": [{"name": "c", "expression": "pod.metadata.name == 'db'"}],
        },
        "status": status,
    })))
}

#[test]
fn only_a_change_of_the_rule_queues_it() {
    let counted = json!({"matchedPods": 3});
    for (old, new, expected) in [
        (None, Some(interceptor(1, &json!({}))), true),
        (
            Some(interceptor(1, &json!({}))),
            Some(interceptor(1, &counted)),
            false,
        ),
        (
            Some(interceptor(1, &counted)),
            Some(interceptor(2, &counted)),
            true,
        ),
        (Some(interceptor(1, &counted)), None, true),
    ] {
        let change = Change { old, new };
        assert_eq!(is_new_rule(&change), expected, "{change:?}");
    }
}

#[tokio::test]
async fn complete_pods_are_listed_only_when_a_selector_matches() {
    for (app, lists, matched) in [("web", 0, 0), ("db", 1, 1)] {
        let (clients, received) = api_double(|request| {
            let page = json!({
                "apiVersion": "v1", "kind": "PodList", "metadata": {},
                "items": [{"metadata": {"name": "db", "namespace": "shop", "labels": {"app": "db"}}}],
            });
            let written =
                json!({"metadata": {"name": "a.example.com"}, "spec": {"interceptorName": "a.example.com"}});
            (
                200,
                if request.path.ends_with("/pods") {
                    page
                } else {
                    written
                },
            )
        });
        let mut stores = empty_stores();
        stores.pods = Store::synced_with(vec![pod(&json!({"metadata": {"labels": {"app": app}}}))]);
        stores.interceptors = Store::synced_with(vec![(*interceptor(1, &json!({}))).clone()]);
        let controller = Controller::new(context(stores, clients, &clock_at(0)), Arc::default());
        let outcome = controller.reconcile("a.example.com".to_owned()).await;
        assert!(matches!(outcome, Outcome::Wait(Some(_))), "{outcome:?}");
        let received = received.lock().unwrap().clone();
        let listed = received.iter().filter(|request| request.method == "GET").count();
        assert_eq!(listed, lists);
        let status = &received.last().unwrap().body["status"];
        assert_eq!(status["matchedPods"], matched);
        assert_eq!(status["conditions"][0]["status"], "True");
    }
}

/// The watch of namespaces may be behind that of pods: a rule must not be skipped for that.
#[tokio::test]
async fn rule_for_namespaces_makes_pods_of_an_unknown_namespace_wait() {
    let (clients, _) = api_double(|_| (200, json!({})));
    let mut object = (*interceptor(1, &json!({}))).clone();
    object.spec.match_conditions.clear();
    object.spec.namespace_selector = Some(typed(json!({"matchLabels": {"team": "a"}})));
    let mut stores = empty_stores();
    let pod = pod(&json!({"metadata": {"labels": {"app": "db"}}}));
    stores.interceptors = Store::synced_with(vec![object]);
    let context = context(stores, clients, &clock_at(0));
    let rules = Rules::default();
    let matching = rules.matching(&context.stores, &context.clients.host, &pod);
    let matching = matching.await.unwrap();
    assert!(matches!(matching, rules::Matching::Unknown(_)), "{matching:?}");
}

#[tokio::test]
async fn rule_that_cannot_be_compiled_is_reported_and_makes_its_pods_wait() {
    let (clients, received) = api_double(|_| (200, json!({"metadata": {"name": "a.example.com"}})));
    let mut object = (*interceptor(1, &json!({}))).clone();
    object.spec.match_conditions[0].expression = "pod.".to_owned();
    let mut stores = empty_stores();
    let pod = pod(&json!({"metadata": {"labels": {"app": "db"}}}));
    stores.pods = Store::synced_with(vec![pod.clone()]);
    stores.interceptors = Store::synced_with(vec![object]);
    let rules = Arc::<Rules>::default();
    let context = context(stores, clients, &clock_at(0));
    let matching = rules.matching(&context.stores, &context.clients.host, &pod);
    let matching = matching.await.unwrap();
    assert!(
        matches!(&matching, rules::Matching::Unknown(rule) if rule.name == "a.example.com"),
        "{matching:?}"
    );
    let controller = Controller::new(context, rules);
    controller.reconcile("a.example.com".to_owned()).await;
    let status = received.lock().unwrap().last().unwrap().body["status"].clone();
    assert_eq!(status["conditions"][0]["status"], "False");
    let message = status["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("matchConditions[c]"), "{message}");
    assert_eq!(status["matchedPods"], 0);
}
