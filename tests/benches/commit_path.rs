//! The cost of a commit.
//!
//! Updates of 2.6 KiB objects through the whole path (encode, compress, checksum, queue, batch, sync, publish),
//! with 1, 8 and 64 writers at once, and deletions in bulk. Prints writes per second, the median and the 99th
//! percentile of the latency, the CPU time of a write over all threads, and how many writes share a sync. The second part does
//! the same with values that are sealed with AES-GCM.
//!
//! `cargo bench -p drydock-tests --bench commit_path`; the folder is on the disk of `TMPDIR`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and prints a report"
)]

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use drydock_storage::rocks::RocksStore;
use drydock_storage::seal::{
    CipherKind, Provider, Rule, Seal, SealMetrics, Sealer, StaticKey, StaticKeys, Unsealed,
};
use drydock_storage::{Key, KeyRange, Options, Outcome, Page, Revision, Store, Transaction, Value};
use drydock_tests::load::Usage;
use zeroize::Zeroizing;

/// Objects in the store before the measurements.
const OBJECTS: usize = 20_000;
/// The duration of each measurement.
const ROW: Duration = Duration::from_secs(3);

fn key(number: usize) -> Key {
    Key::new(
        "coordination.k8s.io",
        "evictionrequests",
        &format!("ns-{}", number % 50),
        &format!("pod-{number:08}"),
    )
    .unwrap()
}

/// A JSON object of about 2.6 KiB that compresses like an EvictionRequest.
fn value(number: usize, round: u64) -> Value {
    let mut text = format!("{{\"kind\":\"EvictionRequest\",\"round\":{round},\"status\":[");
    let mut seed = number as u64 ^ round << 20;
    while text.len() < 2600 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (name, minute) = (seed >> 40, seed % 60);
        write!(
            text,
            "{{\"name\":\"interceptor-{name:x}.example.com\",\"heartbeatTime\":\"2026-11-28T00:{minute:02}:00Z\",\
             \"message\":\"waiting\"}},"
        )
        .unwrap();
    }
    text.push_str("{}]}");
    Value {
        bytes: Bytes::from(text),
        form: "coordination.k8s.io/v1alpha3".into(),
        splice_offset: 1,
    }
}

fn cpu() -> Usage {
    Usage::of(&[std::process::id()]).unwrap()
}

fn committed(outcome: Outcome) -> Revision {
    match outcome {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict { current, .. } => panic!("{current:?}"),
    }
}

async fn fill(store: &RocksStore) -> Vec<Revision> {
    let creates = (0..OBJECTS).map(|number| Transaction::create(key(number), value(number, 0)));
    let answers = store.transact_many(creates.collect()).await;
    answers
        .into_iter()
        .map(|answer| committed(answer.unwrap()))
        .collect()
}

/// `writers` tasks that update objects of their own, one after the other.
async fn updates(store: &RocksStore, revisions: &mut [Revision], writers: usize, round: u64) {
    // Prepared, since building JSON is not measured.
    let values: Vec<Value> = (0..256).map(|number| value(number, round)).collect();
    let (wall, burned) = (Instant::now(), cpu());
    let syncs_before = syncs(store);
    let mut tasks = Vec::new();
    for writer in 0..writers {
        let store = store.clone();
        let values = values.clone();
        let mut own: Vec<(usize, Revision)> = revisions
            .iter()
            .copied()
            .enumerate()
            .skip(writer)
            .step_by(writers)
            .collect();
        tasks.push(tokio::spawn(async move {
            let mut waits = Vec::new();
            let mut position = 0;
            while wall.elapsed() < ROW {
                let Some((number, revision)) = own.get_mut(position) else {
                    position = 0;
                    continue;
                };
                let value = values.get(position % values.len()).unwrap().clone();
                let asked = Instant::now();
                let update = Transaction::update(key(*number), *revision, value);
                *revision = committed(store.transact(update).await.unwrap());
                waits.push(asked.elapsed());
                position += 1;
            }
            (own, waits)
        }));
    }
    let mut waits = Vec::new();
    for task in tasks {
        let (own, own_waits) = task.await.unwrap();
        waits.extend(own_waits);
        for (number, revision) in own {
            *revisions.get_mut(number).unwrap() = revision;
        }
    }
    let (took, burned) = (wall.elapsed(), cpu().since(burned));
    waits.sort_unstable();
    let percentile = |of: usize| waits.get(waits.len() * of / 100).copied().unwrap_or_default();
    println!(
        "{writers:>3} writers: {:>8.0} writes/s, p50 {:>8.1?}, p99 {:>8.1?}, {:>5.1} us CPU a write, {:>5.1} writes a sync",
        waits.len() as f64 / took.as_secs_f64(),
        percentile(50),
        percentile(99),
        burned.as_secs_f64() * 1e6 / waits.len() as f64,
        waits.len() as f64 / (syncs(store) - syncs_before) as f64,
    );
}

/// The number of synced batches.
fn syncs(store: &RocksStore) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    store.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("drydock_storage_sync_seconds_count"));
    line.and_then(|line| line.split(' ').nth(1))
        .unwrap()
        .parse()
        .unwrap()
}

async fn bulk_delete(store: &RocksStore, revisions: &[Revision]) {
    let deletes = revisions.iter().enumerate();
    let deletes: Vec<Transaction> = deletes
        .map(|(number, base)| Transaction::delete(key(number), *base))
        .collect();
    let (wall, burned) = (Instant::now(), cpu());
    let count = deletes.len() as f64;
    for answer in store.transact_many(deletes).await {
        committed(answer.unwrap());
    }
    println!(
        "bulk delete: {:>6.1} us an object, {:>5.1} us CPU",
        wall.elapsed().as_secs_f64() * 1e6 / count,
        cpu().since(burned).as_secs_f64() * 1e6 / count,
    );
}

async fn reads(store: &RocksStore) {
    let wall = Instant::now();
    let mut gets = 0_u32;
    while wall.elapsed() < Duration::from_millis(500) {
        store.get(&key(gets as usize % OBJECTS)).await.unwrap();
        gets += 1;
    }
    println!(
        "get: {:.2} us",
        wall.elapsed().as_secs_f64() * 1e6 / f64::from(gets)
    );
    let wall = Instant::now();
    let scan = store
        .scan(&KeyRange::all(), drydock_storage::At::Latest, Page::default())
        .await
        .unwrap();
    println!("scan of {} objects: {:.1?}", scan.entries.len(), wall.elapsed());
}

/// Seals everything with AES-256-GCM.
fn sealer() -> Arc<dyn Seal> {
    let kind = CipherKind::AesGcm;
    let key = StaticKey::new(kind, "bench", &Zeroizing::new(vec![7; 32])).unwrap();
    let keys = StaticKeys {
        kind,
        keys: vec![key],
    };
    let rule = Rule {
        resources: vec!["*.*".to_owned()],
        providers: vec![Provider::Static(Arc::new(keys))],
    };
    Arc::new(Sealer::new(vec![rule], Arc::default(), SealMetrics::new("bench")))
}

async fn run(title: &str, seal: Arc<dyn Seal>) {
    println!("{title}");
    let root = tempfile::tempdir().unwrap();
    let options = Options {
        seal,
        ..Options::for_tests(root.path())
    };
    let (store, _) = RocksStore::open(options.clone()).unwrap();
    let wall = Instant::now();
    let mut revisions = fill(&store).await;
    println!("fill: {OBJECTS} creates in {:.1?}", wall.elapsed());
    for (round, writers) in [1, 8, 64, 256].into_iter().enumerate() {
        updates(&store, &mut revisions, writers, round as u64 + 1).await;
    }
    reads(&store).await;
    store.close(Duration::from_secs(30)).await.unwrap();
    drop(store);
    let (store, opened) = RocksStore::open(options).unwrap();
    println!(
        "start: {} objects, {} history records in {} ms",
        opened.objects, opened.history_records, opened.took_ms
    );
    bulk_delete(&store, &revisions).await;
    store.close(Duration::from_secs(30)).await.unwrap();
}

fn main() {
    // `cargo test` runs benchmarks too, without measuring.
    if std::env::args().any(|argument| argument == "--bench") {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            run("in clear", Arc::new(Unsealed)).await;
            run("sealed with aesgcm", sealer()).await;
        });
    }
}
