//! The settings of a soak, which the environment may override.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::environment::number;

/// Objects of a namespace.
const NAMESPACE_OBJECTS: u32 = 150;
/// Objects of a group.
const GROUP_OBJECTS: u32 = 1500;

/// One soak.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The duration of the load, after all objects were created.
    pub time: Duration,
    /// Objects.
    pub objects: u32,
    /// The size of an object as it is sent.
    pub object_bytes: usize,
    /// Creates, changes and removals a second.
    pub writes: u32,
    /// Watches open at a time.
    pub watchers: usize,
    /// Slow readers per thousand watchers.
    pub slow_per_thousand: usize,
    /// Reconnects per thousand watchers and second.
    pub reconnects_per_thousand: usize,
    /// How long a slow reader pauses between two bursts. The server closes connections whose client reads nothing
    /// for 30 s.
    pub pause: Duration,
    /// The time between lists; every tenth is of everything.
    pub lists_every: Duration,
    /// The time between reads of the past.
    pub probes_every: Duration,
    /// The time between backups.
    pub backups_every: Duration,
    /// The time between lines of progress.
    pub reports_every: Duration,
    /// The server's history window.
    pub window: Duration,
    /// The time before memory is sampled.
    pub warm_up: Duration,
    /// How much resident memory may grow per hour after that, in bytes.
    pub growth_per_hour: u64,
}

impl Settings {
    /// Eight hours of the load that a server must sustain, unless the environment overrides it.
    ///
    /// # Errors
    /// A variable is no number, or there is nothing to do.
    pub fn from_environment() -> Result<Self> {
        let seconds = |variable, default| number(variable, default).map(Duration::from_secs);
        let time = seconds("DRYDOCK_SOAK_SECONDS", 8 * 3600)?;
        let settings = Self {
            time,
            objects: number("DRYDOCK_SOAK_OBJECTS", 150_000)?,
            object_bytes: number("DRYDOCK_SOAK_OBJECT_BYTES", 2700)?,
            writes: number("DRYDOCK_SOAK_WRITES", 2500)?,
            watchers: number("DRYDOCK_SOAK_WATCHERS", 5000)?,
            slow_per_thousand: number("DRYDOCK_SOAK_SLOW_PER_THOUSAND", 10)?,
            reconnects_per_thousand: number("DRYDOCK_SOAK_RECONNECTS_PER_THOUSAND", 10)?,
            pause: Duration::from_secs(10),
            lists_every: seconds("DRYDOCK_SOAK_LIST_SECONDS", 6)?,
            probes_every: Duration::from_mins(1),
            backups_every: seconds("DRYDOCK_SOAK_BACKUP_SECONDS", 600)?,
            reports_every: Duration::from_mins(1),
            window: seconds("DRYDOCK_SOAK_WINDOW_SECONDS", 300)?,
            warm_up: (time / 2).min(Duration::from_mins(20)),
            growth_per_hour: number::<u64>("DRYDOCK_SOAK_GROWTH_MIB_PER_HOUR", 16)? << 20,
        };
        ensure!(
            settings.objects > 0 && settings.writes > 0 && settings.watchers > 0,
            "a soak has objects, writes and watchers"
        );
        Ok(settings)
    }

    /// The number of namespaces, each with the same number of objects.
    #[must_use]
    pub fn namespaces(&self) -> u32 {
        (self.objects / NAMESPACE_OBJECTS).clamp(2, 10_000)
    }

    /// The number of groups, between which objects move.
    #[must_use]
    pub fn groups(&self) -> u16 {
        u16::try_from(self.objects / GROUP_OBJECTS)
            .unwrap_or(u16::MAX)
            .clamp(4, 1000)
    }

    /// How long the ledger keeps events: more than the window, within which the past is read.
    pub(super) fn memory(&self) -> Duration {
        self.window + self.window / 4 + Duration::from_mins(1)
    }

    /// How late an event may be.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_mins(2).max(self.window / 2)
    }
}
