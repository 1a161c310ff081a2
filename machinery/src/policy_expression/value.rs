//! The values of expressions.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use super::functions::authorizer::{Check, Decision};
use super::functions::format::Format;
use super::functions::network::Cidr;
use super::functions::quantity::Quantity;
use super::functions::url::Url;

/// A value. Copies are cheap: what is large is shared.
#[derive(Debug, Clone)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A signed number of 64 bits.
    Int(i64),
    /// An unsigned number of 64 bits.
    Uint(u64),
    /// A floating point number.
    Double(f64),
    /// Text.
    String(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A list.
    List(Arc<Vec<Value>>),
    /// A map.
    Map(Arc<Map>),
    /// A length of time.
    Duration(SignedDuration),
    /// A point in time.
    Timestamp(Timestamp),
    /// A type, by name.
    Type(Arc<str>),
    /// An optional value.
    Optional(Option<Arc<Value>>),
    /// A message that the expression constructed, such as `Object.spec{}`.
    Struct(Arc<Struct>),
    /// An amount of a resource.
    Quantity(Quantity),
    /// An IP address.
    Ip(std::net::IpAddr),
    /// A range of IP addresses.
    Cidr(Cidr),
    /// A URL.
    Url(Arc<Url>),
    /// A semantic version.
    Semver(Arc<semver::Version>),
    /// A named format of strings.
    Format(Format),
    /// An authorization check under construction.
    Check(Arc<Check>),
    /// The result of an authorization check.
    Decision(Arc<Decision>),
}

/// The entries of a map.
pub type Map = BTreeMap<Key, Value>;

/// A key of a map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A boolean.
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// Text.
    String(Arc<str>),
}

/// A message that an expression constructed.
#[derive(Debug)]
pub struct Struct {
    /// The name of its type: `Object`, `Object.spec`, `JSONPatch`.
    pub type_name: String,
    /// Its fields.
    pub fields: BTreeMap<String, Value>,
}

impl Key {
    /// The value of the key.
    #[must_use]
    pub fn value(&self) -> Value {
        match self {
            Self::Bool(bool) => Value::Bool(*bool),
            Self::Int(int) => Value::Int(*int),
            Self::Uint(uint) => Value::Uint(*uint),
            Self::String(text) => Value::String(Arc::clone(text)),
        }
    }

    /// The key that a value is; `None` if values of its type cannot be keys.
    #[must_use]
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(bool) => Some(Self::Bool(*bool)),
            Value::Int(int) => Some(Self::Int(*int)),
            Value::Uint(uint) => Some(Self::Uint(*uint)),
            Value::String(text) => Some(Self::String(Arc::clone(text))),
            _ => None,
        }
    }
}

/// The entry at a key. Numbers of different types are equal if they have the same value.
#[must_use]
pub(super) fn entry<'a>(map: &'a Map, key: &Value) -> Option<&'a Value> {
    if let Some(value) = Key::of(key).and_then(|key| map.get(&key)) {
        return Some(value);
    }
    let (int, uint) = match key {
        Value::Int(int) => (None, u64::try_from(*int).ok()),
        Value::Uint(uint) => (i64::try_from(*uint).ok(), None),
        Value::Double(double) => (
            whole(*double),
            whole(*double).and_then(|int| u64::try_from(int).ok()),
        ),
        _ => return None,
    };
    let int = int.and_then(|int| map.get(&Key::Int(int)));
    int.or_else(|| uint.and_then(|uint| map.get(&Key::Uint(uint))))
}

/// The integer that a floating point number is, if it is one.
#[must_use]
pub(super) fn whole(double: f64) -> Option<i64> {
    // Both limits are exact in floating point.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "within the range and without a fraction"
    )]
    (double.fract() == 0.0 && (-9.223_372_036_854_776e18..9.223_372_036_854_776e18).contains(&double))
        .then_some(double as i64)
}

impl Value {
    /// A value of JSON. Integers that fit are `int`, as in Kubernetes.
    #[must_use]
    pub fn from_json(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(bool) => Self::Bool(*bool),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(int), _) => Self::Int(int),
                (None, double) => Self::Double(double.unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::from(text.as_str()),
            Json::Array(items) => Self::List(Arc::new(items.iter().map(Self::from_json).collect())),
            Json::Object(members) => Self::Map(Arc::new(
                members
                    .iter()
                    .map(|(key, value)| (Key::String(key.as_str().into()), Self::from_json(value)))
                    .collect(),
            )),
        }
    }

    /// The value as JSON.
    ///
    /// # Errors
    /// The type that JSON does not have.
    pub fn to_json(&self) -> Result<Json, String> {
        Ok(match self {
            Self::Null => Json::Null,
            Self::Bool(bool) => Json::Bool(*bool),
            Self::Int(int) => Json::from(*int),
            Self::Uint(uint) => Json::from(*uint),
            Self::Double(double) => whole(*double).map_or_else(|| Json::from(*double), Json::from),
            Self::String(text) => Json::from(text.as_ref()),
            Self::Bytes(bytes) => Json::from(STANDARD.encode(bytes)),
            Self::List(items) => Json::Array(items.iter().map(Self::to_json).collect::<Result<_, _>>()?),
            Self::Map(map) => Json::Object(
                map.iter()
                    .map(|(key, value)| Ok((key.value().to_string(), value.to_json()?)))
                    .collect::<Result<_, String>>()?,
            ),
            Self::Struct(message) => Json::Object(
                message
                    .fields
                    .iter()
                    .map(|(name, value)| Ok((name.clone(), value.to_json()?)))
                    .collect::<Result<_, String>>()?,
            ),
            Self::Duration(_) | Self::Timestamp(_) | Self::Quantity(_) => Json::from(self.to_string()),
            other => return Err(format!("type '{}' cannot be JSON", other.type_name())),
        })
    }

    /// The name of the type.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
            Self::Struct(message) => &message.type_name,
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Check(check) => check.type_name(),
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    /// An optional with a value.
    #[must_use]
    pub fn some(self) -> Self {
        Self::Optional(Some(Arc::new(self)))
    }

    /// Whether the value is the zero of its type.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(bool) => !bool,
            Self::Int(int) => *int == 0,
            Self::Uint(uint) => *uint == 0,
            Self::Double(double) => *double == 0.0,
            Self::String(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Map(map) => map.is_empty(),
            Self::Duration(duration) => duration.is_zero(),
            Self::Struct(message) => message.fields.is_empty(),
            Self::Optional(value) => value.is_none(),
            _ => false,
        }
    }

    /// The size as the cost of operations counts it: characters, bytes, items or entries, and 1 for all others.
    #[must_use]
    pub fn size(&self) -> u64 {
        let size = match self {
            Self::String(text) => text.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(items) => items.len(),
            Self::Map(map) => map.len(),
            Self::Optional(Some(value)) => return value.size(),
            Self::Ip(std::net::IpAddr::V4(_))
            | Self::Cidr(Cidr {
                address: std::net::IpAddr::V4(_),
                ..
            }) => 4,
            Self::Ip(_) | Self::Cidr(_) => 16,
            _ => 1,
        };
        u64::try_from(size).unwrap_or(u64::MAX)
    }

    /// Whether two values are equal. Values of different types are not, except numbers.
    #[must_use]
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) | (Self::Optional(None), Self::Optional(None)) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::String(a), Self::String(b)) | (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.equals(b))
            }
            (Self::Map(a), Self::Map(b)) => {
                let same = |(key, value): (&Key, &Self)| {
                    entry(b, &key.value()).is_some_and(|other| value.equals(other))
                };
                a.len() == b.len() && a.iter().all(same)
            }
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::Timestamp(a), Self::Timestamp(b)) => a == b,
            (Self::Optional(Some(a)), Self::Optional(Some(b))) => a.equals(b),
            (Self::Struct(a), Self::Struct(b)) => {
                let same = |(name, value): (&String, &Self)| {
                    b.fields.get(name).is_some_and(|other| value.equals(other))
                };
                a.type_name == b.type_name && a.fields.len() == b.fields.len() && a.fields.iter().all(same)
            }
            (Self::Quantity(a), Self::Quantity(b)) => a == b,
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Cidr(a), Self::Cidr(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a.text == b.text,
            (Self::Semver(a), Self::Semver(b)) => a.cmp_precedence(b).is_eq(),
            (Self::Format(a), Self::Format(b)) => a == b,
            (Self::Check(a), Self::Check(b)) => a == b,
            (Self::Decision(a), Self::Decision(b)) => a == b,
            (a, b) => a.number().is_some() && b.number().is_some() && a.compare(b) == Some(Ordering::Equal),
        }
    }

    /// The number as floating point, of values that are numbers.
    fn number(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "compared with a floating point number")]
        match self {
            Self::Int(int) => Some(*int as f64),
            Self::Uint(uint) => Some(*uint as f64),
            Self::Double(double) => Some(*double),
            _ => None,
        }
    }

    /// The order of two values; `None` if they have none: they differ in type, or one is not a number.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Uint(a), Self::Uint(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Uint(a), Self::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::String(a), Self::String(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            (a, b) => a.number()?.partial_cmp(&b.number()?),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}

impl From<bool> for Value {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Self {
        Self::List(Arc::new(items))
    }
}

/// A count. No collection has more items than fit into the type.
impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Int(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

/// As the conversion to a string and error messages show the value.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => out.write_str("null"),
            Self::Bool(bool) => bool.fmt(out),
            Self::Int(int) => int.fmt(out),
            Self::Uint(uint) => uint.fmt(out),
            Self::Double(double) => out.write_str(&super::functions::convert::double_text(*double)),
            Self::String(text) | Self::Type(text) => out.write_str(text),
            Self::Bytes(bytes) => out.write_str(&String::from_utf8_lossy(bytes)),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                write!(out, "[{}]", items.join(", "))
            }
            Self::Map(map) => {
                let entries: Vec<String> = map
                    .iter()
                    .map(|(key, value)| format!("{}: {value}", key.value()))
                    .collect();
                write!(out, "{{{}}}", entries.join(", "))
            }
            Self::Duration(duration) => out.write_str(&super::functions::time::duration_text(*duration)),
            Self::Timestamp(timestamp) => timestamp.fmt(out),
            Self::Optional(None) => out.write_str("optional.none()"),
            Self::Optional(Some(value)) => write!(out, "optional({value})"),
            Self::Struct(message) => out.write_str(&message.type_name),
            Self::Quantity(quantity) => quantity.fmt(out),
            Self::Ip(address) => address.fmt(out),
            Self::Cidr(cidr) => cidr.fmt(out),
            Self::Url(url) => out.write_str(&url.text),
            Self::Semver(version) => version.fmt(out),
            Self::Format(format) => out.write_str(format.name),
            Self::Check(check) => out.write_str(check.type_name()),
            Self::Decision(_) => out.write_str("decision"),
        }
    }
}
