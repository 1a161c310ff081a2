//! The interceptors of a request that is created in an older version: they are those of its pod, from its creation on.

use super::*;

const OLD: &str = "/apis/coordination.k8s.io/v1alpha1/namespaces/shop/evictionrequests";
const EVACUATIONS: &str = "/apis/coordination.k8s.io/v1alpha1/namespaces/shop/evacuations";
const LIST: &str = "evictionrequest.coordination.k8s.io/interceptors";

fn uid() -> String {
    (REQUESTS.name)(1)
}

/// A server whose namespace `shop` has a label, and a pod `web` with these members.
async fn served(pod: Value) -> Served {
    let served = Served::new().await;
    let labels = BTreeMap::from([("tier".to_owned(), "gold".to_owned())]);
    let namespace = Namespace::Active(Arc::new(labels));
    let host = &served.host;
    host.namespaces
        .lock()
        .unwrap()
        .insert("shop".to_owned(), namespace);
    let mut object = json!({"metadata": {"name": "web", "namespace": "shop", "uid": uid()}});
    for part in ["metadata", "spec"] {
        for (name, value) in pod[part].as_object().into_iter().flatten() {
            object[part][name] = value.clone();
        }
    }
    host.pods.lock().unwrap().insert("web".to_owned(), object);
    served
}

fn request(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1alpha1", "kind": "EvictionRequest", "metadata": {"name": uid()},
        "spec": {"target": {"podRef": {"name": name, "uid": uid()}}, "requesters": [{"name": "a.example.com"}]}})
}

async fn rule(served: &Served, name: &str, spec: Value) {
    let mut object = json!({"apiVersion": "coordination.k8s.io/v1alpha3", "kind": "EvictionInterceptor",
        "metadata": {"name": name}, "spec": spec});
    object["spec"]["interceptorName"] = json!(name);
    let line = format!("POST {}", INTERCEPTORS.path);
    served.send(&line, &object).await.json(201).await;
}

/// The names in a new request, the first of which acts first.
async fn created(served: &Served) -> Vec<String> {
    let line = format!("POST {OLD}?dryRun=All");
    let dry = served.send(&line, &request("web")).await.json(201).await;
    let line = format!("POST {OLD}");
    let created = served.send(&line, &request("web")).await.json(201).await;
    assert_eq!(created["spec"], dry["spec"]);
    let names = created["spec"]["interceptors"].as_array().into_iter().flatten();
    let names = names.map(|interceptor| interceptor["name"].as_str().unwrap().to_owned());
    let names: Vec<String> = names.rev().collect();
    // The stored object has them where the controller would have set them, and nobody owns them.
    let path = format!("{}/{}", REQUESTS.path, uid());
    let stored = served.get(&path).await.json(200).await;
    let targets = stored["status"]["targetInterceptors"]
        .as_array()
        .into_iter()
        .flatten();
    let targets: Vec<&str> = targets.map(|target| target["name"].as_str().unwrap()).collect();
    assert_eq!(targets, names);
    assert!(stored["status"].get("activeInterceptors").is_none());
    assert!(
        !stored["metadata"]["managedFields"]
            .to_string()
            .contains("nterceptors")
    );
    names
}

#[tokio::test]
async fn a_new_request_has_the_interceptors_of_its_pod() {
    let pod = json!({
        "metadata": {
            "labels": {"app": "web"},
            "annotations": {LIST: "listed.example.com", "evacuation.coordination.k8s.io/priority_last.example.com": "5"},
        },
        "spec": {"evictionInterceptors": [{"name": "field.example.com"}]},
    });
    let served = served(pod).await;
    let matches = json!({"podSelector": {"matchLabels": {"app": "web"}},
        "namespaceSelector": {"matchLabels": {"tier": "gold"}},
        "matchConditions": [{"name": "c", "expression": "namespace.metadata.labels.tier == 'gold'"}]});
    rule(&served, "rule.example.com", matches).await;
    let other = json!({"podSelector": {"matchLabels": {"app": "db"}}});
    rule(&served, "other.example.com", other).await;
    let condition = json!({"matchConditions": [{"name": "c", "expression": "pod.metadata.name == 'db'"}]});
    rule(&served, "condition.example.com", condition).await;
    let expected = [
        "rule.example.com",
        "field.example.com",
        "listed.example.com",
        "last.example.com",
        "imperative-eviction.k8s.io",
    ];
    assert_eq!(created(&served).await, expected);
    // Later requesters find the same ones, and may send them back.
    let path = format!("{OLD}/{}", uid());
    let found = served.get(&path).await.json(200).await;
    let put = served.send(&format!("PUT {path}"), &found).await.json(200).await;
    assert_eq!(put, found);
}

#[tokio::test]
async fn a_new_evacuation_has_the_evacuators_of_its_pod() {
    let served = served(json!({"metadata": {"annotations": {LIST: "listed.example.com"}}})).await;
    let evacuation = json!({"apiVersion": "coordination.k8s.io/v1alpha1", "kind": "Evacuation",
        "metadata": {"name": format!("{}-web", uid()), "finalizers": ["evacuation.coordination.k8s.io/instigator_a.example.com"]},
        "spec": {"podRef": {"name": "web", "uid": uid()}}});
    let created = served
        .send(&format!("POST {EVACUATIONS}"), &evacuation)
        .await
        .json(201)
        .await;
    let evacuators = json!([{"evacuatorClass": "listed.example.com", "priority": 11000},
        {"evacuatorClass": "imperative-eviction.k8s.io", "priority": 10500}]);
    assert_eq!(created["spec"]["evacuators"], evacuators);
}

#[tokio::test]
async fn an_apply_that_creates_a_request_does_not_own_its_interceptors() {
    let served = served(json!({"metadata": {"annotations": {LIST: "listed.example.com"}}})).await;
    let line = format!("PATCH {OLD}/{}?fieldManager=a", uid());
    let headers = [("content-type", "application/apply-patch+yaml")];
    let body = request("web").to_string();
    let applied = served
        .send_with(&line, &headers, body.clone())
        .await
        .json(201)
        .await;
    let names = json!([{"name": "imperative-eviction.k8s.io"}, {"name": "listed.example.com"}]);
    assert_eq!(applied["spec"]["interceptors"], names);
    let again = served.send_with(&line, &headers, body).await.json(200).await;
    assert_eq!(again, applied);
}

#[tokio::test]
async fn what_only_the_controller_can_decide_is_left_to_it() {
    let many: Vec<String> = (0..16).map(|number| format!("i{number}.example.com")).collect();
    let none: [String; 0] = [];
    let grouped = served(json!({"spec": {"workloadRef": {"name": "w"}}})).await;
    assert_eq!(created(&grouped).await, none);
    let crowded = served(json!({"metadata": {"annotations": {LIST: many.join(",")}}})).await;
    assert_eq!(created(&crowded).await, none);
    let unknown = served(json!({})).await;
    let condition = json!({"matchConditions": [{"name": "c", "expression": "pod.spec.absent == 1"}]});
    rule(&unknown, "unknown.example.com", condition).await;
    assert_eq!(created(&unknown).await, none);
    // In the stored version the controller decides always.
    let hub = served(json!({"metadata": {"annotations": {LIST: "listed.example.com"}}})).await;
    let object = REQUESTS.object(1);
    let created = hub
        .send(&format!("POST {}", REQUESTS.path), &object)
        .await
        .json(201)
        .await;
    assert!(
        created
            .get("status")
            .is_none_or(|status| status.get("targetInterceptors").is_none())
    );
}

#[tokio::test]
async fn declarations_that_are_skipped_are_reported() {
    let annotations = json!({LIST: "listed.example.com,not_a_name"});
    let served = served(json!({"metadata": {"annotations": annotations}})).await;
    let names = ["listed.example.com", "imperative-eviction.k8s.io"];
    assert_eq!(created(&served).await, names);
    let events = served.host.events.lock().unwrap().clone();
    let [event] = events.as_slice() else {
        panic!("the dry run is not reported: {events:?}")
    };
    let about = (event.kind.as_str(), event.name.as_str(), event.reason.as_str());
    assert_eq!(about, ("Pod", "web", "InvalidInterceptor"));
    assert!(event.note.contains("not_a_name"), "{}", event.note);
}
