use super::*;
use crate::host::{ResourceAttributes, SelectorOperator};

fn user() -> Arc<UserInfo> {
    Arc::new(UserInfo {
        name: "u".to_owned(),
        groups: vec!["g".to_owned()],
        extra: BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]),
        ..UserInfo::default()
    })
}

#[test]
fn reviews_leave_empty_members_out() {
    let attributes = Attributes::Resource(ResourceAttributes {
        verb: "list".to_owned(),
        group: "coordination.k8s.io".to_owned(),
        version: "v1alpha3".to_owned(),
        resource: "evictionrequests".to_owned(),
        label_selector: vec![
            SelectorRequirement {
                key: "a".to_owned(),
                operator: SelectorOperator::In,
                values: vec!["b".to_owned()],
            },
            SelectorRequirement {
                key: "c".to_owned(),
                operator: SelectorOperator::Exists,
                values: Vec::new(),
            },
        ],
        ..ResourceAttributes::default()
    });
    assert_eq!(
        subject_access_review(&AccessReview {
            user: user(),
            attributes
        }),
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": "u", "groups": ["g"], "extra": {"k": ["v"]},
                "resourceAttributes": {
                    "verb": "list", "group": "coordination.k8s.io", "version": "v1alpha3",
                    "resource": "evictionrequests",
                    "labelSelector": {"requirements": [
                        {"key": "a", "operator": "In", "values": ["b"]}, {"key": "c", "operator": "Exists"},
                    ]},
                },
            },
        })
    );
    let attributes = Attributes::Path {
        verb: "get".to_owned(),
        path: "/metrics".to_owned(),
    };
    let review = subject_access_review(&AccessReview {
        user: user(),
        attributes,
    });
    assert_eq!(
        review["spec"]["nonResourceAttributes"],
        json!({"path": "/metrics", "verb": "get"})
    );
    assert_eq!(review["spec"].get("resourceAttributes"), None);
}

#[test]
fn denied_beats_allowed_and_neither_is_no_opinion() {
    for (status, verdict) in [
        (json!({"allowed": true}), AccessVerdict::Allowed(String::new())),
        (
            json!({"allowed": true, "denied": true, "reason": "r"}),
            AccessVerdict::Denied("r".to_owned()),
        ),
        (
            json!({"allowed": false, "reason": "r"}),
            AccessVerdict::NoOpinion("r".to_owned()),
        ),
        (
            json!({"evaluationError": "e"}),
            AccessVerdict::NoOpinion(String::new()),
        ),
    ] {
        assert_eq!(access_verdict(json!({ "status": status })).unwrap(), verdict);
    }
}

#[test]
fn a_token_is_good_only_with_a_user_name() {
    let good =
        json!({"authenticated": true, "user": {"username": "u", "groups": ["g"], "extra": {"k": ["v"]}}});
    assert_eq!(
        token_verdict(json!({ "status": good })).unwrap(),
        TokenVerdict::Authenticated(Arc::new(UserInfo {
            uid: String::new(),
            ..UserInfo::clone(&user())
        }))
    );
    for (status, verdict) in [
        (json!({"authenticated": true, "user": {}}), TokenVerdict::Unknown),
        (
            json!({"authenticated": false, "error": "bad"}),
            TokenVerdict::Refused("bad".to_owned()),
        ),
        (json!({}), TokenVerdict::Unknown),
    ] {
        assert_eq!(token_verdict(json!({ "status": status })).unwrap(), verdict);
    }
    assert!(
        token_verdict(json!({})).is_err(),
        "an answer without a status is none"
    );
}

fn object(name: &str, labels: &[(&str, &str)], deleted: bool) -> PartialObjectMeta<KubeNamespace> {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(labels),
        deletion_timestamp: deleted
            .then(|| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(crate::fixtures::noon())),
        ..ObjectMeta::default()
    };
    PartialObjectMeta {
        metadata,
        ..PartialObjectMeta::default()
    }
}

#[tokio::test]
async fn readers_never_see_half_a_list() {
    let copy: Arc<Mirror<MirroredNamespace>> = Arc::default();
    let (events, received) = tokio::sync::mpsc::channel::<Event<PartialObjectMeta<KubeNamespace>>>(8);
    let stream = futures_util::stream::unfold(received, |mut received| async move {
        received.recv().await.map(|event| (Ok(event), received))
    });
    let task = tokio::spawn(mirror(
        stream.boxed(),
        Arc::clone(&copy),
        "namespaces",
        mirrored_namespace,
    ));
    let settled = async || {
        while events.capacity() < 8 {
            tokio::task::yield_now().await;
        }
    };

    events.send(Event::Init).await.unwrap();
    events
        .send(Event::InitApply(object("a", &[("k", "v")], false)))
        .await
        .unwrap();
    settled().await;
    assert!(copy.get("a").is_none() && !copy.synced.is_set());
    events.send(Event::InitDone).await.unwrap();
    settled().await;
    tokio::task::yield_now().await;
    let labels = Arc::new(BTreeMap::from([("k".to_owned(), "v".to_owned())]));
    assert_eq!(copy.get("a").unwrap().state(), Namespace::Active(labels));

    events.send(Event::Apply(object("a", &[], true))).await.unwrap();
    events.send(Event::Delete(object("b", &[], false))).await.unwrap();
    settled().await;
    tokio::task::yield_now().await;
    assert!(matches!(
        copy.get("a").unwrap().state(),
        Namespace::Terminating(_)
    ));
    drop(events);
    task.await.unwrap();
}

#[test]
fn event_names_are_valid_for_any_object() {
    let now = crate::fixtures::noon();
    assert_eq!(
        event_name("web-0", now),
        format!("web-0.{:x}", now.as_nanosecond())
    );
    let long = format!("{}-{}", "x".repeat(229), "y".repeat(23));
    let name = event_name(&long, now);
    assert!(
        name.len() <= 253 && name.starts_with(&format!("{}.", "x".repeat(229))),
        "{name}"
    );
}
