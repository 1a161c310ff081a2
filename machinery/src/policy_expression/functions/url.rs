//! URLs: absolute ones, and absolute paths.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::{Key, Map, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    ("getEscapedPath", Style::Member, 0, 0),
    ("getHost", Style::Member, 0, 0),
    ("getHostname", Style::Member, 0, 0),
    ("getPort", Style::Member, 0, 0),
    ("getQuery", Style::Member, 0, 0),
    ("getScheme", Style::Member, 0, 0),
    ("isURL", Style::Global, 1, 1),
    ("url", Style::Global, 1, 1),
];

/// A URL.
#[derive(Debug)]
pub struct Url {
    /// The whole text.
    pub text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

pub(super) fn call(name: &str, arguments: &[Value], _: &mut Meter<'_>) -> Outcome {
    let [argument] = arguments else {
        return Err(no_overload(name, arguments));
    };
    let url = match (name, argument) {
        ("isURL", Value::String(text)) => return Ok(Url::parse(text).is_ok().into()),
        ("url", Value::String(text)) => {
            return Url::parse(text)
                .map(|url| Value::Url(Arc::new(url)))
                .map_err(|error| {
                    Failure::Error(format!(
                        "URL parse error during conversion from string: parse \"{text}\": {error}"
                    ))
                });
        }
        (_, Value::Url(url)) => url,
        _ => return Err(no_overload(name, arguments)),
    };
    Ok(match name {
        "getScheme" => url.scheme.as_str().into(),
        "getHost" => url.host.as_str().into(),
        "getHostname" => url.host_and_port().0.into(),
        "getPort" => url.host_and_port().1.into(),
        "getEscapedPath" => url.path.as_str().into(),
        "getQuery" => Value::Map(Arc::new(url.query())),
        _ => return Err(no_overload(name, arguments)),
    })
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty url".to_owned());
        }
        if text.chars().any(|character| character.is_ascii_control()) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            _ => (String::new(), text),
        };
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        if scheme.is_empty() && !before.starts_with('/') {
            return Err("invalid URI for request".to_owned());
        }
        let (host, path) = match before.strip_prefix("//") {
            Some(after) if !scheme.is_empty() => {
                let end = after.find('/').unwrap_or(after.len());
                after.split_at_checked(end).unwrap_or((after, ""))
            }
            _ if scheme.is_empty() || before.starts_with('/') => ("", before),
            _ => return Err("invalid URI for request".to_owned()),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let url = Self {
            text: text.to_owned(),
            scheme,
            host: host.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
        };
        let port = url.host_and_port().1;
        if port.chars().any(|character| !character.is_ascii_digit()) {
            return Err(format!("invalid port \":{port}\" after host"));
        }
        if let Some(character) = host.chars().find(|character| " <>\"\\^`{|}".contains(*character)) {
            return Err(format!("invalid character \"{character}\" in host name"));
        }
        escapes(path)?;
        Ok(url)
    }

    fn host_and_port(&self) -> (&str, &str) {
        let host = self.host.as_str();
        if let Some((inside, after)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            return (inside, after.strip_prefix(':').unwrap_or(after));
        }
        host.rsplit_once(':').unwrap_or((host, ""))
    }

    fn query(&self) -> Map {
        let mut values = BTreeMap::<String, Vec<Value>>::new();
        for pair in self
            .query
            .split('&')
            .filter(|pair| !pair.is_empty() && !pair.contains(';'))
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(name), Some(value)) = (decoded(name), decoded(value)) {
                values.entry(name).or_default().push(value.into());
            }
        }
        values
            .into_iter()
            .map(|(name, values)| (Key::String(name.into()), values.into()))
            .collect()
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Checks that each `%` begins an escape.
fn escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let escape: String = text.get(at..).unwrap_or_default().chars().take(3).collect();
        if escape.len() != 3 || !escape.chars().skip(1).all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("invalid URL escape \"{escape}\""));
        }
    }
    Ok(())
}

fn decoded(text: &str) -> Option<String> {
    escapes(text).ok()?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let value = digit(rest.next()?)? * 16 + digit(rest.next()?)?;
                bytes.push(u8::try_from(value).ok()?);
            }
            other => bytes.push(other),
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
