use std::collections::BTreeMap;
use std::sync::Mutex;

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::host::reviews::{ReviewTtls, Reviews};
use crate::host::{AccessVerdict, AuthenticationConfig, HostError, HostEvent, NodeMetadata, TokenVerdict};
use crate::metrics::{Metrics, ServedResource};
use crate::registry::admission::{Operation, Options};
use crate::registry::part::Part;
use crate::registry::registration::Registration;
use crate::registry::{evictionrequest, nodemaintenance};
use crate::request::audit::TARGET_AUTHORIZATION;
use crate::request::options::WriteOptions;
use crate::request::{AuditLevel, AuditRecord, UserInfo, Warnings};

/// A cluster in which the user has the listed rights: `pods/NAMESPACE/NAME` to delete a pod, `VERB RESOURCE/NAMESPACE/NAME` for
/// other verbs; an empty name stands for all.
#[derive(Default)]
struct Cluster {
    allowed: Vec<&'static str>,
    is_down: bool,
    nodes: Vec<(&'static str, Vec<&'static str>)>,
    reviewed: Mutex<Vec<String>>,
}

impl Host for Cluster {
    fn authentication(&self) -> watch::Receiver<Arc<AuthenticationConfig>> {
        watch::channel(Arc::default()).1
    }

    fn review_token<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<TokenVerdict, HostError>> {
        Box::pin(async { Ok(TokenVerdict::Unknown) })
    }

    fn review_access<'a>(
        &'a self,
        review: &'a AccessReview,
    ) -> BoxFuture<'a, Result<AccessVerdict, HostError>> {
        Box::pin(async move {
            let Attributes::Resource(resource) = &review.attributes else {
                panic!("only resources are reviewed")
            };
            let expected = match resource.verb.as_str() {
                "intercept" | "coordinate" => ("coordination.k8s.io", "v1alpha3"),
                _ => ("", "v1"),
            };
            assert_eq!((resource.group.as_str(), resource.version.as_str()), expected);
            assert_eq!(
                (review.user.name.as_str(), resource.subresource.as_str()),
                ("jane", "")
            );
            let verb = match resource.verb.as_str() {
                "delete" => String::new(),
                verb => format!("{verb} "),
            };
            let reviewed = format!(
                "{verb}{}/{}/{}",
                resource.resource, resource.namespace, resource.name
            );
            self.reviewed.lock().unwrap().push(reviewed.clone());
            if self.is_down {
                return Err(HostError::Timeout);
            }
            Ok(if self.allowed.contains(&reviewed.as_str()) {
                AccessVerdict::Allowed(String::new())
            } else {
                AccessVerdict::NoOpinion(String::new())
            })
        })
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, HostError>> {
        Box::pin(async move {
            match name {
                "shop" => Ok(Namespace::Active(Arc::default())),
                "closing" => Ok(Namespace::Terminating(Arc::default())),
                "unknown" => Err(HostError::Timeout),
                _ => Ok(Namespace::Missing),
            }
        })
    }

    fn pod<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Option<Value>, HostError>> {
        panic!("the pod must not be looked up")
    }

    fn nodes(&self) -> BoxFuture<'_, Result<Arc<[NodeMetadata]>, HostError>> {
        let label = |label: &&str| ((*label).to_owned(), String::new());
        let node = |(name, labels): &(&str, Vec<&str>)| NodeMetadata {
            name: (*name).to_owned(),
            labels: labels.iter().map(label).collect::<BTreeMap<_, _>>(),
        };
        let nodes = self.nodes.iter().map(node).collect();
        Box::pin(async {
            if self.is_down {
                Err(HostError::NotSynced("nodes"))
            } else {
                Ok(nodes)
            }
        })
    }

    fn served_locally<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<String>, HostError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn record_event(&self, _: HostEvent) {}

    fn is_synced(&self) -> bool {
        true
    }
}

/// A write by the user jane.
struct Write {
    registration: &'static Registration,
    namespace: &'static str,
    operation: Operation,
    part: Part,
    object: Option<Value>,
    old: Option<Value>,
}

static REQUEST: &Registration = &evictionrequest::REGISTRATION;
static MAINTENANCE: &Registration = &nodemaintenance::REGISTRATION;

impl Write {
    fn of(
        registration: &'static Registration,
        operation: Operation,
        object: Option<Value>,
        old: Option<Value>,
    ) -> Self {
        let is_namespaced = registration.kind().is_namespaced();
        let namespace = if is_namespaced { "shop" } else { "" };
        Self {
            registration,
            namespace,
            operation,
            part: Part::Main,
            object,
            old,
        }
    }

    /// The outcome, which is the warnings or the code and the message, and the objects that were reviewed.
    async fn outcome(&self, cluster: Cluster) -> (Result<Vec<String>, (u16, String)>, Vec<String>) {
        let cluster = Arc::new(cluster);
        let host: Arc<dyn Host> = Arc::clone(&cluster) as _;
        let served = ServedResource {
            group: "coordination.k8s.io",
            version: "v1alpha3",
            resource: self.registration.kind().plural,
        };
        let metrics = Metrics::register(&mut Registry::default(), [served]);
        let reviews = Arc::new(Reviews::new(Arc::clone(&host), ReviewTtls::default()).unwrap());
        let authorizer = Arc::new(Authorizer::new(reviews, Vec::new(), metrics));
        let chain = Chain::new(host, authorizer, Some("own".to_owned()));
        let resource = Arc::new(self.registration.resource(&Arc::default()).unwrap());
        let endpoint = Endpoint::stored(&resource);
        let user = Arc::new(UserInfo {
            name: "jane".to_owned(),
            ..UserInfo::default()
        });
        let warnings = Warnings::default();
        let audit = AuditRecord::new(AuditLevel::Metadata);
        let caller = Caller {
            user: &user,
            user_agent: "",
            warnings: &warnings,
            audit: &audit,
        };
        let options = WriteOptions::default();
        let write = WriteAttributes {
            operation: self.operation,
            resource: &resource,
            endpoint: &endpoint,
            caller,
            part: self.part,
            namespace: self.namespace,
            name: "x",
            object: self.object.as_ref(),
            old: self.old.as_ref(),
            revision: None,
            options: Options::Write(&options),
            of_collection: false,
            dry_run: true,
        };
        let outcome = async {
            if self.operation == Operation::Create {
                chain.check_namespace(&write).await?;
            }
            chain.check(&write).await?;
            chain.validate(&write).await
        };
        let outcome = outcome.await.map(|()| warnings.texts());
        let annotations = audit.contents().annotations;
        let recorded = annotations.get(TARGET_AUTHORIZATION).map(String::as_str);
        let lacks_right = |error: &ApiError| {
            let text = error.to_string();
            text.contains("cannot delete resource \"pods\"") || text.contains("cannot maintain resource")
        };
        let is_forbidden = outcome.as_ref().is_err_and(lacks_right);
        assert_eq!(
            recorded == Some("forbid"),
            is_forbidden,
            "{annotations:?} {outcome:?}"
        );
        let reviewed = cluster.reviewed.lock().unwrap().clone();
        (
            outcome.map_err(|error: ApiError| (error.code().as_u16(), error.to_string())),
            reviewed,
        )
    }
}

fn request(pod: &str) -> Value {
    json!({"metadata": {"name": "x", "resourceVersion": "1"}, "spec": {"target": {"pod": {"name": pod, "uid": "x"}}}})
}

fn maintenance(label: &str) -> Value {
    let requirement = json!({"key": label, "operator": "Exists"});
    json!({"metadata": {"name": "x"}, "spec": {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}})
}

fn may(allowed: &[&'static str]) -> Cluster {
    Cluster {
        allowed: allowed.to_vec(),
        ..Cluster::default()
    }
}

const NO_POD: &str = "evictionrequests.coordination.k8s.io \"x\" is forbidden: User \"jane\" cannot delete resource \"pods\" in API group \"\" in the namespace \"shop\": pod \"web-0\"";

#[tokio::test]
async fn creates_need_an_active_namespace() {
    for (namespace, expected) in [
        ("shop", None),
        ("absent", Some((404, "namespaces \"absent\" not found"))),
        (
            "closing",
            Some((
                403,
                "evictionrequests.coordination.k8s.io \"x\" is forbidden: unable to create new content in namespace closing because it is being terminated",
            )),
        ),
        (
            "unknown",
            Some((
                500,
                "Internal error occurred: the namespace could not be looked up",
            )),
        ),
    ] {
        let all: &'static str = Box::leak(format!("pods/{namespace}/").into_boxed_str());
        let mut write = Write::of(REQUEST, Operation::Create, Some(request("web-0")), None);
        write.namespace = namespace;
        let (outcome, _) = write.outcome(may(&[all])).await;
        assert_eq!(
            outcome.err(),
            expected.map(|(code, text)| (code, text.to_owned())),
            "{namespace}"
        );
        write.operation = Operation::Update;
        write.old = Some(request("web-0"));
        assert_eq!(
            write.outcome(may(&[all])).await.0,
            Ok(Vec::new()),
            "updates are not checked: {namespace}"
        );
    }
}

#[tokio::test]
async fn writing_a_request_requires_permission_to_delete_the_pod() {
    let mut updated = request("web-0");
    updated["spec"]["requesters"] = json!([{"name": "a.example.com"}]);
    for (operation, object, old) in [
        (Operation::Create, Some(request("web-0")), None),
        (Operation::Update, Some(updated), Some(request("web-0"))),
        (Operation::Delete, None, Some(request("web-0"))),
    ] {
        let write = Write::of(REQUEST, operation, object, old);
        let (outcome, reviewed) = write.outcome(may(&["pods/shop/"])).await;
        assert_eq!(
            (outcome, reviewed),
            (Ok(Vec::new()), vec!["pods/shop/".to_owned()]),
            "{operation:?}"
        );
        let (outcome, _) = write.outcome(may(&["pods/shop/web-0"])).await;
        assert_eq!(outcome, Ok(Vec::new()), "{operation:?}");
        let (outcome, reviewed) = write
            .outcome(may(&["pods/other/", "pods/shop/web-1", "nodes//"]))
            .await;
        assert_eq!(outcome, Err((403, NO_POD.to_owned())), "{operation:?}");
        assert_eq!(reviewed, ["pods/shop/", "pods/shop/web-0"]);
        let (outcome, _) = write
            .outcome(Cluster {
                is_down: true,
                ..may(&["pods/shop/"])
            })
            .await;
        assert_eq!(outcome.unwrap_err().0, 500, "{operation:?}");
    }
}

#[tokio::test]
async fn status_updates_and_no_op_updates_require_no_permission_on_the_target() {
    let mut moved = request("web-0");
    moved["metadata"]["managedFields"] = json!([{"manager": "m"}]);
    moved["metadata"]["resourceVersion"] = json!("2");
    let write = Write::of(REQUEST, Operation::Update, Some(moved), Some(request("web-0")));
    assert_eq!(write.outcome(may(&[])).await, (Ok(Vec::new()), Vec::new()));
    let mut status = Write::of(
        REQUEST,
        Operation::Update,
        Some(request("web-1")),
        Some(request("web-0")),
    );
    status.part = Part::Status;
    assert_eq!(status.outcome(may(&[])).await, (Ok(Vec::new()), Vec::new()));
}

#[tokio::test]
async fn an_update_of_the_target_requires_permission_for_both_pods() {
    let write = Write::of(
        REQUEST,
        Operation::Update,
        Some(request("web-1")),
        Some(request("web-0")),
    );
    assert_eq!(
        write.outcome(may(&["pods/shop/web-1"])).await.0,
        Err((403, NO_POD.to_owned()))
    );
    assert_eq!(
        write.outcome(may(&["pods/shop/web-0"])).await.0.unwrap_err().0,
        403
    );
    assert_eq!(
        write
            .outcome(may(&["pods/shop/web-0", "pods/shop/web-1"]))
            .await
            .0,
        Ok(Vec::new())
    );
}

fn nodes(allowed: &[&'static str]) -> Cluster {
    let control_plane = "node-role.kubernetes.io/control-plane";
    Cluster {
        nodes: vec![
            ("a", vec!["old"]),
            ("b", vec!["old"]),
            ("c", vec![control_plane]),
            ("own", vec!["mine"]),
        ],
        ..may(allowed)
    }
}

const NO_NODES: &str = "nodemaintenances.coordination.k8s.io \"x\" is forbidden: User \"jane\" cannot maintain resource \"nodes\" in API group \"\" at the cluster scope";

/// A maintenance of nodes by name.
fn of_nodes(names: &[&str]) -> Value {
    let term =
        |name: &&str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
    let terms: Vec<Value> = names.iter().map(term).collect();
    json!({"metadata": {"name": "x"}, "spec": {"stage": "Idle", "nodeSelector": {"nodeSelectorTerms": terms}}})
}

#[tokio::test]
async fn a_maintenance_of_nodes_by_label_requires_the_right_for_all_nodes() {
    let general = format!(
        "{NO_NODES}: a selector other than matchFields of metadata.name with In requires the right for all nodes"
    );
    let mut changed = maintenance("old");
    changed["spec"]["stage"] = json!("Cordon");
    for (operation, object, old) in [
        (Operation::Create, Some(maintenance("old")), None),
        (Operation::Create, Some(maintenance("future")), None),
        (Operation::Update, Some(changed), Some(maintenance("old"))),
        (
            Operation::Update,
            Some(of_nodes(&["a"])),
            Some(maintenance("old")),
        ),
        (Operation::Delete, None, Some(maintenance("old"))),
        (
            Operation::Delete,
            None,
            Some(json!({"spec": {"nodeSelector": 7}})),
        ),
    ] {
        let write = Write::of(MAINTENANCE, operation, object, old);
        let all = ["maintain nodes//".to_owned(), "nodes//".to_owned()];
        assert_eq!(
            write.outcome(nodes(&["maintain nodes//"])).await,
            (Ok(Vec::new()), all[..1].to_vec())
        );
        assert_eq!(
            write.outcome(nodes(&["nodes//"])).await,
            (Ok(Vec::new()), all.to_vec())
        );
        let (outcome, reviewed) = write.outcome(nodes(&["maintain nodes//a", "nodes//b"])).await;
        assert_eq!(outcome, Err((403, general.clone())));
        assert_eq!(reviewed, all, "no review tells which nodes match");
        let down = Cluster {
            is_down: true,
            ..nodes(&["nodes//"])
        };
        assert_eq!(write.outcome(down).await.0.unwrap_err().0, 500);
    }
}

#[tokio::test]
async fn a_maintenance_of_nodes_by_name_requires_the_right_for_each() {
    let write = Write::of(MAINTENANCE, Operation::Create, Some(of_nodes(&["a", "b"])), None);
    for allowed in [
        &["maintain nodes//"][..],
        &["maintain nodes//a", "maintain nodes//b"],
        &["maintain nodes//a", "nodes//b"],
    ] {
        assert_eq!(
            write.outcome(nodes(allowed)).await.0,
            Ok(Vec::new()),
            "{allowed:?}"
        );
    }
    for (allowed, named) in [
        (&[][..], "\"a\", \"b\""),
        (&["maintain nodes//a"], "\"b\""),
        (&["nodes//b"], "\"a\""),
    ] {
        assert_eq!(
            write.outcome(nodes(allowed)).await.0,
            Err((403, format!("{NO_NODES}: nodes {named}"))),
            "{allowed:?}"
        );
    }
    let absent = Write::of(MAINTENANCE, Operation::Create, Some(of_nodes(&["absent"])), None);
    assert_eq!(
        absent.outcome(nodes(&[])).await.0,
        Err((403, format!("{NO_NODES}: nodes \"absent\""))),
        "the same answer as for a node that exists"
    );
    let moved = Write::of(
        MAINTENANCE,
        Operation::Update,
        Some(of_nodes(&["a"])),
        Some(of_nodes(&["b"])),
    );
    assert_eq!(
        moved.outcome(nodes(&["maintain nodes//a"])).await.0,
        Err((403, format!("{NO_NODES}: nodes \"b\"")))
    );
    let many: Vec<String> = (0..501).map(|index| format!("n{index}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let write = Write::of(MAINTENANCE, Operation::Create, Some(of_nodes(&many)), None);
    let (outcome, reviewed) = write.outcome(nodes(&[])).await;
    assert_eq!(outcome.unwrap_err().0, 403);
    assert_eq!(reviewed.len(), 2);
}

/// A name with any other requirement could come to match other nodes.
#[tokio::test]
async fn only_names_count_as_a_list_of_names() {
    let by_name = json!({"key": "metadata.name", "operator": "In", "values": ["a"]});
    for term in [
        json!({"matchFields": [by_name], "matchExpressions": [{"key": "l", "operator": "Exists"}]}),
        json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}),
        json!({"matchFields": []}),
        json!({}),
    ] {
        let mut object = of_nodes(&["a"]);
        object["spec"]["nodeSelector"]["nodeSelectorTerms"]
            .as_array_mut()
            .unwrap()
            .push(term);
        let write = Write::of(MAINTENANCE, Operation::Create, Some(object), None);
        let (outcome, _) = write.outcome(nodes(&["maintain nodes//a"])).await;
        assert_eq!(outcome.unwrap_err().0, 403);
    }
}

#[tokio::test]
async fn metadata_and_the_end_of_a_deleted_maintenance_require_no_right() {
    let mut deleted = maintenance("old");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut ended = deleted.clone();
    ended["spec"]["stage"] = json!("Complete");
    let mut labeled = maintenance("old");
    labeled["metadata"]["labels"] = json!({"a": "b"});
    labeled["metadata"]["finalizers"] = json!(["example.com/hold"]);
    for (object, old) in [(labeled, maintenance("old")), (ended.clone(), deleted.clone())] {
        let write = Write::of(MAINTENANCE, Operation::Update, Some(object), Some(old));
        assert_eq!(write.outcome(nodes(&[])).await, (Ok(Vec::new()), Vec::new()));
    }
    let mut drains = ended.clone();
    drains["spec"]["stage"] = json!("Drain");
    let mut other = ended.clone();
    other["spec"]["reason"] = json!("other");
    let mut alive = ended.clone();
    alive["metadata"]["deletionTimestamp"] = Value::Null;
    for (object, old) in [
        (drains, deleted.clone()),
        (other, deleted),
        (alive, maintenance("old")),
    ] {
        let write = Write::of(MAINTENANCE, Operation::Update, Some(object), Some(old));
        assert_eq!(write.outcome(nodes(&[])).await.0.unwrap_err().0, 403);
    }
}

#[tokio::test]
async fn nobody_without_rights_is_warned() {
    let write = Write::of(MAINTENANCE, Operation::Create, Some(maintenance("mine")), None);
    let (outcome, _) = write.outcome(nodes(&[])).await;
    let (code, message) = outcome.unwrap_err();
    assert_eq!(code, 403);
    assert!(!message.contains("own"), "{message}");
}

mod status_access {
    use super::*;

    const COORDINATE: &str = "coordinate evictionrequests/shop/";
    const ACME: &str = "intercept evictioninterceptors//acme.io.foo";
    const OTHER: &str = "intercept evictioninterceptors//other.io.bar";

    fn stored() -> Value {
        json!({
            "targetInterceptors": [{"name": "acme.io/foo"}, {"name": "other.io/bar"}],
            "activeInterceptors": ["acme.io/foo"],
            "interceptors": [{"name": "acme.io/foo", "activationTime": "2026-01-01T00:00:00Z"}, {"name": "other.io/bar"}],
        })
    }

    fn with(status: &Value) -> Value {
        let mut object = request("web-0");
        object["status"] = status.clone();
        object
    }

    /// A status update that sets the value at the pointer.
    fn sets(pointer: &str, value: &Value) -> Write {
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        let mut status = stored();
        let parent = status.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(items) => items.push(value.clone()),
            parent => parent[last] = value.clone(),
        }
        let mut write = Write::of(
            REQUEST,
            Operation::Update,
            Some(with(&status)),
            Some(with(&stored())),
        );
        write.part = Part::Status;
        write
    }

    fn condition(type_: &str) -> Value {
        json!({"type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    /// Each of the rights is sufficient, and none of the others.
    async fn check(pointer: &str, value: Value, sufficient: &[&'static str]) {
        let write = sets(pointer, &value);
        for right in [COORDINATE, "coordinate evictionrequests/shop/x", ACME, OTHER] {
            let is_sufficient = sufficient.contains(&right)
                || (right.starts_with("coordinate") && sufficient.contains(&COORDINATE));
            let (outcome, _) = write.outcome(may(&[right])).await;
            assert_eq!(
                outcome.is_ok(),
                is_sufficient,
                "{pointer} {value} {right}: {outcome:?}"
            );
        }
    }

    #[tokio::test]
    async fn what_an_interceptor_reports_requires_to_be_that_interceptor() {
        let time = json!("2026-01-01T00:00:10Z");
        for field in ["startTime", "heartbeatTime", "expectedFinishTime"] {
            check(&format!("/interceptors/0/{field}"), time.clone(), &[ACME]).await;
            check(&format!("/interceptors/1/{field}"), time.clone(), &[OTHER]).await;
        }
        check("/evictionRequestCancellationPolicy", json!("Forbid"), &[ACME]).await;
        let heartbeat = sets("/interceptors/0/heartbeatTime", &time);
        let forbidden = "evictionrequests.coordination.k8s.io \"x\" is forbidden: User \"jane\" cannot intercept resource \"evictioninterceptors\" in API group \"coordination.k8s.io\" at the cluster scope: interceptor \"acme.io/foo\"";
        assert_eq!(
            heartbeat.outcome(may(&[COORDINATE])).await,
            (Err((403, forbidden.to_owned())), vec![ACME.to_owned()])
        );
    }

    #[tokio::test]
    async fn whatever_decides_requires_to_coordinate() {
        for (pointer, value) in [
            ("/targetInterceptors", json!([])),
            ("/activeInterceptors", json!(["other.io/bar"])),
            ("/processedInterceptors", json!(["acme.io/foo"])),
            ("/interceptors/0/activationTime", json!("2026-01-01T00:00:01Z")),
            ("/interceptors/-", json!({"name": "third.io/x"})),
            ("/conditions", json!([condition("Evicted")])),
            ("/conditions", json!([condition("Canceled")])),
            ("/conditions", json!([condition("Blocked")])),
            ("/observedGeneration", json!(2)),
            ("/podEvictionStatus", json!({"failedAPIEvictionCounter": 1})),
        ] {
            check(pointer, value, &[COORDINATE]).await;
        }
        let evicted = sets("/conditions", &json!([condition("Evicted")]));
        let forbidden = "evictionrequests.coordination.k8s.io \"x\" is forbidden: User \"jane\" cannot coordinate resource \"evictionrequests\" in API group \"coordination.k8s.io\" in the namespace \"shop\"";
        assert_eq!(
            evicted.outcome(may(&[ACME])).await,
            (
                Err((403, forbidden.to_owned())),
                vec![COORDINATE.to_owned(), format!("{COORDINATE}x")]
            )
        );
    }

    #[tokio::test]
    async fn ends_and_other_conditions_require_either() {
        let time = json!("2026-01-01T00:00:10Z");
        check("/interceptors/0/message", json!("late"), &[COORDINATE, ACME]).await;
        check("/interceptors/1/completionTime", time, &[COORDINATE, OTHER]).await;
        let own = json!([condition("example.com/Saved")]);
        check("/conditions", own, &[COORDINATE, ACME, OTHER]).await;
    }

    #[tokio::test]
    async fn a_status_that_does_not_change_is_not_reviewed() {
        let mut write = sets("/activeInterceptors", &json!(["acme.io/foo"]));
        assert_eq!(write.outcome(may(&[])).await, (Ok(Vec::new()), Vec::new()));
        write.part = Part::Main;
        assert_eq!(write.outcome(may(&[])).await, (Ok(Vec::new()), Vec::new()));
    }

    #[tokio::test]
    async fn a_host_that_cannot_be_asked_allows_nothing() {
        let write = sets("/observedGeneration", &json!(2));
        let down = Cluster {
            is_down: true,
            ..may(&[COORDINATE])
        };
        assert_eq!(write.outcome(down).await.0.unwrap_err().0, 500);
    }
}

#[tokio::test]
async fn selections_of_all_nodes_or_the_own_node_cause_warnings() {
    let warnings = |label: &'static str| async move {
        let write = Write::of(MAINTENANCE, Operation::Create, Some(maintenance(label)), None);
        write.outcome(nodes(&["maintain nodes//"])).await.0.unwrap()
    };
    assert_eq!(warnings("old").await, Vec::<String>::new());
    assert_eq!(
        warnings("node-role.kubernetes.io/control-plane").await,
        ["spec.nodeSelector: matches every control-plane node"]
    );
    assert_eq!(
        warnings("mine").await,
        ["spec.nodeSelector: matches node \"own\", which this server runs on"]
    );
    let all = json!({"spec": {"nodeSelector": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}]}}});
    let write = Write::of(MAINTENANCE, Operation::Create, Some(all), None);
    assert_eq!(
        write.outcome(nodes(&["nodes//"])).await.0.unwrap(),
        [
            "spec.nodeSelector: matches every node of the cluster",
            "spec.nodeSelector: matches node \"own\", which this server runs on",
        ]
    );
}
