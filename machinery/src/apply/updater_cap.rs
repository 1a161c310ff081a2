//! The limit on entries of updaters: the oldest ones are merged.

use std::collections::{BTreeMap, HashMap};

use super::entry::{Entry, Operation};
use super::field_set::FieldSet;

/// The maximum number of Update entries of an object, unless they have more versions.
const MAX_UPDATERS: usize = 10;

/// The manager of merged entries.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// Merges the oldest Update entries, separately for each version, until ten are left. The merged entry of a version has
/// the manager `ancient-changes` and no subresource.
pub(super) fn cap_updaters(entries: &mut Vec<Entry>) {
    let is_updater = |entry: &Entry| entry.operation == Operation::Update;
    let mut count = entries.iter().filter(|entry| is_updater(entry)).count();
    if count <= MAX_UPDATERS {
        return;
    }
    let (mut updaters, appliers): (Vec<_>, Vec<_>) = entries.drain(..).partition(is_updater);
    updaters.sort_by_cached_key(|entry| (entry.order_time().to_owned(), entry.identity()));
    // For each version: the position of the merged entry, if it exists, and of the oldest entry, which otherwise becomes
    // the merged entry.
    let mut buckets: HashMap<String, usize> = HashMap::new();
    for (at, entry) in updaters.iter().enumerate() {
        if entry.manager == ANCIENT_CHANGES && entry.subresource.is_empty() {
            buckets.insert(entry.api_version.clone(), at);
        }
    }
    let mut oldest: HashMap<String, usize> = HashMap::new();
    let mut merged: BTreeMap<usize, Vec<FieldSet>> = BTreeMap::new();
    let mut updaters: Vec<Option<Entry>> = updaters.into_iter().map(Some).collect();
    for at in 0..updaters.len() {
        if count <= MAX_UPDATERS {
            break;
        }
        let Some(version) = updaters
            .get(at)
            .and_then(Option::as_ref)
            .map(|entry| entry.api_version.clone())
        else {
            continue;
        };
        let Some(&first) = oldest.get(&version) else {
            oldest.insert(version, at);
            continue;
        };
        let bucket = *buckets.entry(version).or_insert(first);
        if bucket == at {
            continue;
        }
        let Some(entry) = updaters.get_mut(at).and_then(Option::take) else {
            continue;
        };
        count -= 1;
        merged.entry(bucket).or_default().push(entry.fields);
        if let Some(bucket) = updaters.get_mut(bucket).and_then(Option::as_mut) {
            ANCIENT_CHANGES.clone_into(&mut bucket.manager);
            bucket.subresource.clear();
            bucket.time = entry.time;
        }
    }
    for (at, mut sets) in merged {
        if let Some(bucket) = updaters.get_mut(at).and_then(Option::as_mut) {
            sets.push(std::mem::take(&mut bucket.fields));
            bucket.fields = FieldSet::union_of(sets);
        }
    }
    *entries = appliers;
    entries.extend(updaters.into_iter().flatten());
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{V1, V2, time};
    use super::super::path::Path;
    use super::*;

    /// Caps updaters, given as second, manager, subresource and version, and returns the entries in short form.
    fn capped(updaters: &[(u32, &str, &str, &str)]) -> Vec<String> {
        let mut entries: Vec<_> = updaters
            .iter()
            .map(|(second, manager, subresource, version)| Entry {
                manager: (*manager).to_owned(),
                operation: Operation::Update,
                api_version: (*version).to_owned(),
                subresource: (*subresource).to_owned(),
                time: Some(time(*second)),
                fields: [Path::fields(&[&format!("f{second}")])].into_iter().collect(),
            })
            .collect();
        cap_updaters(&mut entries);
        entries
            .iter()
            .map(|entry| {
                let mut paths: Vec<_> = entry.fields.paths().iter().map(ToString::to_string).collect();
                paths.sort();
                format!(
                    "{}/{} {} {}",
                    entry.manager,
                    entry.subresource,
                    &entry.api_version[12..],
                    paths.concat()
                )
            })
            .collect()
    }

    #[test]
    fn the_merged_entry_has_no_subresource() {
        let mut updaters = vec![(1, "s", "status", V1), (2, "o", "", V2)];
        updaters.extend((3..12).map(|second| (second, "u", "status", V1)));
        let left = capped(&updaters);
        assert_eq!(left.len(), 10);
        assert_eq!(
            left[..3],
            ["ancient-changes/ v1 .f1.f3", "o/ v2 .f2", "u/status v1 .f4"]
        );
    }

    #[test]
    fn ten_updaters_are_kept_and_one_for_each_version() {
        let ten: Vec<_> = (1..11).map(|second| (second, "u", "", V1)).collect();
        assert!(capped(&ten).iter().all(|entry| entry.starts_with("u/ v1")));
        let names: Vec<_> = (1..15).map(|version| format!("example.com/v{version}")).collect();
        let versions: Vec<_> = names
            .iter()
            .zip(1..)
            .map(|(version, second)| (second, "u", "", version.as_str()))
            .collect();
        assert_eq!(capped(&versions).len(), 14);
    }

    #[test]
    fn an_existing_merged_entry_is_used_at_any_position() {
        let mut updaters = vec![
            (1, "first", "", V1),
            (2, "second", "", V1),
            (3, "ancient-changes", "", V1),
        ];
        updaters.extend((4..14).map(|second| (second, "u", "", V1)));
        let left = capped(&updaters);
        assert_eq!(left.len(), 10);
        assert_eq!(
            left[..3],
            ["first/ v1 .f1", "ancient-changes/ v1 .f2.f3.f4.f5", "u/ v1 .f6"]
        );
    }
}
