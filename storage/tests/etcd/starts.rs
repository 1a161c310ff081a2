//! What a start refuses, with nothing written.

use std::time::Duration;

use drydock_storage::conformance::{commit, thing, value};
use drydock_storage::etcd::{self, EtcdOpenError, EtcdOptions, EtcdStore, EtcdTransferError};
use drydock_storage::{Health, Store as _, StoreError, Transaction};

use crate::etcd_process::EtcdProcess;

async fn refused(options: EtcdOptions) -> EtcdOpenError {
    match EtcdStore::open(options).await {
        Ok(_) => panic!("the start is refused"),
        Err(error) => error,
    }
}

/// The revision of an etcd in which nothing was written.
fn is_untouched(etcd: &EtcdProcess, revision: u64) -> bool {
    let found = etcd.etcdctl(&["get", "x", "--write-out=fields"]);
    found.contains(&format!("\"Revision\" : {revision}\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_of_somebody_else_is_refused() {
    let etcd = EtcdProcess::start().await;
    drop(etcd.store().await);
    assert!(is_untouched(&etcd, 1));
    etcd.etcdctl(&["put", "/registry/drydock/pods/a", "of somebody else"]);
    let error = refused(etcd.options()).await;
    assert!(
        matches!(&error, EtcdOpenError::Foreign { key, .. } if key.ends_with("/pods/a")),
        "{error}"
    );
    let other = |prefix: &str| EtcdOptions {
        prefix: prefix.to_owned(),
        ..etcd.options()
    };
    etcd.etcdctl(&["put", "/registry/mine", r#"{"product":"another"}"#]);
    let error = refused(other("/registry/mine")).await;
    assert!(matches!(error, EtcdOpenError::OtherProduct { .. }), "{error}");
    let newer = r#"{"product":"drydock","format":9,"store":"00000000-0000-0000-0000-000000000000"}"#;
    etcd.etcdctl(&["put", "/registry/newer", newer]);
    let error = refused(other("/registry/newer")).await;
    assert!(
        matches!(error, EtcdOpenError::NewerFormat { found: 9, .. }),
        "{error}"
    );
    let error = refused(other("registry")).await;
    assert!(matches!(error, EtcdOpenError::Prefix { .. }), "{error}");
    EtcdStore::open(other("/registry/free")).await.unwrap();
    assert!(is_untouched(&etcd, 4));
}

/// The outer store would take the keys of the inner one for damaged keys of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_inside_of_that_of_another_store_is_refused() {
    let etcd = EtcdProcess::start().await;
    let other = |prefix: &str| EtcdOptions {
        prefix: prefix.to_owned(),
        ..etcd.options()
    };
    commit(&etcd.store().await, Transaction::create(thing("one"), value("x"))).await;
    for prefix in ["/registry/drydock/b", "/registry/drydock/b/c"] {
        let error = refused(other(prefix)).await;
        assert!(
            matches!(&error, EtcdOpenError::Nested { outer, .. } if outer == "/registry/drydock"),
            "{error}"
        );
    }
    let error = refused(other("/registry")).await;
    assert!(matches!(error, EtcdOpenError::Foreign { .. }), "{error}");
    EtcdStore::open(other("/registry/drydock2")).await.unwrap();
    assert!(is_untouched(&etcd, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_behind_one_list_are_refused() {
    let (one, two) = (EtcdProcess::start().await, EtcdProcess::start().await);
    let error = refused(EtcdOptions {
        endpoints: vec![one.endpoint(), two.endpoint()],
        ..one.options()
    })
    .await;
    assert!(
        matches!(&error, EtcdOpenError::TwoClusters { first, second } if *first == one.endpoint() && *second == two.endpoint()),
        "{error}"
    );
    let error = refused(EtcdOptions {
        endpoints: vec![one.endpoint(), two.endpoint().replace("http", "https")],
        ..one.options()
    })
    .await;
    assert!(matches!(error, EtcdOpenError::Endpoint { .. }), "{error}");
    for endpoint in ["https://root:secret@127.0.0.1:1", "http://127.0.0.1:1/path"] {
        let error = refused(EtcdOptions {
            endpoints: vec![endpoint.to_owned()],
            ..one.options()
        })
        .await
        .to_string();
        assert!(
            error.contains("127.0.0.1:1") && !error.contains("secret"),
            "{error}"
        );
    }
    assert!(is_untouched(&one, 1) && is_untouched(&two, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_does_not_answer_is_named() {
    let mut etcd = EtcdProcess::start().await;
    etcd.kill();
    let error = refused(EtcdOptions {
        start_wait: Duration::from_millis(100),
        ..etcd.options()
    })
    .await;
    let EtcdOpenError::Unreachable { reason } = error else {
        panic!("{error}");
    };
    assert!(reason.contains(&etcd.endpoint()), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_down_does_not_hinder_a_start() {
    let (etcd, mut down) = (EtcdProcess::start().await, EtcdProcess::start().await);
    down.kill();
    let options = EtcdOptions {
        endpoints: vec![down.endpoint(), etcd.endpoint()],
        ..etcd.options()
    };
    let (store, opened) = EtcdStore::open(options).await.unwrap();
    assert_eq!(opened.silent, [down.endpoint()]);
    commit(&store, Transaction::create(thing("one"), value("x"))).await;
    assert_eq!(store.health(), Health::Ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_accepts_only_small_requests_is_refused() {
    let etcd = EtcdProcess::start_with(&["--unsafe-no-fsync", "--max-request-bytes=1000000"]).await;
    let error = refused(etcd.options()).await;
    assert!(matches!(error, EtcdOpenError::RequestLimit), "{error}");
    assert!(is_untouched(&etcd, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_accepts_only_few_operations_is_refused() {
    let etcd = EtcdProcess::start_with(&["--unsafe-no-fsync", "--max-txn-ops=1"]).await;
    let error = refused(etcd.options()).await;
    assert!(
        matches!(error, EtcdOpenError::OperationLimit { needed: 2 }),
        "{error}"
    );
    assert!(error.to_string().contains("--max-txn-ops=2"), "{error}");
    let etcd = EtcdProcess::start_with(&["--unsafe-no-fsync", "--max-txn-ops=127"]).await;
    etcd.store().await;
    let import = etcd::import(etcd.options(), std::path::Path::new("none"), 0, &|_, _, _| {}).await;
    assert!(
        matches!(
            import,
            Err(EtcdTransferError::Open(EtcdOpenError::OperationLimit {
                needed: 128
            }))
        ),
        "{import:?}"
    );
    assert!(is_untouched(&etcd, 1));
}

/// A server that only reads notices it, too.
#[tokio::test(flavor = "multi_thread")]
async fn reads_notice_a_prefix_that_was_wiped_or_taken_over() {
    let etcd = EtcdProcess::start().await;
    for wipe in [true, false] {
        let writer = etcd.store().await;
        let reader = etcd.store().await;
        let written = commit(&writer, Transaction::create(thing("one"), value("x"))).await;
        assert_eq!(reader.current_revision().await.unwrap(), written);
        if wipe {
            etcd.etcdctl(&["del", "--prefix", "/registry/drydock"]);
        } else {
            etcd.etcdctl(&["put", "/registry/drydock", r#"{"product":"drydock","format":9}"#]);
        }
        reader.current_revision().await.unwrap_err();
        assert!(
            matches!(reader.health(), Health::Failed(_)),
            "{:?}",
            reader.health()
        );
        // The other one does nothing, and looks from time to time.
        let notices = async {
            while !matches!(writer.health(), Health::Failed(_)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), notices)
            .await
            .unwrap();
    }
}

/// A server whose prefix is wiped, or taken over by a newer version, does not write into it.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_was_wiped_or_taken_over_is_not_written() {
    let etcd = EtcdProcess::start().await;
    for wipe in [true, false] {
        let store = etcd.store().await;
        commit(&store, Transaction::create(thing("one"), value("x"))).await;
        if wipe {
            etcd.etcdctl(&["del", "--prefix", "/registry/drydock"]);
        } else {
            etcd.etcdctl(&["put", "/registry/drydock", r#"{"product":"drydock","format":9}"#]);
        }
        let write = store
            .transact(Transaction::create(thing("two"), value("x")))
            .await;
        assert!(matches!(write, Err(StoreError::Closed { .. })), "{write:?}");
        assert!(matches!(store.health(), Health::Failed(_)));
        let found = etcd.etcdctl(&["get", "--prefix", "--keys-only", "/registry/drydock"]);
        assert!(!found.contains("two"), "{found}");
    }
}

/// Two servers that start on an empty prefix agree on one store.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_start_together_agree() {
    let etcd = EtcdProcess::start().await;
    let (one, two) = tokio::join!(etcd.store(), etcd.store());
    let create = |store: EtcdStore, name| async move {
        commit(&store, Transaction::create(thing(name), value("x"))).await
    };
    let mut revisions = [
        tokio::spawn(create(one.clone(), "one")).await.unwrap(),
        tokio::spawn(create(two.clone(), "two")).await.unwrap(),
    ];
    revisions.sort();
    assert_eq!(revisions.map(|revision| revision.0), [2, 3]);
    assert_eq!(etcd.store().await.current_revision().await.unwrap(), revisions[1]);
}
