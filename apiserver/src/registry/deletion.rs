//! Decides the effect of a delete on an object: remove it, set its deletion timestamp, or change nothing.

use drydock_proto::kinds::CollectionFinalizers;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::metadata::{generation, is_terminating, metadata_mut, strings, time_text};
use crate::request::options::{DeleteOptions, Propagation};

/// The effect of a delete on an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Deletion {
    /// The object is removed: it has no finalizers and no grace period is left.
    Remove,
    /// The object stays, with a deletion timestamp: the object to store.
    Mark(Value),
    /// The object has its deletion timestamp already, and nothing changes.
    Unchanged,
}

/// Decides what a delete does. `collection` are the finalizers of the garbage collector, `is_released` tells which finalizers
/// hold the object no longer, and `grace` is the grace period in seconds, `None` for kinds without graceful deletion.
#[must_use]
pub fn decide(
    object: &Value,
    options: &DeleteOptions,
    collection: &CollectionFinalizers,
    is_released: impl Fn(&str) -> bool,
    grace: Option<i64>,
    now: Timestamp,
) -> Deletion {
    let finalizers_after =
        |object: &Value, options: &DeleteOptions| finalizers_after(object, options, collection);
    let pending = is_terminating(object)
        .then(|| grace_period(object))
        .filter(|pending| *pending > 0);
    match (grace, pending) {
        (Some(_), Some(pending)) => {
            return shorten_grace_period(object, options, pending, &finalizers_after(object, options));
        }
        (Some(period), None) if period > 0 && !is_terminating(object) => {
            let mut marked = object.clone();
            mark(
                &mut marked,
                now.saturating_add(SignedDuration::from_secs(period))
                    .unwrap_or(now),
                period,
            );
            let finalizers = finalizers_after(object, options);
            if !finalizers.is_empty() {
                metadata_mut(&mut marked).insert("finalizers".to_owned(), json!(finalizers));
            }
            return Deletion::Mark(marked);
        }
        _ => {}
    }
    let before = strings(object, "finalizers");
    let finalizers = finalizers_after(object, options);
    if finalizers.iter().all(|finalizer| is_released(finalizer)) {
        return Deletion::Remove;
    }
    if is_terminating(object) && finalizers == before {
        return Deletion::Unchanged;
    }
    let mut marked = object.clone();
    if !is_terminating(object) {
        mark(&mut marked, now, 0);
    }
    metadata_mut(&mut marked).insert("finalizers".to_owned(), json!(finalizers));
    Deletion::Mark(marked)
}

/// The finalizers after a delete with this propagation policy.
fn finalizers_after(
    object: &Value,
    options: &DeleteOptions,
    collection: &CollectionFinalizers,
) -> Vec<String> {
    let CollectionFinalizers { orphan, foreground } = *collection;
    let mut finalizers = strings(object, "finalizers");
    let wanted = match options.propagation {
        None => return finalizers,
        Some(Propagation::Background) => "",
        Some(Propagation::Foreground) => foreground,
        Some(Propagation::Orphan) => orphan,
    };
    finalizers.retain(|finalizer| finalizer == wanted || (finalizer != orphan && finalizer != foreground));
    if !wanted.is_empty() && !finalizers.iter().any(|finalizer| finalizer == wanted) {
        finalizers.push(wanted.to_owned());
    }
    finalizers
}

/// Sets the deletion timestamp: the time at which the grace period ends.
fn mark(object: &mut Value, deletion_time: Timestamp, grace: i64) {
    let next = generation(object).saturating_add(1);
    let metadata = metadata_mut(object);
    metadata.insert("deletionTimestamp".to_owned(), json!(time_text(deletion_time)));
    metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
    if next > 1 {
        metadata.insert("generation".to_owned(), json!(next));
    }
}

/// A delete during the grace period can only shorten it.
fn shorten_grace_period(
    object: &Value,
    options: &DeleteOptions,
    pending: i64,
    finalizers: &[String],
) -> Deletion {
    let requested = options
        .grace_period_seconds
        .map(|period| if period < 0 { 1 } else { period });
    let Some(period) = requested.filter(|period| *period < pending) else {
        return Deletion::Unchanged;
    };
    if period == 0 && finalizers.is_empty() {
        return Deletion::Remove;
    }
    let mut marked = object.clone();
    let deletion_time = object
        .pointer("/metadata/deletionTimestamp")
        .and_then(Value::as_str)
        .and_then(|text| text.parse::<Timestamp>().ok());
    let sooner =
        deletion_time.and_then(|at| at.checked_sub(SignedDuration::from_secs(pending - period)).ok());
    let metadata = metadata_mut(&mut marked);
    if let Some(sooner) = sooner {
        metadata.insert("deletionTimestamp".to_owned(), json!(time_text(sooner)));
    }
    metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(period));
    if !finalizers.is_empty() {
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
    Deletion::Mark(marked)
}

/// `deletionGracePeriodSeconds`; 0 when absent.
fn grace_period(object: &Value) -> i64 {
    object
        .pointer("/metadata/deletionGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(0)
}

/// Whether an update completes a deletion: the object is being deleted, no grace period is left, and no finalizer holds it.
#[must_use]
pub fn is_complete(new: &Value, is_released: impl Fn(&str) -> bool) -> bool {
    is_terminating(new)
        && grace_period(new) == 0
        && strings(new, "finalizers")
            .iter()
            .all(|finalizer| is_released(finalizer))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decides on a stored object whose finalizers all hold it.
    fn plain(object: &Value, options: &DeleteOptions, grace: Option<i64>) -> Deletion {
        let collection = CollectionFinalizers::STORED;
        decide(
            object,
            options,
            &collection,
            |_| false,
            grace,
            Timestamp::UNIX_EPOCH,
        )
    }

    fn check(finalizers: &[&str], terminating: bool, propagation: Option<Propagation>) -> Deletion {
        let mut object = json!({"metadata": {"name": "a", "generation": 2, "finalizers": finalizers}});
        if terminating {
            metadata_mut(&mut object).insert("deletionTimestamp".into(), json!("2026-01-01T00:00:00Z"));
        }
        let options = DeleteOptions {
            propagation,
            ..DeleteOptions::default()
        };
        plain(&object, &options, None)
    }

    fn kept(deletion: Deletion) -> Vec<String> {
        match deletion {
            Deletion::Mark(object) => strings(&object, "finalizers"),
            other => panic!("not marked: {other:?}"),
        }
    }

    #[test]
    fn an_object_without_finalizers_is_removed() {
        assert_eq!(check(&[], false, None), Deletion::Remove);
        assert_eq!(
            check(
                &["orphan", "foregroundDeletion"],
                false,
                Some(Propagation::Background)
            ),
            Deletion::Remove
        );
        assert_eq!(
            check(&["foregroundDeletion"], true, Some(Propagation::Background)),
            Deletion::Remove
        );
    }

    #[test]
    fn the_propagation_policy_decides_the_finalizers_of_garbage_collection() {
        assert_eq!(kept(check(&[], false, Some(Propagation::Orphan))), ["orphan"]);
        assert_eq!(
            kept(check(&["orphan"], false, Some(Propagation::Foreground))),
            ["foregroundDeletion"]
        );
        assert_eq!(kept(check(&["a/b"], false, None)), ["a/b"]);
        assert_eq!(
            kept(check(&["a/b"], true, Some(Propagation::Orphan))),
            ["a/b", "orphan"]
        );
    }

    /// Deletes an object twice, with these grace periods. Expects its deletion timestamp and grace period; `None` if it is
    /// removed.
    #[track_caller]
    fn check_grace(first: i64, second: Option<i64>, finalizers: &[&str], expected: Option<(&str, i64)>) {
        let object = json!({"metadata": {"name": "a", "generation": 1, "finalizers": finalizers}});
        let Deletion::Mark(marked) = plain(&object, &DeleteOptions::default(), Some(first)) else {
            panic!("not marked")
        };
        assert_eq!(marked["metadata"]["generation"], json!(2));
        assert!(!is_complete(&marked, |_| false) || first == 0);
        let options = DeleteOptions {
            grace_period_seconds: second,
            ..DeleteOptions::default()
        };
        let after = match plain(&marked, &options, Some(first)) {
            Deletion::Remove => None,
            Deletion::Unchanged => Some(marked),
            Deletion::Mark(marked) => Some(marked),
        };
        let found = after.map(|object| {
            let metadata = &object["metadata"];
            (
                metadata["deletionTimestamp"].as_str().unwrap().to_owned(),
                metadata["deletionGracePeriodSeconds"].as_i64().unwrap(),
            )
        });
        assert_eq!(
            found,
            expected.map(|(at, grace)| (at.to_owned(), grace)),
            "{first} {second:?}"
        );
    }

    #[test]
    fn a_grace_period_can_only_be_shortened() {
        check_grace(30, None, &[], Some(("1970-01-01T00:00:30Z", 30)));
        check_grace(30, Some(40), &[], Some(("1970-01-01T00:00:30Z", 30)));
        check_grace(30, Some(5), &[], Some(("1970-01-01T00:00:05Z", 5)));
        check_grace(30, Some(-1), &[], Some(("1970-01-01T00:00:01Z", 1)));
        check_grace(30, Some(0), &[], None);
    }

    #[test]
    fn finalizers_keep_an_object_after_its_grace_period() {
        check_grace(30, Some(0), &["a/b"], Some(("1970-01-01T00:00:00Z", 0)));
        check_grace(0, Some(0), &["a/b"], Some(("1970-01-01T00:00:00Z", 0)));
        let object = json!({"metadata": {"name": "a"}});
        assert_eq!(
            plain(&object, &DeleteOptions::default(), Some(0)),
            Deletion::Remove
        );
    }

    #[test]
    fn the_deletion_timestamp_is_set_once() {
        let Deletion::Mark(marked) = check(&["a/b"], false, None) else {
            panic!("not marked")
        };
        assert_eq!(marked["metadata"]["generation"], json!(3));
        assert_eq!(
            marked["metadata"]["deletionTimestamp"],
            json!("1970-01-01T00:00:00Z")
        );
        assert_eq!(check(&["a/b"], true, None), Deletion::Unchanged);
    }
}
