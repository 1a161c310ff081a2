//! A store whose values are sealed: it keeps every guarantee, and nothing on disk is in clear.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drydock_storage::conformance::sealing::{for_everything, static_keys as keys};
use drydock_storage::conformance::{Backend, put, thing as key, value};
use drydock_storage::rocks::{self, RocksStore};
use drydock_storage::seal::kms::plugin::{Behaviour, Plugin};
use drydock_storage::seal::kms::{Endpoint, Kms, KmsOptions};
use drydock_storage::seal::{self, CipherKind, Provider, Seal, SealError, SealMetrics, Sealer};
use drydock_storage::{
    At, Events as _, KeyRange, Options, Outcome, Page, Removable, Revision, Signal, Store, StoreError,
    Transaction,
};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_secs(30);
/// What must not be on any disk. Long enough to be compressed, and its start is not.
const MARKER: &str = "qZx9vKw2-marker-7Hd3pLs8";

fn sealer(providers: Vec<Provider>) -> Arc<Sealer> {
    Arc::new(Sealer::new(
        for_everything(providers),
        Arc::default(),
        SealMetrics::new("test"),
    ))
}

fn options(folder: &Path, seal: &Arc<Sealer>) -> Options {
    Options {
        seal: Arc::<Sealer>::clone(seal) as Arc<dyn Seal>,
        background_work: false,
        ..Options::for_tests(folder)
    }
}

fn open(folder: &Path, seal: &Arc<Sealer>) -> RocksStore {
    RocksStore::open(options(folder, seal)).unwrap().0
}

async fn text<S: Store>(store: &S, name: &str) -> String {
    let found = store.get(&key(name)).await.unwrap();
    String::from_utf8(found.entry.unwrap().value.bytes.to_vec()).unwrap()
}

/// The files below a folder that contain a text.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read(&path)
                .unwrap()
                .windows(text.len())
                .any(|window| window == text.as_bytes())
            {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

struct Sealed(TempDir);

impl Backend for Sealed {
    type Store = RocksStore;

    async fn open(&self) -> RocksStore {
        let seal = sealer(vec![keys(CipherKind::AesGcm, &[("k", 1)])]);
        let options = Options {
            seal,
            ..Options::for_tests(self.0.path())
        };
        RocksStore::open(options).unwrap().0
    }
}

drydock_storage::conformance_suite!(crate::Sealed(tempfile::tempdir().unwrap()));

/// Writes, overwrites and deletes, and backs everything up.
async fn filled(root: &Path, seal: &Arc<Sealer>) {
    let store = open(&root.join("store"), seal);
    for name in ["one", "two", "three"] {
        put(&store, name, &format!("{MARKER} {name} {}", MARKER.repeat(20))).await;
    }
    put(&store, "two", &format!("{MARKER} again")).await;
    let entry = store.get(&key("three")).await.unwrap().entry.unwrap();
    let delete = Transaction::delete(key("three"), entry.modified);
    store.transact(delete).await.unwrap();
    store.backup(&root.join("backups"), 0, &|_| {}).unwrap();
    store.backup_incrementally(&root.join("copies"), 0).unwrap();
    store.export(&root.join("all.export"), &|_| {}).unwrap();
    store.close(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_in_clear_on_disk_under_any_provider() {
    let socket = TempDir::new().unwrap();
    let plugin = Plugin::start(&socket.path().join("kms.sock"), Behaviour::default()).unwrap();
    let endpoint: Endpoint = plugin.endpoint().parse().unwrap();
    let kms = tokio::task::spawn_blocking(move || {
        let options = KmsOptions {
            name: "main".to_owned(),
            endpoint,
            timeout: GRACE,
        };
        let clock = Arc::new(drydock_storage::clock::SystemClock);
        Kms::start(options, Arc::default(), clock, SealMetrics::new("test")).unwrap()
    });
    let kms = Provider::Kms(kms.await.unwrap());
    // Without a provider the marker is found: the search works.
    let root = TempDir::new().unwrap();
    filled(root.path(), &sealer(vec![Provider::Identity])).await;
    for part in ["store", "backups", "copies"] {
        assert!(!files_with(&root.path().join(part), MARKER).is_empty(), "{part}");
    }
    assert!(
        files_with(root.path(), MARKER)
            .iter()
            .any(|file| file.ends_with("all.export"))
    );
    for (provider, prefix) in [
        (keys(CipherKind::AesGcm, &[("k", 1)]), "k8s:enc:aesgcm:v1:k:"),
        (keys(CipherKind::AesCbc, &[("k", 1)]), "k8s:enc:aescbc:v1:k:"),
        (
            keys(CipherKind::Secretbox, &[("k", 1)]),
            "k8s:enc:secretbox:v1:k:",
        ),
        (kms, "k8s:enc:kms:v2:main:"),
    ] {
        let root = TempDir::new().unwrap();
        let seal = sealer(vec![provider]);
        filled(root.path(), &seal).await;
        assert_eq!(files_with(root.path(), MARKER), [""; 0], "{prefix}");
        // By the prefix everybody sees the provider and the key.
        assert!(!files_with(&root.path().join("store"), prefix).is_empty());

        // All of it reads back: the store with its history, the backups, the export.
        let store = open(&root.path().join("store"), &seal);
        assert_eq!(text(&store, "two").await, format!("{MARKER} again"));
        let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
        for _ in 0..5 {
            let event = events.next().await;
            assert!(matches!(event, Some(Signal::Change(_))), "{event:?}");
        }
        store.close(GRACE).await.unwrap();
        let restored = root.path().join("restored");
        rocks::restore(&root.path().join("copies"), &options(&restored, &seal), &|_| {}).unwrap();
        let imported = root.path().join("imported");
        rocks::import(
            &root.path().join("all.export"),
            &options(&imported, &seal),
            &|_| {},
        )
        .unwrap();
        for folder in [restored, imported] {
            let store = open(&folder, &seal);
            assert_eq!(text(&store, "two").await, format!("{MARKER} again"));
            store.close(GRACE).await.unwrap();
        }
        assert_eq!(files_with(root.path(), MARKER), [""; 0], "{prefix}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_key_a_store_is_verified_and_backed_up_but_not_exported_or_moved() {
    let root = TempDir::new().unwrap();
    let right = sealer(vec![keys(CipherKind::AesGcm, &[("k", 1)])]);
    filled(root.path(), &right).await;
    let wrong = sealer(vec![keys(CipherKind::AesGcm, &[("k", 2)])]);
    let other = sealer(vec![keys(CipherKind::Secretbox, &[("k", 1)]), Provider::Identity]);
    let folder = root.path().join("store");
    for (seal, why) in [
        (&wrong, "cipher: message authentication failed"),
        (&other, "no matching prefix found"),
    ] {
        let report = rocks::verify(&options(&folder, seal), &|_| {}).unwrap();
        assert_eq!((report.objects, report.damaged.len()), (2, 0));
        // Two values, five changes.
        assert_eq!(report.unopened, 7);
        let store = open(&folder, seal);
        let refused = store.get(&key("one")).await.unwrap_err();
        assert!(
            matches!(&refused, StoreError::Sealed { reason, .. } if reason == why),
            "{refused}"
        );
        store
            .scan(&KeyRange::all(), At::Latest, Page::default())
            .await
            .unwrap_err();
        store.backup(&root.path().join("later"), 0, &|_| {}).unwrap();
        let export = root.path().join("none.export");
        store.export(&export, &|_| {}).unwrap_err();
        assert!(!export.exists());
        store.close(GRACE).await.unwrap();
        for (number, refused) in [
            rocks::restore(
                &root.path().join("copies"),
                &options(&root.path().join(format!("restored-{why}")), seal),
                &|_| {},
            ),
            rocks::import(
                &root.path().join("all.export"),
                &options(&root.path().join(format!("imported-{why}")), seal),
                &|_| {},
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(why), "{number}: {refused}");
        }
    }
    let report = rocks::verify(&options(&folder, &right), &|_| {}).unwrap();
    assert_eq!((report.unopened, report.damaged_history.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_replaced_while_the_store_is_open() {
    let root = TempDir::new().unwrap();
    let (old, new) = (("old", 1), ("new", 2));
    let seal = sealer(vec![keys(CipherKind::AesGcm, &[old])]);
    let store = open(root.path(), &seal);
    let revision = put(&store, "one", MARKER).await;
    assert!(!store.is_stale(&key("one"), revision).await.unwrap());
    seal.replace(for_everything(vec![keys(CipherKind::AesGcm, &[new, old])]));
    assert!(store.is_stale(&key("one"), revision).await.unwrap());
    assert!(
        !store.is_stale(&key("one"), Revision(1)).await.unwrap(),
        "written since"
    );
    assert!(!store.is_stale(&key("absent"), revision).await.unwrap());
    let same = Transaction::update(key("one"), revision, value(MARKER));
    let Outcome::Committed { revision } = store.transact(same).await.unwrap() else {
        unreachable!("nobody else writes")
    };
    assert!(!store.is_stale(&key("one"), revision).await.unwrap());
    // The old key is dropped before the history that needs it: watches from there end, the state is whole.
    seal.replace(for_everything(vec![keys(CipherKind::AesGcm, &[new])]));
    store.close(GRACE).await.unwrap();
    drop(store);
    let store = open(root.path(), &seal);
    assert_eq!(text(&store, "one").await, MARKER);
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let first = events.next().await;
    assert!(matches!(first, Some(Signal::Compacted(_))), "{first:?}");
    // And back to no encryption.
    seal.replace(for_everything(vec![
        Provider::Identity,
        keys(CipherKind::AesGcm, &[new]),
    ]));
    assert!(store.is_stale(&key("one"), revision).await.unwrap());
    store.close(GRACE).await.unwrap();
}

/// A cipher without integrity: with another key a value opens to something else. The key is its generation.
#[derive(Default)]
struct NoIntegrity(AtomicU64);

impl NoIntegrity {
    fn turned(&self, bytes: Vec<u8>) -> Vec<u8> {
        let [key, ..] = self.0.load(Ordering::Relaxed).to_le_bytes();
        bytes.into_iter().map(|byte| byte ^ key).collect()
    }
}

impl Seal for NoIntegrity {
    fn seal(&self, _: &str, plain: Vec<u8>) -> Result<seal::Sealed, SealError> {
        Ok(seal::Sealed {
            key_id: "k8s:enc:none:v1:k:".to_owned(),
            bytes: self.turned(plain),
        })
    }

    fn open(&self, _: &str, _: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        Ok(self.turned(sealed))
    }

    fn has_stale(&self) -> bool {
        true
    }

    fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_without_integrity_is_no_damage_and_the_right_one_helps_at_once() {
    let root = TempDir::new().unwrap();
    let seal = Arc::new(NoIntegrity(AtomicU64::new(1)));
    let options = |folder: &Path| Options {
        seal: Arc::<NoIntegrity>::clone(&seal) as Arc<dyn Seal>,
        background_work: false,
        ..Options::for_tests(folder)
    };
    let folder = root.path().join("store");
    let store = RocksStore::open(options(&folder)).unwrap().0;
    put(&store, "one", "short").await;
    put(&store, "two", &MARKER.repeat(20)).await;
    store.backup(&root.path().join("backups"), 0, &|_| {}).unwrap();
    store.close(GRACE).await.unwrap();
    drop(store);

    seal.0.store(2, Ordering::Relaxed);
    let report = rocks::verify(&options(&folder), &|_| {}).unwrap();
    assert_eq!((report.damaged.len(), report.damaged_history.len()), (0, 0));
    assert_eq!(report.unopened, 4);
    let recovered = rocks::recover(&options(&folder), true, &|_| {}).unwrap();
    assert_eq!(recovered.fault, None);
    let restored = root.path().join("restored");
    let from = std::fs::read_dir(root.path().join("backups")).unwrap().next();
    let refused = rocks::restore(&from.unwrap().unwrap().path(), &options(&restored), &|_| {}).unwrap_err();
    assert!(
        refused.to_string().contains("the key is another one"),
        "{refused}"
    );
    let (store, opened) = RocksStore::open(options(&folder)).unwrap();
    assert_eq!(opened.damaged, [""; 0]);
    assert!(store.check_values().unwrap().damaged.is_empty());
    for name in ["one", "two"] {
        let refused = store.get(&key(name)).await.unwrap_err();
        assert!(matches!(refused, StoreError::Sealed { .. }), "{refused}");
        let refused = store.remove_damaged(&key(name), Removable::Damaged).await;
        assert!(matches!(refused, Err(StoreError::Sealed { .. })), "{refused:?}");
    }
    store.run_housekeeping();
    seal.0.store(1, Ordering::Relaxed);
    store.run_housekeeping();
    assert_eq!(text(&store, "one").await, "short");
    assert_eq!(text(&store, "two").await, MARKER.repeat(20));
    // Whoever gives a key up removes what it sealed.
    seal.0.store(2, Ordering::Relaxed);
    store.close(GRACE).await.unwrap();
    drop(store);
    let store = RocksStore::open(options(&folder)).unwrap().0;
    let removed = store
        .remove_damaged(&key("one"), Removable::DamagedOrSealed)
        .await;
    assert!(matches!(removed, Ok(Outcome::Committed { .. })), "{removed:?}");
    store.close(GRACE).await.unwrap();
}
