//! JSON patch (RFC 6902), with the limits and the deviations of the reference server.
//!
//! Deviations: negative indices count from the end, `replace` of a missing key adds it, `test` for null succeeds if the
//! value is absent, and `add` without a value writes null.

use serde_json::{Map, Value};

use super::{OperationError, PatchError, Patched};
use crate::codec::{DecodeError, StrictError, json};

/// The maximum number of operations of a patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// The maximum total size of the values that `copy` operations add, in bytes.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// The maximum nesting of a patched document; deeper documents would exceed the limit of the decoder.
const MAX_DEPTH: usize = 100;

/// The maximum total size of the values that `move` operations move, in bytes: each is walked to limit its nesting.
const MAX_MOVED_BYTES: usize = 16 * 1024 * 1024;

/// The maximum total number of list items that operations may shift. An item has 32 bytes.
const MAX_SHIFTED_ITEMS: usize = 20_000_000;

/// Applies a JSON patch to a document: all operations, or none.
///
/// [`Patched::strict`] lists unknown and duplicate members of the operations.
///
/// ```
/// let document = serde_json::json!({"list": [1, 2]});
/// let patch = br#"[{"op": "test", "path": "/list/0", "value": 1}, {"op": "remove", "path": "/list/-1"}]"#;
/// let patched = drydock_machinery::patch::json::apply(&document, patch)?;
/// assert_eq!(patched.value, serde_json::json!({"list": [1]}));
/// # Ok::<_, drydock_machinery::patch::PatchError>(())
/// ```
///
/// # Errors
///
/// [`PatchError::NotJson`], [`PatchError::Decode`] if the patch is not a list of operations,
/// [`PatchError::TooManyOperations`], and [`PatchError::Operation`] for the first operation that fails.
pub fn apply(document: &Value, patch: &[u8]) -> Result<Patched, PatchError> {
    let decoded = json::decode(patch).map_err(|_| PatchError::NotJson)?;
    let operations = match decoded.value {
        Value::Array(operations) => operations,
        Value::Null => Vec::new(),
        other => return Err(wrong_type(&other, "value", "[]handlers.jsonPatchOp")),
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations {
            count: operations.len(),
        });
    }
    let mut strict: Vec<_> = decoded.duplicates.into_iter().map(of_patch).collect();
    let operations = operations
        .into_iter()
        .enumerate()
        .map(|(index, operation)| Operation::read(index, operation, &mut strict))
        .collect::<Result<Vec<_>, _>>()?;
    let mut value = document.clone();
    let mut spent = Spent::default();
    for (index, operation) in operations.into_iter().enumerate() {
        operation
            .run(&mut value, &mut spent)
            .map_err(|source| PatchError::Operation { index, source })?;
    }
    Ok(Patched { value, strict })
}

/// A duplicate member of a patch, with the error text for patches.
fn of_patch(error: StrictError) -> StrictError {
    match error {
        StrictError::DuplicateField { path } => StrictError::PatchDuplicateField { path },
        other => other,
    }
}

fn wrong_type(found: &Value, place: &str, expected: &str) -> PatchError {
    PatchError::Decode(DecodeError::wrong_type(found, place, expected))
}

/// The resources that the operations of a patch have used so far.
#[derive(Default)]
struct Spent {
    copied_bytes: usize,
    moved_bytes: usize,
    shifted_items: usize,
}

impl Spent {
    fn shift(&mut self, items: usize) -> Result<(), OperationError> {
        self.shifted_items += items;
        if self.shifted_items > MAX_SHIFTED_ITEMS {
            Err(OperationError::TooMuchWork)
        } else {
            Ok(())
        }
    }

    fn relocate(&mut self, bytes: usize) -> Result<(), OperationError> {
        self.moved_bytes += bytes;
        if self.moved_bytes > MAX_MOVED_BYTES {
            Err(OperationError::TooMuchWork)
        } else {
            Ok(())
        }
    }

    fn copy(&mut self, bytes: usize) -> Result<(), OperationError> {
        self.copied_bytes += bytes;
        if self.copied_bytes > MAX_COPIED_BYTES {
            Err(OperationError::CopyTooLarge(self.copied_bytes))
        } else {
            Ok(())
        }
    }
}

/// One operation, as decoded.
#[derive(Default)]
struct Operation {
    op: Option<String>,
    path: Option<String>,
    from: Option<String>,
    value: Option<Value>,
}

impl Operation {
    fn read(index: usize, operation: Value, strict: &mut Vec<StrictError>) -> Result<Self, PatchError> {
        let members = match operation {
            Value::Object(members) => members,
            Value::Null => Map::new(),
            other => return Err(wrong_type(&other, "value", "handlers.jsonPatchOp")),
        };
        let mut read = Self::default();
        for (name, value) in members {
            let text = match name.as_str() {
                "op" => &mut read.op,
                "path" => &mut read.path,
                "from" => &mut read.from,
                "value" => {
                    read.value = Some(value);
                    continue;
                }
                _ => {
                    strict.push(StrictError::PatchUnknownField {
                        path: format!("[{index}].{name}"),
                    });
                    continue;
                }
            };
            match value {
                Value::String(value) => *text = Some(value),
                Value::Null => {}
                other => {
                    return Err(wrong_type(
                        &other,
                        &format!("struct field jsonPatchOp.{name}"),
                        "string",
                    ));
                }
            }
        }
        Ok(read)
    }

    fn run(self, document: &mut Value, spent: &mut Spent) -> Result<(), OperationError> {
        let path = self.path.as_deref().ok_or(OperationError::MissingMember("path"));
        let from = self.from.as_deref().ok_or(OperationError::MissingMember("from"));
        match self.op.as_deref() {
            Some("add") => add(document, path?, self.value.unwrap_or(Value::Null), spent),
            Some("remove") => remove(document, path?, spent).map(drop),
            Some("replace") => replace(document, path?, self.value.unwrap_or(Value::Null)),
            Some("move") => {
                let moved = remove(document, from?, spent)?;
                spent.relocate(size(&moved))?;
                add(document, path?, moved, spent)
            }
            Some("copy") => {
                let from = from?;
                let source = get(document, from)?.ok_or_else(|| missing(from))?;
                spent.copy(size(source))?;
                let copy = source.clone();
                add(document, path?, copy, spent)
            }
            Some("test") => {
                let path = path?;
                let expected = self.value.unwrap_or(Value::Null);
                let found = if path.is_empty() {
                    Some(&*document)
                } else {
                    get(document, path)?
                };
                if *found.unwrap_or(&Value::Null) == expected {
                    Ok(())
                } else {
                    Err(OperationError::Test(path.to_owned()))
                }
            }
            other => Err(OperationError::UnknownOperation(
                other.unwrap_or("unknown").to_owned(),
            )),
        }
    }
}

fn missing(path: &str) -> OperationError {
    OperationError::MissingPath(path.to_owned())
}

/// Splits a pointer into its last step and the steps before it.
fn split(path: &str) -> Result<(impl Iterator<Item = String>, String), OperationError> {
    let steps = path.strip_prefix('/').ok_or_else(|| {
        if path.is_empty() {
            OperationError::WholeDocument
        } else {
            missing(path)
        }
    })?;
    let (parents, last) = match steps.rsplit_once('/') {
        Some((parents, last)) => (Some(parents), last),
        None => (None, steps),
    };
    Ok((
        parents
            .into_iter()
            .flat_map(|parents| parents.split('/'))
            .map(unescaped),
        unescaped(last),
    ))
}

fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// The parent of the value at a path, and the last step of the path.
fn parent<'d>(document: &'d mut Value, path: &str) -> Result<(&'d mut Value, String), OperationError> {
    let (parents, last) = split(path)?;
    let mut here = document;
    for step in parents {
        here = match here {
            Value::Object(members) => members.get_mut(&step),
            Value::Array(items) => index(&step, items.len())?.and_then(|at| items.get_mut(at)),
            _ => None,
        }
        .ok_or_else(|| missing(path))?;
    }
    Ok((here, last))
}

/// A position in a list of `length` items; negative indices count from the end. `None` past the end.
fn index(step: &str, length: usize) -> Result<Option<usize>, OperationError> {
    let wrong = || OperationError::Index(step.to_owned());
    let number: i64 = step.parse().map_err(|_| wrong())?;
    if let Ok(position) = usize::try_from(number) {
        return Ok((position < length).then_some(position));
    }
    usize::try_from(number.unsigned_abs())
        .ok()
        .and_then(|back| length.checked_sub(back))
        .map(Some)
        .ok_or_else(wrong)
}

fn get<'d>(document: &'d mut Value, path: &str) -> Result<Option<&'d Value>, OperationError> {
    let (parent, last) = parent(document, path)?;
    match parent {
        Value::Object(members) => Ok(members.get(&last)),
        Value::Array(items) => Ok(index(&last, items.len())?.and_then(|at| items.get(at))),
        _ => Err(missing(path)),
    }
}

/// Rejects a value that would nest the document too deeply.
fn check_depth(path: &str, value: &Value) -> Result<(), OperationError> {
    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    let above = path.bytes().filter(|byte| *byte == b'/').count();
    if above + depth(value) > MAX_DEPTH {
        Err(OperationError::TooDeep)
    } else {
        Ok(())
    }
}

fn add(document: &mut Value, path: &str, value: Value, spent: &mut Spent) -> Result<(), OperationError> {
    check_depth(path, &value)?;
    let (parent, last) = parent(document, path)?;
    match parent {
        Value::Object(members) => {
            members.insert(last, value);
        }
        Value::Array(items) if last == "-" => items.push(value),
        Value::Array(items) => {
            // The position after the last item is valid.
            let at = index(&last, items.len() + 1)?.ok_or(OperationError::Index(last))?;
            spent.shift(items.len() - at)?;
            items.insert(at, value);
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str, spent: &mut Spent) -> Result<Value, OperationError> {
    let (parent, last) = parent(document, path)?;
    match parent {
        Value::Object(members) => members.remove(&last).ok_or_else(|| missing(path)),
        Value::Array(items) => {
            let at = index(&last, items.len())?.ok_or(OperationError::Index(last))?;
            spent.shift(items.len() - at)?;
            Ok(items.remove(at))
        }
        _ => Err(missing(path)),
    }
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), OperationError> {
    check_depth(path, &value)?;
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err(OperationError::WholeDocument);
        }
        *document = value;
        return Ok(());
    }
    let (parent, last) = parent(document, path)?;
    match parent {
        Value::Object(members) => {
            members.insert(last, value);
        }
        Value::Array(items) => {
            let found = index(&last, items.len())?.and_then(|at| items.get_mut(at));
            *found.ok_or(OperationError::Index(last))? = value;
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

/// The size of a value as compact JSON, without the extra bytes of escapes.
fn size(value: &Value) -> usize {
    match value {
        Value::Null => 4,
        Value::Bool(_) => 5,
        Value::Number(number) => number.to_string().len(),
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(members) => {
            2 + members
                .iter()
                .map(|(key, member)| key.len() + 4 + size(member))
                .sum::<usize>()
        }
    }
}

/// Fuzz target: patching an object must not panic.
pub fn fuzz_apply(patch: &[u8]) {
    drop(apply(&super::fuzz_document(), patch));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn patched(document: &Value, patch: &Value) -> Result<Value, PatchError> {
        apply(document, patch.to_string().as_bytes()).map(|patched| patched.value)
    }

    fn check(document: &Value, patch: &Value, expected: &Value) {
        assert_eq!(
            patched(document, patch).as_ref(),
            Ok(expected),
            "{document} patched with {patch}"
        );
    }

    #[test]
    fn operations_change_the_document() {
        let document = json!({"a": {"b": [1, 2, 3]}, "x/y~z": 1});
        for (operation, expected) in [
            (
                json!({"op": "add", "path": "/a/c", "value": 1}),
                json!({"a": {"b": [1, 2, 3], "c": 1}, "x/y~z": 1}),
            ),
            (
                json!({"op": "add", "path": "/a/b/-", "value": 4}),
                json!({"a": {"b": [1, 2, 3, 4]}, "x/y~z": 1}),
            ),
            (
                json!({"op": "add", "path": "/a/b/3", "value": 4}),
                json!({"a": {"b": [1, 2, 3, 4]}, "x/y~z": 1}),
            ),
            (
                json!({"op": "add", "path": "/a/b/0", "value": 0}),
                json!({"a": {"b": [0, 1, 2, 3]}, "x/y~z": 1}),
            ),
            (
                json!({"op": "remove", "path": "/x~1y~0z"}),
                json!({"a": {"b": [1, 2, 3]}}),
            ),
            (
                json!({"op": "remove", "path": "/a/b/1"}),
                json!({"a": {"b": [1, 3]}, "x/y~z": 1}),
            ),
            (
                json!({"op": "replace", "path": "/a", "value": null}),
                json!({"a": null, "x/y~z": 1}),
            ),
            (
                json!({"op": "move", "from": "/a/b/0", "path": "/a/b/2"}),
                json!({"a": {"b": [2, 3, 1]}, "x/y~z": 1}),
            ),
            (
                json!({"op": "copy", "from": "/a/b/0", "path": "/c"}),
                json!({"a": {"b": [1, 2, 3]}, "c": 1, "x/y~z": 1}),
            ),
            (
                json!({"op": "test", "path": "/a/b", "value": [1, 2, 3]}),
                document.clone(),
            ),
        ] {
            check(&document, &json!([operation]), &expected);
        }
    }

    #[test]
    fn deviations_of_the_reference_engine_are_kept() {
        let document = json!({"a": [1, 2, 3], "n": null});
        for (operation, expected) in [
            (
                json!({"op": "remove", "path": "/a/-1"}),
                json!({"a": [1, 2], "n": null}),
            ),
            (
                json!({"op": "replace", "path": "/a/-3", "value": 0}),
                json!({"a": [0, 2, 3], "n": null}),
            ),
            (
                json!({"op": "add", "path": "/a/-1", "value": 4}),
                json!({"a": [1, 2, 3, 4], "n": null}),
            ),
            (
                json!({"op": "replace", "path": "/new", "value": 1}),
                json!({"a": [1, 2, 3], "n": null, "new": 1}),
            ),
            (
                json!({"op": "add", "path": "/new"}),
                json!({"a": [1, 2, 3], "n": null, "new": null}),
            ),
            (
                json!({"op": "test", "path": "/new", "value": null}),
                document.clone(),
            ),
            (json!({"op": "test", "path": "/new"}), document.clone()),
            (
                json!({"op": "test", "path": "/n", "value": null}),
                document.clone(),
            ),
            (
                json!({"op": "replace", "path": "", "value": {"b": 1}}),
                json!({"b": 1}),
            ),
            (
                json!({"op": "replace", "path": "/a/01", "value": 0}),
                json!({"a": [1, 0, 3], "n": null}),
            ),
            (
                json!({"op": "test", "path": "", "value": {"a": [1, 2, 3], "n": null}}),
                document.clone(),
            ),
        ] {
            check(&document, &json!([operation]), &expected);
        }
        for body in ["[]", "null"] {
            assert_eq!(apply(&document, body.as_bytes()).unwrap().value, document);
        }
    }

    #[test]
    fn failed_operations_and_undecodable_patches_are_different_errors() {
        let document = json!({"a": [1], "s": "x"});
        for operation in [
            json!({"op": "test", "path": "/a/0", "value": 2}),
            json!({"op": "test", "path": "/a/0", "value": 1.0}),
            json!({"op": "test", "path": "/a/0"}),
            json!({"op": "test", "path": "/missing/x", "value": null}),
            json!({"op": "add", "path": "/missing/x", "value": 1}),
            json!({"op": "add", "path": "/s/x", "value": 1}),
            json!({"op": "add", "path": "/a/2", "value": 1}),
            json!({"op": "add", "path": "/a/-3", "value": 1}),
            json!({"op": "add", "path": "/a/x", "value": 1}),
            json!({"op": "add", "path": "", "value": {}}),
            json!({"op": "remove", "path": ""}),
            json!({"op": "remove", "path": "/b"}),
            json!({"op": "remove", "path": "/a/1"}),
            json!({"op": "replace", "path": "/a/1", "value": 1}),
            json!({"op": "replace", "path": "/b/c", "value": 1}),
            json!({"op": "replace", "path": "", "value": 1}),
            json!({"op": "move", "from": "/b", "path": "/c"}),
            json!({"op": "copy", "from": "/b", "path": "/c"}),
            json!({"op": "copy", "path": "/c"}),
            json!({"op": "remove"}),
            json!({"op": "remove", "path": "a"}),
            json!({"op": "merge", "path": "/a"}),
            json!({"path": "/a"}),
            Value::Null,
        ] {
            let error = patched(&document, &json!([operation])).expect_err(&operation.to_string());
            assert!(
                matches!(error, PatchError::Operation { index: 0, .. }),
                "{operation}: {error:?}"
            );
            assert_eq!(
                error.to_string(),
                "the server rejected our request due to an error in our request"
            );
        }
        for (patch, expected) in [
            (
                json!({}),
                "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
            ),
            (
                json!("x"),
                "error decoding patch: json: cannot unmarshal string into Go value of type []handlers.jsonPatchOp",
            ),
            (
                json!([1]),
                "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
            ),
            (
                json!([{"op": 1}]),
                "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
            ),
        ] {
            assert_eq!(patched(&document, &patch).unwrap_err().to_string(), expected);
        }
        assert_eq!(
            apply(&document, b"[").unwrap_err().to_string(),
            "invalid JSON patch"
        );
        assert_eq!(apply(&document, b"").unwrap_err(), PatchError::NotJson);
    }

    #[test]
    fn the_error_of_a_failed_patch_names_the_operation() {
        let error = patched(
            &json!({}),
            &json!([{"op": "add", "path": "/a", "value": 1}, {"op": "remove", "path": "/b"}]),
        );
        assert!(matches!(error, Err(PatchError::Operation { index: 1, .. })));
    }

    #[test]
    fn operations_and_copies_are_limited() {
        let many = |count| Value::Array(vec![json!({"op": "add", "path": "/a", "value": 1}); count]);
        check(&json!({}), &many(10_000), &json!({"a": 1}));
        assert_eq!(
            patched(&json!({}), &many(10_001)).unwrap_err().to_string(),
            "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"
        );
        let doubling = vec![json!({"op": "copy", "from": "/a", "path": "/a/-"}); 30];
        let many = (0..32)
            .map(|index| json!({"op": "copy", "from": "/a", "path": format!("/b{index}")}))
            .collect();
        for copies in [doubling, many] {
            let error = patched(&json!({"a": ["x".repeat(100_000)]}), &Value::Array(copies)).unwrap_err();
            let PatchError::Operation { source, .. } = error else {
                panic!("{error}")
            };
            assert!(
                matches!(source, OperationError::CopyTooLarge(3_145_729..)),
                "{source}"
            );
        }
    }

    #[test]
    fn nesting_of_the_patched_document_is_limited() {
        // Each copy doubles the depth.
        let mut operations = vec![json!({"op": "add", "path": "/a", "value": {}})];
        let mut path = "/a".to_owned();
        for _ in 0..10 {
            operations.push(json!({"op": "copy", "from": "/a", "path": format!("{path}/a")}));
            path = path.repeat(2);
        }
        let error = patched(&json!({}), &Value::Array(operations)).unwrap_err();
        let PatchError::Operation { source, index } = error else {
            panic!("{error}")
        };
        assert_eq!((source, index), (OperationError::TooDeep, 7));
        let deep = |levels: usize| {
            serde_json::from_str::<Value>(&("[".repeat(levels) + &"]".repeat(levels))).unwrap()
        };
        let replace = |levels| json!([{"op": "replace", "path": "/a", "value": deep(levels)}]);
        assert!(patched(&json!({}), &replace(99)).is_ok());
        assert!(patched(&json!({}), &replace(100)).is_err());
    }

    #[test]
    fn shifting_list_items_is_limited() {
        let mut operations = vec![json!({"op": "add", "path": "/a/0", "value": 0}); 5_999];
        operations.push(json!({"op": "remove", "path": "/a/0"}));
        let few = json!({"a": []});
        assert!(patched(&few, &Value::Array(operations.clone())).is_ok());
        let many = json!({"a": vec![0; 10_000]});
        let error = patched(&many, &Value::Array(operations)).unwrap_err();
        assert!(
            matches!(
                error,
                PatchError::Operation {
                    source: OperationError::TooMuchWork,
                    ..
                }
            ),
            "{error:?}"
        );
    }

    #[test]
    fn moving_large_values_is_limited() {
        let there_and_back = |count: usize| {
            let hops = (0..count).map(|hop| match hop % 2 {
                0 => json!({"op": "move", "from": "/a", "path": "/b"}),
                _ => json!({"op": "move", "from": "/b", "path": "/a"}),
            });
            Value::Array(hops.collect())
        };
        let large = json!({"a": vec!["x"; 250_000]});
        assert!(patched(&large, &there_and_back(10)).is_ok());
        let error = patched(&large, &there_and_back(10_000)).unwrap_err();
        let PatchError::Operation { source, index } = error else {
            panic!("{error}")
        };
        assert_eq!((source, index), (OperationError::TooMuchWork, 16));
        assert!(patched(&json!({"a": "small"}), &there_and_back(10_000)).is_ok());
    }

    #[test]
    fn unknown_and_duplicate_members_of_operations_are_reported() {
        let patch = br#"[{"op":"add","path":"/a","value":{"x":1,"x":2},"foo":1},{"op":"test","path":"/b","op":"test"}]"#;
        let patched = apply(&json!({}), patch).unwrap();
        assert_eq!(patched.value, json!({"a": {"x": 2}}));
        let mut texts: Vec<_> = patched.strict.iter().map(ToString::to_string).collect();
        texts.sort();
        assert_eq!(
            texts,
            [
                r#"json patch duplicate field "[0].value.x""#,
                r#"json patch duplicate field "[1].op""#,
                r#"json patch unknown field "[0].foo""#,
            ]
        );
    }

    proptest! {
        #[test]
        fn arbitrary_operations_never_panic(
            operations in prop::collection::vec(("(add|remove|replace|move|copy|test)", "(/[ab01-]{1,2}){0,3}", "(/[ab01-]{1,2}){0,3}"), 0..6)
        ) {
            let patch: Vec<_> = operations
                .into_iter()
                .map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": {"a": [0]}}))
                .collect();
            fuzz_apply(Value::Array(patch).to_string().as_bytes());
        }
    }
}
