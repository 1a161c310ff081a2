//! The JSON form of the ledger's objects and events.
//!
//! Objects are EvictionRequests with their number in the name, the serial in an annotation and the group in a label.
//! No controller acts on them, and their pods do not exist.

use std::borrow::Cow;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::{Digest, Event, Frame, Group, Kind, Selection, Version};
use crate::load::{Call, SENT};
use crate::objects::{ROOT, filling};

const PREFIX: &str = "5eedbeef-0000-4000-8000-";
const GROUP: &str = "ledger.drydock.dev/group";
const SERIAL: &str = "ledger.drydock.dev/serial";
/// Annotations are limited to 256 KiB; a larger object is filled up with the name of an owner.
const MOST_ANNOTATED: usize = 200 << 10;
/// The approximate size of an object without filling.
const BARE_BYTES: usize = 900;

/// The namespaces and the size of objects.
#[derive(Clone, Debug)]
pub struct Place {
    /// The prefix of the namespaces' names.
    pub prefix: String,
    /// The number of namespaces.
    pub namespaces: u32,
    /// The approximate size of an object as it is sent.
    pub object_bytes: usize,
}

impl Place {
    /// The name of a namespace.
    #[must_use]
    pub fn namespace(&self, number: u32) -> String {
        format!("{}{number}", self.prefix)
    }

    fn collection(&self, object: u32) -> String {
        let namespace = self.namespace(object % self.namespaces.max(1));
        format!("{ROOT}/namespaces/{namespace}/evictionrequests")
    }

    fn item(&self, object: u32) -> String {
        format!("{}/{}", self.collection(object), name(object))
    }

    /// The call that creates an object; `sent` is the time of the write.
    #[must_use]
    pub fn create(&self, object: u32, version: Version, sent: u128) -> Call {
        let name = name(object);
        let missing = self.object_bytes.saturating_sub(BARE_BYTES);
        let annotated = missing.min(MOST_ANNOTATED);
        let mut metadata = json!({
            "name": name,
            "labels": { GROUP: group(version.group) },
            "annotations": {
                SENT: sent.to_string(),
                SERIAL: version.serial.to_string(),
                "example.com/why": filling(object.into(), annotated),
            },
        });
        if missing > annotated
            && let Some(metadata) = metadata.as_object_mut()
        {
            let owner = json!([{
                "apiVersion": "v1", "kind": "Node", "uid": name, "name": filling(object.into(), missing - annotated),
            }]);
            metadata.insert("ownerReferences".to_owned(), owner);
        }
        let request = json!({
            "apiVersion": "coordination.k8s.io/v1alpha3",
            "kind": "EvictionRequest",
            "metadata": metadata,
            "spec": {
                "target": { "pod": { "name": format!("pod-{object}"), "uid": name } },
                "requesters": [{ "name": "ledger.drydock.dev" }],
            },
        });
        Call::post(self.collection(object), request.to_string().into())
    }

    /// The call that changes an object.
    #[must_use]
    pub fn change(&self, object: u32, version: Version, sent: u128) -> Call {
        let change = json!({ "metadata": {
            "labels": { GROUP: group(version.group) },
            "annotations": { SENT: sent.to_string(), SERIAL: version.serial.to_string() },
        } });
        Call::merge_patch(self.item(object), change.to_string().into())
    }

    /// The same, if the last write of the object has the revision `base`; fills the object up with so many bytes.
    #[must_use]
    pub fn change_at(&self, object: u32, version: Version, sent: u128, base: u64, bytes: usize) -> Call {
        let change = json!({ "metadata": {
            "resourceVersion": base.to_string(),
            "labels": { GROUP: group(version.group) },
            "annotations": {
                SENT: sent.to_string(),
                SERIAL: version.serial.to_string(),
                "example.com/why": filling(version.serial.into(), bytes),
            },
        } });
        Call::merge_patch(self.item(object), change.to_string().into())
    }

    /// The call that deletes an object whose last write has the revision `base`.
    #[must_use]
    pub fn remove_at(&self, object: u32, base: u64) -> Call {
        let options = json!({ "preconditions": { "resourceVersion": base.to_string() } });
        Call {
            content_type: Some("application/json"),
            body: options.to_string().into(),
            ..Call::delete(self.item(object))
        }
    }

    /// The call that reads an object.
    #[must_use]
    pub fn read(&self, object: u32) -> Call {
        Call::get(self.item(object))
    }

    /// The call that deletes an object.
    #[must_use]
    pub fn remove(&self, object: u32) -> Call {
        Call::delete(self.item(object))
    }

    /// The path of a list or watch of a selection, with a query that can be extended.
    #[must_use]
    pub fn path(&self, selection: Selection) -> String {
        let scope = selection.namespace.map_or_else(String::new, |number| {
            format!("/namespaces/{}", self.namespace(number))
        });
        let labels = match selection.group {
            None => String::new(),
            Some(Group::Is(number)) => format!("{GROUP}%3D{}", group(number)),
            Some(Group::IsNot(number)) => format!("{GROUP}%21%3D{}", group(number)),
        };
        let fields = selection.object.map_or_else(String::new, |object| {
            format!("&fieldSelector=metadata.name%3D{}", name(object))
        });
        format!("{ROOT}{scope}/evictionrequests?labelSelector={labels}{fields}")
    }
}

fn name(object: u32) -> String {
    format!("{PREFIX}{object:012x}")
}

fn group(number: u16) -> String {
    format!("g{number}")
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: Object<'a>,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    code: Option<u16>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    resource_version: Cow<'a, str>,
    #[serde(borrow, default)]
    labels: Labels<'a>,
    #[serde(borrow, default)]
    annotations: Annotations<'a>,
}

#[derive(Default, Deserialize)]
struct Labels<'a> {
    #[serde(rename = "ledger.drydock.dev/group", borrow, default)]
    group: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
struct Annotations<'a> {
    #[serde(rename = "ledger.drydock.dev/serial", borrow, default)]
    serial: Cow<'a, str>,
    #[serde(rename = "bench.drydock.dev/sent", borrow, default)]
    sent: Cow<'a, str>,
    #[serde(rename = "k8s.io/initial-events-end", borrow, default)]
    end: Cow<'a, str>,
}

impl Metadata<'_> {
    fn revision(&self) -> Result<u64> {
        self.resource_version
            .parse()
            .with_context(|| format!("resourceVersion {:?}", self.resource_version))
    }

    fn object(&self) -> Result<u32> {
        let digits = self.name.strip_prefix(PREFIX);
        digits
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .with_context(|| format!("{:?} is not a name of the ledger", self.name))
    }

    fn version(&self) -> Result<Version> {
        let serial = self.annotations.serial.parse();
        let group = self
            .labels
            .group
            .strip_prefix('g')
            .and_then(|digits| digits.parse().ok());
        Ok(Version {
            serial: serial.with_context(|| format!("{} has no serial", self.name))?,
            group: group.with_context(|| format!("{} has no group", self.name))?,
        })
    }
}

/// Parses a line of a watch, and the time of the write.
///
/// # Errors
/// It is not an event of the ledger's objects.
pub fn frame(line: &[u8]) -> Result<(Frame, Option<u64>)> {
    let Line { kind, object } = serde_json::from_slice(line)
        .with_context(|| format!("not an event: {}", String::from_utf8_lossy(line)))?;
    let metadata = &object.metadata;
    let kind = match kind.as_ref() {
        "ADDED" => Kind::Added,
        "MODIFIED" => Kind::Modified,
        "DELETED" => Kind::Deleted,
        "BOOKMARK" => {
            let bookmark = Frame::Bookmark {
                revision: metadata.revision()?,
                ends_initial_events: metadata.annotations.end == "true",
            };
            return Ok((bookmark, None));
        }
        "ERROR" => {
            let code = object.code.context("an ERROR event has a code")?;
            return Ok((Frame::Error { code }, None));
        }
        other => anyhow::bail!("unknown event type {other}"),
    };
    let event = Event {
        revision: metadata.revision()?,
        kind,
        key: metadata.object()?,
        value: metadata.version()?,
    };
    Ok((Frame::Event(event), metadata.annotations.sent.parse().ok()))
}

/// The revision in the response of a write, whose object must be the one that was written.
///
/// # Errors
/// It is another object.
pub fn written(response: &[u8], object: u32, version: Version) -> Result<u64> {
    let response: Object<'_> = serde_json::from_slice(response).context("read the response of a write")?;
    let metadata = response.metadata;
    let found = (metadata.object()?, metadata.version()?);
    ensure!(
        found == (object, version),
        "wrote {:?}, the response has {found:?}",
        (object, version)
    );
    metadata.revision()
}

/// The content of an object that was read, and the revision of its last write.
///
/// # Errors
/// It is another object.
pub fn stored(response: &[u8], object: u32) -> Result<(Version, u64)> {
    let response: Object<'_> = serde_json::from_slice(response).context("read an object")?;
    let metadata = response.metadata;
    let found = metadata.object()?;
    ensure!(found == object, "read object {object}, the response has {found}");
    Ok((metadata.version()?, metadata.revision()?))
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    /// The list's revision.
    pub revision: u64,
    /// The query parameter of the next page.
    pub next: Option<String>,
}

/// Parses a page and adds its items to a digest.
///
/// # Errors
/// It is not a list of the ledger's objects.
pub fn page(response: &Bytes, items: &mut Digest) -> Result<Page> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        metadata: ListMetadata<'a>,
        #[serde(borrow)]
        items: Vec<Object<'a>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ListMetadata<'a> {
        #[serde(borrow)]
        resource_version: Cow<'a, str>,
        #[serde(rename = "continue", borrow, default)]
        next: Cow<'a, str>,
    }
    let list: List<'_> = serde_json::from_slice(response).context("read a list")?;
    for Object { metadata, .. } in &list.items {
        items.add(&metadata.object()?, &metadata.version()?, metadata.revision()?);
    }
    let next = list.metadata.next;
    Ok(Page {
        revision: list
            .metadata
            .resource_version
            .parse()
            .context("a list's revision")?,
        // URL-safe Base64 needs no escaping.
        next: (!next.is_empty()).then(|| format!("&continue={next}")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn place(object_bytes: usize) -> Place {
        Place {
            prefix: "soak-".to_owned(),
            namespaces: 3,
            object_bytes,
        }
    }

    const VERSION: Version = Version { serial: 5, group: 2 };

    #[test]
    fn objects_have_the_requested_size() {
        for bytes in [2700, 100_000, 3 << 19] {
            let size = place(bytes).create(4, VERSION, 0).body.len();
            assert!(size.abs_diff(bytes) < 500, "{size} instead of {bytes}");
        }
    }

    #[test]
    fn objects_round_trip() {
        let call = place(1000).create(4, VERSION, 17);
        assert_eq!(call.path, format!("{ROOT}/namespaces/soak-1/evictionrequests"));
        let mut object: Value = serde_json::from_slice(&call.body).unwrap();
        object["metadata"]["resourceVersion"] = json!("9");
        let bytes = Bytes::from(object.to_string());
        assert_eq!(written(&bytes, 4, VERSION).unwrap(), 9);
        assert!(written(&bytes, 4, Version { serial: 6, group: 2 }).is_err());
        assert!(written(&bytes, 5, VERSION).is_err());

        let line = json!({ "type": "MODIFIED", "object": object }).to_string();
        let event = Event {
            revision: 9,
            kind: Kind::Modified,
            key: 4,
            value: VERSION,
        };
        assert_eq!(frame(line.as_bytes()).unwrap(), (Frame::Event(event), Some(17)));

        let list = json!({ "metadata": { "resourceVersion": "12", "continue": "abc" }, "items": [object] });
        let (mut items, mut expected) = (Digest::default(), Digest::default());
        expected.add(&4_u32, &VERSION, 9);
        let read = page(&list.to_string().into(), &mut items).unwrap();
        assert_eq!((items, read.revision), (expected, 12));
        assert_eq!(read.next.as_deref(), Some("&continue=abc"));
    }

    #[test]
    fn bookmarks_and_errors_are_parsed() {
        let end = json!({ "k8s.io/initial-events-end": "true" });
        for (annotations, ends_initial_events) in [(json!({}), false), (end, true)] {
            let metadata = json!({ "resourceVersion": "7", "annotations": annotations });
            let line = json!({ "type": "BOOKMARK", "object": { "metadata": metadata } }).to_string();
            let expected = Frame::Bookmark {
                revision: 7,
                ends_initial_events,
            };
            assert_eq!(frame(line.as_bytes()).unwrap().0, expected);
        }
        let line = r#"{"type":"ERROR","object":{"kind":"Status","metadata":{},"code":410}}"#;
        assert_eq!(frame(line.as_bytes()).unwrap().0, Frame::Error { code: 410 });
        assert!(frame(br#"{"type":"ADDED","object":{"metadata":{"name":"other"}}}"#).is_err());
    }

    #[test]
    fn selections_are_paths() {
        let all = place(0).path(Selection::default());
        assert_eq!(all, format!("{ROOT}/evictionrequests?labelSelector="));
        let some = Selection {
            namespace: Some(2),
            group: Some(Group::IsNot(7)),
            object: Some(1),
        };
        let path = place(0).path(some);
        assert!(
            path.starts_with(&format!("{ROOT}/namespaces/soak-2/evictionrequests?")),
            "{path}"
        );
        assert!(path.contains("group%21%3Dg7"), "{path}");
        assert!(
            path.contains("metadata.name%3D5eedbeef-0000-4000-8000-000000000001"),
            "{path}"
        );
    }
}
