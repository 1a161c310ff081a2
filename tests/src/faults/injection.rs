//! The faults: what is done to servers and etcd, and when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::shared::Shared;
use super::{PATIENCE, Settings};
use crate::clients::{Protocol, eventually};
use crate::cluster::EtcdMembers;
use crate::ledger::run::Phase;

/// How long a killed process stays away, and a link down.
const AWAY: Duration = Duration::from_secs(2);
const CUT_OFF: Duration = Duration::from_secs(6);
/// How long a member stands still.
const STANDSTILL: Duration = Duration::from_secs(5);
/// What other keys are filled with: as much as etcd accepts in a request.
const FILLING_BYTES: usize = 1_400_000;
const FILLING_PREFIX: &str = "/filling/";
/// The most keys that may be needed to fill etcd.
const MOST_FILLINGS: usize = 100;
/// More events, with [`LARGE_BYTES`](super::writers) twice in each, than etcd and the connection of a stopped server hold for
/// its watch. On a busy machine fewer are written in time.
const LAG: u64 = 300;
const LONGEST_LAG: Duration = Duration::from_secs(8);
/// How much of each server's log is told when a run fails.
const LOG_LINES: usize = 20;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The certificates of members and servers are replaced, and a member starts with them.
    Certificates,
    /// A server is killed.
    Server,
    /// A member that does not lead is killed.
    Member,
    /// The leader is killed.
    Leader,
    /// The link of a member goes down.
    CutOff,
    /// The link of the leader goes down.
    LeaderCutOff,
    /// A member stands still.
    Standstill,
    /// Two of three members are killed.
    Quorum,
    /// Etcd is compacted while a server, and with it its watch of etcd, lags behind.
    Compaction,
    /// Every member is defragmented, one after the other.
    Defragmentation,
    /// The database is full.
    Full,
}

const ALL: [Fault; 11] = [
    Fault::Certificates,
    Fault::Server,
    Fault::Member,
    Fault::Leader,
    Fault::CutOff,
    Fault::LeaderCutOff,
    Fault::Standstill,
    Fault::Quorum,
    Fault::Compaction,
    Fault::Defragmentation,
    Fault::Full,
];

/// The faults of a run: all kinds in a random order, again and again. The first are new certificates, since servers notice
/// them only after a while.
pub(super) fn deck(count: usize, can_cut_off: bool, random: &mut Rng) -> Vec<Fault> {
    let mut faults = Vec::new();
    while faults.len() < count {
        let mut all = ALL.to_vec();
        // One of both cuts, so that five rounds have all kinds.
        let other = if random.bool() {
            Fault::CutOff
        } else {
            Fault::LeaderCutOff
        };
        all.retain(|fault| match fault {
            Fault::CutOff | Fault::LeaderCutOff => can_cut_off && *fault == other,
            _ => true,
        });
        let fixed = usize::from(faults.is_empty());
        random.shuffle(all.get_mut(fixed..).unwrap_or_default());
        faults.extend(all);
    }
    faults.truncate(count);
    faults
}

pub(super) struct Injection {
    shared: Arc<Shared>,
    members: EtcdMembers,
    random: Rng,
    /// Each server's process when certificates were renewed, and the length of its log then.
    renewed: Vec<(Option<u32>, usize)>,
}

impl Injection {
    pub(super) fn new(shared: Arc<Shared>, members: EtcdMembers, random: Rng) -> Self {
        Self {
            shared,
            members,
            random,
            renewed: Vec::new(),
        }
    }

    pub(super) fn can_cut_off(&self) -> bool {
        self.members.can_be_cut_off()
    }

    /// Injects a fault, takes it back, and waits until all clients are as they should be. Returns a line about it.
    pub(super) async fn inject(&mut self, fault: Fault, settings: &Settings) -> Result<String> {
        self.shared.fault.fetch_add(1, Ordering::Relaxed);
        drop(self.shared.take_waits());
        let began = Instant::now();
        let what = match fault {
            Fault::Certificates => self.certificates()?,
            Fault::Server => return self.server(settings).await,
            Fault::Member | Fault::Leader => self.member(fault == Fault::Leader).await?,
            Fault::CutOff | Fault::LeaderCutOff => self.cut_off(fault == Fault::LeaderCutOff).await?,
            Fault::Standstill => self.standstill().await?,
            Fault::Quorum => self.quorum().await?,
            Fault::Compaction => self.compaction().await?,
            Fault::Defragmentation => self.defragmentation().await?,
            Fault::Full => self.full().await?,
        };
        self.recover().await?;
        let longest = self.shared.take_waits().into_values().max().unwrap_or_default();
        if matches!(fault, Fault::Leader | Fault::LeaderCutOff) {
            self.judge(&what, longest, settings.leader_bound);
        }
        Ok(format!(
            "{what}: the longest wait of a client {longest:.2?}, over after {:.1?}",
            began.elapsed()
        ))
    }

    fn judge(&self, what: &str, longest: Duration, bound: Duration) {
        if longest > bound {
            let error = anyhow::Error::msg(format!("a client waited {longest:?}, longer than {bound:?}"));
            self.shared.violation(what, &error);
        }
    }

    /// A member, and whether it leads.
    async fn choose(&mut self, leads: bool) -> Result<usize> {
        let leader = self.members.healthy().await?;
        let count = self.members.count();
        let other = (leader + self.random.usize(1..count)) % count;
        Ok(if leads { leader } else { other })
    }

    fn certificates(&mut self) -> Result<String> {
        let member = self.random.usize(..self.members.count());
        self.renewed.clear();
        for server in &self.shared.servers {
            self.renewed.push((server.process_id(), server.log()?.len()));
        }
        self.members.renew_certificates()?;
        self.members.kill(member);
        self.members.start_member(member)?;
        Ok(format!("new certificates, and a restart of member {member}"))
    }

    async fn server(&mut self, settings: &Settings) -> Result<String> {
        let (began, killed) = (Instant::now(), self.random.usize(..self.shared.servers.len()));
        let server = self.shared.servers.get(killed).context("a server")?;
        server.kill();
        sleep(AWAY).await;
        server.start_again().await?;
        self.recover().await?;
        let waits = self.shared.take_waits();
        let of = |is_own: bool| {
            let chosen = waits.iter().filter(|(home, _)| (**home == killed) == is_own);
            chosen.map(|(_, wait)| *wait).max().unwrap_or_default()
        };
        let what = format!("server {killed} was killed");
        self.judge(&what, of(false), settings.server_bound);
        Ok(format!(
            "{what}: the longest wait of its clients {:.2?}, of the others {:.2?}, over after {:.1?}",
            of(true),
            of(false),
            began.elapsed()
        ))
    }

    async fn member(&mut self, leads: bool) -> Result<String> {
        let member = self.choose(leads).await?;
        self.members.kill(member);
        sleep(AWAY).await;
        self.members.start_member(member)?;
        let whose = if leads { "the leader, " } else { "" };
        Ok(format!("{whose}member {member}, was killed"))
    }

    async fn cut_off(&mut self, leads: bool) -> Result<String> {
        let member = self.choose(leads).await?;
        self.members.set_link(member, false)?;
        sleep(CUT_OFF).await;
        self.members.set_link(member, true)?;
        let whose = if leads { "the leader, " } else { "" };
        Ok(format!("{whose}member {member}, was cut off"))
    }

    async fn standstill(&mut self) -> Result<String> {
        let member = self.random.usize(..self.members.count());
        self.members.pause(member)?;
        sleep(STANDSTILL).await;
        self.members.resume(member)?;
        Ok(format!("member {member} stood still"))
    }

    async fn quorum(&mut self) -> Result<String> {
        let left = self.random.usize(..self.members.count());
        let killed: Vec<_> = (0..self.members.count()).filter(|it| *it != left).collect();
        let refused = self.shared.counters.refusals.load(Ordering::Relaxed);
        for member in &killed {
            self.members.kill(*member);
        }
        self.exceeds(
            &self.shared.counters.refusals,
            refused,
            "a refusal without a quorum",
        )
        .await?;
        sleep(AWAY).await;
        for member in &killed {
            self.members.start_member(*member)?;
        }
        Ok(format!("only member {left} was left"))
    }

    async fn compaction(&mut self) -> Result<String> {
        let stopped = self.random.usize(..self.shared.servers.len());
        let server = self.shared.servers.get(stopped).context("a server")?;
        server.pause()?;
        self.shared.is_hurried.store(true, Ordering::Relaxed);
        let writes = || self.shared.counters.writes.load(Ordering::Relaxed);
        let (before, began) = (writes(), Instant::now());
        let before_expired = self.shared.counters.expired.load(Ordering::Relaxed);
        while writes() < before + LAG && began.elapsed() < LONGEST_LAG {
            sleep(Duration::from_millis(20)).await;
        }
        let lag = writes() - before;
        let through = self.shared.run.ledger().acknowledged_to().to_string();
        let compacted = self.compact(&["compact", &through]).await;
        server.resume()?;
        self.shared.is_hurried.store(false, Ordering::Relaxed);
        compacted?;
        if lag >= LAG {
            let expired = &self.shared.counters.expired;
            self.exceeds(expired, before_expired, "a watch that has to list again")
                .await?;
        }
        Ok(format!(
            "compaction while server {stopped} lagged by {lag} writes"
        ))
    }

    async fn defragmentation(&mut self) -> Result<String> {
        self.members.etcdctl(&["defrag"], &[]).await?;
        Ok("defragmentation of all members".to_owned())
    }

    async fn full(&mut self) -> Result<String> {
        let counters = &self.shared.counters;
        let refused = counters.full.load(Ordering::Relaxed);
        let filling = vec![b'x'; FILLING_BYTES];
        let mut count = 0;
        loop {
            ensure!(count < MOST_FILLINGS, "etcd is not full");
            let key = format!("{FILLING_PREFIX}{count}");
            match self.members.etcdctl(&["put", &key], &filling).await {
                Ok(_) => count += 1,
                Err(error) if error.to_string().contains("database space exceeded") => break,
                Err(error) => return Err(error),
            }
        }
        self.exceeds(&counters.full, refused, "a write that names the NOSPACE alarm")
            .await?;
        let removed = counters.removals.load(Ordering::Relaxed);
        let etcdctl = async |arguments: &[&str]| self.members.etcdctl(arguments, &[]).await;
        let answer = etcdctl(&["del", "--prefix", FILLING_PREFIX, "--write-out=json"]).await?;
        let answer: Value = serde_json::from_str(&answer)?;
        let through = answer.pointer("/header/revision").and_then(Value::as_u64);
        let through = through.context("the revision of a deletion")?;
        self.exceeds(&counters.removals, removed, "a deletion while etcd is full")
            .await?;
        // What is watched may not be compacted before it was seen.
        self.shared.known_to(through).await?;
        self.compact(&["compact", "--physical", &through.to_string()])
            .await?;
        etcdctl(&["defrag"]).await?;
        etcdctl(&["alarm", "disarm"]).await?;
        Ok(format!("etcd was full after {count} other keys"))
    }

    /// Compacts, unless the servers have already done so.
    async fn compact(&self, arguments: &[&str]) -> Result<()> {
        match self.members.etcdctl(arguments, &[]).await {
            Err(error) if !error.to_string().contains("has been compacted") => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits until a counter is above a value.
    async fn exceeds(&self, counter: &AtomicU64, before: u64, what: &str) -> Result<()> {
        eventually(what, PATIENCE, async || {
            let is_more = counter.load(Ordering::Relaxed) > before || self.shared.run.phase() == Phase::Over;
            Ok(is_more.then_some(()))
        })
        .await
    }

    /// Waits until everybody serves and every client has gone on: writes succeed, nobody waits for a request that was sent
    /// before, which the next fault would count as its own, and every watcher is up to date.
    async fn recover(&self) -> Result<()> {
        let shared = &self.shared;
        self.members.healthy().await?;
        for server in &shared.servers {
            let caller = server.caller(Protocol::Http1)?;
            eventually("a server to be ready", PATIENCE, async || {
                Ok((caller.get("/readyz").await?.status == 200).then_some(()))
            })
            .await?;
        }
        let written = shared.counters.writes.load(Ordering::Relaxed);
        self.exceeds(&shared.counters.writes, written, "a write after a fault")
            .await?;
        let sent = shared.turns();
        eventually("every client to go on", PATIENCE, async || {
            let all = shared
                .turns()
                .into_iter()
                .zip(&sent)
                .all(|(now, then)| now >= then.saturating_add(2));
            Ok((all || shared.run.phase() == Phase::Over).then_some(()))
        })
        .await?;
        let target = shared.run.ledger().acknowledged_to();
        let is_behind = |watched: &AtomicU64| watched.load(Ordering::SeqCst) < target;
        eventually("every watch to be up to date", PATIENCE, async || {
            let all = !shared.watched.iter().any(is_behind) || shared.run.phase() == Phase::Over;
            Ok(all.then_some(()))
        })
        .await
    }

    /// The members as etcd describes them, its alarms, and the last lines of each server's log.
    pub(super) async fn describe(&self) -> String {
        let mut lines = Vec::new();
        for arguments in [&["endpoint", "status"][..], &["alarm", "list"]] {
            let answer = self.members.etcdctl(arguments, &[]).await;
            lines.push(answer.unwrap_or_else(|error| format!("{error:#}")));
        }
        for server in &self.shared.servers {
            let log = server.log().unwrap_or_else(|error| format!("{error:#}"));
            let from = log.lines().count().saturating_sub(LOG_LINES);
            lines.extend(log.lines().skip(from).map(str::to_owned));
        }
        lines.join("\n")
    }

    /// Waits until every server uses the newest certificates: it has read them since, or started with them.
    pub(super) async fn finish(&self) -> Result<()> {
        for (server, (process, logged)) in self.shared.servers.iter().zip(&self.renewed) {
            eventually("a server to use new certificates", PATIENCE, async || {
                let log = server.log()?;
                let since = log.get(*logged..).unwrap_or_default();
                let has_read = since.contains("connected to etcd with new certificates");
                Ok((has_read || server.process_id() != *process).then_some(()))
            })
            .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_rounds_have_every_kind_of_fault() {
        for seed in 0..20 {
            let faults = deck(10, true, &mut Rng::with_seed(seed));
            assert_eq!(faults[0], Fault::Certificates);
            for fault in ALL {
                let is_cut = |fault| matches!(fault, Fault::CutOff | Fault::LeaderCutOff);
                let is_same = |it: &&Fault| **it == fault || is_cut(**it) && is_cut(fault);
                assert_eq!(faults.iter().filter(is_same).count(), 1, "{fault:?}");
            }
            assert_eq!(deck(10, true, &mut Rng::with_seed(seed)), faults);
        }
        assert!(!deck(30, false, &mut Rng::with_seed(1)).contains(&Fault::CutOff));
    }
}
