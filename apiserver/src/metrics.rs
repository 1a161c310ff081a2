//! What does the server measure, under which names?
//!
//! Names and labels are those that dashboards for Kubernetes API servers already use. Label values come from what the
//! server serves, never from free text of a request, so callers cannot grow their number.

mod process;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, header};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;

use crate::request::{RequestInfo, ResourceRequest, Verb};

/// A resource the server serves: the only values group, version and resource labels can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServedResource {
    /// API group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Plural resource.
    pub resource: &'static str,
}

/// The labels most request metrics share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    verb: &'static str,
    dry_run: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestCodeLabels {
    verb: &'static str,
    dry_run: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    component: &'static str,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    request_kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FilterLabels {
    filter: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UserLabels {
    username: &'static str,
}

/// `code` of a call to the host, `<error>` without an HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    git_version: &'static str,
    platform: String,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

const REQUEST_SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
const RESPONSE_BYTES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const FILTER_SECONDS: [f64; 11] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0];
const CALL_SECONDS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];
/// From expired over minutes, hours and days to a year.
const CERTIFICATE_SECONDS: [f64; 15] = [
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    62_208_000.0,
];

/// What the HTTP side of the server measures. Clones share the counts.
#[derive(Clone)]
pub struct Metrics {
    served: Arc<[ServedResource]>,
    requests: Family<RequestCodeLabels, Counter>,
    request_seconds: Histograms<RequestLabels>,
    sli_seconds: Histograms<RequestLabels>,
    response_bytes: Histograms<RequestLabels>,
    long_running: Family<RequestLabels, Gauge>,
    in_flight: Family<KindLabels, Gauge>,
    terminations: Family<RequestCodeLabels, Counter>,
    aborts: Family<RequestLabels, Counter>,
    filter_seconds: Histograms<FilterLabels>,
    tls_handshake_errors: Counter,
    certificate_seconds: Histogram,
    serving_certificate_expiry: Gauge,
    users: Family<UserLabels, Gauge>,
    authentications: Family<ResultLabels, Gauge>,
    authentication_seconds: Histograms<ResultLabels>,
    authorizations: Family<ResultLabels, Counter>,
    authorization_seconds: Histograms<ResultLabels>,
    authentication_calls: Family<CallLabels, Counter>,
    authentication_call_seconds: Histograms<CallLabels>,
    authorization_calls: Family<CallLabels, Counter>,
    authorization_call_seconds: Histograms<CallLabels>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// How a question was answered, as the `result` label prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Authenticated.
    Success,
    /// No credential that counts.
    Failure,
    /// A bad credential, or no answer.
    Error,
    /// Allowed.
    Allowed,
    /// Refused by an authorizer.
    Denied,
    /// Allowed by nobody.
    NoOpinion,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Error => "error",
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NoOpinion => "no-opinion",
        }
    }
}

impl Metrics {
    /// Registers the families. `served` bounds the label values.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a table of names")]
    pub fn register(registry: &mut Registry, served: impl Into<Arc<[ServedResource]>>) -> Self {
        fn request_seconds() -> Histogram {
            Histogram::new(REQUEST_SECONDS)
        }
        fn sli_seconds() -> Histogram {
            Histogram::new(REQUEST_SECONDS.into_iter().skip(2))
        }
        fn response_bytes() -> Histogram {
            Histogram::new(RESPONSE_BYTES)
        }
        fn filter_seconds() -> Histogram {
            Histogram::new(FILTER_SECONDS)
        }
        fn call_seconds() -> Histogram {
            Histogram::new(CALL_SECONDS)
        }
        let metrics = Self {
            served: served.into(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(request_seconds),
            sli_seconds: Family::new_with_constructor(sli_seconds),
            response_bytes: Family::new_with_constructor(response_bytes),
            long_running: Family::default(),
            in_flight: Family::default(),
            terminations: Family::default(),
            aborts: Family::default(),
            filter_seconds: Family::new_with_constructor(filter_seconds),
            tls_handshake_errors: Counter::default(),
            certificate_seconds: Histogram::new(CERTIFICATE_SECONDS),
            serving_certificate_expiry: Gauge::default(),
            users: Family::default(),
            authentications: Family::default(),
            authentication_seconds: Family::new_with_constructor(filter_seconds),
            authorizations: Family::default(),
            authorization_seconds: Family::new_with_constructor(filter_seconds),
            authentication_calls: Family::default(),
            authentication_call_seconds: Family::new_with_constructor(call_seconds),
            authorization_calls: Family::default(),
            authorization_call_seconds: Family::new_with_constructor(call_seconds),
        };
        let m = metrics.clone();
        registry.register(
            "apiserver_request",
            "Requests by verb, resource and code",
            m.requests,
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Time to the end of a response",
            m.request_seconds,
        );
        registry.register(
            "apiserver_request_sli_duration_seconds",
            "Time to the end of a response without waiting for others",
            m.sli_seconds,
        );
        registry.register(
            "apiserver_response_sizes",
            "Response bytes of get and list",
            m.response_bytes,
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Watches now open",
            m.long_running,
        );
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests now handled",
            m.in_flight,
        );
        registry.register(
            "apiserver_request_terminations",
            "Requests refused or cut off to protect the server",
            m.terminations,
        );
        registry.register(
            "apiserver_request_aborts",
            "Requests that ended in a panic",
            m.aborts,
        );
        registry.register(
            "apiserver_request_filter_duration_seconds",
            "Time in a filter",
            m.filter_seconds,
        );
        registry.register(
            "apiserver_tls_handshake_errors",
            "TLS handshakes that failed",
            m.tls_handshake_errors,
        );
        registry.register(
            "apiserver_client_certificate_expiration_seconds",
            "Remaining lifetime of client certificates that authenticated",
            m.certificate_seconds,
        );
        registry.register(
            "apiserver_serving_certificate_expiration_timestamp_seconds",
            "When the serving certificate expires, in seconds since 1970",
            m.serving_certificate_expiry,
        );
        registry.register(
            "authenticated_user_requests",
            "Authenticated requests by kind of user",
            m.users,
        );
        registry.register(
            "authentication_attempts",
            "Authentications by result",
            m.authentications,
        );
        registry.register(
            "authentication_duration_seconds",
            "Time to authenticate by result",
            m.authentication_seconds,
        );
        registry.register(
            "authorization_attempts",
            "Authorizations by result",
            m.authorizations,
        );
        registry.register(
            "authorization_duration_seconds",
            "Time to authorize by result",
            m.authorization_seconds,
        );
        registry.register(
            "apiserver_delegated_authn_request",
            "Token reviews asked of the host",
            m.authentication_calls,
        );
        registry.register(
            "apiserver_delegated_authn_request_duration_seconds",
            "Time of token reviews",
            m.authentication_call_seconds,
        );
        registry.register(
            "apiserver_delegated_authz_request",
            "Access reviews asked of the host",
            m.authorization_calls,
        );
        registry.register(
            "apiserver_delegated_authz_request_duration_seconds",
            "Time of access reviews",
            m.authorization_call_seconds,
        );
        let build: Family<BuildLabels, Gauge> = Family::default();
        build
            .get_or_create(&BuildLabels {
                git_version: crate::version::GIT_VERSION,
                platform: crate::version::platform(),
            })
            .set(1);
        registry.register("kubernetes_build_info", "The running build", build);
        registry.register_collector(Box::new(process::Process));
        metrics
    }

    /// The labels of a request, or none when it names nothing that is served.
    #[must_use]
    pub fn labels(&self, info: &RequestInfo, dry_run: bool) -> Option<RequestLabels> {
        let Some(request) = &info.resource else {
            let subresource = match info.path.as_str() {
                "/healthz" => "/healthz",
                "/livez" => "/livez",
                "/readyz" => "/readyz",
                _ => return None,
            };
            return Some(RequestLabels {
                verb: if info.method == Method::GET {
                    "GET"
                } else {
                    "other"
                },
                dry_run: "",
                group: "",
                version: "",
                resource: "",
                subresource,
                scope: "",
                component: "",
            });
        };
        let served = self.served.iter().find(|served| {
            served.resource == request.resource
                && served.version == request.version
                && served.group == request.group
        })?;
        Some(RequestLabels {
            verb: verb_label(info, request),
            dry_run: if dry_run { "All" } else { "" },
            group: served.group,
            version: served.version,
            resource: served.resource,
            subresource: if request.subresource == "status" {
                "status"
            } else {
                ""
            },
            scope: if !request.name.is_empty() || request.verb == Verb::Create {
                "resource"
            } else if request.namespace.is_empty() {
                "cluster"
            } else {
                "namespace"
            },
            component: "apiserver",
        })
    }

    /// Counts an answered request. `bytes` is the size of the body where it is known.
    pub fn responded(&self, labels: &RequestLabels, code: u16, took: Duration, bytes: Option<u64>) {
        self.requests.get_or_create(&labels.with_code(code)).inc();
        let seconds = took.as_secs_f64();
        self.request_seconds.get_or_create(labels).observe(seconds);
        if labels.verb != "WATCH" {
            self.sli_seconds.get_or_create(labels).observe(seconds);
        }
        if let Some(bytes) = bytes
            && matches!(labels.verb, "GET" | "LIST")
        {
            #[expect(clippy::cast_precision_loss, reason = "a histogram of sizes")]
            self.response_bytes.get_or_create(labels).observe(bytes as f64);
        }
    }

    /// A watch that is open until the returned guard is dropped; then it is counted as answered.
    #[must_use]
    pub fn long_running(&self, labels: RequestLabels, code: u16, received: Instant) -> LongRunning {
        self.long_running.get_or_create(&labels).inc();
        LongRunning {
            metrics: self.clone(),
            labels,
            code,
            received,
        }
    }

    /// A request being handled until the returned guard is dropped.
    #[must_use]
    pub fn in_flight(&self, mutating: bool) -> InFlight {
        let request_kind = if mutating { "mutating" } else { "readOnly" };
        let gauge = self.in_flight.get_or_create_owned(&KindLabels { request_kind });
        gauge.inc();
        InFlight(gauge)
    }

    /// A request refused or cut off with `code`.
    pub fn terminated(&self, labels: &RequestLabels, code: u16) {
        self.terminations.get_or_create(&labels.with_code(code)).inc();
    }

    /// A request that panicked.
    pub fn aborted(&self, labels: &RequestLabels) {
        self.aborts.get_or_create(labels).inc();
    }

    /// Time spent in a filter.
    pub fn filtered(&self, filter: &'static str, took: Duration) {
        self.filter_seconds
            .get_or_create(&FilterLabels { filter })
            .observe(took.as_secs_f64());
    }

    /// A failed TLS handshake.
    pub fn tls_handshake_failed(&self) {
        self.tls_handshake_errors.inc();
    }

    /// Remaining lifetime of a client certificate that was verified.
    pub fn client_certificate(&self, remaining_seconds: i64) {
        #[expect(clippy::cast_precision_loss, reason = "a histogram of days")]
        self.certificate_seconds.observe(remaining_seconds.max(0) as f64);
    }

    /// When the certificate the server shows expires, in seconds since 1970.
    pub fn serving_certificate(&self, expires: i64) {
        self.serving_certificate_expiry.set(expires);
    }

    /// An authentication, with the user's name when it succeeded.
    pub fn authenticated(&self, outcome: Outcome, user: Option<&str>, took: Duration) {
        let result = ResultLabels {
            result: outcome.as_str(),
        };
        self.authentications.get_or_create(&result).inc();
        self.authentication_seconds
            .get_or_create(&result)
            .observe(took.as_secs_f64());
        if let Some(user) = user {
            self.users
                .get_or_create(&UserLabels {
                    username: user_label(user),
                })
                .inc();
        }
    }

    /// An authorization.
    pub fn authorized(&self, outcome: Outcome, took: Duration) {
        let result = ResultLabels {
            result: outcome.as_str(),
        };
        self.authorizations.get_or_create(&result).inc();
        self.authorization_seconds
            .get_or_create(&result)
            .observe(took.as_secs_f64());
    }

    /// A token review asked of the host; `code` is none without an HTTP answer.
    pub fn token_review(&self, code: Option<u16>, took: Duration) {
        let labels = call_labels(code);
        self.authentication_calls.get_or_create(&labels).inc();
        self.authentication_call_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// An access review asked of the host; `code` is none without an HTTP answer.
    pub fn access_review(&self, code: Option<u16>, took: Duration) {
        let labels = call_labels(code);
        self.authorization_calls.get_or_create(&labels).inc();
        self.authorization_call_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }
}

fn call_labels(code: Option<u16>) -> CallLabels {
    CallLabels {
        code: code.map_or_else(|| "<error>".to_owned(), |code| code.to_string()),
    }
}

impl RequestLabels {
    fn with_code(&self, code: u16) -> RequestCodeLabels {
        let Self {
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
        } = *self;
        RequestCodeLabels {
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
            code,
        }
    }
}

fn verb_label(info: &RequestInfo, request: &ResourceRequest) -> &'static str {
    match request.verb {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create => "POST",
        Verb::Update => "PUT",
        Verb::Patch if info.is_apply => "APPLY",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
        Verb::Proxy => "CONNECT",
        Verb::None => "other",
    }
}

fn user_label(user: &str) -> &'static str {
    match user {
        "admin" => "admin",
        "client" => "client",
        "kube_proxy" => "kube_proxy",
        "kubelet" => "kubelet",
        "system:serviceaccount:kube-system:default" => "system:serviceaccount:kube-system:default",
        user if user.contains('@') => "email_id",
        _ => "other",
    }
}

/// See [`Metrics::long_running`].
pub struct LongRunning {
    metrics: Metrics,
    labels: RequestLabels,
    code: u16,
    received: Instant,
}

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.metrics.long_running.get_or_create(&self.labels).dec();
        self.metrics
            .responded(&self.labels, self.code, self.received.elapsed(), None);
    }
}

/// See [`Metrics::in_flight`].
pub struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Everything the process measures, as `/metrics` prints it.
#[derive(Debug)]
pub struct Exposition(Registry);

impl Exposition {
    /// Prints what `registry` holds.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self(registry)
    }

    /// The answer to `GET /metrics`: Prometheus text format 0.0.4.
    #[must_use]
    pub fn respond(&self) -> Response<Bytes> {
        let mut text = String::new();
        // Writing into a String cannot fail; a metric that cannot be printed ends the text there.
        if prometheus_client::encoding::prometheus_text::encode(&mut text, &self.0).is_err() {
            tracing::error!("a metric cannot be printed");
        }
        let mut response = Response::new(Bytes::from(text));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8; escaping=underscores"),
        );
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Query;

    const SERVED: ServedResource = ServedResource {
        group: "coordination.k8s.io",
        version: "v1alpha3",
        resource: "evictionrequests",
    };

    fn labels(method: &Method, path: &str) -> Option<(&'static str, &'static str, &'static str)> {
        let metrics = Metrics::register(&mut Registry::default(), [SERVED]);
        let info = RequestInfo::parse(method, path, &Query::default()).unwrap();
        metrics
            .labels(&info, false)
            .map(|labels| (labels.verb, labels.scope, labels.subresource))
    }

    #[test]
    fn labels_come_from_what_is_served() {
        let base = "/apis/coordination.k8s.io/v1alpha3";
        for (method, path, expected) in [
            (Method::GET, "/evictionrequests", Some(("LIST", "cluster", ""))),
            (
                Method::GET,
                "/namespaces/a/evictionrequests",
                Some(("LIST", "namespace", "")),
            ),
            (
                Method::POST,
                "/namespaces/a/evictionrequests",
                Some(("POST", "resource", "")),
            ),
            (
                Method::PUT,
                "/namespaces/a/evictionrequests/x/status",
                Some(("PUT", "resource", "status")),
            ),
            (
                Method::PUT,
                "/namespaces/a/evictionrequests/x/free-text",
                Some(("PUT", "resource", "")),
            ),
            (
                Method::OPTIONS,
                "/namespaces/a/evictionrequests",
                Some(("other", "namespace", "")),
            ),
            (Method::GET, "/namespaces/a/others", None),
        ] {
            assert_eq!(
                labels(&method, &format!("{base}{path}")),
                expected,
                "{method} {path}"
            );
        }
        assert_eq!(labels(&Method::GET, "/readyz"), Some(("GET", "", "/readyz")));
        assert_eq!(labels(&Method::GET, "/free/text"), None);
    }

    #[test]
    fn exposition_has_the_names_of_dashboards() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, [SERVED]);
        let path = "/apis/coordination.k8s.io/v1alpha3/namespaces/a/evictionrequests/x";
        let info = RequestInfo::parse(&Method::GET, path, &Query::default()).unwrap();
        let labels = metrics.labels(&info, false).unwrap();
        metrics.responded(&labels, 200, Duration::from_millis(30), Some(2000));
        drop(metrics.in_flight(true));
        metrics.authenticated(Outcome::Success, Some("a@b"), Duration::ZERO);
        metrics.access_review(None, Duration::ZERO);
        let response = Exposition::new(registry).respond();
        let text = std::str::from_utf8(response.body()).unwrap();
        let request = r#"verb="GET",dry_run="",group="coordination.k8s.io",version="v1alpha3",resource="evictionrequests",subresource="",scope="resource",component="apiserver""#;
        for line in [
            "# TYPE apiserver_request_total counter".to_owned(),
            format!("apiserver_request_total{{{request},code=\"200\"}} 1"),
            format!("apiserver_response_sizes_bucket{{{request},le=\"10000\"}} 1"),
            "apiserver_current_inflight_requests{request_kind=\"mutating\"} 0".to_owned(),
            "authenticated_user_requests{username=\"email_id\"} 1".to_owned(),
            "apiserver_delegated_authz_request_total{code=\"<error>\"} 1".to_owned(),
            "# TYPE process_cpu_seconds_total counter".to_owned(),
            "# TYPE process_resident_memory_bytes gauge".to_owned(),
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains("# EOF"));
    }
}
