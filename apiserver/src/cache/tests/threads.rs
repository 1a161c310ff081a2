//! Watches on several threads over a RocksDB store.
//!
//! Writers, fast, slow and resuming watches, the feeder and compactions run at once. The checker compares what each
//! watch received with the revisions that the store returned to the writers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use drydock_storage::rocks::RocksStore;
use drydock_storage::{Options, Revision, Store};

use super::super::*;
use super::checker::{Change, Log, Record, Wanted, check};
use super::fixture::*;

const WRITERS: usize = 4;
const KEYS: usize = 6;
const WRITES: u64 = 300;
const WATCHERS: usize = 12;
/// The watchers that pause after each buffer.
const SLOW: usize = 6;
/// Watches that are never read: with more classes, each class log is shorter.
const IDLE: usize = 100;

/// Writes keys of its own, so that it knows their old values; returns its changes.
async fn writer(fixture: Arc<Fixture<RocksStore>>, number: usize, serials: Arc<AtomicU64>) -> Vec<Change> {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let mut state: BTreeMap<usize, Thing> = BTreeMap::new();
    let mut changes = Vec::new();
    for _ in 0..WRITES {
        let name = random.usize(..KEYS);
        let key = key(["a", "ab"][number % 2], &format!("k{number}-{name}"));
        let old = state.get(&name).cloned();
        let new = (old.is_none() || random.u8(..4) > 0).then(|| {
            let serial = serials.fetch_add(1, Ordering::Relaxed);
            Thing::new(
                ["a", "b"][random.usize(..2)],
                ["x", "y"][random.usize(..2)],
                serial,
            )
        });
        let revision = write(&fixture.store, &key, new.clone()).await;
        match &new {
            Some(new) => state.insert(name, new.clone()),
            None => state.remove(&name),
        };
        let key = key.to_string();
        changes.push(Change {
            revision,
            key,
            old,
            new,
        });
        if random.u8(..64) == 0 {
            let through = Revision(revision.0.saturating_sub(60));
            fixture.store.compact(through).await.unwrap();
        }
    }
    changes
}

fn selection(number: usize) -> (Selection, Wanted) {
    let wanted = |namespace: Option<&str>, app: Option<bool>| Wanted {
        namespace: namespace.map(str::to_owned),
        app: app.map(|is_equal| (is_equal, "a".to_owned())),
        ..Wanted::default()
    };
    // Each number has its own text, and so a class of its own, so that class logs are short.
    let all = format!("app!=other-{number}");
    match number % 4 {
        0 => (select(Scope::All, &all, ""), wanted(None, None)),
        1 => (select(namespace("a"), &all, ""), wanted(Some("a"), None)),
        2 => (select(Scope::All, "app=a", ""), wanted(None, Some(true))),
        _ => (select(Scope::All, "app!=a", ""), wanted(None, Some(false))),
    }
}

/// Watches until everything has been written and received; resumes when a watch ends, and starts over when it expires.
async fn watcher(fixture: Arc<Fixture<RocksStore>>, number: usize, last: Arc<AtomicU64>) -> Vec<Record> {
    let mut random = fastrand::Rng::with_seed(1_000 + number as u64);
    let (selection, wanted) = selection(number);
    let encoder = Lines {
        face: ["a", "b", "c"][number % 3],
        padding: number % 3 * 300,
        ..Lines::default()
    };
    let mut records = Vec::new();
    let mut resume: Option<Revision> = None;
    loop {
        let start = resume.map_or(WatchStart::InitialEvents(Freshness::Any), WatchStart::After);
        let request = WatchRequest {
            selection: selection.clone(),
            start,
            bookmarks: true,
            // The last bookmark is sent 2 s before the end, and shows that everything was received.
            timeout: Duration::from_secs(4),
        };
        let mut watcher = fixture.cache.subscribe(request).await.unwrap();
        let mut record = Record {
            wanted: wanted.clone(),
            behind: resume,
            bookmarks: true,
            frames: Vec::new(),
            complete_to: None,
            expired_since: None,
        };
        let patience = random.usize(5..60);
        let mut is_done = false;
        for _ in 0..patience {
            match watcher.next_buffer(&encoder).await {
                None => break,
                Some(Ok(buffer)) => record.frames.extend(frames(&buffer)),
                Some(Err(WatchEnd::Expired { since, .. })) => {
                    record.expired_since = Some(since);
                    break;
                }
                Some(end) => panic!("{end:?}"),
            }
            let end = last.load(Ordering::Acquire);
            if end > 0 && record.frames.last().is_some_and(|frame| revision(frame) >= end) {
                is_done = true;
                break;
            }
            if number < SLOW {
                tokio::time::sleep(Duration::from_millis(random.u64(..200))).await;
            }
        }
        // Initial events show the revisions of their objects, not how far the watch has got.
        let is_bookmark = |frame: &Frame| matches!(frame, Frame::Bookmark { .. });
        let is_live = record.behind.is_some() || record.frames.iter().any(is_bookmark);
        let received = record.frames.last().filter(|_| is_live);
        let received = received.map(|frame| Revision(revision(frame)));
        resume = received
            .or(record.behind)
            .filter(|_| record.expired_since.is_none());
        if is_done {
            record.complete_to = Some(Revision(last.load(Ordering::Acquire)));
        }
        records.push(record);
        // A watch that starts at the last revision would receive nothing, not even a bookmark.
        let end = last.load(Ordering::Acquire);
        if is_done || (end > 0 && resume.is_some_and(|revision| revision.0 >= end)) {
            return records;
        }
    }
}

/// `with_reloads`: the cache is reloaded again and again, which ends all watches.
fn run(history_bytes: u64, with_reloads: bool) {
    let folder = tempfile::TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let limits = CacheLimits {
            history_bytes,
            replays: 2,
            read_wait: Duration::from_secs(20),
            stagger: Duration::from_millis(50),
            check_period: Duration::from_millis(100),
            ..CacheLimits::default()
        };
        let fixture = Arc::new(Fixture::over(store.clone(), limits).await);
        let mut idle = Vec::new();
        for number in 0..IDLE {
            let selection = select(Scope::All, &format!("app!=idle-{number}"), "");
            idle.push(fixture.watch(selection, WatchStart::Now).await);
        }
        let serials = Arc::new(AtomicU64::new(0));
        let last = Arc::new(AtomicU64::new(0));
        let watchers: Vec<_> = (0..WATCHERS)
            .map(|number| tokio::spawn(watcher(Arc::clone(&fixture), number, Arc::clone(&last))))
            .collect();
        let is_written = Arc::new(AtomicBool::new(false));
        let reloads = tokio::spawn({
            let (fixture, is_written) = (Arc::clone(&fixture), Arc::clone(&is_written));
            async move {
                while with_reloads && !is_written.load(Ordering::Acquire) {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    fixture.cache.parts().repairs.request_reload();
                }
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| tokio::spawn(writer(Arc::clone(&fixture), number, Arc::clone(&serials))))
            .collect();
        let mut log = Log::default();
        for writer in writers {
            log.changes.extend(writer.await.unwrap());
        }
        is_written.store(true, Ordering::Release);
        reloads.await.unwrap();
        log.changes.sort_by_key(|change| change.revision);
        let revision = log.changes.last().unwrap().revision;
        assert_eq!(log.changes.len() as u64, WRITERS as u64 * WRITES);
        last.store(revision.0, Ordering::Release);
        let mut count = 0;
        for watcher in watchers {
            for record in watcher.await.unwrap() {
                count += record.frames.len();
                if let Err(violation) = check(&record, &log) {
                    panic!("{violation}: {record:#?}");
                }
            }
        }
        assert!(count > 1_000, "{count} frames");
        let state = log.state_at(revision);
        let page = Query {
            selection: everything(),
            start: None,
            limit: 0,
        };
        let page = fixture
            .cache
            .list(&page, Freshness::MostRecent.into())
            .await
            .unwrap();
        assert_eq!(things(page.objects), state);
        drop((idle, fixture));
        store.close(Duration::from_secs(10)).await.unwrap();
    });
}

#[test]
fn watches_are_correct_on_four_threads_over_rocksdb() {
    // Most watches fall behind memory, and read the store or start over.
    run(40_000, true);
    // Slow watches fall behind their class log, and read the event history.
    run(1_600_000, false);
}
