//! The client that a write comes from.

use std::sync::Arc;

use crate::request::{AuditRecord, UserInfo, Warnings};

/// The identity of a client, the warnings for its response and the audit record of its request. The registry knows nothing else about a request.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The user, after impersonation.
    pub user: &'a Arc<UserInfo>,
    /// `User-Agent`; the field manager is derived from it where the request names none. May be empty.
    pub user_agent: &'a str,
    /// Collects `Warning` headers.
    pub warnings: &'a Warnings,
    /// Collects audit annotations.
    pub audit: &'a AuditRecord,
}
