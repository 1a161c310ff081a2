//! The table in `tests/conformance/DEVIATIONS.md`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

const TABLE: &str = include_str!("../../../conformance/DEVIATIONS.md");

/// A row whose response differs from that for a custom resource, on purpose.
pub(super) struct Deviation {
    /// The status of our response.
    pub(super) status: u16,
}

/// The deviations by the name of their row: the lines `| name | ours | custom resource | reason |` of the table.
///
/// # Errors
/// A line has no status, or no reason.
pub(super) fn deviations() -> Result<BTreeMap<&'static str, Deviation>> {
    let mut deviations = BTreeMap::new();
    for line in TABLE.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, ours, _, reason] = cells.as_slice() else {
            anyhow::bail!("not a row: {line}");
        };
        anyhow::ensure!(!reason.is_empty(), "no reason: {line}");
        let status = ours.get(..3).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no status: {line}"))?;
        deviations.insert(*name, Deviation { status });
    }
    Ok(deviations)
}
