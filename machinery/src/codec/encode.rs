//! Encoding of objects: compact with sorted keys, pretty, or for storage, without `metadata.resourceVersion`.

use serde_json::{Map, Value};

/// A stored object: canonical JSON without `metadata.resourceVersion`, and the offset where that member belongs.
///
/// Inserting `"resourceVersion":"N",` at the offset yields the object as clients see it, with sorted keys, without
/// parsing the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Canonical JSON.
    pub bytes: Vec<u8>,
    /// The offset just before the `"uid"` member of `metadata`.
    pub resource_version_at: usize,
}

/// Canonical JSON: compact, keys sorted, no newline at the end.
#[must_use]
pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024);
    write(&mut bytes, value);
    bytes
}

/// Pretty JSON: indented by two spaces, keys sorted.
#[must_use]
pub fn encode_pretty(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2048);
    finish(serde_json::to_writer_pretty(&mut bytes, value));
    bytes
}

/// Encodes an object for storage, without `metadata.resourceVersion`. `None` if it has no `metadata.uid`, which every
/// stored object has.
///
/// ```
/// use drydock_machinery::codec::encode_stored;
///
/// let object = serde_json::json!({"metadata": {"name": "n", "uid": "u"}});
/// let stored = encode_stored(&object).expect("it has a uid");
/// let (before, after) = stored.bytes.split_at(stored.resource_version_at);
/// let seen = [before, br#""resourceVersion":"7","#, after].concat();
/// assert_eq!(seen, br#"{"metadata":{"name":"n","resourceVersion":"7","uid":"u"}}"#);
/// ```
#[must_use]
pub fn encode_stored(object: &Value) -> Option<Stored> {
    let members = object.as_object()?;
    let mut bytes = Vec::with_capacity(2048);
    let mut resource_version_at = None;
    bytes.push(b'{');
    for (index, (key, value)) in members.iter().enumerate() {
        write_key(&mut bytes, index == 0, key);
        match (key.as_str(), value) {
            ("metadata", Value::Object(metadata)) => {
                resource_version_at = write_metadata(&mut bytes, metadata);
            }
            _ => write(&mut bytes, value),
        }
    }
    bytes.push(b'}');
    Some(Stored {
        bytes,
        resource_version_at: resource_version_at?,
    })
}

fn write_metadata(bytes: &mut Vec<u8>, metadata: &Map<String, Value>) -> Option<usize> {
    let mut at = None;
    let mut first = true;
    bytes.push(b'{');
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
        if !first {
            bytes.push(b',');
        }
        if key == "uid" {
            at = Some(bytes.len());
        }
        write_key(bytes, true, key);
        write(bytes, value);
        first = false;
    }
    bytes.push(b'}');
    at
}

fn write_key(bytes: &mut Vec<u8>, first: bool, key: &str) {
    if !first {
        bytes.push(b',');
    }
    finish(serde_json::to_writer(&mut *bytes, key));
    bytes.push(b':');
}

fn write(bytes: &mut Vec<u8>, value: &Value) {
    finish(serde_json::to_writer(bytes, value));
}

/// Values have string keys and finite numbers, and writing to memory does not fail.
#[expect(clippy::expect_used, reason = "writing a `Value` to memory cannot fail")]
fn finish(written: serde_json::Result<()>) {
    written.expect("a value is always serializable");
}

/// The offset for `"resourceVersion":"N",` in the canonical JSON of a stored object. `None` if the text is not an object
/// with `metadata.uid`.
///
/// The scan skips values without decoding them and ends at `metadata.uid`.
#[must_use]
pub fn splice_offset(stored: &[u8]) -> Option<usize> {
    let metadata = member(stored, 0, b"metadata")?;
    let uid = member(stored, metadata.value, b"uid")?;
    Some(uid.key)
}

/// The offsets of a member of an object.
struct Member {
    key: usize,
    value: usize,
}

/// Finds a member of the object that starts at `at`. `name` must not need escapes.
fn member(bytes: &[u8], at: usize, name: &[u8]) -> Option<Member> {
    if bytes.get(at) != Some(&b'{') {
        return None;
    }
    let mut key = at + 1;
    while bytes.get(key) == Some(&b'"') {
        let colon = skip(bytes, key)?;
        let value = colon + 1;
        if bytes.get(key + 1..colon - 1) == Some(name) {
            return Some(Member { key, value });
        }
        let end = skip(bytes, value)?;
        if bytes.get(end) != Some(&b',') {
            return None;
        }
        key = end + 1;
    }
    None
}

/// The end of the compact JSON value that starts at `at`.
fn skip(bytes: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut here = at;
    loop {
        match bytes.get(here)? {
            b'"' => {
                here += 1;
                loop {
                    match bytes.get(here)? {
                        b'"' => break,
                        b'\\' => here += 2,
                        _ => here += 1,
                    }
                }
                here += 1;
            }
            b'{' | b'[' => {
                depth += 1;
                here += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                here += 1;
            }
            b',' | b':' if depth > 0 => here += 1,
            _ => {
                while bytes
                    .get(here)
                    .is_some_and(|byte| !matches!(byte, b',' | b'}' | b']'))
                {
                    here += 1;
                }
            }
        }
        if depth == 0 {
            return Some(here);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spliced(stored: &Stored, revision: u64) -> Vec<u8> {
        let (before, after) = stored.bytes.split_at(stored.resource_version_at);
        [
            before,
            format!("\"resourceVersion\":\"{revision}\",").as_bytes(),
            after,
        ]
        .concat()
    }

    #[test]
    fn resource_version_is_inserted_at_its_sorted_position() {
        for mut object in [
            json!({"metadata": {"uid": "u"}}),
            json!({"apiVersion": "g/v", "kind": "K", "metadata": {"name": "a\"b", "uid": "u", "labels": {"uid": "x\\"}},
                "spec": {"n": [1, -2.5, null, true, {"metadata": {"uid": "no"}}]}}),
            json!({"a": {"uid": "\\\""}, "kind": "K", "metadata": {"annotations": {"{": "}"}, "managedFields": [[], {}],
                "resourceVersion": "4", "uid": "u"}}),
        ] {
            let stored = encode_stored(&object).unwrap();
            assert_eq!(
                splice_offset(&stored.bytes),
                Some(stored.resource_version_at),
                "{object}"
            );
            object["metadata"]["resourceVersion"] = "7".into();
            assert_eq!(spliced(&stored, 7), encode(&object), "{object}");
        }
    }

    #[test]
    fn objects_without_a_uid_are_not_encoded_for_storage() {
        for object in [
            json!({"metadata": {}}),
            json!({"kind": "K"}),
            json!([]),
            json!({"metadata": {"name": "uid"}}),
        ] {
            assert_eq!(encode_stored(&object), None);
            assert_eq!(splice_offset(&encode(&object)), None);
        }
        assert_eq!(splice_offset(b"{\"metadata\":{\"uid"), None);
        assert_eq!(splice_offset(b"{\"a\":}"), None);
    }

    #[test]
    fn encodings_have_sorted_keys() {
        let value = json!({"b": [1, {}], "a": "<&>"});
        assert_eq!(encode(&value), br#"{"a":"<&>","b":[1,{}]}"#);
        assert_eq!(
            encode_pretty(&value),
            b"{\n  \"a\": \"<&>\",\n  \"b\": [\n    1,\n    {}\n  ]\n}"
        );
    }
}
