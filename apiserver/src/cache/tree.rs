//! A copy-on-write B-tree: readers hold a consistent version while one writer changes its own.
//!
//! Versions of a tree share nodes. Cloning a tree increments a reference count. A change copies only the nodes on one
//! path, and only those that another version still holds. Each branch knows how many items and bytes are below it, so
//! counting a range does not walk it.
//!
//! ```text
//! old root ──┐           ┌── new root
//!            ▼           ▼
//!          [a..z]      [a..z]'          copied
//!          │    └────────┼────┐
//!          ▼             ▼    ▼
//!        [a..m]        [a..m]' [n..z]   shared
//! ```

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// The most items of a leaf, and the most children of a branch.
pub(super) const FAN_OUT: usize = 48;

/// Nodes that shrink below this share of [`FAN_OUT`] are merged with a sibling.
const MIN_FILL: usize = FAN_OUT / 3;

/// The capacity added to a full vector, instead of doubling it.
const GROWTH: usize = 8;

/// An item of a [`Tree`]: cheap to clone and ordered.
pub(super) trait Item: Clone {
    /// What branches keep to find a child: the order key of an item without its data, so that a branch does not keep
    /// old items alive.
    type Separator: Clone;
    /// A borrowed order key, to search for.
    type Probe<'a>: Copy;

    /// The item's order key.
    fn probe(&self) -> Self::Probe<'_>;
    /// The item's order key, to be kept in a branch.
    fn separator(&self) -> Self::Separator;
    /// The item's size in bytes; must not change while it is in a tree.
    fn bytes(&self) -> u64;
    /// Whether the item is before, at or after `probe`.
    fn compare(&self, probe: Self::Probe<'_>) -> Ordering;
    /// Whether the separator is before, at or after `probe`.
    fn compare_separator(separator: &Self::Separator, probe: Self::Probe<'_>) -> Ordering;
}

/// An ordered set of items with O(1) clone. See the module.
#[derive(Clone)]
pub(super) struct Tree<T: Item> {
    root: Option<Arc<Node<T>>>,
    count: u64,
    bytes: u64,
}

#[derive(Clone)]
enum Node<T: Item> {
    Leaf(Vec<T>),
    Branch(Vec<Child<T>>),
}

/// A child with its sums. The separator is at or before its first item, and after the last item of the child before.
/// The separator of the first child is never read.
#[derive(Clone)]
struct Child<T: Item> {
    separator: T::Separator,
    count: u64,
    bytes: u64,
    node: Arc<Node<T>>,
}

impl<T: Item> Default for Tree<T> {
    fn default() -> Self {
        Self {
            root: None,
            count: 0,
            bytes: 0,
        }
    }
}

impl<T: Item> fmt::Debug for Tree<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("count", &self.count)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl<T: Item> Tree<T> {
    /// The number of items.
    #[must_use]
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The size of all items together.
    #[must_use]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The item at `probe`.
    #[must_use]
    pub(super) fn get(&self, probe: T::Probe<'_>) -> Option<&T> {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(items) => {
                    let index = items.binary_search_by(|item| item.compare(probe)).ok()?;
                    return items.get(index);
                }
                Node::Branch(children) => node = &children.get(child_index(children, probe))?.node,
            }
        }
    }

    /// Inserts the item and returns the one it replaced.
    pub(super) fn insert(&mut self, item: T) -> Option<T> {
        let bytes = item.bytes();
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(Node::Leaf(vec![item])));
            self.count = 1;
            self.bytes = bytes;
            return None;
        };
        let (old, split) = insert_below(root, item);
        self.bytes += bytes;
        match &old {
            Some(old) => self.bytes -= old.bytes(),
            None => self.count += 1,
        }
        if let Some(right) = split
            && let Some(separator) = root.first_separator()
        {
            let left = Child {
                separator,
                count: self.count - right.count,
                bytes: self.bytes - right.bytes,
                node: Arc::clone(root),
            };
            self.root = Some(Arc::new(Node::Branch(vec![left, right])));
        }
        old
    }

    /// Removes the item at `probe` and returns it.
    pub(super) fn remove(&mut self, probe: T::Probe<'_>) -> Option<T> {
        // Without this, a path would be copied even when there is nothing to remove.
        self.get(probe)?;
        let root = self.root.as_mut()?;
        let old = remove_below(root, probe)?;
        self.count -= 1;
        self.bytes -= old.bytes();
        if self.count == 0 {
            self.root = None;
        }
        while let Some(Node::Branch(children)) = self.root.as_deref()
            && let [only] = children.as_slice()
        {
            self.root = Some(Arc::clone(&only.node));
        }
        Some(old)
    }

    /// The number of items before `probe`.
    #[must_use]
    pub(super) fn rank(&self, probe: T::Probe<'_>) -> u64 {
        let mut before = 0;
        let mut node = self.root.as_deref();
        while let Some(current) = node {
            match current {
                Node::Leaf(items) => {
                    before += as_count(items.partition_point(|item| item.compare(probe).is_lt()));
                    node = None;
                }
                Node::Branch(children) => {
                    let index = child_index(children, probe);
                    before += children.iter().take(index).map(|child| child.count).sum::<u64>();
                    node = children.get(index).map(|child| &*child.node);
                }
            }
        }
        before
    }

    /// All items in order. The cursor owns what it walks, so the tree may change or be dropped meanwhile.
    #[must_use]
    pub(super) fn cursor(&self) -> Cursor<T> {
        Cursor {
            stack: self.root.iter().map(|root| (Arc::clone(root), 0)).collect(),
        }
    }

    /// The items at and after `probe`, in order.
    #[must_use]
    pub(super) fn cursor_from(&self, probe: T::Probe<'_>) -> Cursor<T> {
        let mut stack = Vec::new();
        let mut node = self.root.as_ref();
        while let Some(current) = node {
            match &**current {
                Node::Leaf(items) => {
                    let index = items.partition_point(|item| item.compare(probe).is_lt());
                    stack.push((Arc::clone(current), index));
                    node = None;
                }
                Node::Branch(children) => {
                    let index = child_index(children, probe);
                    stack.push((Arc::clone(current), index + 1));
                    node = children.get(index).map(|child| &child.node);
                }
            }
        }
        Cursor { stack }
    }

    /// The items after the first `rank`, in order.
    #[must_use]
    pub(super) fn cursor_at(&self, rank: u64) -> Cursor<T> {
        let mut stack = Vec::new();
        let mut left = rank;
        let mut node = self.root.as_ref();
        while let Some(current) = node {
            match &**current {
                Node::Leaf(_) => {
                    let index = usize::try_from(left).unwrap_or(usize::MAX);
                    stack.push((Arc::clone(current), index));
                    node = None;
                }
                Node::Branch(children) => {
                    let mut index = 0;
                    while let Some(child) = children.get(index)
                        && child.count <= left
                    {
                        left -= child.count;
                        index += 1;
                    }
                    stack.push((Arc::clone(current), index + 1));
                    node = children.get(index).map(|child| &child.node);
                }
            }
        }
        Cursor { stack }
    }
}

/// Builds a tree with full nodes, from items in ascending order.
pub(super) struct Builder<T: Item> {
    leaf: Vec<T>,
    /// Finished nodes without a parent yet, lowest level first.
    levels: Vec<Vec<Child<T>>>,
}

impl<T: Item> Default for Builder<T> {
    fn default() -> Self {
        Self {
            leaf: Vec::with_capacity(FAN_OUT),
            levels: Vec::new(),
        }
    }
}

impl<T: Item> Builder<T> {
    /// Adds an item after all others. The caller guarantees the order.
    pub(super) fn push(&mut self, item: T) {
        self.leaf.push(item);
        if self.leaf.len() == FAN_OUT {
            let leaf = std::mem::replace(&mut self.leaf, Vec::with_capacity(FAN_OUT));
            self.lift(0, Node::Leaf(leaf));
        }
    }

    fn lift(&mut self, level: usize, node: Node<T>) {
        let Some(child) = Child::new(node) else { return };
        match self.levels.get_mut(level) {
            None => self.levels.push(vec![child]),
            Some(children) => {
                children.push(child);
                if children.len() == FAN_OUT {
                    let full = std::mem::take(children);
                    self.lift(level + 1, Node::Branch(full));
                }
            }
        }
    }

    /// The tree of all items pushed.
    #[must_use]
    pub(super) fn finish(mut self) -> Tree<T> {
        let mut top = Child::new(Node::Leaf(std::mem::take(&mut self.leaf)));
        let highest = self.levels.len().saturating_sub(1);
        for (level, mut children) in self.levels.into_iter().enumerate() {
            children.extend(top);
            // Only the root may be omitted when it has one child: elsewhere leaves would be on different levels.
            top = if level == highest && children.len() == 1 {
                children.pop()
            } else {
                Child::new(Node::Branch(children))
            };
        }
        top.map_or_else(Tree::default, |top| Tree {
            count: top.count,
            bytes: top.bytes,
            root: Some(top.node),
        })
    }
}

/// An iterator over items in order, which owns what it walks.
pub(super) struct Cursor<T: Item> {
    /// The path to the next item: nodes, and the index to continue with in each.
    stack: Vec<(Arc<Node<T>>, usize)>,
}

impl<T: Item> Iterator for Cursor<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        loop {
            let (node, index) = self.stack.last_mut()?;
            let below = match &**node {
                Node::Leaf(items) => {
                    if let Some(item) = items.get(*index) {
                        *index += 1;
                        return Some(item.clone());
                    }
                    None
                }
                Node::Branch(children) => children.get(*index).map(|child| Arc::clone(&child.node)),
            };
            match below {
                Some(node) => {
                    *index += 1;
                    self.stack.push((node, 0));
                }
                None => {
                    self.stack.pop();
                }
            }
        }
    }
}

impl<T: Item> fmt::Debug for Cursor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("depth", &self.stack.len())
            .finish()
    }
}

impl<T: Item> Node<T> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(items) => items.len(),
            Self::Branch(children) => children.len(),
        }
    }

    fn first_separator(&self) -> Option<T::Separator> {
        match self {
            Self::Leaf(items) => items.first().map(Item::separator),
            Self::Branch(children) => children.first().map(|child| child.separator.clone()),
        }
    }
}

impl<T: Item> Child<T> {
    /// The node with its sums; none if it is empty.
    fn new(node: Node<T>) -> Option<Self> {
        let separator = node.first_separator()?;
        let (count, bytes) = match &node {
            Node::Leaf(items) => (as_count(items.len()), items.iter().map(Item::bytes).sum()),
            Node::Branch(children) => (
                children.iter().map(|child| child.count).sum(),
                children.iter().map(|child| child.bytes).sum(),
            ),
        };
        Some(Self {
            separator,
            count,
            bytes,
            node: Arc::new(node),
        })
    }
}

/// The index of the child that holds, or would hold, `probe`.
fn child_index<T: Item>(children: &[Child<T>], probe: T::Probe<'_>) -> usize {
    let others = children.get(1..).unwrap_or_default();
    others.partition_point(|child| T::compare_separator(&child.separator, probe).is_le())
}

/// Returns the replaced item, and a new right sibling if the node was split.
fn insert_below<T: Item>(node: &mut Arc<Node<T>>, item: T) -> (Option<T>, Option<Child<T>>) {
    match Arc::make_mut(node) {
        Node::Leaf(items) => match items.binary_search_by(|other| other.compare(item.probe())) {
            Ok(index) => {
                let old = items.get_mut(index).map(|place| std::mem::replace(place, item));
                (old, None)
            }
            Err(index) => {
                let appended = index == items.len();
                insert_at(items, index, item);
                (
                    None,
                    split(items, appended).and_then(|right| Child::new(Node::Leaf(right))),
                )
            }
        },
        Node::Branch(children) => {
            let index = child_index(children, item.probe());
            let appended = index + 1 == children.len();
            let Some(child) = children.get_mut(index) else {
                return (None, None);
            };
            child.bytes += item.bytes();
            let (old, new_sibling) = insert_below(&mut child.node, item);
            match &old {
                Some(old) => child.bytes -= old.bytes(),
                None => child.count += 1,
            }
            let Some(sibling) = new_sibling else {
                return (old, None);
            };
            child.count -= sibling.count;
            child.bytes -= sibling.bytes;
            insert_at(children, index + 1, sibling);
            (
                old,
                split(children, appended).and_then(|right| Child::new(Node::Branch(right))),
            )
        }
    }
}

/// Splits off the right part of an overfull vector. After an insert at the end, the left part stays full.
fn split<T>(items: &mut Vec<T>, appended: bool) -> Option<Vec<T>> {
    let at = if appended { FAN_OUT } else { items.len() / 2 };
    (items.len() > FAN_OUT).then(|| items.split_off(at))
}

fn insert_at<T>(items: &mut Vec<T>, index: usize, item: T) {
    if items.len() == items.capacity() {
        items.reserve_exact(GROWTH);
    }
    items.insert(index, item);
}

fn remove_below<T: Item>(node: &mut Arc<Node<T>>, probe: T::Probe<'_>) -> Option<T> {
    match Arc::make_mut(node) {
        Node::Leaf(items) => {
            let index = items.binary_search_by(|item| item.compare(probe)).ok()?;
            Some(items.remove(index))
        }
        Node::Branch(children) => {
            let index = child_index(children, probe);
            let child = children.get_mut(index)?;
            let old = remove_below(&mut child.node, probe)?;
            child.count -= 1;
            child.bytes -= old.bytes();
            if child.count == 0 {
                children.remove(index);
            } else if child.node.len() < MIN_FILL && children.len() > 1 {
                merge(children, index.min(children.len() - 2));
            }
            Some(old)
        }
    }
}

/// Merges the children at `left` and `left + 1`, or distributes their content evenly if it does not fit one node.
fn merge<T: Item>(children: &mut Vec<Child<T>>, left: usize) {
    if left + 1 >= children.len() {
        return;
    }
    let right = children.remove(left + 1);
    let Some(merged) = children.get_mut(left) else {
        return;
    };
    merged.count += right.count;
    merged.bytes += right.bytes;
    let right = Arc::unwrap_or_clone(right.node);
    let surplus = match (Arc::make_mut(&mut merged.node), right) {
        (Node::Leaf(items), Node::Leaf(others)) => {
            items.extend(others);
            split(items, false).map(Node::Leaf)
        }
        (Node::Branch(below), Node::Branch(others)) => {
            below.extend(others);
            split(below, false).map(Node::Branch)
        }
        // Unreachable: all leaves are on one level.
        (_, right) => Some(right),
    };
    if let Some(right) = surplus.and_then(Child::new) {
        merged.count -= right.count;
        merged.bytes -= right.bytes;
        children.insert(left + 1, right);
    }
}

fn as_count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
