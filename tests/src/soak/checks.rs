//! The load beside writers and watchers: lists, reads of the past, backups.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::shared::Shared;
use super::watchers::open;
use crate::ledger::run::Phase;
use crate::ledger::wire::{frame, page};
use crate::ledger::{Checker, ClassId, Digest, Frame, Rule, Selection, Violation};
use crate::load::{Call, Sender};

/// Objects of a page.
const PAGE: u32 = 500;
/// One list of so many is of everything.
const OF_EVERYTHING: usize = 10;
/// The server compacts once a minute; after this time it certainly has.
const COMPACTION: Duration = Duration::from_mins(3);

/// A class and what it selects.
pub(super) type Class = (ClassId, Selection);

/// Lists a selection page by page, checks it, and returns its revision.
pub(super) async fn list(
    shared: &Shared,
    sender: &mut Sender,
    (class, selection): Class,
    parameters: &str,
) -> Result<u64> {
    let path = shared.place.path(selection);
    let (mut items, mut next, mut revision) = (Digest::default(), parameters.to_owned(), None);
    loop {
        let call = Call::get(format!("{path}&limit={PAGE}{next}"));
        let response = shared.send(sender, &call).await?;
        let page = page(&response.start, &mut items)?;
        if *revision.get_or_insert(page.revision) != page.revision {
            let detail = format!("pages at {revision:?} and {}", page.revision);
            return Err(Violation::new(Rule::Snapshot, detail).into());
        }
        match page.next {
            Some(more) => next = more,
            None => break,
        }
    }
    let revision = revision.context("a list has a page")?;
    shared.known_to(revision).await?;
    shared.run.ledger().check_list(class, revision, items)?;
    shared.counters.lists.fetch_add(1, Ordering::Relaxed);
    shared.counters.listed.fetch_add(items.objects, Ordering::Relaxed);
    Ok(revision)
}

/// Lists one selection after the other.
pub(super) async fn lists(shared: Arc<Shared>, mut sender: Sender, classes: Vec<Class>) {
    let mut beats = Beats::new(&shared, shared.settings.lists_every);
    let mut others = classes.iter().cycle().enumerate();
    while beats.next().await {
        let Some((number, class)) = others.next() else {
            return;
        };
        // The first class is of everything.
        let class = if number % OF_EVERYTHING == 0 {
            classes.first().unwrap_or(class)
        } else {
            class
        };
        if let Err(fault) = list(&shared, &mut sender, *class, "").await {
            shared.run.fault(&format!("a list of {:?}", class.1), &fault);
        }
    }
}

/// Reads the past: revisions within the window must be served, much older ones must be expired.
pub(super) async fn past(shared: Arc<Shared>, mut sender: Sender, classes: Vec<Class>) {
    let mut beats = Beats::new(&shared, shared.settings.probes_every);
    let window = shared.settings.window;
    for class in classes.iter().cycle() {
        if !beats.next().await {
            return;
        }
        if let Some(revision) = shared.revision_before(window * 4 / 5)
            && let Err(fault) = replay(&shared, &mut sender, *class, revision).await
        {
            shared.run.fault(
                &format!("{:?} from {revision}, within the window", class.1),
                &fault,
            );
        }
        if let Some(revision) = shared.revision_before(2 * window + COMPACTION)
            && let Err(fault) = expired(&shared, &mut sender, class.1, revision).await
        {
            shared.run.fault(
                &format!("{:?} from {revision}, before the window", class.1),
                &fault,
            );
        }
    }
}

/// Watches and lists at a revision of the past.
async fn replay(shared: &Shared, sender: &mut Sender, class: Class, revision: u64) -> Result<()> {
    let known = shared.run.ledger().known_to();
    let parameters = format!("&allowWatchBookmarks=true&resourceVersion={revision}");
    let mut checker = Checker::after(class.0, revision, true);
    let Some(mut lines) = open(shared, sender, class.1, &parameters).await? else {
        shared.back_off().await;
        return Ok(());
    };
    let replayed = async {
        loop {
            checker.settle(&shared.run.ledger())?;
            if checker.has_all_to(known, &shared.run.ledger())? {
                return Ok::<_, anyhow::Error>(());
            }
            let line = lines.next().await?.context("the watch ended")?;
            let (frame, _) = frame(&line)?;
            if let Frame::Error { code } = frame {
                bail!("history window: ERROR event with code {code}");
            }
            checker.take(frame)?;
        }
    };
    timeout(shared.settings.patience(), replayed)
        .await
        .context("the replay timed out")??;
    let exact = format!("&resourceVersion={revision}&resourceVersionMatch=Exact");
    list(shared, sender, class, &exact).await?;
    shared.counters.past.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// A watch from a compacted revision must get 410 and nothing else.
async fn expired(shared: &Shared, sender: &mut Sender, selection: Selection, revision: u64) -> Result<()> {
    let parameters = format!("&resourceVersion={revision}");
    let Some(mut lines) = open(shared, sender, selection, &parameters).await? else {
        shared.back_off().await;
        return Ok(());
    };
    let first = timeout(shared.settings.patience(), lines.next())
        .await
        .context("no event")??;
    let first = first.map(|line| frame(&line)).transpose()?;
    match first {
        Some((Frame::Error { code: 410 }, _)) => {
            shared.counters.expired.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        other => bail!("history window: expected 410, got {other:?}"),
    }
}

/// Takes backups.
pub(super) async fn backups(shared: Arc<Shared>, mut sender: Sender) {
    let mut beats = Beats::new(&shared, shared.settings.backups_every);
    while beats.next().await {
        let call = Call::post("/storage/backups?keep=1", Bytes::new());
        match shared.send(&mut sender, &call).await {
            Ok(response) if response.status == StatusCode::CREATED => {
                shared.counters.backups.fetch_add(1, Ordering::Relaxed);
            }
            Ok(response) => shared
                .run
                .fault("a backup", &anyhow::anyhow!("acknowledged {}", response.status)),
            Err(fault) => shared.run.fault("a backup", &fault),
        }
    }
}

/// A ticker that ends with the load.
struct Beats {
    interval: Interval,
    phases: watch::Receiver<Phase>,
}

impl Beats {
    fn new(shared: &Shared, every: Duration) -> Self {
        let mut interval = interval(every.max(Duration::from_millis(1)));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            interval,
            phases: shared.run.phases(),
        }
    }

    /// Waits for the next tick; false when the load has ended.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.phases.wait_for(|phase| *phase > Phase::Load) => false,
            _ = self.interval.tick() => true,
        }
    }
}
