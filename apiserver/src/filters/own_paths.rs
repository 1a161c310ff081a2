//! Serves the paths that need no handler: health, `/metrics`, `/version`.

use http::Response;

use crate::{
    health::{Health, is_health_path},
    http::body::ResponseBody,
    metrics::Exposition,
    request::{Query, RequestInfo},
    version,
};

/// What those paths show.
#[derive(Debug)]
pub(super) struct OwnPaths {
    health: Health,
    exposition: Exposition,
}

impl OwnPaths {
    pub(super) fn new(health: Health, exposition: Exposition) -> Self {
        Self { health, exposition }
    }

    /// The response, or none for other paths and for resources.
    pub(super) fn respond(&self, info: &RequestInfo, query: &Query) -> Option<Response<ResponseBody>> {
        if info.resource.is_some() {
            return None;
        }
        let response = match info.path.as_str() {
            path if is_health_path(path) => self.health.respond(path, query),
            "/metrics" => Some(self.exposition.respond()),
            "/version" | "/version/" => Some(version::respond()),
            _ => None,
        };
        response.map(|response| response.map(ResponseBody::full))
    }
}
