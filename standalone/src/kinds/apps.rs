//! Workloads of apps/v1 as plain objects: nothing makes pods of them.

use drydock_machinery::table::{Column, ColumnType, age_of, name_of};
use drydock_proto::kinds::Scope;

use super::{BuiltIn, Rules, count_of};

pub(super) fn kinds() -> Vec<BuiltIn> {
    vec![
        workload("DaemonSet", "daemonsets", "daemonset", &["ds"]),
        workload("Deployment", "deployments", "deployment", &["deploy"]),
        workload("ReplicaSet", "replicasets", "replicaset", &["rs"]),
        workload("StatefulSet", "statefulsets", "statefulset", &["sts"]),
    ]
}

fn workload(
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short_names: &'static [&'static str],
) -> BuiltIn {
    BuiltIn {
        group: "apps",
        version: "v1",
        kind,
        plural,
        singular,
        short_names,
        categories: &["all"],
        scope: Scope::Namespaced,
        members: &["spec", "status"],
        more_subresources: &[],
        rules: Rules {
            columns: const {
                &[
                    Column::NAME,
                    Column::new("Desired", ColumnType::Integer, "How many pods there should be."),
                    Column::new(
                        "Ready",
                        ColumnType::Integer,
                        "How many are ready, as the status says.",
                    ),
                    Column::AGE,
                ]
            },
            cells: |object, now| {
                vec![
                    name_of(object),
                    count_of(object, "/spec/replicas"),
                    count_of(object, "/status/readyReplicas"),
                    age_of(object, now),
                ]
            },
            ..Rules::PLAIN
        },
    }
}
