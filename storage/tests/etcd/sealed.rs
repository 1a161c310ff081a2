//! Values in etcd that are sealed.

use std::sync::Arc;
use std::time::Duration;

use drydock_storage::conformance::sealing::rules;
use drydock_storage::conformance::{put, thing};
use drydock_storage::etcd::{EtcdOptions, EtcdStore};
use drydock_storage::seal::{Seal, SealMetrics, Sealer};
use drydock_storage::{
    At, Damaged, Events as _, KeyRange, Outcome, Page, Removable, Revision, Signal, Store, StoreError,
    Transaction, Unread,
};

use crate::etcd_process::EtcdProcess;

const MARKER: &str = "qZx9vKw2-marker-7Hd3pLs8";

async fn open(etcd: &EtcdProcess, seal: &Arc<Sealer>) -> EtcdStore {
    let options = EtcdOptions {
        seal: Arc::<Sealer>::clone(seal) as Arc<dyn Seal>,
        ..etcd.options()
    };
    EtcdStore::open(options).await.unwrap().0
}

/// As `etcdctl --hex` shows it.
fn hex(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        write!(out, "\\x{byte:02x}").unwrap();
        out
    })
}

fn sealer(keys: &[(&str, u8)]) -> Arc<Sealer> {
    Arc::new(Sealer::new(rules(keys), Arc::default(), SealMetrics::new("test")))
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_holds_nothing_in_clear_and_a_key_is_replaced() {
    let etcd = EtcdProcess::start().await;
    let seal = sealer(&[("old", 1)]);
    let store = open(&etcd, &seal).await;
    put(&store, "one", &format!("{MARKER} before")).await;
    let revision = put(&store, "one", &format!("{MARKER} {}", MARKER.repeat(20))).await;
    let stored = etcd.etcdctl(&["get", "", "--prefix", "--hex"]);
    assert!(stored.contains(&hex("k8s:enc:aesgcm:v1:old:")), "{stored}");
    assert!(!stored.contains(&hex(MARKER)), "{stored}");

    seal.replace(rules(&[("new", 2), ("old", 1)]));
    assert!(store.is_stale(&thing("one"), revision).await.unwrap());
    let entry = store.get(&thing("one")).await.unwrap().entry.unwrap();
    let same = Transaction::update(thing("one"), revision, entry.value.clone());
    let Outcome::Committed { revision } = store.transact(same).await.unwrap() else {
        unreachable!("nobody else writes")
    };
    assert!(!store.is_stale(&thing("one"), revision).await.unwrap());
    let stored = etcd.etcdctl(&["get", "", "--prefix", "--hex"]);
    assert!(stored.contains(&hex("k8s:enc:aesgcm:v1:new:")), "{stored}");

    // The history still needs the old key: a watch from there ends, and readers load anew.
    seal.replace(rules(&[("new", 2)]));
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let first = tokio::time::timeout(Duration::from_mins(1), events.next())
        .await
        .unwrap();
    assert!(matches!(first, Some(Signal::Compacted(_))), "{first:?}");
    let found = store.get(&thing("one")).await.unwrap().entry.unwrap();
    assert_eq!(found.value, entry.value);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_under_a_missing_key_is_never_absent() {
    let etcd = EtcdProcess::start().await;
    put(&open(&etcd, &sealer(&[("old", 1)])).await, "one", MARKER).await;
    let seal = sealer(&[("new", 2)]);
    let store = open(&etcd, &seal).await;
    put(&store, "two", "readable").await;
    let why = "no matching key was found for the provided AES transformer";
    let refused = store.get(&thing("one")).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Sealed { reason, .. } if reason == why),
        "{refused}"
    );
    let all = KeyRange::all();
    let refused = store.scan(&all, At::Latest, Page::default()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Sealed { .. }), "{refused}");
    let apart = Page {
        damaged: Damaged::SetApart,
        ..Page::default()
    };
    let scan = store.scan(&all, At::Latest, apart).await.unwrap();
    assert_eq!(scan.entries.len(), 1);
    assert_eq!(scan.damaged, [(thing("one"), Unread::Sealed(why.into()))]);
    // The key comes back.
    seal.replace(rules(&[("new", 2), ("old", 1)]));
    assert!(store.get(&thing("one")).await.unwrap().entry.is_some());
    // Or the value is given up.
    seal.replace(rules(&[("new", 2)]));
    let one = thing("one");
    let refused = store.remove_damaged(&one, Removable::Damaged).await;
    assert!(matches!(refused, Err(StoreError::Sealed { .. })), "{refused:?}");
    let removed = store
        .remove_damaged(&one, Removable::DamagedOrSealed)
        .await
        .unwrap();
    assert!(matches!(removed, Outcome::Committed { .. }));
    assert!(store.get(&thing("one")).await.unwrap().entry.is_none());
}
