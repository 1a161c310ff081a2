//! Handles the requests that have passed every filter.
//!
//! [`Api`] finds the resource and the verb; each verb has a file of its own. Discovery and OpenAPI are served from
//! documents that are built at startup.

mod apply;
mod body;
mod call;
mod create;
mod delete;
mod delete_collection;
mod get;
mod list;
mod list_binary;
mod page;
mod patch;
mod response;
mod selection;
mod update;
mod watch;

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;

use drydock_machinery::clock::Clock;
use drydock_machinery::field_error::quoted;
use drydock_storage::Store;
use http::{HeaderMap, Method, Request, Response};

use self::call::Call;
use crate::discovery::Discovery;
use crate::error::ApiError;
use crate::filters::Handler;
use crate::http::body::{RequestBody, ResponseBody};
use crate::openapi::OpenApi;
use crate::registry::catalog::Catalog;
use crate::registry::endpoint::Endpoint;
use crate::registry::part::Part;
use crate::registry::store::ResourceStore;
use crate::request::negotiate::{self, Representation, ResponseKind};
use crate::request::{RequestContext, ResourceRequest, Verb};
use crate::telemetry::spans;
use crate::threads::{HEAVY_BYTES, Heavy};

pub use self::body::{decode_protobuf, is_protobuf};

/// The resources, discovery and OpenAPI of a server.
pub struct Api<S: Store> {
    catalog: Catalog,
    stores: Vec<Arc<ResourceStore<S>>>,
    discovery: Discovery,
    openapi: OpenApi,
    extensions: Vec<Box<dyn Extension>>,
}

/// A response, or the error that becomes one.
pub type ResponseFuture<'a> = futures_util::future::BoxFuture<'a, Result<Response<ResponseBody>, ApiError>>;

/// Routes besides those that every resource has: further subresources, access reviews, and non-resource paths.
pub trait Extension: Send + Sync {
    /// Whether this extension serves the resource request.
    fn claims(&self, resource: &ResourceRequest) -> bool;

    /// Whether this extension serves the non-resource path.
    fn claims_path(&self, _path: &str) -> bool {
        false
    }

    /// Handles a request that the extension has claimed.
    fn handle(&self, context: RequestContext, headers: HeaderMap, body: RequestBody) -> ResponseFuture<'_>;
}

impl<S: Store> Api<S> {
    /// The handler for these resources. Extensions are tried first, in order.
    #[must_use]
    pub fn new(
        catalog: Catalog,
        stores: Vec<Arc<ResourceStore<S>>>,
        extensions: Vec<Box<dyn Extension>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let discovery = Discovery::new(&catalog);
        let openapi = OpenApi::new(&catalog, clock);
        Self {
            catalog,
            stores,
            discovery,
            openapi,
            extensions,
        }
    }

    async fn dispatch(
        &self,
        context: RequestContext,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let (parts, body) = request.into_parts();
        let Some(resource) = context.info.resource.clone() else {
            let path = context.info.path.as_str();
            let extension = self
                .extensions
                .iter()
                .find(|extension| extension.claims_path(path));
            return match extension {
                Some(extension) => extension.handle(context, parts.headers, body).await,
                None => self.handle_path(&context, &parts.headers),
            };
        };
        if let Some(extension) = self
            .extensions
            .iter()
            .find(|extension| extension.claims(&resource))
        {
            return extension.handle(context, parts.headers, body).await;
        }
        let (call, verb) = self.route(resource, context, parts.headers)?;
        let is_heavy = body.max_bytes() >= HEAVY_BYTES || call.store.resource.strategy.is_heavy();
        let handled = pin!(async {
            match verb {
                Verb::Get => get::get(&call).await,
                Verb::List => list::list(&call).await,
                Verb::Watch => watch::watch(&call).await,
                _ if is_heavy => Heavy::new(write(&call, verb, body)).await,
                _ => write(&call, verb, body).await,
            }
        });
        spans::within(span_name(verb), handled).await
    }

    /// Finds the resource in its version, and checks that it serves the verb.
    fn route(
        &self,
        mut resource: ResourceRequest,
        context: RequestContext,
        headers: HeaderMap,
    ) -> Result<(Call<'_, S>, Verb), ApiError> {
        if resource.group.is_empty() && resource.resource == "namespaces" {
            // The path of a Namespace object reads like a namespace, but the object is cluster-scoped.
            resource.namespace.clear();
        }
        let found = self.stores.iter().find_map(|store| {
            let candidate = &store.resource;
            let matches = candidate.group == resource.group;
            let endpoint = matches.then(|| Endpoint::of(candidate, &resource.resource, &resource.version));
            endpoint.flatten().map(|endpoint| (store, endpoint))
        });
        let (store, endpoint) = found.ok_or_else(|| {
            let mut versions = self.catalog.of_group_version(&resource.group, &resource.version);
            if versions.next().is_some() {
                ApiError::no_route()
            } else {
                ApiError::no_page()
            }
        })?;
        let namespaced = store.resource.is_namespaced();
        let is_item = !resource.name.is_empty();
        let in_namespace = !resource.namespace.is_empty();
        let part = match resource.subresource.as_str() {
            "" => Part::Main,
            "status" if store.resource.has_status => Part::Status,
            _ => return Err(ApiError::no_route()),
        };
        if resource.surplus_segments > 0
            || (!is_item && !resource.subresource.is_empty())
            || (in_namespace && !namespaced)
            || (is_item && namespaced && !in_namespace)
        {
            return Err(ApiError::no_route());
        }
        let method = &context.info.method;
        let verb = resource.verb;
        let served = match (part, is_item) {
            (Part::Status, _) => matches!(verb, Verb::Get | Verb::Update | Verb::Patch),
            (Part::Main, true) => {
                matches!(verb, Verb::Get | Verb::Update | Verb::Patch | Verb::Delete)
                    || (verb == Verb::Watch && resource.watch_prefix)
            }
            (Part::Main, false) if namespaced && !in_namespace => matches!(verb, Verb::List | Verb::Watch),
            (Part::Main, false) => {
                matches!(
                    verb,
                    Verb::List | Verb::Watch | Verb::Create | Verb::DeleteCollection
                )
            }
        };
        // The deprecated `/watch/` paths mean the verb watch with any method.
        let is_read = matches!(verb, Verb::Get | Verb::List | Verb::Watch);
        if !served || (is_read && method != Method::GET) {
            return Err(ApiError::method_not_allowed());
        }
        check_name(&resource.name)?;
        let call = Call {
            catalog: &self.catalog,
            store: Arc::clone(store),
            endpoint,
            part,
            context,
            headers,
            namespace: resource.namespace,
            name: resource.name,
        };
        Ok((call, verb))
    }

    /// Serves OpenAPI, discovery and the list of paths.
    fn handle_path(
        &self,
        context: &RequestContext,
        headers: &HeaderMap,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let path = context.info.path.as_str();
        if let Some(response) = self.openapi.respond(path, &context.query, headers) {
            return response;
        }
        if context.info.method != Method::GET {
            let known = self.discovery.respond(path, headers).is_some();
            return Err(if known {
                ApiError::method_not_allowed()
            } else {
                ApiError::no_page()
            });
        }
        if matches!(path, "/" | "/index.html") {
            let mut paths = self.discovery.paths();
            paths.extend([
                "/healthz",
                "/livez",
                "/metrics",
                "/openapi/v2",
                "/openapi/v3",
                "/readyz",
                "/version",
            ]);
            paths.sort_unstable();
            let value = serde_json::json!({ "paths": paths });
            let body = response::encode(
                &value,
                Representation {
                    pretty: true,
                    ..Representation::JSON
                },
                None,
            )?;
            return Ok(response::with_body(
                http::StatusCode::OK,
                negotiate::MediaType::Json,
                body,
            ));
        }
        self.discovery
            .respond(path, headers)
            .ok_or_else(ApiError::no_page)
    }
}

/// The span of a handler, as the reference names it.
const fn span_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "Get",
        Verb::List => "List",
        Verb::DeleteCollection => "DeleteCollection",
        Verb::Watch => "WatchList",
        Verb::Create => "Create",
        Verb::Update => "Update",
        Verb::Patch => "Patch",
        Verb::Delete => "Delete",
        Verb::Proxy | Verb::None => "Connect",
    }
}

async fn write<S: Store>(
    call: &Call<'_, S>,
    verb: Verb,
    body: RequestBody,
) -> Result<Response<ResponseBody>, ApiError> {
    match verb {
        Verb::Create => create::create(call, body).await,
        Verb::Update => update::update(call, body).await,
        Verb::Patch => patch::patch(call, body).await,
        Verb::Delete => delete::delete(call, body).await,
        Verb::DeleteCollection => delete_collection::delete_collection(call, body).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// Rejects a name that no object can have, before any lookup.
fn check_name(name: &str) -> Result<(), ApiError> {
    let refuse = |why: &str| {
        Err(ApiError::bad_request(format!(
            "Name parameter invalid: {}: may not {why}",
            quoted(name)
        )))
    };
    match name {
        "." | ".." => refuse(&format!("be '{name}'")),
        _ if name.contains('%') => refuse("contain '%'"),
        _ => Ok(()),
    }
}

impl<S: Store> Handler for Api<S> {
    async fn handle(&self, context: RequestContext, request: Request<RequestBody>) -> Response<ResponseBody> {
        let representation =
            negotiate::negotiate(request.headers(), &context.query, ResponseKind::Status, true).ok();
        match self.dispatch(context, request).await {
            Ok(response) => response,
            Err(error) => response::error(error, representation),
        }
    }
}
