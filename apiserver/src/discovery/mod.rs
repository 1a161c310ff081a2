//! Discovery: what the server serves.
//!
//! There are two formats: the older one with a document per group-version, and aggregated discovery with one document for
//! everything. The documents are built once at start and do not change while the server runs, so that entity tags save
//! clients a second download.

use std::collections::HashMap;

use aws_lc_rs::digest::{SHA256, SHA512, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::registry::catalog::Catalog;
use crate::registry::endpoint::Endpoint;
use crate::registry::resource::{Resource, api_version};

/// Verbs of a resource, sorted.
const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
/// The media type of aggregated discovery in responses.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The discovery documents.
#[derive(Debug)]
pub struct Discovery {
    /// Path without trailing slash → document.
    documents: HashMap<String, Bytes>,
    aggregated: Bytes,
    aggregated_core: Bytes,
    entity_tag: HeaderValue,
    core_entity_tag: HeaderValue,
}

impl Discovery {
    /// The documents of a catalog.
    #[must_use]
    pub fn new(catalog: &Catalog) -> Self {
        let mut documents = HashMap::new();
        let mut groups: Vec<&'static str> = Vec::new();
        for (group, version) in catalog.group_versions() {
            let path = if group.is_empty() {
                format!("/api/{version}")
            } else {
                format!("/apis/{group}/{version}")
            };
            documents.insert(path, document(&resource_list(catalog, group, version)));
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let named: Vec<&str> = groups.iter().copied().filter(|group| !group.is_empty()).collect();
        for group in &named {
            documents.insert(
                format!("/apis/{group}"),
                document(&group_document(catalog, group)),
            );
        }
        let group_list: Vec<Value> = named.iter().map(|group| group_entry(catalog, group)).collect();
        documents.insert(
            "/apis".to_owned(),
            document(&json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": group_list })),
        );
        if groups.contains(&"") {
            documents.insert("/api".to_owned(), document(&core_versions(catalog)));
        }
        let aggregated = document(&aggregated_document(catalog, &named));
        let aggregated_core = document(&aggregated_document(catalog, &[""]));
        Self {
            documents,
            entity_tag: entity_tag(&aggregated),
            core_entity_tag: entity_tag(&aggregated_core),
            aggregated,
            aggregated_core,
        }
    }

    /// The paths of the documents, sorted, for the index.
    #[must_use]
    pub fn paths(&self) -> Vec<&str> {
        let mut paths: Vec<&str> = self.documents.keys().map(String::as_str).collect();
        paths.sort_unstable();
        paths
    }

    /// The response to a discovery path, or `None` for other paths.
    #[must_use]
    pub fn respond(&self, path: &str, headers: &HeaderMap) -> Option<Response<ResponseBody>> {
        let path = path.trim_end_matches('/');
        let wanted = matches!(path, "/apis" | "/api").then(|| asked_form(headers));
        match wanted {
            Some(Form::Aggregated) if path == "/apis" => {
                Some(tagged(&self.aggregated, &self.entity_tag, headers))
            }
            Some(Form::Aggregated) if self.documents.contains_key("/api") => {
                Some(tagged(&self.aggregated_core, &self.core_entity_tag, headers))
            }
            Some(Form::Unacceptable) if self.documents.contains_key(path) => {
                Some(ApiError::not_acceptable(crate::request::negotiate::OBJECT_TYPES).into_response())
            }
            _ => self.documents.get(path).map(|document| {
                let mut response = Response::new(ResponseBody::full(document.clone()));
                response
                    .headers_mut()
                    .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }),
        }
    }
}

enum Form {
    Aggregated,
    Legacy,
    Unacceptable,
}

/// The first clause of `Accept` that can be served: aggregated discovery in v2, or plain JSON.
fn asked_form(headers: &HeaderMap) -> Form {
    let texts: Vec<&str> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let clauses: Vec<&str> = texts
        .iter()
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .filter(|clause| !clause.is_empty())
        .collect();
    for clause in &clauses {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<&str> = parts.collect();
        let has = |parameter: &str| parameters.contains(&parameter);
        let is_plain = !parameters.iter().any(|parameter| parameter.starts_with("as="));
        match media_type {
            "application/json"
                if has("as=APIGroupDiscoveryList") && has("g=apidiscovery.k8s.io") && has("v=v2") =>
            {
                return Form::Aggregated;
            }
            "application/json" | "*/*" | "application/*" if is_plain => return Form::Legacy,
            _ => {}
        }
    }
    if clauses.is_empty() {
        Form::Legacy
    } else {
        Form::Unacceptable
    }
}

fn tagged(document: &Bytes, tag: &HeaderValue, headers: &HeaderMap) -> Response<ResponseBody> {
    let unchanged = headers.get(IF_NONE_MATCH) == Some(tag);
    let body = if unchanged {
        ResponseBody::empty()
    } else {
        ResponseBody::full(document.clone())
    };
    let mut response = Response::new(body);
    if unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    headers.insert(ETAG, tag.clone());
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

/// A quoted upper-case SHA-512 of the document.
pub(crate) fn entity_tag(document: &[u8]) -> HeaderValue {
    let text = format!("\"{}\"", hex_upper(digest(&SHA512, document).as_ref()));
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

pub(crate) fn hex_upper(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing into a String cannot fail.
            let _ok = write!(text, "{byte:02X}");
            text
        })
}

fn document(value: &Value) -> Bytes {
    let mut bytes = drydock_machinery::codec::encode(value);
    bytes.push(b'\n');
    bytes.into()
}

fn versions_of(catalog: &Catalog, group: &str) -> Vec<&'static str> {
    catalog
        .group_versions()
        .into_iter()
        .filter(|(own, _)| *own == group)
        .map(|(_, version)| version)
        .collect()
}

fn group_entry(catalog: &Catalog, group: &str) -> Value {
    let versions: Vec<Value> = versions_of(catalog, group)
        .into_iter()
        .map(|version| json!({ "groupVersion": api_version(group, version), "version": version }))
        .collect();
    json!({
        "name": group,
        "preferredVersion": versions.first(),
        "versions": versions,
        "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": "" }],
    })
}

fn group_document(catalog: &Catalog, group: &str) -> Value {
    let mut entry = group_entry(catalog, group);
    if let Some(members) = entry.as_object_mut() {
        members.insert("kind".to_owned(), "APIGroup".into());
        members.insert("apiVersion".to_owned(), "v1".into());
        members.remove("serverAddressByClientCIDRs");
    }
    entry
}

fn core_versions(catalog: &Catalog) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": versions_of(catalog, ""),
        "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": "" }],
    })
}

/// The first eight bytes of a hash of the stored version, which changes exactly when that version does.
fn storage_version_hash(resource: &Resource) -> String {
    let text = format!(
        "{}/{}/{}",
        resource.group,
        resource.storage_face().version,
        resource.kind
    );
    let hash = digest(&SHA256, text.as_bytes());
    STANDARD.encode(hash.as_ref().get(..8).unwrap_or_default())
}

fn resource_list(catalog: &Catalog, group: &str, version: &str) -> Value {
    let mut entries: Vec<(String, Value)> = Vec::new();
    for endpoint in catalog.of_group_version(group, version) {
        let resource = endpoint.resource();
        let names = endpoint.face().names;
        let mut entry = json!({
            "name": names.plural,
            "singularName": names.singular,
            "namespaced": resource.is_namespaced(),
            "kind": names.kind,
            "verbs": VERBS,
            "storageVersionHash": storage_version_hash(resource),
        });
        if let Some(members) = entry.as_object_mut() {
            if !names.short_names.is_empty() {
                members.insert("shortNames".to_owned(), json!(names.short_names));
            }
            if !resource.categories.is_empty() {
                members.insert("categories".to_owned(), json!(resource.categories));
            }
        }
        entries.push((names.plural.to_owned(), entry));
        for subresource in resource.subresources(endpoint.face()) {
            let name = format!("{}/{}", names.plural, subresource.name);
            let mut entry = json!({
                "name": name,
                "singularName": "",
                "namespaced": resource.is_namespaced(),
                "kind": subresource.kind,
                "verbs": subresource.verbs,
            });
            if let (Some((group, version)), Some(members)) = (subresource.foreign_kind, entry.as_object_mut())
            {
                members.insert("group".to_owned(), group.into());
                members.insert("version".to_owned(), version.into());
            }
            entries.push((name, entry));
        }
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    let resources: Vec<Value> = entries.into_iter().map(|(_, entry)| entry).collect();
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version(group, version),
        "resources": resources,
    })
}

fn aggregated_document(catalog: &Catalog, groups: &[&str]) -> Value {
    let items: Vec<Value> = groups
        .iter()
        .map(|group| {
            let versions: Vec<Value> = versions_of(catalog, group)
                .into_iter()
                .map(|version| {
                    let resources: Vec<Value> = catalog
                        .of_group_version(group, version)
                        .map(|endpoint| aggregated_resource(&endpoint))
                        .collect();
                    json!({ "version": version, "resources": resources, "freshness": "Current" })
                })
                .collect();
            json!({ "metadata": { "name": group }, "versions": versions })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(endpoint: &Endpoint) -> Value {
    let (resource, face) = (endpoint.resource(), endpoint.face());
    let (names, version) = (face.names, face.version);
    let kind = |kind: &str| json!({ "group": resource.group, "version": version, "kind": kind });
    let subresources: Vec<Value> = resource
        .subresources(face)
        .into_iter()
        .map(|subresource| {
            json!({
                "subresource": subresource.name,
                "responseKind": match subresource.foreign_kind {
                    None => kind(subresource.kind),
                    Some((group, version)) => {
                        json!({ "group": group, "version": version, "kind": subresource.kind })
                    }
                },
                "verbs": subresource.verbs,
            })
        })
        .collect();
    let mut entry = json!({
        "resource": names.plural,
        "responseKind": kind(names.kind),
        "scope": if resource.is_namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": names.singular,
        "verbs": VERBS,
    });
    if let Some(members) = entry.as_object_mut() {
        if !names.short_names.is_empty() {
            members.insert("shortNames".to_owned(), json!(names.short_names));
        }
        if !resource.categories.is_empty() {
            members.insert("categories".to_owned(), json!(resource.categories));
        }
        if !subresources.is_empty() {
            members.insert("subresources".to_owned(), Value::Array(subresources));
        }
    }
    entry
}
