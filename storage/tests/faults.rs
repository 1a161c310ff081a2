//! Faults at named points: what the engine answers then, and what a store makes of it.
//!
//! Points are shared by the whole process, so the tests take turns.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::rocks::{OpenError, RocksStore};
use drydock_storage::{Key, Options, Store, Transaction, Value};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_secs(10);

fn options(folder: &Path) -> Options {
    Options {
        background_work: false,
        ..Options::for_tests(folder)
    }
}

fn key(name: &str) -> Key {
    Key::new("g", "things", "n", name).unwrap()
}

fn value(text: &str) -> Value {
    Value {
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        form: "g/v1".into(),
        splice_offset: 0,
    }
}

/// Injects an error of the engine when it opens; how the start answers.
fn refusal(point: &str, folder: &Path) -> OpenError {
    fail::cfg(point, "return(nospace)").unwrap();
    match RocksStore::open(options(folder)) {
        Ok((_, opened)) => panic!("{opened:?}"),
        Err(refused) => refused,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_room_names_the_ballast_and_never_damage() {
    let turn = fail::FailScenario::setup();
    let root = TempDir::new().unwrap();
    let check = |refused: OpenError| {
        assert!(matches!(refused, OpenError::NoSpace { .. }), "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains("`ballast`") && !text.contains("accept-loss"),
            "{text}"
        );
    };
    check(refusal("engine-open", root.path()));
    fail::remove("engine-open");
    let store = RocksStore::open(options(root.path())).unwrap().0;
    store
        .transact(Transaction::create(key("one"), value("x")))
        .await
        .unwrap();
    store.close(GRACE).await.unwrap();
    check(refusal("engine-open", root.path()));
    fail::remove("engine-open");
    let (_, opened) = RocksStore::open(options(root.path())).unwrap();
    assert_eq!(opened.objects, 1);
    turn.teardown();
}
