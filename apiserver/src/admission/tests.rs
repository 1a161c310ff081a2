use std::collections::BTreeMap;
use std::sync::Mutex;

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::host::reviews::{ReviewTtls, Reviews};
use crate::host::{AccessVerdict, AuthenticationConfig, HostError, HostEvent, NodeMetadata, TokenVerdict};
use crate::metrics::{Metrics, ServedResource};
use crate::registry::admission::Operation;
use crate::registry::registration::Registration;
use crate::registry::resource::Part;
use crate::registry::{evictionrequest, nodemaintenance};
use crate::request::{UserInfo, Warnings};

/// A cluster in which the user may delete the listed objects: `pods/NAMESPACE/NAME` or `nodes//NAME`; an empty name stands for
/// all.
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
            assert_eq!(
                (
                    resource.verb.as_str(),
                    resource.group.as_str(),
                    resource.version.as_str()
                ),
                ("delete", "", "v1")
            );
            assert_eq!(
                (review.user.name.as_str(), resource.subresource.as_str()),
                ("jane", "")
            );
            let reviewed = format!("{}/{}/{}", resource.resource, resource.namespace, resource.name);
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
        let caller = Caller {
            user: &user,
            user_agent: "",
            warnings: &warnings,
        };
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
            dry_run: true,
        };
        let outcome = async {
            if self.operation == Operation::Create {
                chain.check_namespace(&write).await?;
            }
            chain.validate(&write).await
        };
        let outcome = outcome.await.map(|()| warnings.texts());
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

#[tokio::test]
async fn writing_a_maintenance_requires_permission_to_delete_each_node() {
    let cannot = "nodemaintenances.coordination.k8s.io \"x\" is forbidden: User \"jane\" cannot delete resource \"nodes\" in API group \"\" at the cluster scope";
    let write = Write::of(MAINTENANCE, Operation::Create, Some(maintenance("old")), None);
    assert_eq!(
        write.outcome(nodes(&["nodes//"])).await,
        (Ok(Vec::new()), vec!["nodes//".to_owned()])
    );
    let (outcome, mut reviewed) = write.outcome(nodes(&["nodes//a", "nodes//b"])).await;
    reviewed.sort();
    assert_eq!(outcome, Ok(Vec::new()));
    assert_eq!(reviewed, ["nodes//", "nodes//a", "nodes//b"]);
    let (outcome, _) = write.outcome(nodes(&["nodes//a"])).await;
    assert_eq!(outcome, Err((403, format!("{cannot}: nodes \"b\""))));
    let (outcome, _) = write.outcome(nodes(&[])).await;
    assert_eq!(outcome, Err((403, format!("{cannot}: nodes \"a\", \"b\""))));
    let (outcome, _) = write
        .outcome(Cluster {
            is_down: true,
            ..nodes(&[])
        })
        .await;
    assert_eq!(outcome.unwrap_err().0, 500);

    let none = Write::of(MAINTENANCE, Operation::Create, Some(maintenance("future")), None);
    assert_eq!(none.outcome(nodes(&["nodes//"])).await.0, Ok(Vec::new()));
    assert_eq!(
        none.outcome(nodes(&["nodes//a"])).await.0.unwrap_err().0,
        403,
        "permission for one node is not sufficient if none is selected"
    );

    let unreadable = Write::of(
        MAINTENANCE,
        Operation::Delete,
        None,
        Some(json!({"spec": {"nodeSelector": 7}})),
    );
    assert_eq!(
        unreadable.outcome(nodes(&["nodes//a"])).await.0.unwrap_err().0,
        403
    );

    let delete = Write::of(MAINTENANCE, Operation::Delete, None, Some(maintenance("old")));
    assert_eq!(delete.outcome(nodes(&["nodes//a"])).await.0.unwrap_err().0, 403);
}

#[tokio::test]
async fn selections_of_all_nodes_or_the_own_node_cause_warnings() {
    let warnings = |label: &'static str| async move {
        let write = Write::of(MAINTENANCE, Operation::Create, Some(maintenance(label)), None);
        write.outcome(nodes(&["nodes//"])).await.0.unwrap()
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
