//! Content negotiation: the representation that the client wants.
//!
//! An `Accept` header is a list of clauses with weights. The first clause that can be served is used. A clause whose
//! parameters cannot be served is skipped and not an error, so that the metadata clients of Kubernetes' controllers, which
//! offer several encodings of the same transform, get one of them. As in kube-apiserver, only the first `Accept` line
//! counts.

use http::HeaderMap;
use http::header::ACCEPT;

use super::{info::user_agent, query::Query};
use crate::error::ApiError;

/// Media types of objects, in order of preference.
pub const OBJECT_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/cbor",
];
/// Media types of objects of a kind without a protobuf message.
const OBJECT_TYPES_WITHOUT_PROTOBUF: &[&str] = &["application/json", "application/yaml", "application/cbor"];
/// Media types of watches.
const WATCH_TYPES: &[&str] = &[
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/cbor;stream=watch",
];
/// Media types of watches of a kind without a protobuf message.
const WATCH_TYPES_WITHOUT_PROTOBUF: &[&str] =
    &["application/json;stream=watch", "application/cbor;stream=watch"];

/// An encoding of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaType {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`: a message in Kubernetes' envelope.
    Protobuf,
    /// `application/cbor`.
    Cbor,
}

/// Media types of objects, in order of preference; `has_protobuf` is whether the kind has a protobuf message.
#[must_use]
pub const fn object_types(has_protobuf: bool) -> &'static [&'static str] {
    if has_protobuf {
        OBJECT_TYPES
    } else {
        OBJECT_TYPES_WITHOUT_PROTOBUF
    }
}

impl MediaType {
    /// The encoding that a media type names, without parameters; JSON for an empty one, as in `Content-Type`.
    #[must_use]
    pub fn of_body(media_type: &str) -> Option<Self> {
        match media_type {
            "" | "application/json" | "*/*" => Some(Self::Json),
            "application/yaml" | "application/x-yaml" | "text/yaml" => Some(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            "application/cbor" => Some(Self::Cbor),
            _ => None,
        }
    }

    /// The value of `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
            Self::Cbor => "application/cbor",
        }
    }

    /// The value of `Content-Type` of a watch. YAML has no watches.
    #[must_use]
    pub const fn watch_content_type(self) -> &'static str {
        match self {
            Self::Json | Self::Yaml => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            Self::Cbor => "application/cbor-seq",
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
    /// An error, which is never transformed.
    Status,
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
        let (main, sub) = match parts.next()? {
            "*" => ("*", "*"),
            range => range.split_once('/')?,
        };
        let mut clause = Self {
            main: main.trim(),
            sub: sub.trim(),
            weight: 1.0,
            parameters: Vec::new(),
        };
        for part in parts {
            match part.split_once('=') {
                // kube-apiserver skips such parameters too.
                None | Some((_, "")) => {}
                Some((_, value)) if value.contains('=') => {}
                Some((name, value)) if name.trim() == "q" => clause.weight = value.parse().unwrap_or(0.0),
                Some((name, value)) => clause.parameters.push((name.trim(), value.trim())),
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
        let found = self.parameters.iter().rev().find(|(own, _)| *own == name);
        found.map(|(_, value)| *value)
    }

    fn media_type(&self, has_protobuf: bool) -> Option<MediaType> {
        match (self.main, self.sub) {
            ("*" | "application", "*") | ("application", "json") => Some(MediaType::Json),
            ("application", "yaml") => Some(MediaType::Yaml),
            ("application", "vnd.kubernetes.protobuf") if has_protobuf => Some(MediaType::Protobuf),
            ("application", "cbor") => Some(MediaType::Cbor),
            _ => None,
        }
    }

    /// The transform that the clause asks for; `None` if its parameters cannot be served.
    fn transform(&self, media_type: MediaType, kind: ResponseKind) -> Option<Transform> {
        let stream = self.parameter("stream");
        if stream.is_some_and(|stream| stream != "watch" || media_type == MediaType::Yaml) {
            return None;
        }
        let is_status = kind == ResponseKind::Status;
        if self
            .parameter("sv")
            .is_some_and(|version| is_status || version != "v1")
        {
            return None;
        }
        let asked = ["as", "g", "v"].map(|name| self.parameter(name));
        let [Some(kind), Some("meta.k8s.io"), Some(version)] = asked else {
            return asked.iter().all(Option::is_none).then_some(Transform::None);
        };
        let version = match version {
            "v1" => MetaVersion::V1,
            "v1beta1" => MetaVersion::V1beta1,
            _ => return None,
        };
        match kind {
            _ if is_status => None,
            "Table" if matches!(media_type, MediaType::Json | MediaType::Yaml) => {
                Some(Transform::Table(version))
            }
            "PartialObjectMetadata" => Some(Transform::PartialObject(version)),
            "PartialObjectMetadataList" => Some(Transform::PartialObjectList(version)),
            _ => None,
        }
    }
}

/// The clauses of a header in the order in which they are tried.
fn clauses(header: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = header
        .split(',')
        .filter_map(|text| Clause::parse(text.trim()))
        .collect();
    clauses.sort_by(|a, b| {
        b.weight
            .total_cmp(&a.weight)
            .then_with(|| b.specificity().cmp(&a.specificity()))
    });
    clauses
}

/// Chooses the representation from the headers and the query. `has_protobuf` is whether the kind has a protobuf message.
///
/// # Errors
/// 406 when no clause can be served, when the transform does not apply, and for a watch in YAML.
pub fn negotiate(
    headers: &HeaderMap,
    query: &Query,
    kind: ResponseKind,
    has_protobuf: bool,
) -> Result<Representation, ApiError> {
    let header = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let available = match (kind, has_protobuf) {
        (ResponseKind::Watch, true) => WATCH_TYPES,
        (ResponseKind::Watch, false) => WATCH_TYPES_WITHOUT_PROTOBUF,
        (_, has_protobuf) => object_types(has_protobuf),
    };
    let mut known_type = false;
    let mut chosen = header
        .is_empty()
        .then_some((MediaType::Json, Transform::None, false));
    for clause in &clauses(header) {
        let Some(media_type) = clause.media_type(has_protobuf) else {
            continue;
        };
        known_type = true;
        if let Some(transform) = clause.transform(media_type, kind) {
            chosen = Some((media_type, transform, clause.parameter("pretty") == Some("1")));
            break;
        }
    }
    let Some((media_type, transform, pretty_clause)) = chosen else {
        return Err(if known_type {
            ApiError::not_acceptable(available)
        } else {
            ApiError::not_acceptable_route(available)
        });
    };
    if kind == ResponseKind::Watch && media_type == MediaType::Yaml {
        return Err(ApiError::not_acceptable(available));
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
            pretty: media_type == MediaType::Json
                && kind != ResponseKind::Watch
                && is_pretty(headers, query, pretty_clause),
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
        check_with(accept, kind, true)
    }

    fn check_with(
        accept: &str,
        kind: ResponseKind,
        has_protobuf: bool,
    ) -> Result<(MediaType, Transform), String> {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        negotiate(&headers, &Query::default(), kind, has_protobuf)
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
            ("*", (MediaType::Json, Transform::None)),
            ("application/*", (MediaType::Json, Transform::None)),
            (
                "application/json;q=0, application/yaml;q=0.1",
                (MediaType::Yaml, Transform::None),
            ),
            ("application/json;q=0", (MediaType::Json, Transform::None)),
            (
                "application/cbor;q=x, application/json;q=0.1",
                (MediaType::Json, Transform::None),
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                (MediaType::Protobuf, Transform::None),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                 application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
                (MediaType::Protobuf, Transform::PartialObject(v1)),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,\
                 application/json;as=Table;g=meta.k8s.io;v=v1",
                (MediaType::Json, Transform::Table(v1)),
            ),
            (
                "application/cbor, application/json",
                (MediaType::Cbor, Transform::None),
            ),
            (
                "application/yaml;stream=watch, application/json;stream=watch",
                (MediaType::Json, Transform::None),
            ),
            (
                "application/json;stream=other, application/yaml;sv=v2, application/yaml;sv=v1;odd=x",
                (MediaType::Yaml, Transform::None),
            ),
            (
                "application/json;as=Table;g=meta.k8s.io, application/json;v=v1, application/yaml",
                (MediaType::Yaml, Transform::None),
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
    fn a_kind_without_protobuf_lets_the_clause_pass() {
        let accept = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(
            check_with(accept, ResponseKind::Object, false),
            Ok((MediaType::Json, Transform::None))
        );
        let rejected = check_with("application/vnd.kubernetes.protobuf", ResponseKind::Object, false);
        assert!(!rejected.unwrap_err().contains("protobuf"));
    }

    #[test]
    fn errors_are_never_transformed() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert!(check(table, ResponseKind::Status).is_err());
        assert_eq!(
            check(&format!("{table}, application/yaml"), ResponseKind::Status),
            Ok((MediaType::Yaml, Transform::None))
        );
    }

    #[test]
    fn only_the_first_line_counts() {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, "application/yaml".parse().unwrap());
        headers.append(ACCEPT, "application/json".parse().unwrap());
        let chosen = negotiate(&headers, &Query::default(), ResponseKind::Object, true).unwrap();
        assert_eq!(chosen.media_type, MediaType::Yaml);
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
            negotiate(&headers, &Query::parse(query), ResponseKind::Object, true)
                .unwrap()
                .pretty
        };
        assert!(check("curl/8.0", ""));
        assert!(!check("curl/8.0", "pretty=false"));
        assert!(check("kubectl/v1.37.2", "pretty=true"));
        assert!(!check("kubectl/v1.37.2", ""));
    }
}
