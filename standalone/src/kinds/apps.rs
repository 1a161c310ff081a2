//! Workloads of apps/v1, as plain objects: no controller creates pods for them.

use drydock_machinery::table::{Column, ColumnType, age_of, name_of};

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
        kind,
        plural,
        singular,
        short_names,
        categories: &["all"],
        members: &["spec", "status"],
        rules: Rules {
            columns: const {
                &[
                    Column::NAME,
                    Column::new("Desired", ColumnType::Integer, "The wanted number of pods."),
                    Column::new(
                        "Ready",
                        ColumnType::Integer,
                        "The number of ready pods in the status.",
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
        ..BuiltIn::V1
    }
}
