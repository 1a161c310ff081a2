//! Spans of requests, sent over OTLP to a collector.
//!
//! A request that is sampled has a span of the name that the reference gives it, and spans inside for its handler, reads from the
//! cache, calls of webhooks, transactions of the store and the encoding of the response; calls to the host and of webhooks carry
//! the trace on. Users of `system:masters` and `system:monitoring` continue
//! the trace that they send; for all others it is a link, so that strangers cannot force sampling. At most 2048 spans wait for
//! the collector; without room, they are dropped, and no request ever waits.

#[cfg(test)]
pub(crate) mod collector;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry::trace::{
    FutureExt as _, Link, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanData,
    SpanExporter as Exporter,
};

use super::TelemetryError;
use super::settings::TracingSettings;
use crate::request::user::MASTERS;
use crate::request::{RequestInfo, UserInfo};

/// The name of this server in traces.
const SERVICE: &str = "drydock-apiserver";
/// Group of users who observe the cluster.
const MONITORING: &str = "system:monitoring";
/// How many spans wait for the collector.
const WAITING: usize = 2048;
/// How long they wait for others.
const BATCH_DELAY: Duration = Duration::from_secs(5);
/// Time limit of an export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stop waits for the last export.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Makes the spans of requests.
pub struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").finish_non_exhaustive()
    }
}

/// The tracer of a request, in its context.
struct Current(SdkTracer);

impl Spans {
    /// Prepares the export to the collector; `instance` tells this server from others. It connects when there are spans.
    ///
    /// # Errors
    /// [`TelemetryError::Collector`].
    pub fn start(settings: &TracingSettings, instance: &str) -> Result<Arc<Self>, TelemetryError> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(format!("http://{}", settings.endpoint))
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| TelemetryError::Collector(Box::new(error)))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(WAITING)
            .with_scheduled_delay(BATCH_DELAY)
            .build();
        let processor = BatchSpanProcessor::builder(Reporting(exporter))
            .with_batch_config(batches)
            .build();
        let ratio = f64::from(settings.per_million) / 1e6;
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
            .with_resource(
                Resource::builder_empty()
                    .with_service_name(SERVICE)
                    .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
                    .build(),
            )
            .build();
        Ok(Arc::new(Self {
            tracer: provider.tracer(SERVICE),
            provider,
        }))
    }

    /// Begins the span of a request of `user`.
    #[must_use]
    pub fn begin(
        &self,
        info: &RequestInfo,
        headers: &HeaderMap,
        user: &UserInfo,
        audit_id: &str,
    ) -> RequestSpan {
        let sent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let sent_context = sent.span().span_context().clone();
        let mut builder = SpanBuilder::from_name(name(info))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", info.method.as_str().to_owned()),
                KeyValue::new("audit-id", audit_id.to_owned()),
            ]);
        let continues = user.in_group(MASTERS) || user.in_group(MONITORING);
        let parent = if continues {
            sent
        } else {
            if sent_context.is_valid() {
                builder = builder.with_links(vec![link(sent_context)]);
            }
            Context::new()
        };
        let span = self.tracer.build_with_context(builder, &parent);
        RequestSpan(parent.with_span(span).with_value(Current(self.tracer.clone())))
    }

    /// Sends the spans that have ended, for up to 5 s.
    pub async fn close(self: Arc<Self>) {
        let closed =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(CLOSE_GRACE)).await;
        if !matches!(closed, Ok(Ok(()))) {
            tracing::warn!("the last spans were not delivered");
        }
    }
}

fn link(context: SpanContext) -> Link {
    Link::new(context, Vec::new(), 0)
}

/// The span of a request. It ends when dropped.
pub struct RequestSpan(Context);

impl RequestSpan {
    /// Runs a future inside the span.
    pub fn around<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        future.with_context(self.0.clone())
    }

    /// Records the code of the response.
    pub fn responded(&self, code: u16) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(code)));
        if code >= 500 {
            span.set_status(Status::error(""));
        }
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        self.0.span().end();
    }
}

/// Runs a future in a span of its own, inside that of the request. Without a request that is sampled it costs nothing.
pub async fn within<F: Future>(name: &'static str, future: F) -> F::Output {
    let Some(span) = open(name) else {
        return future.await;
    };
    future.with_context(span.0.clone()).await
}

/// A span inside that of a request. It ends when dropped.
#[must_use]
pub struct OpenSpan(Context);

impl Drop for OpenSpan {
    fn drop(&mut self) {
        self.0.span().end();
    }
}

/// Begins a span inside that of the request; none without a request that is sampled.
#[must_use]
pub fn open(name: &'static str) -> Option<OpenSpan> {
    let current = Context::current();
    let Current(tracer) = current
        .get::<Current>()
        .filter(|_| current.span().is_recording())?;
    let span = tracer.start_with_context(name, &current);
    Some(OpenSpan(current.with_span(span)))
}

/// A future that belongs to the request that is being handled, also in a task of its own.
pub fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> {
    future.with_current_context()
}

/// Carries the trace of the request that is being handled on to a call, in its headers.
pub fn propagate(headers: &mut HeaderMap) {
    let current = Context::current();
    if current.get::<Current>().is_some() {
        TraceContextPropagator::new().inject_context(&current, &mut HeadersMut(headers));
    }
}

/// The name of a request, with the parts that its path has. Names of objects are not in it.
fn name(info: &RequestInfo) -> String {
    let method = &info.method;
    let Some(request) = &info.resource else {
        return method.to_string();
    };
    let root = match request.group.as_str() {
        "" => format!("/api/{}", request.version),
        group => format!("/apis/{group}/{}", request.version),
    };
    let mut name = format!("{method} {root}");
    if !request.namespace.is_empty() {
        name.push_str("/namespaces/{:namespace}");
    }
    name.push('/');
    name.push_str(&request.resource);
    if !request.name.is_empty() {
        name.push_str("/{:name}");
    }
    if !request.subresource.is_empty() {
        name.push('/');
        name.push_str(&request.subresource);
    }
    name
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(key), Ok(value)) = (key.parse::<HeaderName>(), HeaderValue::try_from(value)) {
            self.0.insert(key, value);
        }
    }
}

/// Logs exports that fail; the library is silent about them.
#[derive(Debug)]
struct Reporting<E>(E);

impl<E: Exporter> Exporter for Reporting<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.0.export(batch).await;
        if let Err(error) = &exported {
            tracing::warn!(spans, %error, "spans were not delivered");
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

#[cfg(test)]
mod tests;
