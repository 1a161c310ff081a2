//! The checks of `tests/conformance/CHECKS.md`: every row is there, and the tests that it names exist.

use std::fs;

use super::root;

/// How many checks there are.
const CHECKS: usize = 82;
/// How many of them nothing shows yet. It never grows.
const OPEN: usize = 16;

/// The cells of each row whose first cell is a number.
fn rows(text: &str) -> Vec<(usize, String)> {
    text.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.splitn(3, " | ");
            let number = cells.next()?.parse().ok()?;
            cells.next()?;
            Some((number, cells.next()?.to_owned()))
        })
        .collect()
}

/// The parts of a cell in back quotes that name a test.
fn tests(cell: &str) -> Vec<(&str, &str)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.filter_map(|part| part.split_once("::")).collect()
}

/// Whether a file has this test: a function below a test attribute, or a check of the conformance suite.
fn is_test(file: &str, name: &str) -> bool {
    let Ok(source) = fs::read_to_string(root().join(file)) else {
        return false;
    };
    if file.starts_with("tests/src/conformance/") {
        let suite = fs::read_to_string(root().join("tests/src/conformance/mod.rs")).unwrap_or_default();
        return source.contains(&format!("pub async fn {name}(")) && suite.contains(&format!("::{name},"));
    }
    let Some((before, _)) = source.split_once(&format!("fn {name}(")) else {
        return false;
    };
    // The attributes are between the end of the item before and the function.
    let attributes = before.rsplit("}\n").next().unwrap_or_default();
    attributes.contains("#[test]") || attributes.contains("#[tokio::test")
}

#[test]
fn every_check_names_tests_that_exist_or_says_why_not() {
    let text = fs::read_to_string(root().join("tests/conformance/CHECKS.md")).expect("CHECKS.md can be read");
    let rows = rows(&text);
    let numbers: Vec<usize> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=CHECKS).collect::<Vec<_>>());
    let (mut wrong, mut open) = (Vec::new(), 0);
    for (number, cell) in &rows {
        let tests = tests(cell);
        if cell.starts_with("open: ") {
            open += 1;
        } else if tests.is_empty() && !cell.starts_with("deviation: ") {
            wrong.push(format!("{number} names no test"));
        }
        let missing = tests.into_iter().filter(|(file, name)| !is_test(file, name));
        wrong.extend(missing.map(|(file, name)| format!("{number}: {file} has no test {name}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(open <= OPEN, "{open} checks are open");
}

#[test]
fn a_function_that_is_no_test_is_found() {
    assert!(!is_test("tests/tests/architecture/checks.rs", "rows"));
    assert!(!is_test("tests/tests/architecture/checks.rs", "nothing"));
    assert!(!is_test("tests/tests/architecture/nothing.rs", "rows"));
    assert!(is_test(
        "tests/tests/architecture/checks.rs",
        "a_function_that_is_no_test_is_found"
    ));
    assert!(!is_test("tests/src/conformance/paths.rs", "no_such_check"));
}
