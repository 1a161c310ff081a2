//! Measurements of memory and speed, printed. Ignored by default; run them with
//! `cargo test -p drydock-apiserver cache::tests::scale -- --ignored --nocapture --test-threads 1`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use drydock_storage::memory::MemoryStore;
use drydock_storage::{Key, Revision, Store as _, Transaction, Value};
use tokio_util::sync::CancellationToken;

use super::super::*;
use super::fixture::*;

/// Resident bytes and CPU seconds of this process.
fn usage() -> (u64, f64) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    (pages * 4096, ticks / 100.0)
}

#[expect(clippy::disallowed_methods, reason = "a measurement of real time")]
fn now() -> Instant {
    Instant::now()
}

/// Labels like those of pods: five, with up to a few hundred values each; and a field with four values.
fn attributes(key: &Key, _: &drydock_storage::Value) -> Attributes {
    let name = key.name();
    let number: u64 = name
        .get(..8)
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_default();
    let label = |name: &str, value: String| (name.to_owned(), value);
    Attributes {
        uid: name.to_owned(),
        labels: vec![
            label("app.kubernetes.io/name", format!("app-{}", number % 300)),
            label("app.kubernetes.io/part-of", "shop".to_owned()),
            label("tier", format!("tier-{}", number % 3)),
            label(
                "pod-template-hash",
                format!("{:010x}", (number % 300) * 7_777_777),
            ),
            label("topology.kubernetes.io/zone", format!("zone-{}", number % 3)),
        ],
        fields: vec![("status.state".to_owned(), format!("state-{}", number % 4))],
    }
}

fn name(number: u64) -> String {
    format!("{number:08}-aaaa-bbbb-cccc-0123456789ab")
}

fn value(bytes: usize) -> Value {
    Value {
        bytes: Bytes::from(vec![b'x'; bytes]),
        form: "v1alpha3".into(),
        splice_offset: 1,
    }
}

async fn filled(count: u64, bytes: usize) -> MemoryStore {
    let store = MemoryStore::new();
    for number in 0..count {
        let namespace = format!("namespace-{}", number % 50);
        let key = key(&namespace, &name(number));
        store
            .transact(Transaction::create(key, value(bytes)))
            .await
            .unwrap();
    }
    // The memory store keeps events too; without them its size is that of its objects.
    store.compact(Revision(count + 1)).await.unwrap();
    store
}

async fn cached(store: &MemoryStore) -> (WatchCache<MemoryStore>, tokio::task::JoinHandle<()>) {
    let config = CacheConfig {
        extract: Arc::new(attributes),
        ..config(CacheLimits::default())
    };
    let (cache, feeder) = WatchCache::new(store.clone(), config);
    let task = tokio::spawn(feeder.run(CancellationToken::new()));
    cache.ready().await;
    (cache, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn bytes_per_object() {
    const COUNT: u64 = 150_000;
    let (start, _) = usage();
    let store = filled(COUNT, 3 << 10).await;
    let (before, _) = usage();
    let begin = now();
    let (cache, _task) = cached(&store).await;
    let (after, _) = usage();
    println!(
        "{COUNT} objects: store {} MiB, cache {} bytes an object on top of payload and key, filled in {:?}",
        (before - start) >> 20,
        (after - before) / COUNT,
        begin.elapsed()
    );
    let begin = now();
    let count = cache.reads.newest().unwrap().matches(&everything()).count();
    println!("a walk over {count} objects: {:?}", begin.elapsed());
    let begin = now();
    for number in (0..COUNT).step_by(10) {
        let key = key(&format!("namespace-{}", number % 50), &name(number));
        let base = cache
            .reads
            .newest()
            .unwrap()
            .get(&key)
            .unwrap()
            .unwrap()
            .modified();
        store
            .transact(Transaction::update(key, base, value(3 << 10)))
            .await
            .unwrap();
    }
    cache.reads.fresh().await.unwrap();
    let elapsed = begin.elapsed();
    println!("{} updates applied in {elapsed:?}", COUNT / 10);
    println!("resident at the end: {} MiB", usage().0 >> 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn a_selector_that_matches_nothing() {
    let store = filled(30_000, 1 << 10).await;
    let (cache, _task) = cached(&store).await;
    let snapshot = cache.reads.newest().unwrap();
    for (labels, fields) in [
        ("app.kubernetes.io/name=none", ""),
        ("tier=tier-1", "status.state=none"),
        ("app.kubernetes.io/name=app-7", ""),
        ("tier!=tier-1", "metadata.name=none"),
    ] {
        let begin = now();
        let count = snapshot.matches(&select(Scope::All, labels, fields)).count();
        println!("{labels} {fields}: {count} of 30000 in {:?}", begin.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn many_watchers() {
    for (watchers, rate, seconds) in [(100_u32, 200_u32, 5_u32), (1000, 200, 5)] {
        let store = filled(1000, 3 << 10).await;
        let (cache, task) = cached(&store).await;
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..watchers {
            let request = WatchRequest {
                selection: everything(),
                start: WatchStart::Now,
                bookmarks: true,
                timeout: HOUR,
            };
            let mut watcher = cache.subscribe(request).await.unwrap();
            let wanted = usize::try_from(rate * seconds).unwrap();
            readers.spawn(async move {
                let encoder = Plain;
                let (mut lags, mut events) = (Vec::new(), 0);
                while events < wanted {
                    let buffer = watcher.next_buffer(&encoder).await.unwrap().unwrap();
                    // Payloads begin with the time at which they were written.
                    for line in buffer.chunks_exact((3 << 10) + 1) {
                        events += 1;
                        let at: u64 = std::str::from_utf8(&line[..20]).unwrap().trim().parse().unwrap();
                        lags.push(micros().saturating_sub(at));
                    }
                }
                lags
            });
        }
        let (_, cpu_before) = usage();
        let begin = now();
        for count in 0..rate * seconds {
            let number = u64::from(count % 1000);
            let key = key(&format!("namespace-{}", number % 50), &name(number));
            let base = cache
                .reads
                .newest()
                .unwrap()
                .get(&key)
                .unwrap()
                .unwrap()
                .modified();
            let mut payload = format!("{:<20}", micros()).into_bytes();
            payload.resize(3 << 10, b'x');
            let value = Value {
                bytes: payload.into(),
                ..value(0)
            };
            store
                .transact(Transaction::update(key, base, value))
                .await
                .unwrap();
            tokio::time::sleep_until((begin + Duration::from_secs(1) / rate * (count + 1)).into()).await;
        }
        let mut lags: Vec<u64> = readers.join_all().await.into_iter().flatten().collect();
        let cpu = usage().1 - cpu_before;
        lags.sort_unstable();
        let at = |share: usize| lags[lags.len() * share / 1000];
        println!(
            "{watchers} watchers, {rate} writes/s: {} events, lag p50 {} us, p99 {} us, max {} us, {:.2} us CPU an event",
            lags.len(),
            at(500),
            at(990),
            lags[lags.len() - 1],
            cpu * 1e6 / f64::from(watchers * rate * seconds),
        );
        task.abort();
    }
}

fn micros() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

/// The payload and a line end.
struct Plain;

impl EventEncoder for Plain {
    fn id(&self) -> EncoderId {
        EncoderId {
            face: "v1",
            projection: crate::request::projection::Projection::Object,
            media_type: crate::request::negotiate::MediaType::Json,
        }
    }

    fn event(
        &self,
        _: WatchKind,
        object: &CachedObject,
        _: Revision,
        out: &mut bytes::BytesMut,
    ) -> Result<(), EncodeError> {
        out.extend_from_slice(&object.value().bytes);
        out.extend_from_slice(b"\n");
        Ok(())
    }

    fn bookmark(&self, _: Revision, _: bool, _: &mut bytes::BytesMut) {}
}
