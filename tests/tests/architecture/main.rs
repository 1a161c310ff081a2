//! The rules of ARCHITECTURE.md, checked against manifests and sources: which crate and which module may import which,
//! and how long a file may be.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::similar_names,
    reason = "a test fails by panicking"
)]

mod checklists;
mod deploy;
mod imports;
mod modules;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use self::imports::rust_files;

/// Crate → crates of the workspace that its library may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("machinery", &["proto"]),
    ("storage", &["proto"]),
    ("apiserver", &["proto", "machinery", "storage"]),
    ("standalone", &["proto", "machinery", "storage", "apiserver"]),
    ("apiserver/cmd", &["apiserver", "standalone"]),
    ("controller", &["proto", "machinery"]),
    ("cli", &["proto", "machinery"]),
];

/// A crate, or a module of one, that only these folders and files may name.
const NAMED_ONLY_UNDER: &[(&str, &[&str])] = &[
    ("rocksdb", &["storage/src/rocks"]),
    ("etcd_client", &["storage/src/etcd"]),
    (
        "tonic",
        &[
            "storage/src/seal/kms",
            "apiserver/src/telemetry/spans/collector.rs",
        ],
    ),
    (
        "hyper",
        &[
            "apiserver/src/http",
            "controller/src",
            "storage/src/etcd/clocks.rs",
        ],
    ),
    // The server is generic over its storage backend. The rest are commands on a store, and tests.
    (
        "drydock_storage::etcd",
        &["apiserver/src/backend", "apiserver/src/storage_command.rs"],
    ),
    (
        "drydock_storage::rocks",
        &[
            "apiserver/src/backend",
            "apiserver/src/storage_command.rs",
            "apiserver/src/backups.rs",
            "apiserver/src/cache/tests",
            "apiserver/src/handlers/tests",
        ],
    ),
];

/// Crates that pure logic must not depend on.
const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "kube",
    "rocksdb",
    "etcd-client",
    "reqwest",
    "rustls",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests are a crate of the workspace")
        .to_path_buf()
}

/// The names under `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .collect()
}

/// Whether code outside comments names the crate as a path.
fn names(source: &str, crate_name: &str) -> bool {
    source
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//"))
        .any(|line| {
            line.match_indices(crate_name).any(|(at, _)| {
                let before = line.get(..at).and_then(|text| text.chars().next_back());
                let after = line.get(at + crate_name.len()..).unwrap_or_default();
                after.starts_with("::")
                    && !before
                        .is_some_and(|character| character.is_alphanumeric() || "_:".contains(character))
            })
        })
}

#[test]
fn crates_depend_only_on_the_crates_they_may() {
    for (crate_name, allowed) in ARROWS {
        let manifest = fs::read_to_string(root().join(crate_name).join("Cargo.toml"))
            .expect("every crate has a manifest");
        let ours: BTreeSet<String> = dependencies(&manifest)
            .into_iter()
            .filter_map(|name| name.strip_prefix("drydock-").map(str::to_owned))
            .collect();
        let allowed: BTreeSet<String> = allowed.iter().map(ToString::to_string).collect();
        assert!(
            ours.is_subset(&allowed),
            "{crate_name} depends on {ours:?}, allowed are {allowed:?}"
        );
    }
}

#[test]
fn pure_crates_do_no_io() {
    for crate_name in ["proto", "machinery"] {
        let manifest = fs::read_to_string(root().join(crate_name).join("Cargo.toml"))
            .expect("every crate has a manifest");
        for impure in IMPURE {
            assert!(
                !dependencies(&manifest).contains(*impure),
                "{crate_name} depends on {impure}"
            );
        }
    }
}

#[test]
fn rocksdb_and_hyper_are_named_in_one_place() {
    for (name, places) in NAMED_ONLY_UNDER {
        let mut files = Vec::new();
        for (crate_name, _) in ARROWS {
            rust_files(&root().join(crate_name).join("src"), &mut files);
        }
        for file in files {
            let relative = file
                .strip_prefix(root())
                .expect("a file of the workspace")
                .to_string_lossy()
                .into_owned();
            let allowed = places.iter().any(|place| relative.starts_with(place));
            let source = fs::read_to_string(&file).expect("a source can be read");
            assert!(allowed || !names(&source, name), "{relative} names {name}");
        }
    }
}

#[test]
fn crate_names_and_dependencies_are_recognized() {
    assert!(names("use hyper::body;", "hyper"));
    assert!(names("let x = hyper::Error::new();", "hyper"));
    assert!(!names("// hyper::body", "hyper"));
    assert!(!names("use crate::hyper::x; super_hyper::y", "hyper"));
    assert_eq!(
        dependencies("[dependencies]\na.workspace = true\nb = { x = 1 }\n\n[dev-dependencies]\nc = 1"),
        ["a", "b"].map(str::to_owned).into()
    );
}

/// Crates that must not be in the dependency tree, and what alone may depend on them; `deny.toml` has the reasons.
const BANNED: &[(&str, Option<&str>)] = &[
    ("ring", None),
    ("openssl-sys", None),
    ("axum", Some("tonic")),
    ("serde_yaml", None),
];

/// The crates that depend on a crate, on this platform. `None` when it is not in the tree.
fn dependents_of(name: &str) -> Option<Vec<String>> {
    let output = std::process::Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--workspace",
            "--depth",
            "1",
            "--prefix",
            "none",
        ])
        .args(["--invert", name])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut names = text.lines().filter_map(|line| line.split(' ').next());
    (names.next()? == name).then(|| names.map(str::to_owned).collect())
}

#[test]
fn banned_crates_are_not_dependencies() {
    let of_rustls = dependents_of("rustls").expect("rustls is in the tree");
    assert!(
        of_rustls.iter().any(|name| name == "tokio-rustls"),
        "the output of cargo tree is understood: {of_rustls:?}"
    );
    for (name, allowed) in BANNED {
        let dependents = dependents_of(name).unwrap_or_default();
        let others: Vec<_> = dependents
            .iter()
            .filter(|it| Some(it.as_str()) != *allowed)
            .collect();
        assert!(others.is_empty(), "{name} is a dependency of {others:?}");
    }
}
