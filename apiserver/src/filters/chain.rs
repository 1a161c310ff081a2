//! The filter chain: [`Chain::serve`] lists every filter in order, from the outermost to the handler and back.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use http::{Method, Request, Response, header};
use tokio::time::Instant;

use super::{
    audit, audit_id,
    authentication::{Authenticated, Authenticator},
    authorization, compression,
    deadline::Deadlines,
    flow_control::{FlowControl, InFlightLimits},
    head,
    impersonation::{self, Identity},
    own_paths::OwnPaths,
    panic, request_info, request_log, request_metrics, response_headers, routes_installed, shutdown,
    state::RequestState,
    upgrade,
};
use crate::{
    audit::Auditor,
    authorization::Authorizer,
    error::ApiError,
    health::{Health, Mark},
    http::{
        body::{RequestBody, ResponseBody},
        certificate::PeerCertificates,
        connection::{Connection, Service},
        shutdown::Stages,
        streams::PeerKind,
    },
    metrics::{Exposition, Metrics},
    request::{RequestContext, info::user_agent},
};

/// What follows the filters: discovery, OpenAPI and the resources.
pub trait Handler: Send + Sync + 'static {
    /// Handles a request that passed every filter. An error is returned as a response too (see [`ApiError`]).
    ///
    /// The future is dropped when its deadline passes or the client disconnects: work that must finish belongs in a task
    /// of its own.
    fn handle(
        &self,
        context: RequestContext,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;
}

/// What clients without a credential may ask for. Anonymous users whom a front proxy names are users like others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// Health, the version and the paths that are open to all: strangers then cost no reviews.
    OpenPaths,
    /// Whatever the host allows.
    Reviewed,
}

/// The parts of a [`Chain`].
#[derive(Debug)]
pub struct ChainParts<H> {
    /// Identifies the user.
    pub authenticator: Authenticator,
    /// Decides what the user may do; shared with admission.
    pub authorizer: Arc<Authorizer>,
    /// Writes audit events, if there is an audit policy.
    pub auditor: Option<Arc<Auditor>>,
    /// What clients without a credential may ask for.
    pub anonymous: AnonymousAccess,
    /// Limits on concurrent requests.
    pub limits: InFlightLimits,
    /// Time limit of a request that is not a watch.
    pub request_timeout: Duration,
    /// Set once every route is installed; until then a 404 may be wrong.
    pub routes_installed: Mark,
    /// Serves the health paths.
    pub health: Health,
    /// Serves `/metrics`.
    pub exposition: Exposition,
    /// Counts requests.
    pub metrics: Metrics,
    /// The stages of the server's shutdown.
    pub stages: Stages,
    /// Handles everything else.
    pub handler: H,
}

/// The filters in order, around a [`Handler`].
#[derive(Debug)]
pub struct Chain<H> {
    pub(super) routes_installed: Mark,
    authenticator: Authenticator,
    authorizer: Arc<Authorizer>,
    auditor: Option<Arc<Auditor>>,
    flow_control: FlowControl,
    anonymous: AnonymousAccess,
    request_timeout: Duration,
    own_paths: OwnPaths,
    metrics: Metrics,
    stages: Stages,
    handler: H,
}

impl<H: Handler> Chain<H> {
    /// Puts the filters around `parts.handler`.
    #[must_use]
    pub fn new(parts: ChainParts<H>) -> Self {
        Self {
            routes_installed: parts.routes_installed,
            authenticator: parts.authenticator,
            authorizer: parts.authorizer,
            auditor: parts.auditor,
            flow_control: FlowControl::new(parts.limits, &parts.metrics),
            anonymous: parts.anonymous,
            request_timeout: parts.request_timeout,
            own_paths: OwnPaths::new(parts.health, parts.exposition),
            metrics: parts.metrics,
            stages: parts.stages,
            handler: parts.handler,
        }
    }

    fn context(
        &self,
        state: &RequestState,
        identity: Identity,
        connection: &Connection,
        request: &Request<RequestBody>,
        deadline: Option<Instant>,
    ) -> RequestContext {
        RequestContext {
            info: state.info.clone(),
            query: state.query.clone(),
            user: identity.user,
            impersonator: identity.impersonator,
            audit_id: state.audit_id.clone(),
            audit: state.audit(),
            received: state.received,
            deadline,
            warnings: state.warnings.clone(),
            user_agent: user_agent(request.headers()).to_owned(),
            remote: connection.remote,
            ending: self.stages.ending().clone(),
        }
    }
}

impl<H: Handler> Chain<H> {
    /// The user of a request; begins its audit, also if the credentials are not valid.
    async fn authenticate(
        &self,
        connection: &Connection,
        request: &mut Request<RequestBody>,
        state: &RequestState,
    ) -> Result<Authenticated, ApiError> {
        let headers = request.headers_mut();
        let found = self
            .authenticator
            .filter(connection, headers, &state.warnings)
            .await;
        let user = found.as_ref().ok().map(|found| &found.user);
        if let Some(user) = user {
            tracing::Span::current().record("user", &*user.name);
        }
        if found
            .as_ref()
            .is_ok_and(|found| found.is_direct && !found.is_stranger())
        {
            state.set_direct();
        }
        let (uri, headers) = (request.uri(), request.headers());
        audit::begin(self.auditor.as_ref(), state, user, uri, headers, connection).await?;
        found
    }
}

impl<H: Handler> Service for Chain<H> {
    fn peer(&self, certificates: &PeerCertificates) -> PeerKind {
        self.authenticator.peer(certificates)
    }

    async fn serve(
        &self,
        connection: &Connection,
        mut request: Request<RequestBody>,
    ) -> Response<ResponseBody> {
        let (metrics, authorizer) = (&self.metrics, &*self.authorizer);
        let received = Instant::now();
        let accepts_gzip = compression::accepts_gzip(request.headers());
        let is_head = request.method() == Method::HEAD;
        // Audit id: log lines and the response carry it, whatever happens further in.
        let audit_id = audit_id::of(request.headers());
        // Request log: its span covers every other filter, and its line is written after all of them.
        let log = request_log::Entry::new(connection, &request, &audit_id, received);
        // Request info: the line is parsed once. A parse error is returned inside, where errors become responses.
        let (info, query, parsed) = request_info::parse(&request);
        let is_upgrade = request.headers().contains_key(header::UPGRADE);
        let state = RequestState::new(info, query, audit_id, received, is_upgrade, metrics);
        let state = &state;
        // Futures are pinned where they are made, so that the filters around them hold a pointer and no copy.
        let filtered = pin!(async {
            parsed?;
            // Upgrade: only watches support one.
            upgrade::check(&state.info, request.headers())?;
            // Shutdown: before authentication, which costs a review; the request counts as in flight from here.
            let in_flight = shutdown::admit(&self.stages, &state.info, request.headers(), connection)?;
            // Deadline: everything inside shares the time limit of the request, its body included.
            let deadlines = Deadlines::of(state, self.request_timeout)?;
            let admitted = pin!(async {
                // Authentication: before anything that reveals what is served or stored. 401.
                let found = self.authenticate(connection, &mut request, state).await?;
                // Strangers: before anything that costs a review or takes a place. 403.
                if found.is_stranger() && self.anonymous == AnonymousAccess::OpenPaths {
                    authorization::refuse_stranger(authorizer, state, &found.user)?;
                }
                // Impersonation: all that follows concerns the impersonated user. 403.
                let identity = impersonation::filter(authorizer, found.user, request.headers_mut()).await?;
                if let (Some(trail), Some(_)) = (state.trail(), &identity.impersonator) {
                    trail.impersonates(&identity.user);
                }
                // Flow control: by user, so after it is known. 429.
                let seat = self
                    .flow_control
                    .filter(state, &identity.user, deadlines.earliest(), metrics);
                let _admitted = seat.await?;
                // Authorization: after flow control, which limits the reviews that the host is asked for. 403.
                authorization::filter(authorizer, state, &identity.user, request.uri(), metrics).await?;
                state.set_authorized();
                // Own paths: health, metrics and version need no handler.
                if let Some(response) = self.own_paths.respond(&state.info, &state.query) {
                    return Ok(response);
                }
                let _handling = request_metrics::handling(metrics, &state.info);
                let context = self.context(state, identity, connection, &request, deadlines.earliest());
                // Write deadline: shorter, and only for the handler.
                let handled = pin!(self.handler.handle(context, request));
                deadlines.limit_handler(handled).await
            });
            let response = deadlines.limit_request(admitted, state, metrics).await?;
            Ok(shutdown::hold(response, in_flight))
        });
        let responded = async { filtered.await.unwrap_or_else(ApiError::into_response) };
        // Panic isolation: around everything above, so that a bug fails one request and its response is still counted.
        let response = panic::isolate(log.in_span(responded), state, metrics).await;
        // Routes installed: replaces a 404 before it is counted.
        let response = routes_installed::check(response, &self.routes_installed, &state.info);
        // Audit: the outcome that the client gets, as it is before compression.
        let response = audit::finish(response, state).await;
        // Request metrics: before compression, so that sizes are those of the representation.
        let response = request_metrics::count(response, state, metrics);
        // Compression, HEAD, headers: apply to every response, those of filters included.
        let response = compression::compress(response, accepts_gzip).await;
        let response = head::drop_body(response, is_head);
        let response = response_headers::add(response, state);
        log.write(response, state)
    }
}
