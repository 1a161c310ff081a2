//! Namespaces, nodes and pods of core/v1.

use drydock_apiserver::registry::resource::Subresource;
use drydock_machinery::table::{Cell, Column, ColumnType, NONE, age_of, name_of};
use drydock_proto::kinds::Scope;
use drydock_proto::protobuf::{Field, FieldKind, META_V1_OBJECT_META, Message};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{BuiltIn, Rules, text_of};
use crate::namespaces::CONTENT_FINALIZER;
use crate::object::{Condition, integer, is_ready, is_terminating, items, member_mut, set, set_condition};
use crate::pod::{grace_period, phase};

/// The capacity that a node reports; nothing runs on it.
const NODE_CAPACITY: [(&str, &str); 3] = [("cpu", "8"), ("memory", "32Gi"), ("pods", "110")];

/// The protobuf form of a namespace, without its spec and status, which are set by the server.
static NAMESPACE: Message = Message {
    name: "k8s.io.api.core.v1.Namespace",
    fields: &[Field::one(
        1,
        "metadata",
        FieldKind::Message(&META_V1_OBJECT_META),
    )],
};

pub(super) fn kinds() -> Vec<BuiltIn> {
    vec![namespaces(), nodes(), pods()]
}

fn namespaces() -> BuiltIn {
    BuiltIn {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        scope: Scope::Cluster,
        members: &["spec", "status"],
        rules: Rules {
            columns: const {
                &[
                    Column::NAME,
                    Column::new("Status", ColumnType::String, "Active or Terminating."),
                    Column::AGE,
                ]
            },
            cells: |object, now| {
                vec![
                    name_of(object),
                    text_of(object, "/status/phase", "Active"),
                    age_of(object, now),
                ]
            },
            selectable_fields: &["status.phase"],
            message: Some(&NAMESPACE),
            prepare_for_create: |object, _| {
                set(object, "status", json!({ "phase": "Active" }));
                let metadata = member_mut(object, "metadata");
                let mut finalizers = items(metadata, "/finalizers").to_vec();
                finalizers.retain(|finalizer| finalizer != CONTENT_FINALIZER);
                finalizers.push(json!(CONTENT_FINALIZER));
                set(metadata, "finalizers", Value::Array(finalizers));
                let name = metadata.get("name").cloned().unwrap_or_default();
                set(
                    member_mut(metadata, "labels"),
                    "kubernetes.io/metadata.name",
                    name,
                );
            },
            ..Rules::PLAIN
        },
        ..BuiltIn::V1
    }
}

fn nodes() -> BuiltIn {
    BuiltIn {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        scope: Scope::Cluster,
        members: &["spec", "status"],
        rules: Rules {
            columns: const {
                &[
                    Column::NAME,
                    Column::new(
                        "Status",
                        ColumnType::String,
                        "Whether the node is ready and schedulable.",
                    ),
                    Column::new("Roles", ColumnType::String, "The roles of the node."),
                    Column::AGE,
                    Column::new("Version", ColumnType::String, "The version of the kubelet."),
                ]
            },
            cells: node_cells,
            selectable_fields: &["spec.unschedulable"],
            prepare_for_create: prepare_node,
            ..Rules::PLAIN
        },
        ..BuiltIn::V1
    }
}

/// A new node is ready at once, since there is no kubelet.
fn prepare_node(node: &mut Value, now: Timestamp) {
    let resources: Value = NODE_CAPACITY
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), json!(amount)))
        .collect();
    set(
        node,
        "status",
        json!({
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "nodeInfo": { "kubeletVersion": "standalone" },
        }),
    );
    let message = "standalone mode runs no kubelet";
    set_condition(
        node,
        Condition {
            reason: "Standalone",
            message,
            ..Condition::new_true("Ready")
        },
        now,
    );
}

fn node_cells(node: &Value, now: Timestamp) -> Vec<Cell> {
    let mut status = if is_ready(node) { "Ready" } else { "NotReady" }.to_owned();
    if node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true) {
        status.push_str(",SchedulingDisabled");
    }
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(label, _)| label.strip_prefix("node-role.kubernetes.io/"))
        .filter(|role| !role.is_empty())
        .collect();
    let roles = if roles.is_empty() {
        NONE.to_owned()
    } else {
        roles.join(",")
    };
    let version = text_of(node, "/status/nodeInfo/kubeletVersion", "");
    vec![
        name_of(node),
        status.into(),
        roles.into(),
        age_of(node, now),
        version,
    ]
}

fn pods() -> BuiltIn {
    BuiltIn {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        categories: &["all"],
        members: &["spec", "status"],
        more_subresources: &[Subresource {
            name: "eviction",
            kind: "Eviction",
            foreign_kind: Some(("policy", "v1")),
            verbs: &["create"],
        }],
        rules: Rules {
            columns: const {
                &[
                    Column::NAME,
                    Column::new(
                        "Ready",
                        ColumnType::String,
                        "Ready containers and all containers.",
                    ),
                    Column::new(
                        "Status",
                        ColumnType::String,
                        "The phase of the pod, or that it is terminating.",
                    ),
                    Column::new(
                        "Restarts",
                        ColumnType::String,
                        "How often containers were restarted.",
                    ),
                    Column::AGE,
                    Column::new("IP", ColumnType::String, "The address of the pod.").wide(),
                    Column::new("Node", ColumnType::String, "The node the pod is bound to.").wide(),
                ]
            },
            cells: pod_cells,
            selectable_fields: &[
                "spec.nodeName",
                "spec.restartPolicy",
                "spec.schedulerName",
                "status.phase",
            ],
            prepare_for_create: |pod, _| {
                set(
                    pod,
                    "status",
                    json!({ "phase": "Pending", "qosClass": "BestEffort" }),
                );
            },
            grace_period: Some(|pod, requested| Some(grace_period(pod, requested))),
            ..Rules::PLAIN
        },
        ..BuiltIn::V1
    }
}

fn pod_cells(pod: &Value, now: Timestamp) -> Vec<Cell> {
    let containers = items(pod, "/spec/containers").len();
    let statuses = items(pod, "/status/containerStatuses");
    let ready = statuses
        .iter()
        .filter(|status| status.get("ready").and_then(Value::as_bool) == Some(true))
        .count();
    let restarts: i64 = statuses
        .iter()
        .filter_map(|status| integer(status, "/restartCount"))
        .sum();
    let status = if is_terminating(pod) {
        "Terminating"
    } else {
        phase(pod)
    };
    vec![
        name_of(pod),
        format!("{ready}/{containers}").into(),
        status.into(),
        restarts.to_string().into(),
        age_of(pod, now),
        text_of(pod, "/status/podIP", NONE),
        text_of(pod, "/spec/nodeName", NONE),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_node_shows_readiness_and_cordoning() {
        let mut node =
            json!({"metadata": {"name": "a", "labels": {"node-role.kubernetes.io/control-plane": ""}}});
        prepare_node(&mut node, Timestamp::UNIX_EPOCH);
        let status = |node: &Value| node_cells(node, Timestamp::UNIX_EPOCH)[1..3].to_vec();
        assert_eq!(status(&node), [json!("Ready"), json!("control-plane")]);
        node["spec"] = json!({"unschedulable": true});
        assert_eq!(status(&node)[0], json!("Ready,SchedulingDisabled"));
    }

    #[test]
    fn the_cells_of_a_pod_show_containers_phase_and_deletion() {
        let mut pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{}, {}]},
            "status": {"phase": "Running", "containerStatuses": [{"ready": true, "restartCount": 2}]}});
        let cells = |pod: &Value| pod_cells(pod, Timestamp::UNIX_EPOCH)[1..4].to_vec();
        assert_eq!(cells(&pod), [json!("1/2"), json!("Running"), json!("2")]);
        pod["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:30Z");
        assert_eq!(cells(&pod)[1], json!("Terminating"));
    }
}
