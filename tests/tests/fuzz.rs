//! Replays the fuzzing corpus: no input may panic, hang or use unbounded memory.

use std::fs;
use std::path::Path;

use drydock_apiserver::admission::webhook::review;
use drydock_apiserver::{audit, cache, encryption, request};
use drydock_machinery::{apply, codec, patch, policy_expression, selector, websocket};

type Target = (&'static str, fn(&[u8]));

/// Folder of the corpus → fuzzed function; the same table as the targets in `fuzz/fuzz_targets`.
const TARGETS: &[Target] = &[
    ("admission_review", review::fuzz_read),
    ("apply", apply::merge::fuzz_apply),
    ("audit_policy", audit::fuzz_parse),
    ("cbor", codec::cbor::fuzz_decode),
    ("continue_token", cache::fuzz_continue_token),
    ("encryption_configuration", encryption::fuzz_configuration),
    ("fields", apply::field_set::fuzz_decode),
    ("json", codec::json::fuzz_decode),
    ("json_patch", patch::json::fuzz_apply),
    ("merge_patch", patch::merge::fuzz_apply),
    ("options", request::options::fuzz_parse),
    ("policy_expression", policy_expression::fuzz_evaluate),
    ("protobuf", codec::protobuf::fuzz_decode),
    ("request_line", request::info::fuzz_parse),
    ("sealed_value", encryption::fuzz_sealed_value),
    ("selectors", selector::fuzz_parse),
    ("strategic_merge", patch::strategic::fuzz_apply),
    ("websocket", websocket::fuzz_receive),
    ("yaml", codec::yaml::fuzz_decode),
];

#[test]
fn the_corpus_is_handled() -> std::io::Result<()> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let mut folders = Vec::new();
    for folder in fs::read_dir(fuzz.join("corpus"))? {
        folders.push(folder?.file_name().to_string_lossy().into_owned());
    }
    folders.sort_unstable();
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(folders, names, "every corpus has a target");
    for (name, target) in TARGETS {
        assert!(
            fuzz.join("fuzz_targets").join(format!("{name}.rs")).exists(),
            "{name} can be fuzzed"
        );
        let mut replayed = 0;
        for file in fs::read_dir(fuzz.join("corpus").join(name))? {
            target(&fs::read(file?.path())?);
            replayed += 1;
        }
        assert!(replayed > 0, "{name} has a corpus");
    }
    Ok(())
}
