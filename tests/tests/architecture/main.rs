//! Who may import whom, and who may not name what: the rules of ARCHITECTURE.md, read off the sources.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::similar_names,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Crate → crates of ours that its library may build on.
const ARROWS: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("machinery", &["proto"]),
    ("storage", &["proto"]),
    ("apiserver", &["proto", "machinery", "storage"]),
    ("controller", &["proto", "machinery"]),
    ("cli", &["proto", "machinery"]),
];

/// A crate that only these folders may name.
const NAMED_ONLY_UNDER: &[(&str, &[&str])] = &[
    ("rocksdb", &["storage/src/rocks"]),
    ("hyper", &["apiserver/src/http", "controller/src"]),
];

/// Crates that pure logic must not build on.
const IMPURE: &[&str] = &["tokio", "hyper", "kube", "rocksdb", "reqwest", "rustls"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests lie in the workspace")
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

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
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
fn crates_build_only_on_what_the_arrows_allow() {
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
            "{crate_name} builds on {ours:?}, allowed are {allowed:?}"
        );
    }
}

#[test]
fn pure_crates_do_no_input_or_output() {
    for crate_name in ["proto", "machinery"] {
        let manifest = fs::read_to_string(root().join(crate_name).join("Cargo.toml"))
            .expect("every crate has a manifest");
        for impure in IMPURE {
            assert!(
                !dependencies(&manifest).contains(*impure),
                "{crate_name} builds on {impure}"
            );
        }
    }
}

#[test]
fn engines_and_servers_are_named_in_one_place() {
    for (name, places) in NAMED_ONLY_UNDER {
        let mut files = Vec::new();
        for (crate_name, _) in ARROWS {
            sources(&root().join(crate_name).join("src"), &mut files);
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
fn the_reader_of_sources_sees_what_it_looks_for() {
    assert!(names("use hyper::body;", "hyper"));
    assert!(names("let x = hyper::Error::new();", "hyper"));
    assert!(!names("// hyper::body", "hyper"));
    assert!(!names("use crate::hyper::x; super_hyper::y", "hyper"));
    assert_eq!(
        dependencies("[dependencies]\na.workspace = true\nb = { x = 1 }\n\n[dev-dependencies]\nc = 1"),
        ["a", "b"].map(str::to_owned).into()
    );
}

/// Crates that must not be in the tree, each with its reason in `deny.toml`.
const BANNED: &[&str] = &["ring", "openssl-sys", "axum", "serde_yaml"];

/// What of the workspace builds on a crate, on this machine.
fn dependents_of(name: &str) -> String {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--workspace", "--invert", name])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn banned_crates_are_not_built() {
    assert!(
        dependents_of("rustls").starts_with("rustls"),
        "the tree is read as it is printed"
    );
    for name in BANNED {
        assert_eq!(dependents_of(name), "", "{name} is in the tree");
    }
}
