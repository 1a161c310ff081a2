//! The schema of an object as a tree of shapes, read from a JSON schema without references.

use serde_json::{Map, Value};

/// The schema of one position in an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Structural {
    /// What a value here looks like.
    pub shape: Shape,
    /// Whether clients may write `null` here. Only published: `null` always reads as absent.
    pub nullable: bool,
    /// What is filled in where the value is absent and its parent is not.
    pub default: Option<Value>,
    /// The name under which the schema is published, when it has one of its own.
    pub definition: Option<String>,
    /// Everything else the schema says, for publishing: description, limits, extensions.
    pub annotations: Map<String, Value>,
    /// Whether something at or below this position has a default.
    pub(super) has_defaults: bool,
}

/// What a value looks like.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Any JSON, kept as it is.
    Any,
    /// `true` or `false`.
    Boolean,
    /// An integer of a width.
    Integer(Width),
    /// A number.
    Number,
    /// A text.
    String,
    /// An RFC 3339 time, kept in whole seconds and UTC.
    Time,
    /// An integer or a text.
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
    /// What an item looks like.
    pub items: Structural,
    /// How items are told apart.
    pub kind: ListKind,
}

/// How the items of a list are told apart, and so who can own one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListKind {
    /// Not at all: the list has one owner as a whole.
    Atomic,
    /// By their value.
    Set,
    /// By the values of some fields; never empty.
    Map(Vec<String>),
}

/// A struct (fields), a map (any key, one shape), or both.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectShape {
    /// The type as errors name it: package, dot, name.
    pub type_name: String,
    /// The fields, sorted by name.
    pub fields: Vec<Field>,
    /// The shape of values under other keys. Without it other keys are unknown fields.
    pub additional: Option<Structural>,
    /// Whether unknown fields are kept.
    pub preserves_unknown: bool,
    /// Whether the object has one owner as a whole.
    pub is_atomic: bool,
}

/// A field of a struct.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name in JSON.
    pub name: String,
    /// What its value looks like.
    pub schema: Structural,
    /// Whether the schema requires it. Published; enforced by validation.
    pub is_required: bool,
    /// Which values count as absent.
    pub(super) omit: Omit,
}

/// Which values of a field are dropped as if absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Omit {
    /// Only `null`.
    Null,
    /// Empty lists and maps, too.
    EmptyContainer,
    /// Empty text and zero, too.
    Zero,
}

/// Why a JSON schema is no structural schema. Such a schema is a bug in a kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A reference; definitions must be inlined.
    #[error("{path}: $ref is not inlined")]
    Reference {
        /// Where in the schema, dots between fields.
        path: String,
    },
    /// Alternatives that are neither one shape or null, nor texts.
    #[error("{path}: alternatives without one shape")]
    Alternatives {
        /// Where in the schema.
        path: String,
    },
    /// A part of the schema has the wrong JSON type, or a type that is not known.
    #[error("{path}: {keyword} is not understood")]
    Keyword {
        /// Where in the schema.
        path: String,
        /// The keyword.
        keyword: &'static str,
    },
    /// A list map whose items are no objects with its keys.
    #[error("{path}: list of type map needs keys that are fields of its items")]
    ListMapKeys {
        /// Where in the schema.
        path: String,
    },
}

/// Keywords that [`Structural`] holds in fields of its own, or that publishing does not want.
const STRUCTURAL_KEYWORDS: &[&str] = &[
    "$defs",
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "definitions",
    "enum",
    "items",
    "nullable",
    "oneOf",
    "properties",
    "required",
    "title",
    "type",
    DEFINITION,
];

/// Our own keyword: the name under which a schema is published.
const DEFINITION: &str = "x-drydock-definition";

impl Structural {
    /// Reads a JSON schema in which every definition is inlined, as `schemars` writes it.
    ///
    /// # Errors
    ///
    /// [`SchemaError`] when the schema uses references or alternatives that no structural schema can express.
    pub fn from_json_schema(schema: &Value) -> Result<Self, SchemaError> {
        let name = schema.get("title").and_then(Value::as_str).unwrap_or("Object");
        Reader { package: "v1" }.read(
            schema,
            &Place {
                path: "",
                name,
                preserves_unknown: false,
            },
        )
    }

    /// The schema of a kind: `apiVersion`, `kind`, `metadata`, and the members given (usually `spec` and `status`).
    ///
    /// `version` is the API version without group; errors name types with it (`v1alpha3.EvictionRequestSpec`).
    ///
    /// # Errors
    ///
    /// [`SchemaError`] for a member, its path beginning with the member's name.
    pub fn for_kind(
        kind: &str,
        version: &str,
        description: &str,
        members: &[(&str, &Value)],
    ) -> Result<Self, SchemaError> {
        let reader = Reader { package: version };
        let mut fields = vec![
            type_meta("apiVersion", API_VERSION_DESCRIPTION),
            type_meta("kind", KIND_DESCRIPTION),
            Field {
                name: "metadata".to_owned(),
                schema: super::object_meta(),
                is_required: false,
                omit: Omit::Null,
            },
        ];
        for &(member, schema) in members {
            let name = format!("{kind}{}", capitalized(member));
            let schema = reader.read(
                schema,
                &Place {
                    path: member,
                    name: &name,
                    preserves_unknown: false,
                },
            )?;
            let omit = Omit::of(&schema, false);
            fields.push(Field {
                name: member.to_owned(),
                schema,
                is_required: false,
                omit,
            });
        }
        fields.sort_by(|left, right| left.name.cmp(&right.name));
        let mut annotations = Map::new();
        if !description.is_empty() {
            annotations.insert("description".to_owned(), description.into());
        }
        Ok(Self {
            has_defaults: fields.iter().any(|field| field.schema.has_defaults),
            shape: Shape::Object(Box::new(ObjectShape {
                type_name: format!("{version}.{kind}"),
                fields,
                additional: None,
                preserves_unknown: false,
                is_atomic: false,
            })),
            nullable: false,
            default: None,
            definition: None,
            annotations,
        })
    }

    /// A position where anything may stand.
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
    #[must_use]
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        let Some((name, rest)) = path.split_first() else {
            return Some(self);
        };
        match &self.shape {
            Shape::Object(object) => object.child(name)?.at(rest),
            _ => None,
        }
    }

    /// The description, when there is one.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.annotations.get("description").and_then(Value::as_str)
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

    /// The schema of the value under a key: the field's, or that of other keys.
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

impl Omit {
    /// What the Go convention omits: optional lists and maps when empty.
    fn of(schema: &Structural, is_required: bool) -> Self {
        let is_container = match &schema.shape {
            Shape::List(_) => true,
            Shape::Object(object) => object.fields.is_empty() && object.additional.is_some(),
            _ => false,
        };
        if is_container && !is_required {
            Self::EmptyContainer
        } else {
            Self::Null
        }
    }
}

const API_VERSION_DESCRIPTION: &str =
    "The group and version whose rules this object follows, as in coordination.k8s.io/v1alpha3.";
const KIND_DESCRIPTION: &str = "What the object is, in CamelCase; clients cannot change it.";

fn type_meta(name: &str, description: &str) -> Field {
    let mut schema = Structural::any();
    schema.shape = Shape::String;
    schema
        .annotations
        .insert("description".to_owned(), description.into());
    Field {
        name: name.to_owned(),
        schema,
        is_required: false,
        omit: Omit::Null,
    }
}

/// `requesters` → `Requesters`.
fn capitalized(name: &str) -> String {
    let mut chars = name.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_ascii_uppercase().to_string() + chars.as_str()
    })
}

/// Where the reading stands.
struct Place<'a> {
    path: &'a str,
    /// The name the type gets if it is a struct.
    name: &'a str,
    preserves_unknown: bool,
}

impl Place<'_> {
    fn path_to(&self, step: &str) -> String {
        if self.path.is_empty() || step.starts_with('[') {
            format!("{}{step}", self.path)
        } else {
            format!("{}.{step}", self.path)
        }
    }

    fn keyword(&self, keyword: &'static str) -> SchemaError {
        SchemaError::Keyword {
            path: self.path.to_owned(),
            keyword,
        }
    }
}

/// Reads JSON schemas of one package of types.
struct Reader<'a> {
    package: &'a str,
}

impl Reader<'_> {
    fn read(&self, schema: &Value, place: &Place<'_>) -> Result<Structural, SchemaError> {
        let (flat, nullable) = flatten(schema, place)?;
        let preserves_unknown = place.preserves_unknown
            || flat.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
        let place = Place {
            preserves_unknown,
            ..*place
        };
        let shape = self.shape(&flat, &place)?;
        let mut annotations: Map<String, Value> = flat
            .iter()
            .filter(|(keyword, _)| !STRUCTURAL_KEYWORDS.contains(&keyword.as_str()))
            .map(|(keyword, value)| (keyword.clone(), value.clone()))
            .collect();
        if let Some(values) = flat.get("enum").and_then(Value::as_array) {
            annotations.insert(
                "enum".to_owned(),
                values.iter().filter(|value| !value.is_null()).cloned().collect(),
            );
        }
        if let Shape::Integer(width) = shape {
            let format = match width {
                Width::Int32 => "int32",
                Width::Int64 => "int64",
            };
            annotations.insert("format".to_owned(), format.into());
        }
        let default = flat
            .get("default")
            .filter(|default| is_meaningful(default))
            .cloned();
        let has_defaults = default.is_some() || shape.has_defaults();
        let definition = flat.get(DEFINITION).and_then(Value::as_str).map(str::to_owned);
        Ok(Structural {
            shape,
            nullable,
            default,
            definition,
            annotations,
            has_defaults,
        })
    }

    fn shape(&self, schema: &Map<String, Value>, place: &Place<'_>) -> Result<Shape, SchemaError> {
        let format = schema.get("format").and_then(Value::as_str);
        if format == Some("int-or-string")
            || schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
        {
            return Ok(Shape::IntOrString);
        }
        let kind = match schema.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            Some(_) => return Err(place.keyword("type")),
            None if schema.contains_key("properties") => "object",
            None if schema.contains_key("items") => "array",
            None => return Ok(Shape::Any),
        };
        Ok(match kind {
            "boolean" => Shape::Boolean,
            "integer" => Shape::Integer(match format {
                Some("int32" | "int16" | "int8" | "uint16" | "uint8") => Width::Int32,
                _ => Width::Int64,
            }),
            "number" => Shape::Number,
            "string" if format == Some("date-time") => Shape::Time,
            "string" => Shape::String,
            "array" => self.list(schema, place)?,
            "object" => self.object(schema, place)?,
            _ => return Err(place.keyword("type")),
        })
    }

    fn list(&self, schema: &Map<String, Value>, place: &Place<'_>) -> Result<Shape, SchemaError> {
        let path = place.path_to("[]");
        let singular = place.name.strip_suffix('s').unwrap_or(place.name);
        let item_place = Place {
            path: &path,
            name: singular,
            preserves_unknown: place.preserves_unknown,
        };
        let items = match schema.get("items") {
            Some(items) => self.read(items, &item_place)?,
            None => Structural::any(),
        };
        let kind = list_kind(schema, place)?;
        if let ListKind::Map(keys) = &kind {
            let has_key = |key: &String| match &items.shape {
                Shape::Object(object) => object.field(key).is_some(),
                _ => false,
            };
            if keys.is_empty() || !keys.iter().all(has_key) {
                return Err(SchemaError::ListMapKeys {
                    path: place.path.to_owned(),
                });
            }
        }
        Ok(Shape::List(Box::new(List { items, kind })))
    }

    fn object(&self, schema: &Map<String, Value>, place: &Place<'_>) -> Result<Shape, SchemaError> {
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut fields = Vec::new();
        match schema.get("properties") {
            None => {}
            Some(Value::Object(properties)) => {
                for (name, property) in properties {
                    let path = place.path_to(name);
                    let type_name = match property.get("title").and_then(Value::as_str) {
                        Some(title) => title.to_owned(),
                        None => capitalized(name),
                    };
                    let place = Place {
                        path: &path,
                        name: &type_name,
                        preserves_unknown: place.preserves_unknown,
                    };
                    let schema = self.read(property, &place)?;
                    let is_required = required.contains(&name.as_str());
                    let omit = Omit::of(&schema, is_required);
                    fields.push(Field {
                        name: name.clone(),
                        schema,
                        is_required,
                        omit,
                    });
                }
            }
            Some(_) => return Err(place.keyword("properties")),
        }
        let path = place.path_to("*");
        let value_place = Place {
            path: &path,
            name: place.name,
            preserves_unknown: place.preserves_unknown,
        };
        let additional = match schema.get("additionalProperties") {
            None if fields.is_empty() => Some(Structural::any()),
            None | Some(Value::Bool(false)) => None,
            Some(values) => Some(self.read(values, &value_place)?),
        };
        Ok(Shape::Object(Box::new(ObjectShape {
            type_name: format!("{}.{}", self.package, place.name),
            fields,
            additional,
            preserves_unknown: place.preserves_unknown,
            is_atomic: schema.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic"),
        })))
    }
}

impl Shape {
    fn has_defaults(&self) -> bool {
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

/// Serialization defaults of empty values say nothing about objects.
fn is_meaningful(default: &Value) -> bool {
    match default {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

fn list_kind(schema: &Map<String, Value>, place: &Place<'_>) -> Result<ListKind, SchemaError> {
    let text = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
    let keys = || {
        let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
        keys.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    Ok(match text("x-kubernetes-list-type") {
        Some("atomic") => ListKind::Atomic,
        Some("set") => ListKind::Set,
        Some("map") => ListKind::Map(keys()),
        Some(_) => return Err(place.keyword("x-kubernetes-list-type")),
        None => match (
            text("x-kubernetes-patch-strategy"),
            text("x-kubernetes-patch-merge-key"),
        ) {
            (Some("merge" | "merge,retainKeys"), Some(key)) => ListKind::Map(vec![key.to_owned()]),
            (Some("merge" | "merge,retainKeys"), None) => ListKind::Set,
            _ => ListKind::Atomic,
        },
    })
}

/// One schema without alternatives: `allOf`, `anyOf`, `oneOf`, `const` and lists of types resolved. The flag says
/// whether `null` was among the alternatives.
fn flatten(schema: &Value, place: &Place<'_>) -> Result<(Map<String, Value>, bool), SchemaError> {
    let mut flat = match schema {
        Value::Object(schema) => schema.clone(),
        Value::Bool(true) => Map::new(),
        _ => return Err(place.keyword("schema")),
    };
    if flat.contains_key("$ref") {
        return Err(SchemaError::Reference {
            path: place.path.to_owned(),
        });
    }
    let mut nullable = flat.remove("nullable") == Some(Value::Bool(true));
    if let Some(Value::Array(types)) = flat.get("type") {
        let mut types: Vec<Value> = types.clone();
        nullable |= types.iter().any(|kind| kind == "null");
        types.retain(|kind| kind != "null");
        match types.as_slice() {
            [one] => flat.insert("type".to_owned(), one.clone()),
            [one, other]
                if [one, other]
                    .iter()
                    .all(|kind| **kind == "integer" || **kind == "string") =>
            {
                flat.remove("type");
                flat.insert("x-kubernetes-int-or-string".to_owned(), true.into())
            }
            _ => return Err(place.keyword("type")),
        };
    }
    if let Some(value) = flat.remove("const") {
        if value.is_string() {
            flat.entry("type").or_insert_with(|| "string".into());
        }
        flat.insert("enum".to_owned(), Value::Array(vec![value]));
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let Some(branches) = flat.remove(keyword) else {
            continue;
        };
        let mut flattened = Vec::new();
        for branch in branches.as_array().ok_or_else(|| place.keyword("alternatives"))? {
            if branch.get("type").is_some_and(|kind| kind == "null") {
                nullable = true;
            } else {
                let (branch, null) = flatten(branch, place)?;
                nullable |= null;
                flattened.push(branch);
            }
        }
        let merged = one_shape(flattened).ok_or_else(|| SchemaError::Alternatives {
            path: place.path.to_owned(),
        })?;
        for (key, value) in merged {
            flat.entry(key).or_insert(value);
        }
    }
    Ok((flat, nullable))
}

/// The one schema that alternatives amount to: a single one, one of several texts, or an integer or a text.
fn one_shape(mut branches: Vec<Map<String, Value>>) -> Option<Map<String, Value>> {
    if branches.len() == 1 {
        return branches.pop();
    }
    let mut merged = Map::new();
    let kinds: Vec<_> = branches
        .iter()
        .filter_map(|branch| branch.get("type")?.as_str())
        .collect();
    if matches!(kinds.as_slice(), ["integer", "string"] | ["string", "integer"]) && branches.len() == 2 {
        merged.insert("x-kubernetes-int-or-string".to_owned(), true.into());
        return Some(merged);
    }
    let mut values = Vec::new();
    for branch in &branches {
        values.extend_from_slice(branch.get("enum")?.as_array()?);
    }
    merged.insert("type".to_owned(), "string".into());
    merged.insert("enum".to_owned(), Value::Array(values));
    Some(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shape(schema: &Value) -> Shape {
        Structural::from_json_schema(schema)
            .expect("a structural schema")
            .shape
    }

    #[test]
    fn types_and_formats_make_shapes() {
        for (schema, expected) in [
            (json!({"type": "string"}), Shape::String),
            (json!({"type": ["string", "null"]}), Shape::String),
            (json!({"type": "string", "format": "date-time"}), Shape::Time),
            (
                json!({"type": "integer", "format": "int32"}),
                Shape::Integer(Width::Int32),
            ),
            (
                json!({"type": "integer", "format": "uint16"}),
                Shape::Integer(Width::Int32),
            ),
            (
                json!({"type": "integer", "format": "uint32"}),
                Shape::Integer(Width::Int64),
            ),
            (json!({"type": "integer"}), Shape::Integer(Width::Int64)),
            (json!({"type": "number"}), Shape::Number),
            (json!({"type": "boolean"}), Shape::Boolean),
            (
                json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
                Shape::IntOrString,
            ),
            (json!({"type": ["integer", "string"]}), Shape::IntOrString),
            (json!(true), Shape::Any),
            (json!({"description": "x"}), Shape::Any),
        ] {
            assert_eq!(shape(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn alternatives_with_null_make_a_nullable_schema() {
        let schema = Structural::from_json_schema(
            &json!({"description": "d", "anyOf": [{"type": "string", "enum": ["A", "B"]}, {"type": "null"}]}),
        )
        .unwrap();
        assert!(schema.nullable);
        assert_eq!(schema.shape, Shape::String);
        assert_eq!(schema.annotations["enum"], json!(["A", "B"]));
        let schema =
            Structural::from_json_schema(&json!({"type": ["string", "null"], "enum": ["A", null]})).unwrap();
        assert_eq!(schema.annotations["enum"], json!(["A"]));
        let variants = json!({"oneOf": [{"const": "A", "type": "string", "description": "a"}, {"enum": ["B"], "type": "string"}]});
        assert_eq!(
            Structural::from_json_schema(&variants).unwrap().annotations["enum"],
            json!(["A", "B"])
        );
    }

    #[test]
    fn lists_are_atomic_unless_they_say_otherwise() {
        let items = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        for (extensions, expected) in [
            (json!({}), ListKind::Atomic),
            (
                json!({"x-kubernetes-list-type": "atomic", "x-kubernetes-patch-strategy": "merge"}),
                ListKind::Atomic,
            ),
            (json!({"x-kubernetes-list-type": "set"}), ListKind::Set),
            (
                json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
                ListKind::Map(vec!["name".to_owned()]),
            ),
            (json!({"x-kubernetes-patch-strategy": "merge"}), ListKind::Set),
            (
                json!({"x-kubernetes-patch-strategy": "merge,retainKeys", "x-kubernetes-patch-merge-key": "name"}),
                ListKind::Map(vec!["name".to_owned()]),
            ),
            (
                json!({"x-kubernetes-patch-strategy": "replace"}),
                ListKind::Atomic,
            ),
        ] {
            let mut schema = json!({"type": "array", "items": items});
            schema
                .as_object_mut()
                .unwrap()
                .extend(extensions.as_object().unwrap().clone());
            let Shape::List(list) = shape(&schema) else {
                panic!("no list")
            };
            assert_eq!(list.kind, expected, "{schema}");
        }
    }

    #[test]
    fn schemas_that_no_structure_fits_are_refused() {
        for (schema, expected) in [
            (
                json!({"type": "object", "properties": {"a": {"$ref": "#/x"}}}),
                "a: $ref is not inlined",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "x"}}}}),
                "a[]: type is not understood",
            ),
            (
                json!({"anyOf": [{"type": "object"}, {"type": "string"}]}),
                ": alternatives without one shape",
            ),
            (
                json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
                ": list of type map needs keys that are fields of its items",
            ),
        ] {
            assert_eq!(
                Structural::from_json_schema(&schema).unwrap_err().to_string(),
                expected
            );
        }
    }

    fn served(kind: &drydock_proto::kinds::Kind, version: &str) -> Structural {
        let face = kind.face(version).unwrap();
        let (spec, status) = ((face.spec)(), (face.status)());
        Structural::for_kind(
            kind.kind,
            version,
            kind.description,
            &[("spec", &spec), ("status", &status)],
        )
        .unwrap()
    }

    #[test]
    fn every_served_kind_has_a_structural_schema() {
        for kind in drydock_proto::kinds::KINDS {
            for face in kind.faces {
                let schema = served(kind, face.version);
                assert!(schema.at(&["spec"]).is_some() && schema.at(&["metadata", "labels"]).is_some());
                assert_eq!(schema.at(&["status", "nothing"]), None);
            }
        }
    }

    #[test]
    fn eviction_requests_are_read_as_their_schema_says() {
        let schema = served(&drydock_proto::kinds::evictionrequest::KIND, "v1alpha3");
        let mut request = json!({
            "apiVersion": "coordination.k8s.io/v1alpha3",
            "kind": "EvictionRequest",
            "metadata": {"name": "u", "annotations": {}},
            "spec": {"target": {"pod": {"name": "p", "uid": "u"}}, "requesters": [{"name": "a.example.com"}], "ttlSecondsAfterFinished": null},
            "status": {"conditions": [], "podEvictionStatus": {}, "interceptors": [{"name": "b.example.com", "heartbeatTime": "2026-01-01T00:00:00.5Z"}]}
        });
        assert_eq!(schema.conform(&mut request).unwrap(), []);
        schema.default(&mut request);
        assert_eq!(
            request,
            json!({
                "apiVersion": "coordination.k8s.io/v1alpha3",
                "kind": "EvictionRequest",
                "metadata": {"name": "u"},
                "spec": {"type": "Soft", "target": {"pod": {"name": "p", "uid": "u"}}, "requesters": [{"name": "a.example.com"}], "heartbeatDeadlineSeconds": 1200},
                "status": {"podEvictionStatus": {"failedAPIEvictionCounter": 0}, "interceptors": [{"name": "b.example.com", "heartbeatTime": "2026-01-01T00:00:00Z"}]}
            })
        );
        for (list, key) in [("requesters", "spec"), ("interceptors", "status")] {
            let Some(Shape::List(found)) = schema.at(&[key, list]).map(|schema| &schema.shape) else {
                panic!("{list}")
            };
            assert_eq!(found.kind, ListKind::Map(vec!["name".to_owned()]));
            assert!(matches!(&found.items.shape, Shape::Object(item) if item.is_atomic));
        }
    }
}
