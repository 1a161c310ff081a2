use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::super::settings::{BatchSettings, Throttle};
use super::*;
use crate::metrics::Metrics;

/// An output that records when which events came, and does as it is told.
struct Recorder {
    started: Instant,
    batches: Mutex<Vec<(u64, Vec<String>)>>,
    fails: AtomicBool,
    hangs: AtomicBool,
}

impl Recorder {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            batches: Mutex::default(),
            fails: AtomicBool::default(),
            hangs: AtomicBool::default(),
        })
    }

    /// Seconds and events of the batches so far.
    fn batches(&self) -> Vec<(u64, Vec<String>)> {
        self.batches.lock().unwrap().clone()
    }

    fn sizes(&self) -> Vec<(u64, usize)> {
        self.batches()
            .into_iter()
            .map(|(second, events)| (second, events.len()))
            .collect()
    }
}

impl Output for Recorder {
    fn deliver(&self, events: &[Arc<Encoded>]) -> BoxFuture<'_, Result<(), String>> {
        let texts = events
            .iter()
            .map(|event| String::from_utf8(event.json.clone()).unwrap())
            .collect();
        Box::pin(async move {
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.fails.load(Ordering::Relaxed) {
                return Err("told to fail".to_owned());
            }
            self.batches
                .lock()
                .unwrap()
                .push((self.started.elapsed().as_secs(), texts));
            Ok(())
        })
    }
}

fn metrics() -> AuditMetrics {
    Metrics::register(&mut Registry::default(), []).audit().clone()
}

fn event(text: &str) -> Arc<Encoded> {
    Arc::new(Encoded {
        json: text.as_bytes().to_vec(),
        legacy: String::new(),
    })
}

fn direct(output: &Arc<Recorder>, mode: Mode, metrics: &AuditMetrics) -> Sink {
    Sink::new(
        "log",
        Arc::clone(output) as _,
        mode,
        |_| unreachable!("there is no queue"),
        metrics.clone(),
    )
}

const BATCHES: BatchSettings = BatchSettings {
    buffer_size: 100,
    max_size: 10,
    max_wait: Duration::from_secs(30),
    throttle: None,
    parallel: 16,
};

fn queue(
    output: &Arc<Recorder>,
    settings: BatchSettings,
    max_bytes: Option<usize>,
    metrics: &AuditMetrics,
) -> Sink {
    let (own, name) = (metrics.clone(), "webhook");
    Sink::new(
        name,
        Arc::clone(output) as _,
        Mode::Batch,
        |output| Batches::start(name, output, settings, max_bytes, own),
        metrics.clone(),
    )
}

/// Lets every task run until it waits for time.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_wait_in_the_blocking_modes() {
    for mode in [Mode::Blocking, Mode::BlockingStrict] {
        let (output, metrics) = (Recorder::new(), metrics());
        let sink = direct(&output, mode, &metrics);
        assert_eq!(sink.store(event("a")).await, Ok(()));
        assert_eq!(output.batches(), [(0, vec!["a".to_owned()])]);
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_strict_mode_rejects_requests_whose_event_is_lost() {
    for (mode, outcome) in [(Mode::Blocking, Ok(())), (Mode::BlockingStrict, Err(NotStored))] {
        let (output, metrics) = (Recorder::new(), metrics());
        let sink = direct(&output, mode, &metrics);
        output.fails.store(true, Ordering::Relaxed);
        assert_eq!(sink.store(event("a")).await, outcome);
        assert_eq!(metrics.losses("log"), 1, "{mode:?}");

        // An output that does not respond holds a request for 30 s.
        output.hangs.store(true, Ordering::Relaxed);
        assert_eq!(sink.store(event("b")).await, outcome);
        assert_eq!(output.started.elapsed(), PATIENCE);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_delivered_although_its_request_stops_waiting() {
    let (output, metrics) = (Recorder::new(), metrics());
    let sink = direct(&output, Mode::Blocking, &metrics);
    let waited = futures_util::FutureExt::now_or_never(sink.store(event("a")));
    assert_eq!(waited, None);
    sink.offer(event("b"));
    sink.close().await;
    assert_eq!(output.batches().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_limited() {
    let (output, metrics) = (Recorder::new(), metrics());
    let sink = direct(&output, Mode::Blocking, &metrics);
    output.hangs.store(true, Ordering::Relaxed);
    for _ in 0..UNDER_WAY + 5 {
        sink.offer(event("a"));
    }
    assert_eq!(metrics.losses("log"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_sent_when_it_is_full_or_has_waited() {
    let (output, metrics) = (Recorder::new(), metrics());
    let sink = queue(&output, BATCHES, None, &metrics);
    (0..25).for_each(|_| sink.offer(event("a")));
    settle().await;
    assert_eq!(output.sizes(), [(0, 10), (0, 10)]);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(output.sizes(), [(0, 10), (0, 10), (30, 5)]);
    sink.offer(event("b"));
    sink.close().await;
    assert_eq!(output.sizes().last(), Some(&(31, 1)), "a stop does not wait");
}

#[tokio::test(start_paused = true)]
async fn batches_are_limited_by_rate() {
    let (output, metrics) = (Recorder::new(), metrics());
    let settings = BatchSettings {
        max_size: 1,
        throttle: Some(Throttle {
            per_second: 1.0,
            burst: 3,
        }),
        ..BATCHES
    };
    let sink = queue(&output, settings, None, &metrics);
    (0..6).for_each(|_| sink.offer(event("a")));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let seconds: Vec<u64> = output.sizes().into_iter().map(|(second, _)| second).collect();
    assert_eq!(seconds, [0, 0, 0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn batches_are_split_by_bytes() {
    let (output, metrics) = (Recorder::new(), metrics());
    let sink = queue(&output, BATCHES, Some(10), &metrics);
    for text in ["1234", "5678", "9012", "longer than the limit", "x", "y"] {
        sink.offer(event(text));
    }
    sink.close().await;
    let batches: Vec<String> = output
        .batches()
        .into_iter()
        .map(|(_, texts)| texts.join(" "))
        .collect();
    let mut sorted = batches.clone();
    sorted.sort();
    assert_eq!(sorted, ["1234 5678", "9012", "longer than the limit", "x y"]);
}

#[tokio::test(start_paused = true)]
async fn what_finds_the_queue_full_is_lost_and_counted() {
    let (output, metrics) = (Recorder::new(), metrics());
    output.hangs.store(true, Ordering::Relaxed);
    let sink = queue(&output, BATCHES, None, &metrics);
    // 16 batches of 10 are under way, one waits for its turn, and 100 events are in the queue.
    for _ in 0..400 {
        sink.offer(event("a"));
        tokio::task::yield_now().await;
    }
    settle().await;
    assert_eq!(metrics.losses("buffered"), 400 - 160 - 10 - 100);

    let (output, metrics) = (Recorder::new(), self::metrics());
    output.hangs.store(true, Ordering::Relaxed);
    let sink = queue(&output, BATCHES, None, &metrics);
    let large = "x".repeat(20 << 20);
    (0..5).for_each(|_| sink.offer(event(&large)));
    assert_eq!(metrics.losses("buffered"), 2, "64 MiB hold three of them");
}

#[tokio::test(start_paused = true)]
async fn lost_batches_are_counted_by_event() {
    let (output, metrics) = (Recorder::new(), metrics());
    output.fails.store(true, Ordering::Relaxed);
    let sink = queue(&output, BATCHES, None, &metrics);
    (0..7).for_each(|_| sink.offer(event("a")));
    sink.close().await;
    assert_eq!(metrics.losses("webhook"), 7);
}

#[test]
fn lines_are_whole_events() {
    let event = Encoded {
        json: br#"{"level":"None"}"#.to_vec(),
        legacy: "text".to_owned(),
    };
    assert_eq!(
        event.line(LogFormat::Json),
        "{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"level\":\"None\"}\n"
    );
    assert_eq!(event.line(LogFormat::Legacy), "text\n");
}
