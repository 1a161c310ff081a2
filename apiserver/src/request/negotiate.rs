//! Content negotiation: the representation that the client wants.
//!
//! An `Accept` header is a list of clauses with weights. The first clause that can be served is used. A clause whose
//! parameters cannot be served is skipped and not an error, so that the metadata clients of Kubernetes' controllers, which
//! ask for protobuf first, get the same transform in JSON.

use http::HeaderMap;
use http::header::ACCEPT;

use super::{info::user_agent, query::Query};
use crate::error::ApiError;

/// Media types of objects, in order of preference.
pub const OBJECT_TYPES: &[&str] = &["application/json", "application/yaml"];
/// Media types of watches.
pub const WATCH_TYPES: &[&str] = &["application/json;stream=watch"];

/// The encoding of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaType {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
}

impl MediaType {
    /// The value of `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

/// The version of `meta.k8s.io` of a transform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetaVersion {
    /// `meta.k8s.io/v1`.
    V1,
    /// `meta.k8s.io/v1beta1`.
    V1beta1,
}

impl MetaVersion {
    /// The `apiVersion`.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// The shape of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transform {
    /// Objects as they are.
    None,
    /// A table for display.
    Table(MetaVersion),
    /// One object's metadata.
    PartialObject(MetaVersion),
    /// A list of metadata.
    PartialObjectList(MetaVersion),
}

/// What the response holds, to reject transforms that do not apply to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseKind {
    /// One object.
    Object,
    /// A list.
    List,
    /// A stream of events.
    Watch,
}

/// The representation of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Representation {
    /// The encoding.
    pub media_type: MediaType,
    /// The shape.
    pub transform: Transform,
    /// Whether JSON is indented by two spaces.
    pub pretty: bool,
}

impl Representation {
    /// Plain, compact JSON.
    pub const JSON: Self = Self {
        media_type: MediaType::Json,
        transform: Transform::None,
        pretty: false,
    };
}

struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    weight: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (main, sub) = parts.next()?.split_once('/')?;
        let mut clause = Self {
            main,
            sub,
            weight: 1.0,
            parameters: Vec::new(),
        };
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim().trim_matches('"');
            if name.trim().eq_ignore_ascii_case("q") {
                clause.weight = value.parse().unwrap_or(1.0);
            } else {
                clause.parameters.push((name.trim(), value));
            }
        }
        Some(clause)
    }

    fn specificity(&self) -> u8 {
        match (self.main, self.sub) {
            ("*", _) => 0,
            (_, "*") => 1,
            _ => 2,
        }
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters
            .iter()
            .find(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }

    fn media_type(&self) -> Option<MediaType> {
        match (self.main, self.sub) {
            ("*" | "application", "*") | ("application", "json") => Some(MediaType::Json),
            ("application", "yaml") => Some(MediaType::Yaml),
            _ => None,
        }
    }

    /// `None` when the clause asks for an unknown transform.
    fn transform(&self) -> Option<Transform> {
        let Some(kind) = self.parameter("as") else {
            return Some(Transform::None);
        };
        if self.parameter("g") != Some("meta.k8s.io") {
            return None;
        }
        let version = match self.parameter("v") {
            Some("v1") => MetaVersion::V1,
            Some("v1beta1") => MetaVersion::V1beta1,
            _ => return None,
        };
        match kind {
            "Table" => Some(Transform::Table(version)),
            "PartialObjectMetadata" => Some(Transform::PartialObject(version)),
            "PartialObjectMetadataList" => Some(Transform::PartialObjectList(version)),
            _ => None,
        }
    }
}

/// Chooses the representation from the headers and the query.
///
/// # Errors
/// 406 when no clause can be served, when the transform does not apply, and for a watch in YAML.
pub fn negotiate(headers: &HeaderMap, query: &Query, kind: ResponseKind) -> Result<Representation, ApiError> {
    let texts: Vec<&str> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let mut clauses: Vec<Clause<'_>> = texts
        .iter()
        .flat_map(|text| text.split(','))
        .filter_map(|text| Clause::parse(text.trim()))
        .collect();
    let has_accept = texts.iter().any(|text| !text.trim().is_empty());
    clauses.sort_by(|a, b| {
        b.weight
            .total_cmp(&a.weight)
            .then_with(|| b.specificity().cmp(&a.specificity()))
    });

    let mut known_type = !has_accept;
    let mut chosen = (!has_accept).then_some((MediaType::Json, Transform::None, false));
    for clause in &clauses {
        let Some(media_type) = clause.media_type() else {
            continue;
        };
        known_type = true;
        if let Some(transform) = clause.transform() {
            chosen = Some((media_type, transform, clause.parameter("pretty") == Some("1")));
            break;
        }
    }
    let Some((media_type, transform, pretty_clause)) = chosen else {
        let available = if kind == ResponseKind::Watch {
            WATCH_TYPES
        } else {
            OBJECT_TYPES
        };
        return Err(if known_type {
            ApiError::not_acceptable(available)
        } else {
            ApiError::not_acceptable_route(available)
        });
    };
    if kind == ResponseKind::Watch && media_type == MediaType::Yaml {
        return Err(ApiError::not_acceptable(WATCH_TYPES));
    }
    match (transform, kind) {
        (Transform::PartialObject(_), ResponseKind::List) => Err(ApiError::not_acceptable_because(
            "you requested PartialObjectMetadata, but the requested object is a list",
        )),
        (Transform::PartialObjectList(_), ResponseKind::Object | ResponseKind::Watch) => {
            Err(ApiError::not_acceptable_because(
                "you requested PartialObjectMetadataList, but the requested object is not a list",
            ))
        }
        _ => Ok(Representation {
            media_type,
            transform,
            pretty: kind != ResponseKind::Watch && is_pretty(headers, query, pretty_clause),
        }),
    }
}

/// Whether JSON is indented: by `?pretty=`, by the clause, or because the client is an interactive tool.
fn is_pretty(headers: &HeaderMap, query: &Query, pretty_clause: bool) -> bool {
    if let Some(value) = query.first("pretty") {
        return matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = user_agent(headers);
    pretty_clause
        || ["curl", "Wget", "Mozilla/5.0"]
            .iter()
            .any(|tool| agent.starts_with(tool))
}

#[cfg(test)]
mod tests {
    use http::header::USER_AGENT;

    use super::*;

    fn check(accept: &str, kind: ResponseKind) -> Result<(MediaType, Transform), String> {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        negotiate(&headers, &Query::default(), kind)
            .map(|chosen| (chosen.media_type, chosen.transform))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_servable_clause_by_weight_wins() {
        let v1 = MetaVersion::V1;
        for (accept, expected) in [
            ("", (MediaType::Json, Transform::None)),
            ("*/*", (MediaType::Json, Transform::None)),
            ("application/yaml", (MediaType::Yaml, Transform::None)),
            (
                "application/yaml;q=0.5, application/json",
                (MediaType::Json, Transform::None),
            ),
            ("*/*, application/yaml", (MediaType::Yaml, Transform::None)),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                (MediaType::Json, Transform::None),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                 application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
                (MediaType::Json, Transform::PartialObject(v1)),
            ),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                (MediaType::Json, Transform::Table(v1)),
            ),
            (
                "application/json;as=Unheard;g=meta.k8s.io;v=v1,application/json",
                (MediaType::Json, Transform::None),
            ),
        ] {
            assert_eq!(check(accept, ResponseKind::Object), Ok(expected), "{accept}");
        }
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        for (accept, kind, text) in [
            ("application/xml", ResponseKind::Object, "406: Not Acceptable"),
            (
                "application/json;as=Unheard;g=x;v=v1",
                ResponseKind::Object,
                "only the following media types are accepted",
            ),
            (
                "application/yaml",
                ResponseKind::Watch,
                "application/json;stream=watch",
            ),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                ResponseKind::List,
                "the requested object is a list",
            ),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                ResponseKind::Object,
                "is not a list",
            ),
        ] {
            let rejected = check(accept, kind).unwrap_err();
            assert!(rejected.contains(text), "{accept}: {rejected}");
        }
    }

    #[test]
    fn people_get_indented_answers() {
        let check = |agent: &str, query: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(USER_AGENT, agent.parse().unwrap());
            negotiate(&headers, &Query::parse(query), ResponseKind::Object)
                .unwrap()
                .pretty
        };
        assert!(check("curl/8.0", ""));
        assert!(!check("curl/8.0", "pretty=false"));
        assert!(check("kubectl/v1.37.2", "pretty=true"));
        assert!(!check("kubectl/v1.37.2", ""));
    }
}
