//! Named formats of strings: `format.dns1123Label().validate(name)`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::url::Url;
use super::{Function, Style, no_overload, time};
use crate::names::{dns_label_errors, dns_subdomain_errors, label_key_errors, label_value_errors};
use crate::policy_expression::meter::{Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("format.byte", Style::Member, 0, 0),
    ("format.date", Style::Member, 0, 0),
    ("format.datetime", Style::Member, 0, 0),
    ("format.dns1035Label", Style::Member, 0, 0),
    ("format.dns1035LabelPrefix", Style::Member, 0, 0),
    ("format.dns1123Label", Style::Member, 0, 0),
    ("format.dns1123LabelPrefix", Style::Member, 0, 0),
    ("format.dns1123Subdomain", Style::Member, 0, 0),
    ("format.dns1123SubdomainPrefix", Style::Member, 0, 0),
    ("format.labelValue", Style::Member, 0, 0),
    ("format.named", Style::Member, 1, 1),
    ("format.qualifiedName", Style::Member, 0, 0),
    ("format.uri", Style::Member, 0, 0),
    ("format.uuid", Style::Member, 0, 0),
    ("validate", Style::Member, 1, 1),
];

/// A named format.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// The name.
    pub name: &'static str,
    /// The length of its pattern, as costs count it.
    pub(super) pattern: u64,
    errors: fn(&str) -> Vec<String>,
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// The formats by the names of their functions.
static FORMATS: [(&str, Format); 13] = [
    (
        "byte",
        Format {
            name: "byte",
            pattern: 108,
            errors: byte,
        },
    ),
    (
        "date",
        Format {
            name: "date",
            pattern: 191,
            errors: date,
        },
    ),
    (
        "datetime",
        Format {
            name: "datetime",
            pattern: 191,
            errors: datetime,
        },
    ),
    (
        "dns1035Label",
        Format {
            name: "DNS1035Label",
            pattern: 30,
            errors: dns1035,
        },
    ),
    (
        "dns1035LabelPrefix",
        Format {
            name: "DNS1035LabelPrefix",
            pattern: 30,
            errors: |text| dns1035(&prefix(text)),
        },
    ),
    (
        "dns1123Label",
        Format {
            name: "DNS1123Label",
            pattern: 30,
            errors: dns_label_errors,
        },
    ),
    (
        "dns1123LabelPrefix",
        Format {
            name: "DNS1123LabelPrefix",
            pattern: 30,
            errors: |text| dns_label_errors(&prefix(text)),
        },
    ),
    (
        "dns1123Subdomain",
        Format {
            name: "DNS1123Subdomain",
            pattern: 60,
            errors: dns_subdomain_errors,
        },
    ),
    (
        "dns1123SubdomainPrefix",
        Format {
            name: "DNS1123SubdomainPrefix",
            pattern: 60,
            errors: |text| dns_subdomain_errors(&prefix(text)),
        },
    ),
    (
        "labelValue",
        Format {
            name: "LabelValue",
            pattern: 40,
            errors: label_value_errors,
        },
    ),
    (
        "qualifiedName",
        Format {
            name: "QualifiedName",
            pattern: 60,
            errors: label_key_errors,
        },
    ),
    (
        "uri",
        Format {
            name: "URI",
            pattern: 1_118,
            errors: uri,
        },
    ),
    (
        "uuid",
        Format {
            name: "uuid",
            pattern: 73,
            errors: uuid,
        },
    ),
];

fn named(name: &str) -> Option<Format> {
    FORMATS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, format)| *format)
}

pub(super) fn call(name: &str, arguments: &[Value], _: &mut Meter<'_>) -> Outcome {
    match (name, arguments) {
        ("format.named", [Value::String(name)]) => {
            Ok(named(name).map_or(Value::Optional(None), |format| Value::Format(format).some()))
        }
        ("validate", [Value::Format(format), Value::String(text)]) => {
            let errors: Vec<Value> = (format.errors)(text).into_iter().map(Value::from).collect();
            Ok(if errors.is_empty() {
                Value::Optional(None)
            } else {
                Value::from(errors).some()
            })
        }
        (name, []) => name
            .strip_prefix("format.")
            .and_then(named)
            .map(Value::Format)
            .ok_or_else(|| no_overload(name, arguments)),
        _ => Err(no_overload(name, arguments)),
    }
}

/// What stands for a prefix that may end in a dash.
fn prefix(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(before) if !before.is_empty() => {
            let mut masked: String = before.chars().take(before.chars().count() - 1).collect();
            masked.push('a');
            masked
        }
        _ => text.to_owned(),
    }
}

fn valid(is_valid: bool, error: &str) -> Vec<String> {
    if is_valid {
        Vec::new()
    } else {
        vec![error.to_owned()]
    }
}

fn dns1035(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push("must be no more than 63 characters".to_owned());
    }
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !text.starts_with(|c: char| c.is_ascii_lowercase()) || text.ends_with('-') || !text.chars().all(inner)
    {
        errors.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    errors
}

fn byte(text: &str) -> Vec<String> {
    valid(
        !text.is_empty() && STANDARD.decode(text).is_ok(),
        "invalid base64",
    )
}

fn date(text: &str) -> Vec<String> {
    let shaped = text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok();
    valid(shaped, "invalid date")
}

fn datetime(text: &str) -> Vec<String> {
    valid(time::parse_timestamp(text).is_some(), "invalid datetime")
}

fn uri(text: &str) -> Vec<String> {
    match Url::parse(text) {
        Ok(_) => Vec::new(),
        Err(error) => vec![format!("parse \"{text}\": {error}")],
    }
}

fn uuid(text: &str) -> Vec<String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let dashes = text.len() == 32
        || [8, 13, 18, 23]
            .iter()
            .all(|at| text.as_bytes().get(*at) == Some(&b'-'));
    let shaped = digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit()) && dashes;
    valid(
        shaped && (text.len() == 32 || text.len() == 36),
        "does not match the UUID format",
    )
}
