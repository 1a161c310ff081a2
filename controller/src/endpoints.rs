//! What the secure port serves: health and metrics, and reviews of evictions and nominations of pods where they are on.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::bridge::{self, Bridge};
use crate::descheduling::nominations::{self, Requester};
use crate::health::Health;
use crate::listener::{Peer, Respond};

/// Everything that is served.
#[derive(Debug)]
pub struct Endpoints {
    /// Health and metrics.
    pub health: Health,
    /// The eviction bridge, if it is on.
    pub bridge: Option<Bridge>,
    /// What requests nominated pods, if it is on.
    pub descheduling: Option<Requester>,
}

impl Respond for Endpoints {
    async fn respond(&self, request: Request<Incoming>, peer: &Peer) -> Response<Full<Bytes>> {
        match (request.uri().path(), &self.bridge, &self.descheduling) {
            (bridge::PATH, Some(bridge), _) => bridge.respond(request, peer).await,
            (nominations::PATH, _, Some(requester)) => requester.respond(request).await,
            _ => self.health.handle(&request).await,
        }
    }
}
