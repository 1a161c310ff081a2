use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair(u16, u64);

impl Item for Pair {
    type Separator = u16;
    type Probe<'a> = u16;

    fn probe(&self) -> u16 {
        self.0
    }
    fn separator(&self) -> u16 {
        self.0
    }
    fn bytes(&self) -> u64 {
        self.1
    }
    fn compare(&self, probe: u16) -> Ordering {
        self.0.cmp(&probe)
    }
    fn compare_separator(separator: &u16, probe: u16) -> Ordering {
        separator.cmp(&probe)
    }
}

type Model = BTreeMap<u16, u64>;

/// Checks that all leaves have the same depth and that sums are right; returns depth, count and bytes.
fn check_node(node: &Node<Pair>) -> (usize, u64, u64) {
    assert!(node.len() <= FAN_OUT, "a node of {} children", node.len());
    assert!(node.len() > 0, "an empty node");
    match node {
        Node::Leaf(items) => (1, items.len() as u64, items.iter().map(|item| item.1).sum()),
        Node::Branch(children) => {
            let below: Vec<_> = children.iter().map(|child| check_node(&child.node)).collect();
            for (child, (depth, count, bytes)) in children.iter().zip(&below) {
                assert_eq!(*depth, below[0].0, "leaves on different levels");
                assert_eq!((child.count, child.bytes), (*count, *bytes));
            }
            (
                below[0].0 + 1,
                below.iter().map(|(_, count, _)| count).sum(),
                below.iter().map(|(_, _, bytes)| bytes).sum(),
            )
        }
    }
}

fn check_equal(tree: &Tree<Pair>, model: &Model) {
    let expected: Vec<Pair> = model.iter().map(|(key, value)| Pair(*key, *value)).collect();
    assert_eq!(tree.cursor().collect::<Vec<_>>(), expected);
    assert_eq!(tree.count(), model.len() as u64);
    assert_eq!(tree.bytes(), model.values().sum::<u64>());
    if let Some(root) = &tree.root {
        let (_, count, bytes) = check_node(root);
        assert_eq!((count, bytes), (tree.count(), tree.bytes()));
    }
}

fn check_probe(tree: &Tree<Pair>, model: &Model, probe: u16) {
    assert_eq!(tree.get(probe).map(|pair| pair.1), model.get(&probe).copied());
    let rank = model.range(..probe).count() as u64;
    assert_eq!(tree.rank(probe), rank);
    let expected: Vec<u16> = model
        .range((Bound::Included(probe), Bound::Unbounded))
        .map(|(key, _)| *key)
        .collect();
    let keys = |cursor: Cursor<Pair>| cursor.map(|pair| pair.0).collect::<Vec<_>>();
    assert_eq!(keys(tree.cursor_from(probe)), expected);
    assert_eq!(keys(tree.cursor_at(rank)), expected);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u8),
    InsertRun(u16, u8),
    Remove(u16),
    RemoveRun(u16, u8),
    Keep,
    Probe(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u16..600;
    prop::collection::vec(
        prop_oneof![
            3 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::Insert(key, value)),
            2 => (key.clone(), any::<u8>()).prop_map(|(key, length)| Step::InsertRun(key, length)),
            2 => key.clone().prop_map(Step::Remove),
            1 => (key.clone(), any::<u8>()).prop_map(|(key, length)| Step::RemoveRun(key, length)),
            1 => Just(Step::Keep),
            1 => key.prop_map(Step::Probe),
        ],
        1..80,
    )
}

proptest! {
    #[test]
    fn equals_an_ordered_map_and_old_versions_do_not_change(steps in steps()) {
        let (mut tree, mut model) = (Tree::default(), Model::new());
        let mut kept: Vec<(Tree<Pair>, Model)> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(key, value) => {
                    let old = tree.insert(Pair(key, value.into()));
                    prop_assert_eq!(old.map(|pair| pair.1), model.insert(key, value.into()));
                }
                Step::InsertRun(key, length) => {
                    for key in key..key + u16::from(length) {
                        tree.insert(Pair(key, 1));
                        model.insert(key, 1);
                    }
                }
                Step::Remove(key) => {
                    prop_assert_eq!(tree.remove(key).map(|pair| pair.1), model.remove(&key));
                }
                Step::RemoveRun(key, length) => {
                    for key in key..key + u16::from(length) {
                        prop_assert_eq!(tree.remove(key).map(|pair| pair.1), model.remove(&key));
                    }
                }
                Step::Keep => kept.push((tree.clone(), model.clone())),
                Step::Probe(key) => check_probe(&tree, &model, key),
            }
            check_equal(&tree, &model);
        }
        for (tree, model) in kept {
            check_equal(&tree, &model);
            check_probe(&tree, &model, 300);
        }
    }

    #[test]
    fn a_built_tree_equals_one_of_inserts(count in 0_u16..6000, probe in 0_u16..6000) {
        let mut builder = Builder::default();
        let model: Model = (0..count).map(|key| (key, u64::from(key))).collect();
        for (key, value) in &model {
            builder.push(Pair(*key, *value));
        }
        let tree = builder.finish();
        check_equal(&tree, &model);
        check_probe(&tree, &model, probe);
    }
}

#[test]
fn unshared_nodes_change_in_place() {
    let mut tree = Tree::default();
    for key in 0..1000 {
        tree.insert(Pair(key, 0));
    }
    let root = Arc::as_ptr(tree.root.as_ref().unwrap());
    tree.insert(Pair(500, 7));
    assert_eq!(Arc::as_ptr(tree.root.as_ref().unwrap()), root);

    let kept = tree.clone();
    tree.insert(Pair(500, 8));
    assert_ne!(Arc::as_ptr(tree.root.as_ref().unwrap()), root);
    assert_eq!(kept.get(500), Some(&Pair(500, 7)));
}

#[test]
fn a_cursor_is_unaffected_by_changes_and_the_end_of_its_tree() {
    let mut tree = Tree::default();
    for key in 0..200 {
        tree.insert(Pair(key, 0));
    }
    let mut cursor = tree.cursor();
    assert_eq!(cursor.next(), Some(Pair(0, 0)));
    for key in 0..200 {
        tree.remove(key);
    }
    drop(tree);
    assert_eq!(cursor.count(), 199);
}

fn leaves(node: &Node<Pair>) -> usize {
    match node {
        Node::Leaf(_) => 1,
        Node::Branch(children) => children.iter().map(|child| leaves(&child.node)).sum(),
    }
}

#[test]
fn ascending_inserts_leave_full_nodes() {
    let mut tree = Tree::default();
    for key in 0..4800 {
        tree.insert(Pair(key, 0));
    }
    assert_eq!(leaves(tree.root.as_ref().unwrap()), 100);
}
