//! Merge join of two sorted sequences.

use std::cmp::Ordering;

/// One step of a [`join`]: an element of one side, or a pair of equal elements.
pub(super) enum Joined<L, R> {
    /// Only the left side has the element.
    Left(L),
    /// Only the right side has the element.
    Right(R),
    /// Both sides have the element.
    Both(L, R),
}

/// Joins two sequences that are sorted by `compare`. Each sequence must not contain equal elements.
pub(super) fn join<L, R>(
    left: impl IntoIterator<Item = L>,
    right: impl IntoIterator<Item = R>,
    compare: impl Fn(&L, &R) -> Ordering,
) -> impl Iterator<Item = Joined<L, R>> {
    let mut left = left.into_iter().peekable();
    let mut right = right.into_iter().peekable();
    std::iter::from_fn(move || {
        let order = match (left.peek(), right.peek()) {
            (Some(left), Some(right)) => compare(left, right),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        match order {
            Ordering::Less => left.next().map(Joined::Left),
            Ordering::Greater => right.next().map(Joined::Right),
            Ordering::Equal => left
                .next()
                .zip(right.next())
                .map(|(left, right)| Joined::Both(left, right)),
        }
    })
}
