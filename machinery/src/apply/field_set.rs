//! Sets of field paths, stored as a trie and encoded as `FieldsV1`.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use super::join::{Joined, join};
use super::path::{ElementError, Path, PathElement};
use crate::schema::{ListKind, Shape, Structural};

/// A set of paths below the root of an object.
///
/// A node of the trie is a member, or has members below it, or both. There are no other nodes, so equal sets are equal
/// values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Sorted by element, each element once.
    nodes: Vec<Node>,
}

/// A path element, whether the path that ends with it is a member, and the paths below it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Node {
    element: PathElement,
    pub(super) is_member: bool,
    pub(super) below: FieldSet,
}

/// Why a value is not valid `FieldsV1`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// A node is not an object.
    #[error("expected an object of fields")]
    NotAnObject,
    /// A key is not a path element.
    #[error("parsing key as path element: {0}")]
    Element(#[from] ElementError),
}

impl FieldSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { nodes: Vec::new() }
    }

    /// Whether no path is a member.
    pub(super) const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The number of members.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes
            .iter()
            .map(|node| usize::from(node.is_member) + node.below.len())
            .sum()
    }

    /// Adds a path. The root is never a member.
    pub(super) fn insert(&mut self, path: &Path) {
        self.insert_elements(&path.0);
    }

    fn insert_elements(&mut self, elements: &[PathElement]) {
        let Some((element, rest)) = elements.split_first() else {
            return;
        };
        let at = match self.nodes.binary_search_by(|node| node.element.cmp(element)) {
            Ok(at) => at,
            Err(at) => {
                self.nodes.insert(
                    at,
                    Node {
                        element: element.clone(),
                        is_member: false,
                        below: Self::new(),
                    },
                );
                at
            }
        };
        if let Some(node) = self.nodes.get_mut(at) {
            node.is_member |= rest.is_empty();
            node.below.insert_elements(rest);
        }
    }

    /// Whether a path is a member.
    pub(super) fn contains(&self, path: &Path) -> bool {
        self.contains_elements(&path.0)
    }

    fn contains_elements(&self, elements: &[PathElement]) -> bool {
        let Some((element, rest)) = elements.split_first() else {
            return false;
        };
        self.node(element).is_some_and(|node| {
            if rest.is_empty() {
                node.is_member
            } else {
                node.below.contains_elements(rest)
            }
        })
    }

    /// The node of a path element.
    pub(super) fn node(&self, element: &PathElement) -> Option<&Node> {
        let at = self
            .nodes
            .binary_search_by(|node| node.element.cmp(element))
            .ok()?;
        self.nodes.get(at)
    }

    /// The node of a field or a map key.
    pub(super) fn field_node(&self, name: &str) -> Option<&Node> {
        let order = |node: &Node| match &node.element {
            PathElement::Field(field) => field.as_str().cmp(name),
            _ => Ordering::Greater,
        };
        self.nodes.get(self.nodes.binary_search_by(order).ok()?)
    }

    /// Appends a path element that sorts after all others, with the paths below it, unless that adds no member.
    pub(super) fn push(&mut self, element: PathElement, is_member: bool, below: Self) {
        debug_assert!(
            self.nodes.last().is_none_or(|last| last.element < element),
            "pushed out of order"
        );
        if is_member || !below.is_empty() {
            self.nodes.push(Node {
                element,
                is_member,
                below,
            });
        }
    }

    /// The empty set, with capacity for as many calls of [`push`](Self::push).
    pub(super) fn with_capacity(nodes: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(nodes),
        }
    }

    /// The paths in either set.
    pub(super) fn union(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        nodes.extend(
            join(self.nodes, other.nodes, |left, right| {
                left.element.cmp(&right.element)
            })
            .map(|step| match step {
                Joined::Left(node) | Joined::Right(node) => node,
                Joined::Both(left, right) => Node {
                    element: left.element,
                    is_member: left.is_member || right.is_member,
                    below: left.below.union(right.below),
                },
            }),
        );
        Self { nodes }
    }

    /// The paths in any of the sets.
    pub(super) fn union_of(mut sets: Vec<Self>) -> Self {
        // Pairwise, so that each path is moved at most log2(number of sets) times.
        while sets.len() > 1 {
            let mut pairs = std::mem::take(&mut sets).into_iter();
            while let Some(left) = pairs.next() {
                sets.push(left.union(pairs.next().unwrap_or_default()));
            }
        }
        sets.pop().unwrap_or_default()
    }

    /// The paths in both sets.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::new();
        for node in &self.nodes {
            if let Some(twin) = other.node(&node.element) {
                let below = node.below.intersection(&twin.below);
                if (node.is_member && twin.is_member) || !below.is_empty() {
                    both.push(node.element.clone(), node.is_member && twin.is_member, below);
                }
            }
        }
        both
    }

    /// Removes the members of `other`, but not the paths below them. Returns whether anything was removed.
    pub(super) fn subtract(&mut self, other: &Self) -> bool {
        self.remove_with(other, |node, twin| {
            let had = node.is_member && twin.is_member;
            node.is_member &= !twin.is_member;
            node.below.subtract(&twin.below) || had
        })
    }

    /// Removes the members of `other` and all paths below them. Returns whether anything was removed.
    pub(super) fn subtract_recursively(&mut self, other: &Self) -> bool {
        self.remove_with(other, |node, twin| {
            if twin.is_member {
                node.is_member = false;
                node.below = Self::new();
                true
            } else {
                node.below.subtract_recursively(&twin.below)
            }
        })
    }

    fn remove_with(&mut self, other: &Self, mut remove: impl FnMut(&mut Node, &Node) -> bool) -> bool {
        if other.is_empty() {
            return false;
        }
        let mut is_changed = false;
        self.nodes.retain_mut(|node| {
            if let Some(twin) = other.node(&node.element) {
                is_changed |= remove(node, twin);
            }
            node.is_member || !node.below.is_empty()
        });
        is_changed
    }

    /// The members of this set that are not in `other`.
    pub(super) fn difference(mut self, other: &Self) -> Self {
        self.subtract(other);
        self
    }

    /// Adapts a set that was written before the schema changed: paths below values that are atomic now are replaced by the
    /// paths of these values.
    pub(super) fn reconcile(&mut self, schema: &Structural) {
        for node in &mut self.nodes {
            let Some(below) = schema_below(schema, &node.element).filter(|_| !node.below.is_empty()) else {
                continue;
            };
            let is_atomic = match &below.shape {
                Shape::Object(object) => object.is_atomic,
                Shape::List(list) => list.kind == ListKind::Atomic,
                _ => false,
            };
            if is_atomic {
                node.is_member = true;
                node.below = Self::new();
            } else {
                node.below.reconcile(below);
            }
        }
    }

    /// The set with every struct field on the way to a member as a further member. Map keys and list items on the way are
    /// not added. The reference calls this `EnsureNamedFieldsAreMembers`.
    pub(super) fn with_named_fields(mut self, schema: &Structural) -> Self {
        for node in self.nodes.iter_mut().filter(|node| !node.below.is_empty()) {
            if let (Shape::Object(object), PathElement::Field(name)) = (&schema.shape, &node.element) {
                node.is_member |= object.field(name).is_some();
            }
            if let Some(below) = schema_below(schema, &node.element) {
                node.below = std::mem::take(&mut node.below).with_named_fields(below);
            }
        }
        self
    }

    /// All members in the order of the reference: at each level first the members, then the paths below them.
    pub(super) fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::new();
        self.collect_paths(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &mut Vec<PathElement>, paths: &mut Vec<Path>) {
        for node in self.nodes.iter().filter(|node| node.is_member) {
            prefix.push(node.element.clone());
            paths.push(Path(prefix.clone()));
            prefix.pop();
        }
        for node in self.nodes.iter().filter(|node| !node.below.is_empty()) {
            prefix.push(node.element.clone());
            node.below.collect_paths(prefix, paths);
            prefix.pop();
        }
    }

    /// Decodes `fieldsV1`. Keys may be in any order and any JSON spelling.
    ///
    /// # Errors
    ///
    /// [`FieldsError`] if a node is not an object, or a key is not a path element.
    pub(super) fn from_value(fields: &Value) -> Result<Self, FieldsError> {
        let (set, _) = Self::read(fields)?;
        Ok(set)
    }

    /// The set below a node, and whether the node itself is a member.
    fn read(fields: &Value) -> Result<(Self, bool), FieldsError> {
        let children = match fields {
            Value::Null => return Ok((Self::new(), true)),
            Value::Object(children) => children,
            _ => return Err(FieldsError::NotAnObject),
        };
        let mut nodes = Vec::with_capacity(children.len());
        let mut is_member = false;
        for (key, child) in children {
            if key == "." {
                is_member = true;
            } else if let Some(element) = PathElement::parse(key)? {
                let (below, is_member) = Self::read(child)?;
                nodes.push(Node {
                    element,
                    is_member,
                    below,
                });
            }
        }
        let set = if nodes.is_sorted_by(|left, right| left.element < right.element) {
            Self { nodes }
        } else {
            // Another order, or two spellings of one element.
            Self { nodes: merged(nodes) }
        };
        let is_leaf = set.is_empty();
        Ok((set, is_member || is_leaf))
    }

    /// Encodes the set as `fieldsV1`.
    pub(super) fn to_value(&self) -> Value {
        Value::Object(self.to_members(false))
    }

    fn to_members(&self, is_member: bool) -> Map<String, Value> {
        if self.is_empty() {
            return Map::new();
        }
        let dot = is_member.then(|| (".".to_owned(), Value::Object(Map::new())));
        let children = self.nodes.iter().map(|node| {
            (
                node.element.encoded(),
                Value::Object(node.below.to_members(node.is_member)),
            )
        });
        dot.into_iter().chain(children).collect()
    }
}

/// The schema of the position that a path element leads to.
fn schema_below<'s>(schema: &'s Structural, element: &PathElement) -> Option<&'s Structural> {
    match (&schema.shape, element) {
        (Shape::Object(object), PathElement::Field(name)) => object.child(name),
        (Shape::List(list), PathElement::Key(_) | PathElement::Value(_)) => Some(&list.items),
        _ => None,
    }
}

/// Sorts nodes and merges those with equal elements.
fn merged(mut nodes: Vec<Node>) -> Vec<Node> {
    nodes.sort_by(|left, right| left.element.cmp(&right.element));
    let mut merged: Vec<Node> = Vec::with_capacity(nodes.len());
    for node in nodes {
        match merged.last_mut() {
            Some(last) if last.element == node.element => {
                last.is_member |= node.is_member;
                last.below = std::mem::take(&mut last.below).union(node.below);
            }
            _ => merged.push(node),
        }
    }
    merged
}

impl FromIterator<Path> for FieldSet {
    fn from_iter<I: IntoIterator<Item = Path>>(paths: I) -> Self {
        let mut set = Self::new();
        for path in paths {
            set.insert(&path);
        }
        set
    }
}

impl fmt::Debug for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.paths().iter().map(ToString::to_string))
            .finish()
    }
}

/// Fuzz target: decoding must not panic, and decoded sets must survive a round trip.
///
/// # Panics
///
/// If a decoded set changes in a round trip, which is a bug.
pub fn fuzz_decode(text: &[u8]) {
    let Ok(decoded) = crate::codec::json::decode(text) else {
        return;
    };
    if let Ok(set) = FieldSet::from_value(&decoded.value) {
        assert_eq!(FieldSet::from_value(&set.to_value()).as_ref(), Ok(&set));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(paths: &[&[&str]]) -> FieldSet {
        paths.iter().map(|names| Path::fields(names)).collect()
    }

    fn decoded(text: &str) -> Result<FieldSet, FieldsError> {
        FieldSet::from_value(&serde_json::from_str(text).expect(text))
    }

    #[test]
    fn encoded_sets_survive_decoding() {
        for text in [
            r"{}",
            r#"{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:priority":{}}}"#,
            r#"{"f:l":{".":{},"f:z":{},"i:0":{},"k:{\"port\":80}":{},"k:{\"port\":9}":{".":{},"f:port":{}},"v:\"x\"":{},"v:-1":{},"v:10":{},"v:2":{}}}"#,
            r#"{"f:a/b.c":{},"f:s":{"v:\"\\u003ca\\u003e\"":{}}}"#,
        ] {
            let set = decoded(text).expect(text);
            assert_eq!(set.to_value().to_string(), text);
        }
    }

    #[test]
    fn order_and_spelling_do_not_matter() {
        let one = decoded(
            r#"{"f:b":{},"f:a":{"k:{\"n\":\"<\",\"m\":1.0}":{"f:x":{}},".":{"ignored":1}},"f:c":null}"#,
        );
        let other =
            decoded(r#"{"f:a":{".":{},"k:{\"m\":1,\"n\":\"\\u003c\"}":{"f:x":{}}},"f:b":{},"f:c":{}}"#);
        assert_eq!(one.unwrap(), other.unwrap());
        let twice = decoded(r#"{"v:1":{"f:a":{}},"v:1.0":{"f:b":{}}}"#).unwrap();
        assert_eq!(twice.to_value().to_string(), r#"{"v:1":{"f:a":{},"f:b":{}}}"#);
    }

    #[test]
    fn unknown_prefixes_are_skipped_with_their_subtree() {
        let read = decoded(r#"{"x:y":{"f:a":{}},"f:b":{"z:1":{"f:c":{}}}}"#).unwrap();
        assert_eq!(read, set(&[&["b"]]));
    }

    #[test]
    fn malformed_fields_are_rejected() {
        for text in [
            r#"{"f":{}}"#,
            r#"{"ab":{}}"#,
            r#"{"f:a":1}"#,
            "[]",
            r#"{"k:1":{}}"#,
            r#"{"f:a":{"":{}}}"#,
        ] {
            assert!(decoded(text).is_err(), "{text}");
        }
        assert_eq!(decoded("null"), Ok(FieldSet::new()));
    }

    #[test]
    fn members_are_removed_with_or_without_the_paths_below_them() {
        let all = set(&[
            &["metadata"],
            &["metadata", "labels"],
            &["metadata", "labels", "x"],
            &["spec"],
            &["status", "a"],
        ]);
        let mut alone = all.clone();
        assert!(alone.subtract(&set(&[&["metadata"], &["metadata", "labels"], &["nothing"]])));
        assert_eq!(
            alone,
            set(&[&["metadata", "labels", "x"], &["spec"], &["status", "a"]])
        );
        let mut recursively = all.clone();
        assert!(recursively.subtract_recursively(&set(&[&["metadata"], &["status"]])));
        assert_eq!(recursively, set(&[&["spec"]]));
        let mut none = all.clone();
        assert!(!none.subtract(&set(&[&["status"]])));
        assert_eq!(none, all);
        assert_eq!(all.len(), 5);
    }

    fn any_element() -> impl Strategy<Value = PathElement> {
        let scalar = prop_oneof![
            (-3_i64..4).prop_map(Value::from),
            "[ab<\"\u{e9}]{0,2}".prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
        ];
        prop_oneof![
            4 => "[abc./]{0,2}".prop_map(PathElement::Field),
            1 => prop::collection::btree_map("[np]", scalar.clone(), 1..3)
                .prop_map(|fields| PathElement::Key(fields.into_iter().collect())),
            1 => scalar.prop_map(PathElement::Value),
            1 => (0_i64..3).prop_map(PathElement::Index),
        ]
    }

    fn any_set() -> impl Strategy<Value = FieldSet> {
        let path = prop::collection::vec(any_element(), 1..4).prop_map(Path);
        prop::collection::vec(path, 0..12).prop_map(|paths| paths.into_iter().collect())
    }

    proptest! {
        #[test]
        fn sets_survive_encoding_and_decoding(set in any_set()) {
            prop_assert_eq!(FieldSet::from_value(&set.to_value()).unwrap(), set.clone());
            prop_assert_eq!(set.paths().into_iter().collect::<FieldSet>(), set);
        }

        #[test]
        fn operations_equal_those_on_sets_of_paths(left in any_set(), right in any_set()) {
            use std::collections::BTreeSet;
            let paths = |set: &FieldSet| set.paths().into_iter().collect::<BTreeSet<_>>();
            let (l, r) = (paths(&left), paths(&right));
            prop_assert_eq!(left.len(), l.len());
            prop_assert_eq!(paths(&left.clone().union(right.clone())), l.union(&r).cloned().collect());
            prop_assert_eq!(paths(&left.intersection(&right)), l.intersection(&r).cloned().collect());
            prop_assert_eq!(paths(&left.clone().difference(&right)), l.difference(&r).cloned().collect());
            let mut rest = left.clone();
            prop_assert_eq!(rest.subtract(&right), !l.is_disjoint(&r));
            for path in &l {
                prop_assert!(left.contains(path));
                prop_assert_eq!(right.contains(path), r.contains(path));
            }
            let mut rest = left.clone();
            rest.subtract_recursively(&right);
            let below = |path: &Path| (1..=path.0.len()).any(|end| r.contains(&Path(path.0[..end].to_vec())));
            prop_assert_eq!(paths(&rest), l.iter().filter(|path| !below(path)).cloned().collect());
            prop_assert_eq!(left.clone().union(left.clone()), left.clone());
            let sets = vec![left.clone(), right.clone(), left.clone()];
            prop_assert_eq!(FieldSet::union_of(sets), left.clone().union(right.clone()));
            prop_assert_eq!(left.clone().difference(&right).union(left.intersection(&right)), left);
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[\\{\\}\":.,fkvi\\\\ab1]{0,40}") {
            fuzz_decode(text.as_bytes());
        }
    }
}
