//! What happens to every request before and after its handler?
//!
//! [`Chain`] is the order; each step has a file. From the outside in: audit id, panic isolation, the mark for a server
//! whose routes are not installed, metrics and log, compression, `Cache-Control`; then shutdown, the group of requests
//! in flight, the deadline; then authentication (401), impersonation, flow control (429), authorization (403); then
//! health, metrics, version, or the handler. So a stranger learns nothing but 401, and 403 does not depend on whether
//! an object exists.

mod audit_id;
mod authentication;
mod authorization;
mod compression;
mod impersonation;
mod max_in_flight;
mod panic;
mod request_log;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::time::{Instant, timeout_at};

use self::max_in_flight::MaxInFlight;
pub use self::{authentication::Authenticator, max_in_flight::InFlightLimits};
use crate::{
    authorization::Authorizer,
    error::ApiError,
    health::{self, Health, Mark},
    http::{
        body::{RequestBody, ResponseBody},
        connection::{Connection, Service},
        shutdown::Stages,
    },
    metrics::{Exposition, Metrics, RequestLabels},
    request::{Query, RequestContext, RequestInfo, Verb, Warnings},
    version,
};

/// Time of a create, update, patch or delete inside its handler.
const WRITE_TIME: Duration = Duration::from_secs(34);

/// What stands behind the filters: discovery, OpenAPI and the resources.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request that passed every filter. Errors are answers too (see [`crate::error::ApiError`]).
    /// Dropped when its deadline passes or the client goes: whatever must finish belongs to a task of its own.
    fn handle(
        &self,
        context: RequestContext,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;
}

/// What the chain is made of.
#[derive(Debug)]
pub struct ChainParts<H> {
    /// Finds out who asks.
    pub authenticator: Authenticator,
    /// Decides whether they may; admission shares it.
    pub authorizer: Arc<Authorizer>,
    /// Bounds on requests being handled.
    pub limits: InFlightLimits,
    /// Time of a request that is no watch.
    pub request_timeout: Duration,
    /// Set once every route is installed; until then a 404 would be a lie.
    pub routes_installed: Mark,
    /// The health paths.
    pub health: Health,
    /// `/metrics`.
    pub exposition: Exposition,
    /// What is counted.
    pub metrics: Metrics,
    /// How the server stops.
    pub stages: Stages,
    /// Everything else.
    pub handler: H,
}

/// The filters in order, around a [`Handler`].
#[derive(Debug)]
pub struct Chain<H> {
    parts: ChainParts<H>,
    max_in_flight: MaxInFlight,
}

/// A request as the outer filters know it.
struct Seen {
    info: RequestInfo,
    query: Query,
    audit_id: HeaderValue,
    received: Instant,
    warnings: Warnings,
    labels: Option<RequestLabels>,
    /// Whether every filter let the request pass: what a filter refused is no API request to count.
    passed: AtomicBool,
}

impl<H: Handler> Chain<H> {
    /// Puts the filters around `parts.handler`.
    #[must_use]
    pub fn new(parts: ChainParts<H>) -> Self {
        let max_in_flight = MaxInFlight::new(parts.limits);
        Self { parts, max_in_flight }
    }

    /// From shutdown to the deadline.
    async fn bounded(
        &self,
        seen: &Seen,
        connection: &Connection,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let stages = &self.parts.stages;
        if request.headers().contains_key(header::UPGRADE) {
            return Err(ApiError::bad_request("protocol upgrades are not supported"));
        }
        if stages.closed().is_cancelled() && !served_while_stopping(&seen.info, request.headers()) {
            connection.close();
            return Err(ApiError::shutting_down());
        }
        if seen.info.is_long_running() {
            if stages.ending().is_cancelled() {
                return Err(ApiError::shut_down());
            }
            return self.admitted(seen, connection, request, None).await;
        }
        let in_flight = stages.begin_request().ok_or_else(ApiError::shut_down)?;
        let deadline = seen.received + seen.query.timeout(self.parts.request_timeout)?;
        let admitted = self.admitted(seen, connection, request, Some(deadline));
        let Ok(response) = timeout_at(deadline, admitted).await else {
            if let Some(labels) = &seen.labels {
                self.parts
                    .metrics
                    .terminated(labels, StatusCode::GATEWAY_TIMEOUT.as_u16());
            }
            return Err(ApiError::request_timeout());
        };
        response.map(|response| response.map(|body| body.cut_at(deadline).holding(in_flight)))
    }

    /// From authentication to the handler.
    async fn admitted(
        &self,
        seen: &Seen,
        connection: &Connection,
        mut request: Request<RequestBody>,
        deadline: Option<Instant>,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let Seen { info, query, .. } = seen;
        let metrics = &self.parts.metrics;

        let before = Instant::now();
        let found = self
            .parts
            .authenticator
            .authenticate(connection, request.headers_mut(), &seen.warnings)
            .await;
        metrics.filtered("authentication", before.elapsed());
        let found = match found {
            Ok(found) => found,
            Err(refused) => {
                close_stranger(connection);
                return Err(refused);
            }
        };
        if found.user.is_anonymous() && !found.by_front_proxy {
            close_stranger(connection);
        }

        let impersonated =
            impersonation::impersonate(&self.parts.authorizer, &found.user, request.headers_mut()).await?;
        let (user, impersonator) = match impersonated {
            Some(user) => (user, Some(found.user)),
            None => (found.user, None),
        };

        let _place = self.max_in_flight.enter(info, &user).inspect_err(|refused| {
            if let Some(labels) = &seen.labels {
                metrics.terminated(labels, refused.code().as_u16());
            }
        })?;

        let before = Instant::now();
        let uri = request
            .uri()
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let allowed = authorization::authorize(&self.parts.authorizer, info, query, &user, uri).await;
        metrics.filtered("authorization", before.elapsed());
        allowed?;
        seen.passed.store(true, Ordering::Relaxed);

        if info.resource.is_none()
            && let Some(response) = self.own_path(info, query)
        {
            return Ok(response);
        }
        let _counted = (!info.is_long_running()).then(|| metrics.in_flight(info.is_mutating()));
        let write_deadline = is_bounded_write(info).then(|| seen.received + WRITE_TIME);
        let deadline = [deadline, write_deadline].into_iter().flatten().min();
        let context = RequestContext {
            info: info.clone(),
            query: query.clone(),
            user,
            impersonator,
            audit_id: seen.audit_id.clone(),
            received: seen.received,
            deadline,
            warnings: seen.warnings.clone(),
            user_agent: user_agent(request.headers()).to_owned(),
            remote: connection.remote,
            ending: self.parts.stages.ending().clone(),
        };
        let handled = self.parts.handler.handle(context, request);
        match write_deadline {
            Some(deadline) => timeout_at(deadline, handled)
                .await
                .map_err(|_| ApiError::deadline_exceeded()),
            None => Ok(handled.await),
        }
    }

    /// The paths that the server answers without a handler.
    fn own_path(&self, info: &RequestInfo, query: &Query) -> Option<Response<ResponseBody>> {
        let response = match info.path.as_str() {
            path if health::is_health_path(path) => self.parts.health.respond(path, query),
            "/metrics" => Some(self.parts.exposition.respond()),
            "/version" | "/version/" => Some(version::respond()),
            _ => None,
        };
        response.map(|response| response.map(ResponseBody::full))
    }

    /// Compression and the headers that every response has.
    async fn finished(
        &self,
        mut response: Response<ResponseBody>,
        audit_id: HeaderValue,
        warnings: &Warnings,
        accepts_gzip: bool,
        head: bool,
    ) -> Response<ResponseBody> {
        response = compression::compress(response, accepts_gzip).await;
        if head {
            response = without_body(response);
        }
        let headers = response.headers_mut();
        warnings.write_headers(headers);
        headers.insert(audit_id::HEADER, audit_id);
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(
                header::CACHE_CONTROL,
                HeaderValue::from_static("no-cache, private"),
            );
        }
        response
    }

    /// Counts the answered request. A stream is counted when it ends.
    fn counted(&self, seen: &Seen, response: Response<ResponseBody>) -> Response<ResponseBody> {
        let code = response.status();
        let passed = seen.passed.load(Ordering::Relaxed) && code != StatusCode::METHOD_NOT_ALLOWED;
        let Some(labels) = seen.labels.as_ref().filter(|_| passed) else {
            return response;
        };
        let metrics = &self.parts.metrics;
        if seen.info.is_long_running() && response.body().is_stream() {
            let open = metrics.long_running(labels.clone(), code.as_u16(), seen.received);
            return response.map(|body| body.holding(open));
        }
        metrics.answered(
            labels,
            code.as_u16(),
            seen.received.elapsed(),
            response.body().size(),
        );
        response
    }
}

impl<H: Handler> Service for Chain<H> {
    async fn serve(&self, connection: &Connection, request: Request<RequestBody>) -> Response<ResponseBody> {
        let received = Instant::now();
        let audit_id = audit_id::of(request.headers());
        let warnings = Warnings::default();
        let accepts_gzip = compression::accepts_gzip(request.headers());
        let head = request.method() == Method::HEAD;
        let log = request_log::Entry::new(connection, &request, &audit_id, received);

        let query = Query::parse(request.uri().query().unwrap_or_default());
        let mut info = match RequestInfo::parse(request.method(), request.uri().path(), &query) {
            Ok(info) => info,
            Err(refused) => {
                let response = self
                    .finished(refused.into_response(), audit_id, &warnings, false, head)
                    .await;
                return log.written(response);
            }
        };
        info.is_apply = is_apply(request.headers());
        let labels = self
            .parts
            .metrics
            .labels(&info, query.first("dryRun") == Some("All"));
        let seen = Seen {
            info,
            query,
            audit_id,
            received,
            warnings,
            labels,
            passed: AtomicBool::new(false),
        };

        let answer = async {
            let answered = self.bounded(&seen, connection, request).await;
            answered.unwrap_or_else(ApiError::into_response)
        };
        let (mut response, panicked) = panic::isolated(log.in_span(answer)).await;
        if panicked && let Some(labels) = &seen.labels {
            self.parts.metrics.aborted(labels);
        }
        if response.status() == StatusCode::NOT_FOUND
            && !self.parts.routes_installed.is_set()
            && !health::is_health_path(&seen.info.path)
        {
            response = ApiError::not_ready().into_response();
        }
        response = self.counted(&seen, response);
        response = self
            .finished(
                response,
                seen.audit_id.clone(),
                &seen.warnings,
                accepts_gzip,
                head,
            )
            .await;
        log.written(response)
    }
}

/// Over HTTP/2 strangers get one answer per connection, as they would over HTTP/1.1 without keep-alive: abuse of the
/// expensive protocol then costs them handshakes.
fn close_stranger(connection: &Connection) {
    if connection.http2 {
        connection.close();
    }
}

/// The headers of the answer to a HEAD, which has no body.
fn without_body(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let (mut parts, body) = response.into_parts();
    if let Some(size) = body.size() {
        parts
            .headers
            .insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    Response::from_parts(parts, body.replaced_by(bytes::Bytes::new()))
}

fn served_while_stopping(info: &RequestInfo, headers: &HeaderMap) -> bool {
    health::is_health_path(&info.path)
        || info.path == "/metrics"
        || user_agent(headers).starts_with("kube-apiserver/")
}

fn user_agent(headers: &HeaderMap) -> &str {
    headers
        .get(header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default()
}

fn is_apply(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.starts_with("application/apply-patch+"))
}

fn is_bounded_write(info: &RequestInfo) -> bool {
    info.resource
        .as_ref()
        .is_some_and(|r| matches!(r.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete))
}

#[cfg(test)]
mod tests;
