//! Leases of coordination.k8s.io/v1, which elect the leader among controllers.

use drydock_machinery::table::{Column, ColumnType, age_of, name_of};
use drydock_proto::kinds::Scope;

use super::{BuiltIn, Rules, text_of};

pub(super) fn kinds() -> Vec<BuiltIn> {
    vec![BuiltIn {
        group: "coordination.k8s.io",
        version: "v1",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        short_names: &[],
        categories: &[],
        scope: Scope::Namespaced,
        members: &["spec"],
        more_subresources: &[],
        rules: Rules {
            columns: const {
                &[
                    Column::NAME,
                    Column::new("Holder", ColumnType::String, "Who holds the lease."),
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
    }]
}
