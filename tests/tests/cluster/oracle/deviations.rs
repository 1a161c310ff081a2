//! The table in `tests/conformance/DEVIATIONS.md`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};

const TABLE: &str = include_str!("../../../conformance/DEVIATIONS.md");

/// A row whose response differs from that for a custom resource, on purpose.
pub(super) struct Deviation {
    /// The status of our response.
    pub(super) status: u16,
}

/// The heading of the second table.
const OLDER_HOSTS: &str = "## Older hosts";

/// The deviations by the name of their row: the lines `| name | ours | custom resource | reason |` of the first table.
///
/// # Errors
/// A line has no status, or no reason.
pub(super) fn deviations() -> Result<BTreeMap<&'static str, Deviation>> {
    let (table, _) = TABLE.split_once(OLDER_HOSTS).context(OLDER_HOSTS)?;
    let mut deviations = BTreeMap::new();
    for [name, ours, _, reason] in rows(table)? {
        anyhow::ensure!(!reason.is_empty(), "no reason: {name}");
        let status = ours.get(..3).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no status: {name}"))?;
        deviations.insert(name, Deviation { status });
    }
    Ok(deviations)
}

/// The rows whose responses differ since the host is older: the lines `| name | releases | reason |` of the second table.
///
/// # Errors
/// A line has no reason.
pub(super) fn of_host(release: &str) -> Result<BTreeSet<&'static str>> {
    let (_, table) = TABLE.split_once(OLDER_HOSTS).context(OLDER_HOSTS)?;
    let mut names = BTreeSet::new();
    for [name, releases, reason] in rows(table)? {
        anyhow::ensure!(!reason.is_empty(), "no reason: {name}");
        if releases.split(", ").any(|one| one == release) {
            names.insert(name);
        }
    }
    Ok(names)
}

/// The cells of a table, without its head.
fn rows<const CELLS: usize>(text: &'static str) -> Result<Vec<[&'static str; CELLS]>> {
    let lines = text.lines().filter(|line| line.starts_with("| ")).skip(2);
    let cells = lines.map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        cells
            .try_into()
            .ok()
            .with_context(|| format!("not a row: {line}"))
    });
    cells.collect()
}
