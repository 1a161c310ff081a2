//! What do the filters hand to a handler beside the HTTP request?

use std::{net::SocketAddr, sync::Arc};

use http::HeaderValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Query, RequestInfo, UserInfo, Warnings};

/// A request after every filter: parsed, authenticated, authorized, bounded in time.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Verb, resource and name.
    pub info: RequestInfo,
    /// Query parameters.
    pub query: Query,
    /// Who asks, after impersonation.
    pub user: Arc<UserInfo>,
    /// Who really asks, when impersonating.
    pub impersonator: Option<Arc<UserInfo>>,
    /// The id that ties log lines and audit events to the response.
    pub audit_id: HeaderValue,
    /// When the request arrived, on the runtime's clock.
    pub received: Instant,
    /// When it has to be answered; none for watches.
    pub deadline: Option<Instant>,
    /// Collects `Warning` headers.
    pub warnings: Warnings,
    /// `User-Agent`, empty when absent or unreadable.
    pub user_agent: String,
    /// The peer.
    pub remote: SocketAddr,
    /// Cancelled when streams have to end cleanly because the server stops.
    pub ending: CancellationToken,
}
