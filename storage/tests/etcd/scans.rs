//! Scans of objects of any size.

use drydock_storage::conformance::{thing, value};
use drydock_storage::{At, KeyRange, Page, Store as _, Transaction, Value};
use prometheus_client::registry::Registry;

use crate::etcd_process::EtcdProcess;

fn random(bytes: usize, random: &mut fastrand::Rng) -> Value {
    let text: String = std::iter::repeat_with(|| random.alphanumeric())
        .take(bytes)
        .collect();
    value(&text)
}

/// After small objects a request asks for many keys, and its answer would have 48 MiB: it is not read, but asked for in parts.
#[tokio::test(flavor = "multi_thread")]
async fn large_objects_after_small_ones_come_in_parts() {
    let etcd = EtcdProcess::start().await;
    let store = etcd.store().await;
    let mut rng = fastrand::Rng::with_seed(9);
    let mut expected = Vec::new();
    for number in 0..148 {
        let bytes = if number < 100 { 10 } else { 1 << 20 };
        expected.push((thing(&format!("n{number:03}")), random(bytes, &mut rng)));
    }
    let creates = expected
        .iter()
        .cloned()
        .map(|(key, value)| Transaction::create(key, value));
    for outcome in store.transact_many(creates.collect()).await {
        outcome.unwrap();
    }
    let scan = store
        .scan(&KeyRange::all(), At::Latest, Page::default())
        .await
        .unwrap();
    let found: Vec<_> = scan
        .entries
        .into_iter()
        .map(|(key, entry)| (key, entry.value))
        .collect();
    assert!(found == expected);
    let (mut registry, mut text) = (Registry::default(), String::new());
    store.metrics().register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    // Only failed requests are counted there.
    assert!(
        text.contains("etcd_request_errors_total{operation=\"list\""),
        "{text}"
    );
}
