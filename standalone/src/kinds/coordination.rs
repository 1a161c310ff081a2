//! Leases of coordination.k8s.io/v1, used for leader election.

use drydock_machinery::table::{Column, ColumnType, age_of, name_of};

use super::{BuiltIn, Rules, text_of};

pub(super) fn kinds() -> Vec<BuiltIn> {
    vec![BuiltIn {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        members: &["spec"],
        rules: Rules {
            columns: const {
                &[
                    Column::NAME,
                    Column::new("Holder", ColumnType::String, "The holder of the lease."),
                    Column::AGE,
                ]
            },
            cells: |lease, now| {
                vec![
                    name_of(lease),
                    text_of(lease, "/spec/holderIdentity", ""),
                    age_of(lease, now),
                ]
            },
            ..Rules::PLAIN
        },
        ..BuiltIn::V1
    }]
}
