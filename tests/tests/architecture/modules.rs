//! Modules: which may import which, and how long a file may be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::imports::{Crate, between_children, between_files, circles, rust_files};
use super::root;

/// Folders whose files must not import each other in a circle.
const WITHOUT_CIRCLES: &[(&str, &[&str])] = &[
    ("apiserver", &["cache"]),
    ("apiserver", &["config"]),
    ("apiserver", &["discovery"]),
    ("apiserver", &["filters"]),
    ("apiserver", &["host"]),
    ("apiserver", &["http"]),
    ("apiserver", &["metrics"]),
    ("apiserver", &["openapi"]),
    ("apiserver", &["registry"]),
    ("apiserver", &["request"]),
    ("storage", &["rocks"]),
];

/// The most lines a file may have before its tests.
const LONGEST_FILE: usize = 600;

/// The modules of the server that ARCHITECTURE.md lists, in its order, each with the modules it may import.
fn listed() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    let (_, section) = text
        .split_once("## Modules of the server")
        .expect("ARCHITECTURE.md lists the modules of the server");
    let block = section
        .split("```")
        .nth(1)
        .and_then(|block| block.strip_prefix("text"))
        .expect("the list is a text block");
    block
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (module, imports) = line.split_once('→').unwrap_or((line, ""));
            let imports = imports.split(',').map(str::trim).filter(|name| !name.is_empty());
            (module.trim().to_owned(), imports.map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn modules_of_the_server_import_what_the_list_says() {
    let arrows = Crate::read(&root().join("apiserver/src")).arrows();
    let mut found = between_children(&arrows, &[]);
    // The binary may import everything.
    found.remove("main");
    let listed: BTreeMap<String, BTreeSet<String>> = listed().into_iter().collect();
    let print = |arrows: &BTreeMap<String, BTreeSet<String>>| {
        arrows
            .iter()
            .flat_map(|(from, imports)| {
                let own = std::iter::once(from.clone());
                own.chain(imports.iter().map(move |to| format!("{from} → {to}")))
            })
            .collect::<BTreeSet<String>>()
    };
    let (found, listed) = (print(&found), print(&listed));
    let missing: Vec<&String> = found.difference(&listed).collect();
    let stale: Vec<&String> = listed.difference(&found).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "in the sources and not in ARCHITECTURE.md: {missing:?}\nin ARCHITECTURE.md and not in the sources: {stale:?}"
    );
}

#[test]
fn modules_of_the_server_import_only_modules_listed_before_them() {
    let mut before = BTreeSet::new();
    for (module, imports) in listed() {
        let upwards: Vec<&String> = imports.difference(&before).collect();
        assert!(
            upwards.is_empty(),
            "{module} imports {upwards:?}, which the list has later"
        );
        before.insert(module);
    }
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let mut found = Vec::new();
    for (crate_name, folder) in WITHOUT_CIRCLES {
        let arrows = Crate::read(&root().join(crate_name).join("src")).arrows();
        let between = between_files(&arrows, folder);
        assert!(!between.is_empty(), "{crate_name} has no folder {folder:?}");
        let printed = circles(&between)
            .into_iter()
            .map(|(from, to)| format!("{crate_name}: {} → {}", from.join("/"), to.join("/")));
        found.extend(printed);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn files_are_no_longer_than_600_lines_before_their_tests() {
    let mut too_long = Vec::new();
    let folders = fs::read_dir(root()).expect("the workspace can be read");
    for folder in folders.map(|entry| entry.expect("an entry can be read").path().join("src")) {
        let mut files = Vec::new();
        if folder.is_dir() {
            rust_files(&folder, &mut files);
        }
        for file in files {
            let is_test = file.iter().any(|part| part == "tests" || part == "tests.rs");
            let in_folder = file.strip_prefix(root()).expect("a file of the workspace");
            if is_test && !in_folder.starts_with("tests/src") {
                continue;
            }
            let source = fs::read_to_string(&file).expect("a source can be read");
            let lines = source.lines().take_while(|line| *line != "mod tests {").count();
            if lines > LONGEST_FILE {
                too_long.push(format!("{} has {lines} lines", in_folder.display()));
            }
        }
    }
    assert!(too_long.is_empty(), "{}", too_long.join("\n"));
}
