//! The settings of a benchmark run, from the environment.

use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_tests::environment::number;

use super::ROWS;

/// The settings of one run.
pub(crate) struct Settings {
    rows: Vec<String>,
    /// The duration of a row.
    pub(crate) time: Duration,
    /// The objects of the last rows.
    pub(crate) objects: u64,
    /// Whether the peers are measured too.
    pub(crate) peers: bool,
}

impl Settings {
    /// Reads the settings.
    pub(crate) fn from_environment() -> Result<Self> {
        let rows: Vec<String> = std::env::var("DRYDOCK_BENCH")
            .unwrap_or_default()
            .split(',')
            .filter(|row| !row.is_empty())
            .map(str::to_owned)
            .collect();
        for row in &rows {
            ensure!(
                ROWS.contains(&row.as_str()),
                "no row {row}: there are {}",
                ROWS.join(", ")
            );
        }
        Ok(Self {
            rows,
            time: Duration::from_secs(number("DRYDOCK_BENCH_SECONDS", 5)?),
            objects: number("DRYDOCK_BENCH_OBJECTS", 150_000)?,
            peers: std::env::var("DRYDOCK_BENCH_PEERS").map_or(true, |value| value != "skip"),
        })
    }

    /// Whether a row was selected; without a selection all are.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|chosen| chosen == row)
    }
}
