//! TLS to etcd: certificates of both sides, and files that change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use drydock_storage::conformance::{put, thing};
use drydock_storage::etcd::{EtcdOpenError, EtcdOptions, EtcdStore, EtcdTls};
use drydock_storage::{Events as _, Health, KeyRange, Signal, Store as _};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::etcd_process::EtcdProcess;

const PATIENCE: Duration = Duration::from_secs(30);

/// A folder with `ca.crt`, and `tls.crt` and `tls.key` that it signed, for both sides.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.renew();
        files
    }

    /// Replaces everything, also the authority.
    fn renew(&self) {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned()];
        let mut certificate = CertificateParams::new(names).unwrap();
        certificate.distinguished_name.push(DnType::CommonName, "drydock");
        let certificate = certificate.signed_by(&key, &authority).unwrap();
        for (name, text) in [
            ("ca.crt", authority.pem()),
            ("tls.key", key.serialize_pem()),
            ("tls.crt", certificate.pem()),
        ] {
            std::fs::write(self.path(name), text).unwrap();
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tls(&self) -> EtcdTls {
        EtcdTls {
            ca: Some(self.path("ca.crt")),
            certificate: Some(self.path("tls.crt")),
            key: Some(self.path("tls.key")),
        }
    }
}

async fn etcd(files: &Files) -> EtcdProcess {
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let flags = [
        "--unsafe-no-fsync".to_owned(),
        "--client-cert-auth".to_owned(),
        flag("trusted-ca-file", &files.path("ca.crt")),
        flag("cert-file", &files.path("tls.crt")),
        flag("key-file", &files.path("tls.key")),
    ];
    EtcdProcess::start_with(&flags.each_ref().map(String::as_str)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_need_certificates() {
    let files = Files::new();
    let etcd = etcd(&files).await;
    let options = |tls| EtcdOptions {
        tls,
        start_wait: Duration::from_millis(200),
        ..etcd.options()
    };
    let (store, opened) = EtcdStore::open(options(files.tls())).await.unwrap();
    assert!(opened.without_clock.is_empty(), "its clock is read over TLS, too");
    let written = put(&store, "one", "secret").await;
    assert_eq!(
        store.get(&thing("one")).await.unwrap().entry.unwrap().modified,
        written
    );
    let anonymous = EtcdTls {
        ca: files.tls().ca,
        ..EtcdTls::default()
    };
    let of_others = EtcdTls {
        ca: Files::new().tls().ca,
        ..files.tls()
    };
    for tls in [anonymous, of_others] {
        let refused = EtcdStore::open(options(tls)).await.err();
        assert!(
            matches!(
                refused,
                Some(EtcdOpenError::Unreachable { .. } | EtcdOpenError::Files(_))
            ),
            "{refused:?}"
        );
    }
    let half = EtcdTls {
        key: None,
        ..files.tls()
    };
    let refused = EtcdStore::open(options(half)).await.err();
    assert!(
        matches!(refused, Some(EtcdOpenError::HalfIdentity)),
        "{refused:?}"
    );
}

/// The store connects with new files on its own, and its watches go on.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_without_a_restart() {
    let files = Files::new();
    let mut etcd = etcd(&files).await;
    let options = EtcdOptions {
        tls: files.tls(),
        ..etcd.options()
    };
    let (store, _) = EtcdStore::open(options).await.unwrap();
    let before = put(&store, "one", "before").await;
    let mut events = store.watch(&KeyRange::all(), before.next()).await.unwrap();
    files.renew();
    etcd.restart().await;
    let is_ready = async {
        // Until the new files are read, the old ones are refused.
        while store.get(&thing("one")).await.is_err() || store.health() != Health::Ready {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_ready).await.unwrap();
    let after = put(&store, "one", "after").await;
    loop {
        match tokio::time::timeout(PATIENCE, events.next()).await.unwrap() {
            Some(Signal::Change(event)) => {
                assert_eq!(event.revision, after);
                break;
            }
            Some(Signal::Progress(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The first start failed: the keys around the prefix may not be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_needs_the_keys_that_are_documented_and_may_lack_those_around_the_prefix() {
    let files = Files::new();
    let etcd = etcd(&files).await;
    let flag = |name: &str, file: &str| format!("--{name}={}", files.path(file).display());
    let flags = [
        flag("cacert", "ca.crt"),
        flag("cert", "tls.crt"),
        flag("key", "tls.key"),
    ];
    let etcdctl = |command: &str| {
        let flags = flags.iter().map(String::as_str);
        etcd.etcdctl(&flags.chain(command.split(' ')).collect::<Vec<_>>());
    };
    let page = include_str!("../../../docs/etcd.md");
    let documented = page.lines().filter_map(|line| line.strip_prefix("etcdctl "));
    let documented =
        documented.filter(|command| command.starts_with("role ") || command.starts_with("user "));
    let mut granted = 0;
    for command in documented.filter(|command| !command.ends_with(" read /registry")) {
        etcdctl(command);
        granted += 1;
    }
    assert_eq!(granted, 5);
    etcdctl("user add root:secret");
    etcdctl("auth enable");
    let options = EtcdOptions {
        tls: files.tls(),
        ..etcd.options()
    };
    let (store, _) = EtcdStore::open(options).await.unwrap();
    let written = put(&store, "one", "a value").await;
    let mut events = store.watch(&KeyRange::all(), written).await.unwrap();
    let first = tokio::time::timeout(PATIENCE, events.next()).await.unwrap();
    assert!(matches!(first, Some(Signal::Change(_))), "{first:?}");
    etcdctl("get compact_rev_key");
}
