//! The client on whose behalf the registry acts.

use std::sync::Arc;

use crate::request::{UserInfo, Warnings};

/// The identity of a client, and the collector of the warnings it is sent. The registry knows nothing else of a request.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The user, after impersonation.
    pub user: &'a Arc<UserInfo>,
    /// `User-Agent`; the field manager is derived from it where the request names none. May be empty.
    pub user_agent: &'a str,
    /// Collects `Warning` headers.
    pub warnings: &'a Warnings,
}
