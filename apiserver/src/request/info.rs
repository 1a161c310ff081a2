//! Parses method and path into verb, resource and name.
//!
//! The path is decoded and split only here. Authorization and routing use the same result, so that a request cannot be
//! authorized as one thing and served as another.

use http::{HeaderMap, Method, header};
use percent_encoding::percent_decode_str;

use super::query::{Query, escapes_are_valid};
use crate::error::ApiError;

/// The verb of a request, as authorization names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read a collection.
    List,
    /// Watch a collection, or one object through the deprecated `/watch/` path.
    Watch,
    /// Create an object.
    Create,
    /// Replace an object.
    Update,
    /// Patch an object, apply included.
    Patch,
    /// Delete an object.
    Delete,
    /// Delete a collection.
    DeleteCollection,
    /// The deprecated `/proxy/` path; nothing serves it.
    Proxy,
    /// A method without a verb, such as OPTIONS. Only users who may do everything are authorized for it, and get 405.
    None,
}

impl Verb {
    /// The spelling in reviews and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::None => "",
        }
    }

    /// Whether the verb changes objects; such requests have their own limit.
    #[must_use]
    pub const fn is_mutating(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// A parsed request line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The decoded path, slashes included.
    pub path: String,
    /// HTTP method.
    pub method: Method,
    /// Whether the request is a server-side apply, by its Content-Type.
    pub is_apply: bool,
    /// The resource; absent for paths such as `/apis`, `/healthz`, `/openapi/v3`.
    pub resource: Option<ResourceRequest>,
}

/// A request for a resource of a group-version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRequest {
    /// Authorization verb.
    pub verb: Verb,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Plural resource name; empty when the path has an empty segment there.
    pub resource: String,
    /// Object name, or empty.
    pub name: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Segments after the subresource. Authorization ignores them; routing must respond with 404 if there are any.
    pub surplus_segments: usize,
    /// Whether the path has the deprecated `/watch/` prefix: then a name is watched, and selectors are not authorized.
    pub watch_prefix: bool,
    /// The name in the field selector of a list or watch (`metadata.name=x`). The review uses it; the request is still for
    /// a collection.
    pub selected_name: Option<String>,
}

impl ResourceRequest {
    /// The name that authorization sees.
    #[must_use]
    pub fn review_name(&self) -> &str {
        self.selected_name.as_deref().unwrap_or(&self.name)
    }
}

impl RequestInfo {
    /// Parses method, raw path (as on the wire, without query) and query.
    ///
    /// # Errors
    /// 400 for broken percent escapes and for paths that are not UTF-8.
    pub fn parse(method: &Method, raw_path: &str, query: &Query) -> Result<Self, ApiError> {
        if !escapes_are_valid(raw_path) {
            return Err(ApiError::bad_request("the path holds a broken percent escape"));
        }
        let path = percent_decode_str(raw_path)
            .decode_utf8()
            .map_err(|error| ApiError::bad_request("the path is not UTF-8").because(error))?
            .into_owned();
        let resource = parse_resource(method, &path, query);
        Ok(Self {
            path,
            method: method.clone(),
            is_apply: false,
            resource,
        })
    }

    /// Whether the response has no time limit: watches, and profiles.
    #[must_use]
    pub fn is_long_running(&self) -> bool {
        match &self.resource {
            Some(resource) => matches!(resource.verb, Verb::Watch | Verb::Proxy),
            None => self.path.starts_with("/debug/pprof/"),
        }
    }

    /// Whether the limit for writes applies to the request.
    #[must_use]
    pub fn is_mutating(&self) -> bool {
        match &self.resource {
            Some(resource) => resource.verb.is_mutating(),
            None => !matches!(self.method, Method::GET | Method::HEAD),
        }
    }

    /// The verb for the review: that of the resource, or the lower-case method of a path.
    #[must_use]
    pub fn review_verb(&self) -> String {
        match &self.resource {
            Some(resource) => resource.verb.as_str().to_owned(),
            None => self.method.as_str().to_ascii_lowercase(),
        }
    }
}

/// The `User-Agent`; empty when absent or not text.
#[must_use]
pub fn user_agent(headers: &HeaderMap) -> &str {
    headers
        .get(header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default()
}

fn parse_resource(method: &Method, path: &str, query: &Query) -> Option<ResourceRequest> {
    let mut segments = path.trim_matches('/').split('/');
    let (group, version) = match segments.next() {
        Some("apis") => (segments.next()?, segments.next()?),
        Some("api") => ("", segments.next()?),
        _ => return None,
    };
    let mut first = segments.next()?;

    let mut forced = None;
    if matches!(first, "watch" | "proxy") {
        forced = Some(if first == "watch" {
            Verb::Watch
        } else {
            Verb::Proxy
        });
        first = segments.next().unwrap_or_default();
    }

    let mut namespace = "";
    let mut name = None;
    let mut subresource = None;
    let mut resource = first;
    if first == "namespaces"
        && let Some(in_namespace) = segments.next()
    {
        namespace = in_namespace;
        match segments.next() {
            Some(of_namespace @ ("status" | "finalize")) => {
                name = Some(in_namespace);
                subresource = Some(of_namespace);
            }
            Some(inner) => resource = inner,
            None => name = Some(in_namespace),
        }
    }
    let name = name.or_else(|| segments.next()).unwrap_or_default();
    let subresource = subresource.or_else(|| segments.next()).unwrap_or_default();

    let verb = forced.unwrap_or_else(|| verb_of(method, name, query));
    let selects = matches!(verb, Verb::List | Verb::Watch) && forced.is_none() && name.is_empty();
    let selected_name = if selects {
        query
            .first("fieldSelector")
            .and_then(pinned_name)
            .map(str::to_owned)
    } else {
        None
    };

    Some(ResourceRequest {
        verb,
        group: group.to_owned(),
        version: version.to_owned(),
        namespace: namespace.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
        surplus_segments: segments.count(),
        watch_prefix: forced == Some(Verb::Watch),
        selected_name,
    })
}

fn verb_of(method: &Method, name: &str, query: &Query) -> Verb {
    let named = !name.is_empty();
    match *method {
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if named => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        Method::GET | Method::HEAD if named => Verb::Get,
        Method::GET | Method::HEAD if query.boolean("watch") == Some(true) => Verb::Watch,
        Method::GET | Method::HEAD => Verb::List,
        _ => Verb::None,
    }
}

/// The name in `metadata.name=x`, if it can be a path segment.
fn pinned_name(selector: &str) -> Option<&str> {
    let mut pinned = None;
    for term in selector.split(',') {
        let Some((field, value)) = term.split_once('=') else {
            continue;
        };
        if field.ends_with('!') || field != "metadata.name" {
            continue;
        }
        pinned = Some(value.strip_prefix('=').unwrap_or(value));
    }
    pinned
        .filter(|name| !name.is_empty() && *name != "." && *name != ".." && !name.contains(['/', '%', '\\']))
}

/// Fuzz target: a request line, `METHOD PATH?QUERY`.
pub fn fuzz_parse(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (method, target) = text.split_once(' ').unwrap_or(("GET", &text));
    let Ok(method) = method.parse::<Method>() else {
        return;
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    // An error is among the expected results.
    std::hint::black_box(RequestInfo::parse(&method, path, &Query::parse(query)).is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `verb group/version namespace resource name subresource +surplus`, or `path`.
    fn describe(method: &str, target: &str) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let info = RequestInfo::parse(&method, path, &Query::parse(query)).unwrap();
        match info.resource {
            None => format!("{} {}", info.review_verb(), info.path),
            Some(r) => format!(
                "{}|{}/{}|{}|{}|{}|{}|{}",
                r.verb.as_str(),
                r.group,
                r.version,
                r.namespace,
                r.resource,
                r.review_name(),
                r.subresource,
                r.surplus_segments
            ),
        }
    }

    #[test]
    fn paths_below_a_group_version_are_resources() {
        for (method, path, expected) in [
            ("GET", "/apis/g/v/rs", "list|g/v||rs|||0"),
            ("GET", "/apis/g/v/rs/", "list|g/v||rs|||0"),
            ("GET", "/apis/g/v/rs//", "list|g/v||rs|||0"),
            ("GET", "/apis/g/v/rs/x", "get|g/v||rs|x||0"),
            ("GET", "/apis/g/v/rs/x/status", "get|g/v||rs|x|status|0"),
            ("GET", "/apis/g/v/rs/x/status/more/yet", "get|g/v||rs|x|status|2"),
            ("GET", "/apis/g/v/namespaces/ns/rs", "list|g/v|ns|rs|||0"),
            (
                "PUT",
                "/apis/g/v/namespaces/ns/rs/x/status",
                "update|g/v|ns|rs|x|status|0",
            ),
            ("GET", "/apis/g/v/namespaces/ns", "get|g/v|ns|namespaces|ns||0"),
            ("GET", "/apis/g/v/namespaces", "list|g/v||namespaces|||0"),
            ("GET", "/apis/g/v/rs/a%2Fb", "get|g/v||rs|a|b|0"),
            ("GET", "/apis/g/v/rs/a%20b", "get|g/v||rs|a b||0"),
            ("GET", "/apis/g/v//x", "get|g/v|||x||0"),
            ("GET", "//apis/g/v/rs", "list|g/v||rs|||0"),
            ("GET", "/api/v1/pods", "list|/v1||pods|||0"),
            (
                "POST",
                "/api/v1/namespaces/ns/pods/x/eviction",
                "create|/v1|ns|pods|x|eviction|0",
            ),
            ("GET", "/api/v1/namespaces/ns", "get|/v1|ns|namespaces|ns||0"),
            (
                "PUT",
                "/api/v1/namespaces/ns/status",
                "update|/v1|ns|namespaces|ns|status|0",
            ),
        ] {
            assert_eq!(describe(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn other_paths_are_not_resources() {
        for (method, path, expected) in [
            ("GET", "/", "get /"),
            ("GET", "/apis", "get /apis"),
            ("GET", "/apis/g/v/", "get /apis/g/v/"),
            ("POST", "/readyz", "post /readyz"),
            ("GET", "/healthz/", "get /healthz/"),
            ("GET", "/api/v1", "get /api/v1"),
            (
                "OPTIONS",
                "/openapi/v3/apis/g/v/x",
                "options /openapi/v3/apis/g/v/x",
            ),
        ] {
            assert_eq!(describe(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn verbs_follow_method_name_and_watch() {
        for (method, suffix, verb) in [
            ("POST", "", "create"),
            ("POST", "/x", "create"),
            ("PUT", "/x", "update"),
            ("PATCH", "/x", "patch"),
            ("DELETE", "/x", "delete"),
            ("DELETE", "", "deletecollection"),
            ("HEAD", "/x", "get"),
            ("HEAD", "", "list"),
            ("GET", "?watch", "watch"),
            ("GET", "?watch=1", "watch"),
            ("GET", "?watch=true", "watch"),
            ("GET", "?watch=", "watch"),
            ("GET", "?watch=no", "watch"),
            ("GET", "?watch=false", "list"),
            ("GET", "?watch=False", "list"),
            ("GET", "?watch=0", "list"),
            ("GET", "?watch=0&watch=1", "list"),
            ("GET", "/x?watch=1", "get"),
            ("OPTIONS", "/x", ""),
            ("TRACE", "", ""),
        ] {
            let described = describe(method, &format!("/apis/g/v/rs{suffix}"));
            assert_eq!(described.split('|').next(), Some(verb), "{method} {suffix}");
        }
    }

    #[test]
    fn the_watch_prefix_watches_one_name_too() {
        assert_eq!(
            describe("GET", "/apis/g/v/watch/namespaces/ns/rs/x"),
            "watch|g/v|ns|rs|x||0"
        );
        assert_eq!(
            describe("GET", "/apis/g/v/watch/rs?fieldSelector=metadata.name=y"),
            "watch|g/v||rs|||0"
        );
        assert_eq!(describe("DELETE", "/apis/g/v/watch/rs"), "watch|g/v||rs|||0");
        assert_eq!(describe("GET", "/apis/g/v/watch"), "watch|g/v|||||0");
        assert_eq!(describe("GET", "/apis/g/v/proxy/rs/x"), "proxy|g/v||rs|x||0");
    }

    #[test]
    fn a_field_selector_sets_the_reviewed_name() {
        for (query, name) in [
            ("fieldSelector=metadata.name=x", "x"),
            ("fieldSelector=metadata.name%3D%3Dx", "x"),
            ("fieldSelector=a=b,metadata.name=x", "x"),
            ("watch=1&fieldSelector=metadata.name=x", "x"),
            ("fieldSelector=metadata.name!=x", ""),
            ("fieldSelector=metadata.name=..", ""),
            ("fieldSelector=metadata.name=a%2Fb", ""),
            ("fieldSelector=other=x", ""),
        ] {
            let described = describe("GET", &format!("/apis/g/v/rs?{query}"));
            assert_eq!(described.split('|').nth(4), Some(name), "{query}");
        }
        assert_eq!(
            describe("DELETE", "/apis/g/v/rs?fieldSelector=metadata.name=x"),
            "deletecollection|g/v||rs|||0"
        );
    }

    #[test]
    fn paths_that_cannot_be_decoded_are_rejected() {
        for path in ["/apis/%zz", "/apis/%", "/apis/%e4"] {
            let error = RequestInfo::parse(&Method::GET, path, &Query::default()).unwrap_err();
            assert_eq!(error.code(), 400, "{path}");
        }
    }
}
