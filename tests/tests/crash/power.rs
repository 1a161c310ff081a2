//! Power loss with a damaged log: unsynced bytes may remain, be lost in part, zeroed or scrambled.
//!
//! The child writes down the length of the log after each sync and is killed before it writes down the last one, so the
//! parent knows which bytes no sync covers. It damages only those, and may put back an older mark, which is synced only
//! once a second. See `docs/decisions/0011-power-loss-by-an-image-of-syncs.md` for what this leaves out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use drydock_storage::rocks::RocksStore;
use drydock_storage::{At, Options, Revision, Store};
use tempfile::TempDir;
use uuid::Uuid;

use crate::faults::FAILPOINTS;
use crate::plan::{ChildPlan, Injection, newest_log, notes_path, options};
use crate::rounds::run_child;
use crate::truth::{State, Truth, changes_from, open, state_at};

const LONGEST: Duration = Duration::from_secs(3);

/// The damage of unsynced bytes.
#[derive(Debug, Clone, Copy)]
enum Unsynced {
    Lost,
    CutShort,
    Zeroed,
    OnePageZeroed,
    Scrambled,
}

const OUTCOMES: [Unsynced; 5] = [
    Unsynced::Lost,
    Unsynced::CutShort,
    Unsynced::Zeroed,
    Unsynced::OnePageZeroed,
    Unsynced::Scrambled,
];

/// The synced length of the newest log, as the child wrote it down.
fn synced_length(folder: &Path) -> usize {
    let Some((log, _)) = newest_log(folder) else {
        return 0;
    };
    let note = std::fs::read_to_string(notes_path(folder)).unwrap_or_default();
    let noted = note.split_once(' ').filter(|(name, _)| log.ends_with(name));
    noted.map_or(0, |(_, length)| length.parse().unwrap())
}

fn damage_unsynced(unsynced: Unsynced, folder: &Path, random: &mut fastrand::Rng) -> usize {
    let synced = synced_length(folder);
    let Some((path, _)) = newest_log(folder) else {
        return 0;
    };
    let mut bytes = std::fs::read(&path).unwrap();
    let loose = bytes.len().saturating_sub(synced);
    if loose == 0 {
        return 0;
    }
    match unsynced {
        Unsynced::Lost => bytes.truncate(synced),
        Unsynced::CutShort => bytes.truncate(synced + random.usize(..loose)),
        Unsynced::Zeroed => bytes[synced..].fill(0),
        Unsynced::OnePageZeroed => {
            let from = synced + random.usize(..loose);
            let to = (from + 4096).min(bytes.len());
            bytes[from..to].fill(0);
        }
        Unsynced::Scrambled => {
            let from = synced + random.usize(..loose);
            bytes[from..].iter_mut().for_each(|byte| *byte = random.u8(..));
        }
    }
    std::fs::write(&path, bytes).unwrap();
    loose
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_loss_keeps_every_acknowledged_write() {
    let _shared = FAILPOINTS.read().await;
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    let mut truth = Truth::default();
    let mut random = fastrand::Rng::with_seed(5);
    let (store, _) = open(&folder, false);
    store.close(Duration::from_secs(10)).await.unwrap();
    let mut loose = 0;
    for round in 0..15 {
        let mark = std::fs::read(folder.join("mark")).unwrap();
        let plan = ChildPlan {
            injection: Injection::kill("commit-after-sync", random.i64(2..60)),
            compact_through: truth.revision.0.saturating_sub(100).max(1),
            notes_syncs: true,
            ..ChildPlan::to_write(&folder, 2_000_000 + round)
        };
        let journal = run_child(&plan, LONGEST);
        loose += damage_unsynced(
            OUTCOMES[usize::try_from(round).unwrap() % OUTCOMES.len()],
            &folder,
            &mut random,
        );
        if random.bool() {
            std::fs::write(folder.join("mark"), mark).unwrap();
        }
        let (store, opened) = open(&folder, false);
        truth.check(&store, &opened, &journal).await;
        store.close(Duration::from_secs(10)).await.unwrap();
    }
    assert!(loose > 0, "no round left unsynced bytes");
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for found in std::fs::read_dir(from).unwrap() {
        let found = found.unwrap();
        let target = to.join(found.file_name());
        if found.file_type().unwrap().is_dir() {
            copy_folder(&found.path(), &target);
        } else {
            std::fs::copy(found.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_loss_in_relaxed_mode_leaves_a_prefix_and_revisions_do_not_repeat() {
    let _shared = FAILPOINTS.read().await;
    let mut loose = 0;
    for (round, unsynced) in OUTCOMES.into_iter().enumerate() {
        let root = TempDir::new().unwrap();
        let folder = root.path().join("store");
        let mut random = fastrand::Rng::with_seed(round as u64);
        let plan = ChildPlan {
            injection: Injection::kill("commit-after-sync", 25),
            is_relaxed: true,
            notes_syncs: true,
            ..ChildPlan::to_write(&folder, 3_000_000 + round as u64)
        };
        let journal = run_child(&plan, LONGEST);
        // In the same boot nothing is lost, so every earlier state is known.
        let copy = root.path().join("copy");
        copy_folder(&folder, &copy);
        let (store, opened) = open(&copy, true);
        let mut truth = Truth::default();
        truth.check(&store, &opened, &journal).await;
        let mut states: BTreeMap<Revision, State> = BTreeMap::from([(Revision::INITIAL, State::new())]);
        let mut on_the_way = Truth::default();
        for event in changes_from(&store, Revision(2)).await {
            on_the_way.apply(&event);
            states.insert(event.revision, on_the_way.state.clone());
        }
        drop(store);

        loose += damage_unsynced(unsynced, &folder, &mut random);
        let next_boot = Options {
            boot_id: Uuid::from_u128(1),
            ..options(&folder, true)
        };
        let (store, opened) = RocksStore::open(next_boot).unwrap();
        assert!(opened.resumed_at_ceiling, "{opened:?}");
        assert!(opened.revision > journal.newest_seen, "{unsynced:?}: {opened:?}");
        assert_eq!(opened.listable_from, opened.revision);
        let found = state_at(&store, At::Latest).await;
        assert!(
            states.values().any(|state| *state == found),
            "{unsynced:?}: a state that never existed"
        );
        store.close(Duration::from_secs(10)).await.unwrap();
        // Another open finds the same.
        let (store, again) = open(&folder, false);
        assert_eq!(again.revision, opened.revision);
        assert_eq!(state_at(&store, At::Latest).await, found);
    }
    assert!(loose > 0, "no round left unsynced bytes");
}
