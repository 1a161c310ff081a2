//! What does a delete do to an object: remove it, mark it, or nothing more?

use jiff::Timestamp;
use serde_json::{Value, json};

use super::metadata::{generation, is_terminating, metadata_mut, texts, time_text};
use crate::request::options::{DeleteOptions, Propagation};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The effect of a delete on an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Deletion {
    /// No finalizer holds it: it goes.
    Remove,
    /// Finalizers hold it: this is what is stored.
    Mark(Value),
    /// It is already marked, and nothing changes.
    Unchanged,
}

/// Decides by the object and the options.
#[must_use]
pub fn decide(object: &Value, options: &DeleteOptions, now: Timestamp) -> Deletion {
    let before = texts(object, "finalizers");
    let mut finalizers: Vec<String> = before.clone();
    let wanted = match options.propagation {
        None => None,
        Some(Propagation::Background) => Some(""),
        Some(Propagation::Foreground) => Some(FOREGROUND),
        Some(Propagation::Orphan) => Some(ORPHAN),
    };
    if let Some(wanted) = wanted {
        finalizers
            .retain(|finalizer| finalizer == wanted || (finalizer != ORPHAN && finalizer != FOREGROUND));
        if !wanted.is_empty() && !finalizers.iter().any(|finalizer| finalizer == wanted) {
            finalizers.push(wanted.to_owned());
        }
    }
    if finalizers.is_empty() {
        return Deletion::Remove;
    }
    if is_terminating(object) && finalizers == before {
        return Deletion::Unchanged;
    }
    let mut marked = object.clone();
    let next = generation(object).saturating_add(1);
    let was_terminating = is_terminating(object);
    let metadata = metadata_mut(&mut marked);
    metadata.insert("finalizers".to_owned(), json!(finalizers));
    if !was_terminating {
        metadata.insert("deletionTimestamp".to_owned(), json!(time_text(now)));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
        if next > 1 {
            metadata.insert("generation".to_owned(), json!(next));
        }
    }
    Deletion::Mark(marked)
}

/// Whether an update has taken the last finalizer off an object that is being deleted.
#[must_use]
pub fn is_finished_by(new: &Value) -> bool {
    let grace = new
        .pointer("/metadata/deletionGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(0);
    is_terminating(new) && grace == 0 && texts(new, "finalizers").is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(finalizers: &[&str], terminating: bool, propagation: Option<Propagation>) -> Deletion {
        let mut object = json!({"metadata": {"name": "a", "generation": 2, "finalizers": finalizers}});
        if terminating {
            metadata_mut(&mut object).insert("deletionTimestamp".into(), json!("2026-01-01T00:00:00Z"));
        }
        let options = DeleteOptions {
            propagation,
            ..DeleteOptions::default()
        };
        decide(&object, &options, Timestamp::UNIX_EPOCH)
    }

    fn kept(deletion: Deletion) -> Vec<String> {
        match deletion {
            Deletion::Mark(object) => texts(&object, "finalizers"),
            other => panic!("not marked: {other:?}"),
        }
    }

    #[test]
    fn an_object_without_finalizers_goes() {
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
    fn the_policy_decides_the_finalizers_of_garbage_collection() {
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

    #[test]
    fn a_mark_is_set_once() {
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
