//! The settings of a benchmark run, from the environment.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_tests::cluster::Road;
use drydock_tests::environment::number;

/// The scenarios that `DRYDOCK_DRAIN` can select.
const SCENARIOS: [&str; 3] = ["drain", "rest", "herd"];
/// The roads that `DRYDOCK_DRAIN_ROADS` can select.
const ROADS: [(&str, Road); 2] = [("direct", Road::Direct), ("aggregator", Road::Aggregator)];

/// The settings of one run.
pub(crate) struct Settings {
    scenarios: Vec<String>,
    /// The roads of the controller on which a drain is measured, with their names.
    pub(crate) roads: Vec<(&'static str, Road)>,
    /// The pods of a drain.
    pub(crate) pods: u64,
    /// The nodes of a drain.
    pub(crate) nodes: u64,
    /// How often each road is measured.
    pub(crate) repeat: u64,
    /// The time of `kubectl drain`; zero leaves it out.
    pub(crate) kubectl: Duration,
    /// The finished requests at rest.
    pub(crate) finished: u64,
    /// The waiting requests at rest.
    pub(crate) live: u64,
    /// How long rest is measured.
    pub(crate) rest: Duration,
    /// The pods that wait for one budget.
    pub(crate) waiting: u64,
    /// How many of them it lets go.
    pub(crate) places: u64,
}

impl Settings {
    /// Reads the settings.
    pub(crate) fn from_environment() -> Result<Self> {
        let scenarios = words("DRYDOCK_DRAIN", SCENARIOS.into_iter())?;
        let roads = words("DRYDOCK_DRAIN_ROADS", ROADS.into_iter().map(|(name, _)| name))?;
        let is_chosen = |name: &str| roads.is_empty() || roads.iter().any(|road| road == name);
        Ok(Self {
            roads: ROADS.into_iter().filter(|(name, _)| is_chosen(name)).collect(),
            scenarios,
            pods: number("DRYDOCK_DRAIN_PODS", 1000)?,
            nodes: number("DRYDOCK_DRAIN_NODES", 50)?,
            repeat: number("DRYDOCK_DRAIN_REPEAT", 1)?.max(1),
            kubectl: Duration::from_secs(number("DRYDOCK_DRAIN_KUBECTL", 60)?),
            finished: number("DRYDOCK_DRAIN_FINISHED", 2000)?,
            live: number("DRYDOCK_DRAIN_LIVE", 500)?,
            rest: Duration::from_secs(number("DRYDOCK_DRAIN_SECONDS", 30)?),
            waiting: number("DRYDOCK_DRAIN_WAITING", 1000)?,
            places: number("DRYDOCK_DRAIN_PLACES", 10)?,
        })
    }

    /// Whether a scenario was selected; without a selection all are.
    pub(crate) fn wants(&self, scenario: &str) -> bool {
        self.scenarios.is_empty() || self.scenarios.iter().any(|chosen| chosen == scenario)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pods on {} nodes; at rest {} finished requests and {} waiting ones; {} pods of one budget",
            self.pods, self.nodes, self.finished, self.live, self.waiting
        )
    }
}

/// The comma-separated words of an environment variable, each of which must be known.
fn words(variable: &str, known: impl Iterator<Item = &'static str>) -> Result<Vec<String>> {
    let text = std::env::var(variable).unwrap_or_default();
    let words: Vec<String> = text
        .split(',')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    let known: Vec<_> = known.collect();
    for word in &words {
        ensure!(
            known.contains(&word.as_str()),
            "{variable}: no {word}: there are {}",
            known.join(", ")
        );
    }
    Ok(words)
}
