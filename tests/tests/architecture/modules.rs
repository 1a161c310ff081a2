//! Modules: which may import which, and how long a file may be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::imports::{Crate, between_children, between_files, circles, rust_files};
use super::root;

/// Folders whose files must not import each other in a circle.
const WITHOUT_CIRCLES: &[(&str, &[&str])] = &[
    ("apiserver", &["admission"]),
    ("apiserver", &["cache"]),
    ("apiserver", &["config"]),
    ("apiserver", &["discovery"]),
    ("apiserver", &["error"]),
    ("apiserver", &["filters"]),
    ("apiserver", &["handlers"]),
    ("apiserver", &["host"]),
    ("apiserver", &["http"]),
    ("apiserver", &["metrics"]),
    ("apiserver", &["openapi"]),
    ("apiserver", &["registry"]),
    ("apiserver", &["request"]),
    ("cli", &[]),
    ("storage", &["rocks"]),
];

/// The most lines a file may have before its tests.
const LONGEST_FILE: usize = 600;

/// A module, and the modules that it may import.
type Row = (String, BTreeSet<String>);

/// The rows `module → a, b` of the first text block.
fn rows(text: &str) -> Vec<Row> {
    let block = text
        .split("```")
        .nth(1)
        .and_then(|block| block.strip_prefix("text"))
        .unwrap_or_default();
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

/// Differences between the imports in the sources and a list, and imports of modules that the list has later.
fn differences(found: &BTreeMap<String, BTreeSet<String>>, listed: &[Row]) -> Vec<String> {
    let mut differences = Vec::new();
    let mut before = BTreeSet::new();
    for (module, imports) in listed {
        let none = BTreeSet::new();
        let in_sources = found.get(module).unwrap_or(&none);
        if !found.contains_key(module) {
            differences.push(format!("{module} is listed and does not exist"));
        }
        let stale = imports
            .difference(in_sources)
            .map(|to| format!("{module} → {to} is listed only"));
        let missing = in_sources
            .difference(imports)
            .map(|to| format!("{module} → {to} is not listed"));
        let later = imports
            .difference(&before)
            .map(|to| format!("{module} → {to}, which is listed later"));
        differences.extend(stale.chain(missing).chain(later));
        before.insert(module.clone());
    }
    let unlisted = found.keys().filter(|module| !before.contains(*module));
    differences.extend(unlisted.map(|module| format!("{module} is not listed")));
    differences
}

#[test]
fn modules_of_the_server_import_only_what_the_list_allows() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    let (_, section) = text
        .split_once("## Modules of the server")
        .expect("ARCHITECTURE.md lists the modules of the server");
    let arrows = Crate::read(&root().join("apiserver/src")).arrows();
    let differences = differences(&between_children(&arrows, &[]), &rows(section));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn files_import_only_what_the_list_in_their_folder_allows() {
    let mut lists = 0;
    for (crate_name, folder) in WITHOUT_CIRCLES {
        let source_folder = root().join(crate_name).join("src");
        let Ok(source) = fs::read_to_string(source_folder.join(folder.join("/")).join("mod.rs")) else {
            continue;
        };
        let documentation: String = source
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .flat_map(|line| [line, "\n"])
            .collect();
        let listed = rows(&documentation);
        if !listed.iter().any(|(_, imports)| !imports.is_empty()) {
            continue;
        }
        lists += 1;
        let arrows = Crate::read(&source_folder).arrows();
        let differences = differences(&between_children(&arrows, folder), &listed);
        assert!(differences.is_empty(), "{folder:?}:\n{}", differences.join("\n"));
    }
    assert!(lists > 0, "the cache has a list");
}

#[test]
fn differences_between_a_list_and_the_sources_are_found() {
    let set = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>()
    };
    let found = BTreeMap::from([
        ("a".to_owned(), set(&[])),
        ("b".to_owned(), set(&["a", "c"])),
        ("c".to_owned(), set(&["a"])),
        ("d".to_owned(), set(&[])),
    ]);
    let listed = rows("x\n```text\na\n b → c\nc → a, b\ne →\n```\n```text\nd\n```");
    assert_eq!(
        differences(&found, &listed),
        [
            "b → a is not listed",
            "b → c, which is listed later",
            "c → b is listed only",
            "e is listed and does not exist",
            "d is not listed",
        ]
    );
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
