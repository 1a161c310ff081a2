//! Golden files: the exact text of a screen or an explanation, reviewed like code.

use std::path::Path;

/// Compares a text with `cli/golden/NAME`. `UPDATE_GOLDEN=1` writes the file instead.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{name} differs; UPDATE_GOLDEN=1 writes it. Expected:\n{expected}\nFound:\n{text}"
    );
}
