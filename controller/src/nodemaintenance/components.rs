//! Groups of maintenances and nodes that depend on each other: a maintenance with its nodes, and maintenances that share
//! nodes. Groups are planned apart, so what happens in one does not cost a plan of the others. Pure functions.

use std::collections::{BTreeMap, HashMap};

use super::model::{Maintenance, NodeFacts};

/// One group, by indexes into the lists of maintenances and nodes, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Component {
    /// Its maintenances.
    pub(super) maintenances: Vec<usize>,
    /// Its nodes.
    pub(super) nodes: Vec<usize>,
}

/// Sets of elements that are merged step by step.
struct Sets(Vec<usize>);

impl Sets {
    /// The element that represents the set.
    fn root(&mut self, element: usize) -> usize {
        let mut root = element;
        while let Some(parent) = self.0.get(root).copied().filter(|parent| *parent != root) {
            root = parent;
        }
        // Everything on the way gets a shorter one.
        let mut next = element;
        while let Some(parent) = self.0.get_mut(next).filter(|parent| **parent != root) {
            next = std::mem::replace(parent, root);
        }
        root
    }

    fn merge(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if let Some(parent) = self.0.get_mut(a.max(b)) {
            *parent = a.min(b);
        }
    }
}

/// The groups, in the order of their first nodes; those without a node come last. `is_relevant` tells whether a node
/// without a maintenance matters.
pub(super) fn components(
    maintenances: &[Maintenance],
    nodes: &[NodeFacts],
    is_relevant: impl Fn(usize) -> bool,
) -> Vec<Component> {
    let count = nodes.len();
    let mut sets = Sets((0..count + maintenances.len()).collect());
    let by_name: HashMap<&str, usize> = nodes
        .iter()
        .enumerate()
        .map(|(index, node)| (node.name.as_str(), index))
        .collect();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for (index, maintenance) in maintenances.iter().enumerate() {
        let number = count + index;
        numbers.insert(&maintenance.name, number);
        for node in &maintenance.nodes {
            sets.merge(number, *node);
        }
        // Nodes that it touched and does not select any more.
        let status = &maintenance.status;
        let listed = status.node_statuses.iter().map(|one| &one.node_ref.name);
        for name in listed.chain(&status.cordoned_before) {
            if let Some(node) = by_name.get(name.as_str()) {
                sets.merge(number, *node);
            }
        }
    }
    for (index, node) in nodes.iter().enumerate() {
        for named in node.record.iter().flat_map(|record| &record.maintenances) {
            if let Some(number) = numbers.get(named.name.as_str()) {
                sets.merge(*number, index);
            }
        }
    }
    let mut found: BTreeMap<usize, Component> = BTreeMap::new();
    for index in 0..maintenances.len() {
        let root = sets.root(count + index);
        found.entry(root).or_default().maintenances.push(index);
    }
    for index in 0..count {
        let root = sets.root(index);
        if let Some(component) = found.get_mut(&root) {
            component.nodes.push(index);
        } else if is_relevant(index) {
            found.entry(root).or_default().nodes.push(index);
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodemaintenance::node_state::{HoldingMaintenance, NodeRecord};
    use drydock_proto::kinds::nodemaintenance::{NodeMaintenanceStatus, Stage};
    use jiff::Timestamp;

    fn maintenance(name: &str, nodes: &[usize]) -> Maintenance {
        Maintenance {
            name: name.to_owned(),
            uid: String::new(),
            created: Timestamp::UNIX_EPOCH,
            generation: None,
            stage: Stage::Drain,
            is_deleting: false,
            has_finalizer: true,
            entries: Vec::new().into(),
            nodes: nodes.to_vec(),
            status: NodeMaintenanceStatus::default(),
        }
    }

    fn nodes(count: usize) -> Vec<NodeFacts> {
        (0..count)
            .map(|index| NodeFacts {
                name: format!("node-{index}"),
                ..NodeFacts::default()
            })
            .collect()
    }

    fn found(maintenances: &[Maintenance], nodes: &[NodeFacts]) -> Vec<(Vec<usize>, Vec<usize>)> {
        components(maintenances, nodes, |node| node == 5)
            .into_iter()
            .map(|component| (component.maintenances, component.nodes))
            .collect()
    }

    #[test]
    fn maintenances_that_share_nodes_belong_together() {
        let maintenances = [
            maintenance("a", &[0, 1]),
            maintenance("b", &[3]),
            maintenance("c", &[1, 2]),
            maintenance("none", &[]),
        ];
        assert_eq!(
            found(&maintenances, &nodes(6)),
            [
                (vec![0, 2], vec![0, 1, 2]),
                (vec![1], vec![3]),
                (vec![], vec![5]),
                (vec![3], vec![]),
            ]
        );
    }

    #[test]
    fn nodes_that_a_maintenance_has_left_still_belong_to_it() {
        let mut nodes = nodes(3);
        nodes[1].record = Some(NodeRecord {
            maintenances: vec![HoldingMaintenance {
                name: "a".to_owned(),
                uid: String::new(),
                stage: Stage::Drain,
            }],
            ..NodeRecord::default()
        });
        let mut one = maintenance("a", &[0]);
        one.status.cordoned_before = vec!["node-2".to_owned()];
        assert_eq!(found(&[one], &nodes), [(vec![0], vec![0, 1, 2])]);
    }
}
