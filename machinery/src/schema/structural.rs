//! The structural schema: a tree with one node per position in an object.

use serde_json::{Map, Value};

/// The schema of one position in an object. Built from a JSON schema by [`for_kind`](Self::for_kind).
#[derive(Debug, Clone, PartialEq)]
pub struct Structural {
    /// The shape of the value.
    pub shape: Shape,
    /// Whether the schema allows `null`, as for an optional scalar that a Go type holds by pointer. Not published, since
    /// decoding reads `null` as absent everywhere.
    pub nullable: bool,
    /// The value to fill in if the value is absent and its parent is present.
    pub default: Option<Value>,
    /// The name under which the schema is published as a definition of its own, if any.
    pub definition: Option<String>,
    /// The other keywords of the schema, for publishing: description, limits, extensions.
    pub annotations: Map<String, Value>,
    /// Whether this position or one below it has a default.
    pub(super) has_defaults: bool,
}

/// The shape of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Any JSON value, kept unchanged.
    Any,
    /// `true` or `false`.
    Boolean,
    /// An integer.
    Integer(Width),
    /// A number.
    Number,
    /// A string.
    String,
    /// An RFC 3339 time, normalized to whole seconds in UTC.
    Time,
    /// An integer or a string.
    IntOrString,
    /// A list.
    List(Box<List>),
    /// A struct, a map, or both.
    Object(Box<ObjectShape>),
}

/// The width of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 32 bits, signed.
    Int32,
    /// 64 bits, signed.
    Int64,
}

/// A list.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    /// The schema of the items.
    pub items: Structural,
    /// How items are identified.
    pub kind: ListKind,
}

/// How the items of a list are identified, which decides what field managers can own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListKind {
    /// Items have no identity: the list is owned as a whole.
    Atomic,
    /// By value.
    Set,
    /// By the values of these key fields; never empty.
    Map(Vec<String>),
}

/// A struct (named fields), a map (arbitrary keys with values of one schema), or both.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectShape {
    /// The Go type name in error texts: package, dot, name.
    pub type_name: String,
    /// The fields, sorted by name.
    pub fields: Vec<Field>,
    /// The schema of values under other keys. If `None`, other keys are unknown fields.
    pub additional: Option<Structural>,
    /// Whether unknown fields are kept.
    pub preserves_unknown: bool,
    /// Whether the object is owned as a whole.
    pub is_atomic: bool,
}

/// A field of a struct.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The name in JSON.
    pub name: String,
    /// The schema of the value.
    pub schema: Structural,
    /// Whether the published schema requires the field. Enforced by validation, not by decoding.
    pub is_required: bool,
    /// Which values are treated as absent.
    pub(super) omit: Omit,
}

/// Which values of a field are treated as absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Omit {
    /// Only `null`.
    Null,
    /// Also empty lists and maps.
    EmptyContainer,
    /// Also the empty string and zero.
    Zero,
}

impl Structural {
    /// A schema that accepts any value.
    #[must_use]
    pub fn any() -> Self {
        Self {
            shape: Shape::Any,
            nullable: false,
            default: None,
            definition: None,
            annotations: Map::new(),
            has_defaults: false,
        }
    }

    /// The schema at a path of field names, for example `["spec", "requesters"]`.
    #[cfg(test)]
    pub(crate) fn at(&self, path: &[&str]) -> Option<&Self> {
        let Some((name, rest)) = path.split_first() else {
            return Some(self);
        };
        match &self.shape {
            Shape::Object(object) => object.child(name)?.at(rest),
            _ => None,
        }
    }
}

impl ObjectShape {
    /// A field of the struct.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        let at = self
            .fields
            .binary_search_by(|field| field.name.as_str().cmp(name))
            .ok()?;
        self.fields.get(at)
    }

    /// The schema of the value under a key: of the field with that name, or of other keys.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Structural> {
        self.field(name)
            .map(|field| &field.schema)
            .or(self.additional.as_ref())
    }

    /// The name of the type without its package.
    pub(super) fn struct_name(&self) -> &str {
        self.type_name.rsplit('.').next().unwrap_or(&self.type_name)
    }
}

impl Shape {
    pub(super) fn has_defaults(&self) -> bool {
        match self {
            Self::List(list) => list.items.has_defaults,
            Self::Object(object) => {
                object.fields.iter().any(|field| field.schema.has_defaults)
                    || object
                        .additional
                        .as_ref()
                        .is_some_and(|values| values.has_defaults)
            }
            _ => false,
        }
    }
}
