//! What the filters pass to a handler in addition to the HTTP request.

use std::{net::SocketAddr, sync::Arc};

use http::HeaderValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{audit::AuditRecord, info::RequestInfo, query::Query, user::UserInfo, warnings::Warnings};

/// A request that passed every filter: parsed, authenticated, authorized, with a deadline.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Verb, resource and name.
    pub info: RequestInfo,
    /// Query parameters.
    pub query: Query,
    /// The user, after impersonation.
    pub user: Arc<UserInfo>,
    /// The authenticated user, when impersonating.
    pub impersonator: Option<Arc<UserInfo>>,
    /// The id that ties log lines and audit events to the response.
    pub audit_id: HeaderValue,
    /// What the audit log records of the request.
    pub audit: AuditRecord,
    /// When the request arrived, on the runtime's clock.
    pub received: Instant,
    /// When the response is due; none for watches.
    pub deadline: Option<Instant>,
    /// Collects `Warning` headers.
    pub warnings: Warnings,
    /// `User-Agent`, empty when absent or unreadable.
    pub user_agent: String,
    /// The peer.
    pub remote: SocketAddr,
    /// Cancelled when streams have to end cleanly because the server shuts down.
    pub ending: CancellationToken,
}
