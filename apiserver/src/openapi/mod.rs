//! OpenAPI: the schemas of the served kinds and the routes to them.
//!
//! `/openapi/v2` is one document; `/openapi/v3` is an index with a document per group-version. All are built once at start
//! and have entity tags, so that the aggregator, which polls every minute, downloads them once. A request with an outdated
//! hash gets the current document: the aggregator does not follow redirects.

mod paths;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drydock_machinery::clock::Clock;
use drydock_machinery::codec;
use drydock_machinery::schema::openapi::{self as shapes, Dialect};
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HeaderName, HeaderValue, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::discovery::{entity_tag, hex_upper};
use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::registry::catalog::Catalog;
use crate::registry::endpoint::Endpoint;
use crate::registry::resource::Resource;
use crate::request::Query;

/// How long clients may cache a document that they request by its hash.
const YEAR: Duration = Duration::from_hours(24 * 365);

#[derive(Debug)]
struct Document {
    bytes: Bytes,
    tag: HeaderValue,
    hash: String,
}

impl Document {
    fn new(value: &Value) -> Self {
        let bytes = Bytes::from(codec::encode(value));
        let hash = hex_upper(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA512, &bytes).as_ref());
        Self {
            tag: entity_tag(&bytes),
            bytes,
            hash,
        }
    }
}

/// The OpenAPI documents.
pub struct OpenApi {
    v2: Document,
    index: Document,
    /// `apis/<group>/<version>` → document.
    group_versions: BTreeMap<String, Document>,
    clock: Arc<dyn Clock>,
}

impl OpenApi {
    /// The documents of a catalog. `clock` is for the expiry of cached documents.
    #[must_use]
    pub fn new(catalog: &Catalog, clock: Arc<dyn Clock>) -> Self {
        let group_versions: BTreeMap<String, Document> = catalog
            .group_versions()
            .into_iter()
            .map(|(group, version)| {
                (
                    root(group, version).trim_start_matches('/').to_owned(),
                    Document::new(&v3(catalog, group, version)),
                )
            })
            .collect();
        let index: Map<String, Value> = group_versions
            .iter()
            .map(|(path, document)| {
                (
                    path.clone(),
                    json!({ "serverRelativeURL": format!("/openapi/v3/{path}?hash={}", document.hash) }),
                )
            })
            .collect();
        Self {
            v2: Document::new(&v2(catalog)),
            index: Document::new(&json!({ "paths": index })),
            group_versions,
            clock,
        }
    }

    /// The response to a path below `/openapi`, or `None` for other paths.
    #[must_use]
    pub fn respond(
        &self,
        path: &str,
        query: &Query,
        headers: &HeaderMap,
    ) -> Option<Result<Response<ResponseBody>, ApiError>> {
        let path = path.trim_end_matches('/');
        match path {
            "/openapi/v2" => Some(Ok(if accepts_json(headers) {
                respond(&self.v2, headers, &[])
            } else {
                not_acceptable()
            })),
            "/openapi/v3" => Some(Ok(respond(&self.index, headers, &[]))),
            _ => {
                let name = path.strip_prefix("/openapi/v3/")?;
                let Some(document) = self.group_versions.get(name) else {
                    return Some(Err(ApiError::no_route()));
                };
                if !accepts_json(headers) {
                    return Some(Ok(not_acceptable()));
                }
                let is_current = query.first("hash") == Some(document.hash.as_str());
                let caching = is_current
                    .then(|| self.cache_headers())
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>();
                Some(Ok(respond(document, headers, &caching)))
            }
        }
    }

    fn cache_headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let until = self.clock.now().checked_add(YEAR).unwrap_or(Timestamp::MAX);
        let text = until.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let expires = HeaderValue::try_from(text).ok().map(|value| (EXPIRES, value));
        std::iter::once((CACHE_CONTROL, HeaderValue::from_static("public, immutable")))
            .chain(expires)
            .collect()
    }
}

fn accepts_json(headers: &HeaderMap) -> bool {
    let mut clauses = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .map(|clause| clause.split(';').next().unwrap_or_default().trim())
        .filter(|clause| !clause.is_empty())
        .peekable();
    clauses.peek().is_none()
        || clauses.any(|clause| matches!(clause, "*/*" | "application/*" | "application/json"))
}

fn not_acceptable() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
    response
}

fn respond(
    document: &Document,
    headers: &HeaderMap,
    more: &[(HeaderName, HeaderValue)],
) -> Response<ResponseBody> {
    let unchanged = headers.get(IF_NONE_MATCH) == Some(&document.tag);
    let mut response = Response::new(if unchanged {
        ResponseBody::empty()
    } else {
        ResponseBody::full(document.bytes.clone())
    });
    if unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ETAG, document.tag.clone());
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    for (name, value) in more {
        headers.insert(name.clone(), value.clone());
    }
    response
}

/// The path below which a group-version is served.
fn root(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

/// The name of a kind's definition, unique among all documents that the aggregator merges.
fn definition_name(endpoint: &Endpoint) -> String {
    let group = endpoint
        .resource()
        .group
        .split('.')
        .next()
        .filter(|group| !group.is_empty())
        .unwrap_or("core");
    format!(
        "io.drydock.api.{group}.{}.{}",
        endpoint.face().version,
        endpoint.kind()
    )
}

fn group_version_kind(resource: &Resource, version: &str, kind: &str) -> Value {
    json!({ "group": resource.group, "version": version, "kind": kind })
}

/// The definitions of a group-version: each kind, its list, and the types that they share.
fn definitions(catalog: &Catalog, group: &str, version: &str, dialect: Dialect) -> Map<String, Value> {
    let mut found = shapes::definitions(dialect);
    for endpoint in catalog.of_group_version(group, version) {
        let resource = endpoint.resource();
        let name = definition_name(&endpoint);
        let own_kind = endpoint.kind();
        let list_kind = format!("{own_kind}List");
        let definition = shapes::schema(&endpoint.face().schema, dialect);
        let list = shapes::list_schema(own_kind, &name, dialect);
        for (name, kind, mut schema) in [
            (format!("{name}List"), list_kind.as_str(), list),
            (name, own_kind, definition),
        ] {
            if let Some(members) = schema.as_object_mut() {
                let kind = group_version_kind(resource, version, kind);
                members.insert("x-kubernetes-group-version-kind".to_owned(), json!([kind]));
            }
            found.insert(name, schema);
        }
    }
    found
}

fn v3(catalog: &Catalog, group: &str, version: &str) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": { "title": "Drydock", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths::of_group_version(catalog, group, version, Dialect::V3),
        "components": { "schemas": definitions(catalog, group, version, Dialect::V3) },
    })
}

fn v2(catalog: &Catalog) -> Value {
    let mut all_paths = Map::new();
    let mut all_definitions = Map::new();
    for (group, version) in catalog.group_versions() {
        all_paths.extend(paths::of_group_version(catalog, group, version, Dialect::V2));
        all_definitions.extend(definitions(catalog, group, version, Dialect::V2));
    }
    json!({
        "swagger": "2.0",
        "info": { "title": "Drydock", "version": env!("CARGO_PKG_VERSION") },
        "paths": all_paths,
        "definitions": all_definitions,
    })
}
