//! A served version of a resource, and its conversion to and from the stored form (the hub).

use std::borrow::Cow;
use std::sync::Arc;

use drydock_machinery::schema::Structural;
use drydock_machinery::table::{Cell, Column};
use drydock_proto::kinds::{
    Alias, CollectionFinalizers, Context, Conversion, ConversionError, FromHub, Names, ToHub,
};
use drydock_proto::protobuf::Message;
use jiff::Timestamp;
use serde_json::Value;

/// What `kubectl get` prints for objects of a version.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// The columns, in order.
    pub columns: &'static [Column],
    /// The cells of an object in this version, one for each column. Ages are computed from the given time.
    pub cells: fn(&Value, Timestamp) -> Vec<Cell>,
}

/// A served version of a resource: its schema, its columns, and its conversion to and from the stored form.
#[derive(Debug)]
pub struct Face {
    /// The version, as in URLs.
    pub version: &'static str,
    /// `group/version`, as in `apiVersion`.
    pub api_version: Arc<str>,
    /// The names of the resource and its kind in this version.
    pub names: Names,
    /// Set if this version is a resource of its own.
    pub alias: Option<&'static Alias>,
    /// The fields an object may have, with their defaults.
    pub schema: Arc<Structural>,
    /// The protobuf message of objects; if `None`, they are not served as protobuf, and a body in protobuf is rejected with 415.
    pub message: Option<&'static Message>,
    /// The columns of `kubectl get`.
    pub table: Table,
    /// How objects convert between this version and the hub.
    pub conversion: Conversion,
    /// The paths of fields in the hub whose path in this version differs, and that path. See
    /// [`drydock_proto::kinds::Face::paths`].
    pub paths: &'static [(&'static str, &'static str)],
}

impl Face {
    /// Whether this version has the shape of the hub.
    #[must_use]
    pub const fn is_hub(&self) -> bool {
        matches!(self.conversion, Conversion::Identity)
    }

    /// Tells this face from the others of its kind.
    #[must_use]
    pub fn id(&self) -> &'static str {
        self.alias.map_or(self.version, |alias| alias.names.plural)
    }

    /// The functions that convert between this version and the hub; `None` if it has the shape of the hub.
    const fn functions(&self) -> Option<(ToHub, FromHub)> {
        match self.conversion {
            Conversion::Identity => None,
            Conversion::Functions { to_hub, from_hub } => Some((to_hub, from_hub)),
        }
    }

    /// Converts an object of this version to the hub, with the defaults of the hub. `apiVersion` and `kind` become those of
    /// `storage`, the stored version.
    pub(super) fn convert_to_hub(
        &self,
        mut object: Value,
        storage: &Self,
        context: &Context<'_>,
    ) -> Result<Value, ConversionError> {
        if let Some((to_hub, _)) = self.functions() {
            to_hub(&mut object, context)?;
        }
        set_type(&mut object, storage);
        Ok(object)
    }

    /// Converts a hub to an object of this version.
    pub(super) fn convert_from_hub(&self, mut hub: Value) -> Result<Value, ConversionError> {
        if let Some((_, from_hub)) = self.functions() {
            from_hub(&mut hub)?;
        }
        set_type(&mut hub, self);
        Ok(hub)
    }

    /// The path of a field in this version, given its path in the hub.
    #[must_use]
    pub fn path<'a>(&self, hub: &'a str) -> Cow<'a, str> {
        let plain = without_indices(hub);
        let renamed = self.paths.iter().find_map(|(stored, own)| {
            let rest = plain.strip_prefix(stored)?;
            (rest.is_empty() || rest.starts_with('.')).then_some((*own, rest))
        });
        match renamed {
            None => Cow::Borrowed(hub),
            // This version has a field in place of a list, or another list: it has no such item.
            Some((own, _)) if plain.len() < hub.len() => Cow::Owned(own.to_owned()),
            Some((own, rest)) => Cow::Owned(format!("{own}{rest}")),
        }
    }

    /// How the finalizers of the garbage collector for objects of this version are stored.
    #[must_use]
    pub fn collection_finalizers(&self) -> CollectionFinalizers {
        self.alias
            .map_or(CollectionFinalizers::STORED, |alias| alias.collection_finalizers)
    }
}

/// A path without `[0]`.
fn without_indices(path: &str) -> String {
    path.split('[')
        .enumerate()
        .map(|(index, part)| match part.split_once(']') {
            Some((_, rest)) if index > 0 => rest,
            _ => part,
        })
        .collect()
}

/// Sets `apiVersion` and, for a resource of its own, `kind`.
fn set_type(object: &mut Value, face: &Face) {
    set_text(object, "apiVersion", &face.api_version);
    if object.get("kind").is_some() {
        set_text(object, "kind", face.names.kind);
    }
}

/// Sets a member, unless it has that value already: the common case allocates nothing.
fn set_text(object: &mut Value, member: &str, text: &str) {
    if let Some(members) = object.as_object_mut()
        && members.get(member).and_then(Value::as_str) != Some(text)
    {
        members.insert(member.to_owned(), text.into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::registry::evictionrequest;

    #[test]
    fn fields_have_the_paths_of_the_version() {
        let resource = evictionrequest::REGISTRATION.resource(&Arc::default()).unwrap();
        let cases = [
            ("spec.target.pod.uid", "spec.target.podRef.uid", "spec.podRef.uid"),
            (
                "spec.requesters[1].name",
                "spec.requesters[1].name",
                "metadata.finalizers",
            ),
            (
                "status.interceptors[0].message",
                "status.message",
                "status.message",
            ),
            ("status.interceptors[0]", "status", "status"),
            (
                "status.targetInterceptors[2].name",
                "spec.interceptors",
                "spec.evacuators",
            ),
            (
                "metadata.labels[a.b/c]",
                "metadata.labels[a.b/c]",
                "metadata.labels[a.b/c]",
            ),
            ("spec.type", "spec.type", "spec.type"),
        ];
        for (hub, first, evacuation) in cases {
            let path = |plural: &str| resource.face(plural, "v1alpha1").unwrap().path(hub).into_owned();
            assert_eq!(
                (path("evictionrequests"), path("evacuations")),
                (first.to_owned(), evacuation.to_owned())
            );
            let stored = resource.storage_face();
            assert_eq!(stored.path(hub), hub);
        }
    }
}
