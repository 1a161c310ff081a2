//! How much an object may grow while the store is full, so that what leads to its removal goes on, and nothing else.
//!
//! The bounds depend only on the stored object, not on how often it is written: a status and the managed fields together get
//! an allowance beyond the rest of the object, which may not grow.

use std::io;

use drydock_proto::kinds::Scope;
use drydock_storage::{Growth, Value as Stored};
use serde_json::Value;

use crate::registry::metadata::is_terminating;
use crate::registry::part::Part;

/// The allowance of a namespaced object in bytes.
const NAMESPACED_ALLOWANCE: usize = 32 * 1024;
/// The allowance of a cluster-scoped object in bytes: they are few, and a status may list nodes.
const CLUSTER_ALLOWANCE: usize = 1024 * 1024;

/// What whoever removes a finalizer from an object that is being deleted may add to it, in bytes: its reasons. New finalizers
/// are rejected then, so this is bounded too.
const FINALIZER_ALLOWANCE: usize = 1024;

/// The growth of an update. The old object and its stored form are those that it replaces.
pub(super) fn of_update(
    scope: Scope,
    part: Part,
    (old, before): (&Value, &Stored),
    (new, after): (&Value, &Stored),
) -> Growth {
    if after.bytes.len() <= before.bytes.len() {
        return Growth::None;
    }
    let rest = rest(old, before.bytes.len());
    let leads_to_removal = match part {
        Part::Status => true,
        Part::Main => {
            let removed = finalizers(old).saturating_sub(finalizers(new));
            is_terminating(old) && self::rest(new, after.bytes.len()) <= rest + removed * FINALIZER_ALLOWANCE
        }
    };
    let allowance = match scope {
        Scope::Namespaced => NAMESPACED_ALLOWANCE,
        Scope::Cluster => CLUSTER_ALLOWANCE,
    };
    if leads_to_removal {
        Growth::UpTo(rest + allowance)
    } else {
        Growth::None
    }
}

fn finalizers(object: &Value) -> usize {
    object
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .map_or(0, Vec::len)
}

/// The length of an object without what has the allowance.
fn rest(object: &Value, length: usize) -> usize {
    let parts = ["/status", "/metadata/managedFields", "/metadata/generation"];
    let allowed: usize = parts
        .iter()
        .filter_map(|pointer| object.pointer(pointer))
        .map(json_length)
        .sum();
    length.saturating_sub(allowed)
}

fn json_length(value: &Value) -> usize {
    let mut counter = Counter(0);
    // Counting cannot fail.
    let _counted = serde_json::to_writer(&mut counter, value);
    counter.0
}

struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored(object: &Value) -> Stored {
        Stored {
            bytes: object.to_string().into(),
            form: "g/v1".into(),
            splice_offset: 0,
        }
    }

    fn growth(part: Part, old: &Value, new: &Value) -> Growth {
        of_update(Scope::Namespaced, part, (old, &stored(old)), (new, &stored(new)))
    }

    #[test]
    fn a_status_has_an_allowance_beyond_the_rest_of_the_object() {
        let object = |status: usize| json!({"metadata": {"name": "a"}, "status": "x".repeat(status)});
        let rest = object(0).to_string().len() - 2;
        let limit = Growth::UpTo(rest + NAMESPACED_ALLOWANCE);
        // However often it grows, the limit stays.
        for (before, after) in [(0, 10), (10, 1000), (30_000, 40_000)] {
            assert_eq!(growth(Part::Status, &object(before), &object(after)), limit);
        }
        assert_eq!(growth(Part::Status, &object(10), &object(10)), Growth::None);
        assert_eq!(growth(Part::Main, &object(10), &object(11)), Growth::None);
    }

    #[test]
    fn a_terminating_object_grows_by_its_managed_fields_and_by_reasons_for_removed_finalizers() {
        let object = |annotation: &str, managers: usize| {
            json!({"metadata": {"deletionTimestamp": "t", "annotations": {"a": annotation},
                "managedFields": vec!["m"; managers]}})
        };
        let is_allowed = |new: &Value| growth(Part::Main, &object("a", 1), new) != Growth::None;
        assert!(is_allowed(&object("a", 5)));
        assert!(!is_allowed(&object("aa", 1)));
        assert!(!is_allowed(&object("aa", 5)));
        let held = |finalizers: usize, annotation: usize| {
            let metadata = json!({"deletionTimestamp": "t", "finalizers": vec!["f"; finalizers], "annotations": {"a": "x".repeat(annotation)}});
            json!({ "metadata": metadata })
        };
        for (finalizers, annotation, expected) in
            [(1, 500, true), (2, 500, false), (1, 1100, false), (0, 1100, true)]
        {
            let growth = growth(Part::Main, &held(2, 0), &held(finalizers, annotation));
            assert_eq!(growth != Growth::None, expected, "{finalizers} {annotation}");
        }
        let alive = json!({"metadata": {"managedFields": []}});
        let written = json!({"metadata": {"managedFields": ["m"]}});
        assert_eq!(growth(Part::Main, &alive, &written), Growth::None);
    }
}
