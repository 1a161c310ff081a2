//! A request for a resource, after routing.

use std::sync::Arc;

use drydock_proto::protobuf::Message;
use drydock_storage::Store;
use http::HeaderMap;

use super::response::Format;
use crate::error::ApiError;
use crate::registry::caller::Caller;
use crate::registry::catalog::Catalog;
use crate::registry::endpoint::Endpoint;
use crate::registry::part::Part;
use crate::registry::store::{Ownership, ResourceStore, WriteRequest};
use crate::request::RequestContext;
use crate::request::negotiate::{self, Representation, ResponseKind};
use crate::request::options::WriteOptions;
use crate::request::projection::IncludeObject;

impl<'a> From<&'a RequestContext> for Caller<'a> {
    fn from(context: &'a RequestContext) -> Self {
        Self {
            user: &context.user,
            user_agent: &context.user_agent,
            warnings: &context.warnings,
            audit: &context.audit,
        }
    }
}

/// A request for a resource, with everything that the handler of its verb needs.
pub(super) struct Call<'a, S: Store> {
    pub(super) catalog: &'a Catalog,
    pub(super) store: Arc<ResourceStore<S>>,
    pub(super) endpoint: Endpoint,
    pub(super) part: Part,
    pub(super) context: RequestContext,
    pub(super) headers: HeaderMap,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl<S: Store> Call<'_, S> {
    pub(super) fn caller(&self) -> Caller<'_> {
        (&self.context).into()
    }

    pub(super) fn write_request<'a>(&'a self, options: &'a WriteOptions) -> WriteRequest<'a> {
        WriteRequest {
            caller: self.caller(),
            options,
            endpoint: &self.endpoint,
            part: self.part,
            ownership: Ownership::Recorded,
        }
    }

    /// The representation that the client accepts.
    ///
    /// # Errors
    /// 406 if there is none.
    pub(super) fn negotiate(&self, kind: ResponseKind) -> Result<Representation, ApiError> {
        let has_protobuf = self.endpoint.face().message.is_some();
        negotiate::negotiate(&self.headers, &self.context.query, kind, has_protobuf)
    }

    /// The protobuf message that bodies are read by; `None` if they may not be protobuf.
    pub(super) fn body_message(&self) -> Option<&'static Message> {
        let body_message = self.store.resource.capabilities.body_message;
        self.endpoint.face().message.or(body_message)
    }

    /// The format of a response with one object.
    ///
    /// # Errors
    /// 400 for an invalid `includeObject`.
    pub(super) fn format(&self, representation: Representation) -> Result<Format<'_>, ApiError> {
        Ok(Format {
            endpoint: &self.endpoint,
            representation,
            include: IncludeObject::parse(&self.context.query, representation)?,
            now: self.store.clock().now(),
        })
    }
}
