//! The tables of `tests/conformance/checklists`: their rows are numbered from 1, and each names tests that exist, or says why it
//! does not apply, or with what it will be shown.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::imports::rust_files;
use super::root;

/// The names `module::function` of the functions in a file; the module is the file's name or its folder's.
fn functions(file: &Path, source: &str) -> Vec<String> {
    let folder = file.parent().and_then(Path::file_name);
    let modules: Vec<_> = [file.file_stem(), folder]
        .into_iter()
        .flatten()
        .filter_map(|name| name.to_str())
        .collect();
    source
        .lines()
        .filter_map(|line| line.split_once("fn "))
        .filter_map(|(_, rest)| rest.split(['(', '<']).next())
        .flat_map(|name| modules.iter().map(move |module| format!("{module}::{name}")))
        .collect()
}

/// How many rows of all checklists nothing shows yet.
const OPEN: usize = 0;

/// What a row begins with that has no test.
const WITHOUT_TEST: [&str; 2] = ["deviation: ", "open: "];

/// The faults of a checklist: rows out of order, without a test and a reason, or with an unknown test.
fn faults(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| ")?.split(" | ").collect();
        let [number, _, tests] = cells[..] else {
            return None;
        };
        Some((number.parse::<usize>().ok()?, tests))
    });
    let mut count = 0;
    for (number, tests) in rows {
        count += 1;
        if number != count {
            found.push(format!("row {number} stands at place {count}"));
        }
        // What has no `::` is code and no test.
        let names = tests.split('`').skip(1).step_by(2);
        let names: Vec<_> = names.filter(|name| name.contains("::")).collect();
        if names.is_empty() && !WITHOUT_TEST.iter().any(|reason| tests.starts_with(reason)) {
            found.push(format!("row {number} names no test"));
        }
        let unknown = names.into_iter().filter(|name| !known.contains(*name));
        found.extend(unknown.map(|name| format!("row {number}: there is no {name}")));
    }
    if count == 0 {
        found.push("there are no rows".to_owned());
    }
    found
}

#[test]
fn every_statement_of_a_checklist_names_tests_that_exist() {
    let mut known = BTreeSet::new();
    for folder in [
        "proto",
        "machinery",
        "storage",
        "apiserver",
        "standalone",
        "controller",
        "cli",
        "tests",
    ] {
        let mut files = Vec::new();
        rust_files(&root().join(folder), &mut files);
        for file in files {
            let source = fs::read_to_string(&file).expect("a source file is readable");
            known.extend(functions(&file, &source));
        }
    }
    let folder = root().join("tests/conformance/checklists");
    let mut open = 0;
    for entry in fs::read_dir(folder).expect("the folder of the checklists") {
        let file = entry.expect("an entry of the folder").path();
        let text = fs::read_to_string(&file).expect("a checklist is readable");
        assert_eq!(faults(&text, &known), [] as [String; 0], "{}", file.display());
        open += text.matches(" | open: ").count();
    }
    assert_eq!(open, OPEN, "rows are open");
}

#[test]
fn faults_of_a_checklist_are_found() {
    let known = BTreeSet::from(["lists::pages".to_owned()]);
    let faults = |text| faults(text, &known);
    assert_eq!(faults("| 1 | pages | `lists::pages` |"), [] as [String; 0]);
    assert_eq!(faults("# Nothing"), ["there are no rows"]);
    assert_eq!(
        faults("| 2 | pages | `lists::pages` |"),
        ["row 2 stands at place 1"]
    );
    assert_eq!(faults("| 1 | pages | later |"), ["row 1 names no test"]);
    assert_eq!(faults("| 1 | pages | open: later |"), [] as [String; 0]);
    assert_eq!(
        faults("| 1 | pages | deviation: there are no `pages` |"),
        [] as [String; 0]
    );
    assert_eq!(
        faults("| 1 | pages | `lists::pages`, `lists::gone` |"),
        ["row 1: there is no lists::gone"]
    );
    let source = "#[test]\nasync fn pages() {}\nfn generic<T>() {}";
    let names = functions(Path::new("suite/lists.rs"), source);
    assert_eq!(names[..2], ["lists::pages", "suite::pages"]);
    assert_eq!(names[2], "lists::generic");
}
