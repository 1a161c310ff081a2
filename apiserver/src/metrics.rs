//! The metrics of the HTTP side of the server.
//!
//! Names and labels are those of Kubernetes API servers, so that existing dashboards work. Label values come from what
//! the server serves and never from free text of a request, so that clients cannot create series at will.

pub mod admission;
mod audit;
mod exposition;
mod flow_control;
mod labels;
mod process;
pub mod register;

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;

pub use self::{
    admission::AdmissionMetrics,
    audit::AuditMetrics,
    exposition::Exposition,
    flow_control::{FlowExecuting, FlowMetrics, FlowWaiting},
    labels::{Outcome, RequestLabels, ServedResource},
};
use self::{
    labels::{
        AbortLabels, BuildLabels, CallLabels, FilterLabels, KindLabels, PlainCodeLabels, PlainLabels,
        RequestCodeLabels, ResultLabels, UserLabels, call_labels, user_label,
    },
    register::{Histograms, histogram, histograms, new},
};
use crate::request::RequestInfo;

const REQUEST_SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
const RESPONSE_BYTES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const FILTER_SECONDS: [f64; 11] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0];
const CALL_SECONDS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];
/// From 0 (expired) over minutes, hours and days to two years.
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

/// The metrics of the HTTP side. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    served: Arc<[ServedResource]>,
    requests: Family<RequestCodeLabels, Counter>,
    request_seconds: Histograms<RequestLabels>,
    sli_seconds: Histograms<PlainLabels>,
    response_bytes: Histograms<PlainLabels>,
    long_running: Family<PlainLabels, Gauge>,
    in_flight: Family<KindLabels, Gauge>,
    terminations: Family<PlainCodeLabels, Counter>,
    aborts: Family<AbortLabels, Counter>,
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
    flow: FlowMetrics,
    audit: AuditMetrics,
    admission: AdmissionMetrics,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

impl Metrics {
    /// Creates and registers the metrics. `served` limits the label values.
    #[must_use]
    #[rustfmt::skip] // A table with a row per metric.
    pub fn register(registry: &mut Registry, served: impl Into<Arc<[ServedResource]>>) -> Self {
        let r = registry;
        let build: Family<BuildLabels, Gauge> = new(r, "kubernetes_build_info", "The running build");
        build.get_or_create(&BuildLabels::current()).set(1);
        r.register_collector(Box::new(process::Process));
        Self {
            served: served.into(),
            requests: new(r, "apiserver_request", "Requests by verb, resource and code"),
            request_seconds: histograms(r, "apiserver_request_duration_seconds", "Time to the end of a response", REQUEST_SECONDS),
            sli_seconds: histograms(r, "apiserver_request_sli_duration_seconds", "Time to the end of a response without waiting for others", REQUEST_SECONDS.into_iter().skip(2)),
            response_bytes: histograms(r, "apiserver_response_sizes", "Response bytes of get and list", RESPONSE_BYTES),
            long_running: new(r, "apiserver_longrunning_requests", "Watches now open"),
            in_flight: new(r, "apiserver_current_inflight_requests", "Requests now handled"),
            terminations: new(r, "apiserver_request_terminations", "Requests rejected or aborted to protect the server"),
            aborts: new(r, "apiserver_request_aborts", "Requests that ended in a panic"),
            filter_seconds: histograms(r, "apiserver_request_filter_duration_seconds", "Time in a filter", FILTER_SECONDS),
            tls_handshake_errors: new(r, "apiserver_tls_handshake_errors", "TLS handshakes that failed"),
            certificate_seconds: histogram(r, "apiserver_client_certificate_expiration_seconds", "Remaining lifetime of client certificates that authenticated", CERTIFICATE_SECONDS),
            serving_certificate_expiry: new(r, "apiserver_serving_certificate_expiration_timestamp_seconds", "When the serving certificate expires, in seconds since 1970"),
            users: new(r, "authenticated_user_requests", "Authenticated requests by kind of user"),
            authentications: new(r, "authentication_attempts", "Authentications by result"),
            authentication_seconds: histograms(r, "authentication_duration_seconds", "Time to authenticate by result", FILTER_SECONDS),
            authorizations: new(r, "authorization_attempts", "Authorizations by result"),
            authorization_seconds: histograms(r, "authorization_duration_seconds", "Time to authorize by result", FILTER_SECONDS),
            authentication_calls: new(r, "apiserver_delegated_authn_request", "Token reviews asked of the host"),
            authentication_call_seconds: histograms(r, "apiserver_delegated_authn_request_duration_seconds", "Time of token reviews", CALL_SECONDS),
            authorization_calls: new(r, "apiserver_delegated_authz_request", "Access reviews asked of the host"),
            authorization_call_seconds: histograms(r, "apiserver_delegated_authz_request_duration_seconds", "Time of access reviews", CALL_SECONDS),
            flow: FlowMetrics::register(r),
            audit: AuditMetrics::register(r),
            admission: AdmissionMetrics::register(r),
        }
    }

    /// The labels of a request, or none when it names nothing that is served.
    #[must_use]
    pub fn labels(&self, info: &RequestInfo, dry_run: bool) -> Option<RequestLabels> {
        RequestLabels::of(&self.served, info, dry_run)
    }

    /// The metrics of the audit log.
    #[must_use]
    pub fn audit(&self) -> &AuditMetrics {
        &self.audit
    }

    /// The metrics of flow control.
    #[must_use]
    pub fn flow(&self) -> &FlowMetrics {
        &self.flow
    }

    /// The metrics of admission.
    #[must_use]
    pub fn admission(&self) -> &AdmissionMetrics {
        &self.admission
    }

    /// Counts a request with a response. `bytes` is the size of the body if known.
    pub fn responded(&self, labels: &RequestLabels, code: u16, took: Duration, bytes: Option<u64>) {
        self.requests.get_or_create(&labels.with_code(code)).inc();
        let seconds = took.as_secs_f64();
        self.request_seconds.get_or_create(labels).observe(seconds);
        if labels.verb != "WATCH" {
            self.sli_seconds.get_or_create(&labels.plain()).observe(seconds);
        }
        if let Some(bytes) = bytes
            && matches!(labels.verb, "GET" | "LIST")
        {
            #[expect(clippy::cast_precision_loss, reason = "a histogram of sizes")]
            self.response_bytes
                .get_or_create(&labels.plain())
                .observe(bytes as f64);
        }
    }

    /// Counts a watch as open until the returned guard is dropped, and as responded then.
    #[must_use]
    pub fn long_running(&self, labels: RequestLabels, code: u16, received: Instant) -> LongRunning {
        self.long_running.get_or_create(&labels.plain()).inc();
        LongRunning {
            metrics: self.clone(),
            labels,
            code,
            received,
        }
    }

    /// Counts a request as being handled until the returned guard is dropped.
    #[must_use]
    pub fn in_flight(&self, mutating: bool) -> InFlight {
        let request_kind = if mutating { "mutating" } else { "readOnly" };
        let gauge = self.in_flight.get_or_create_owned(&KindLabels { request_kind });
        gauge.inc();
        InFlight(gauge)
    }

    /// Counts a request that was rejected or aborted with `code`.
    pub fn terminated(&self, labels: &RequestLabels, code: u16) {
        let labels = labels.plain_with_code(code);
        self.terminations.get_or_create(&labels).inc();
    }

    /// Counts a request that panicked.
    pub fn aborted(&self, labels: &RequestLabels) {
        self.aborts.get_or_create(&labels.target()).inc();
    }

    /// Records the time spent in a filter.
    pub fn filtered(&self, filter: &'static str, took: Duration) {
        self.filter_seconds
            .get_or_create(&FilterLabels { filter })
            .observe(took.as_secs_f64());
    }

    /// Counts a failed TLS handshake.
    pub fn tls_handshake_failed(&self) {
        self.tls_handshake_errors.inc();
    }

    /// Records the remaining lifetime of a verified client certificate.
    pub fn client_certificate(&self, remaining_seconds: i64) {
        #[expect(clippy::cast_precision_loss, reason = "a histogram of days")]
        self.certificate_seconds.observe(remaining_seconds.max(0) as f64);
    }

    /// Sets when the serving certificate expires, in seconds since 1970.
    pub fn serving_certificate(&self, expires: i64) {
        self.serving_certificate_expiry.set(expires);
    }

    /// Counts an authentication, with the user's name if it succeeded.
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

    /// Counts an authorization.
    pub fn authorized(&self, outcome: Outcome, took: Duration) {
        let result = ResultLabels {
            result: outcome.as_str(),
        };
        self.authorizations.get_or_create(&result).inc();
        self.authorization_seconds
            .get_or_create(&result)
            .observe(took.as_secs_f64());
    }

    /// Counts a token review by the host; `code` is none without an HTTP response.
    pub fn token_review(&self, code: Option<u16>, took: Duration) {
        let labels = call_labels(code);
        self.authentication_calls.get_or_create(&labels).inc();
        self.authentication_call_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Counts an access review by the host; `code` is none without an HTTP response.
    pub fn access_review(&self, code: Option<u16>, took: Duration) {
        let labels = call_labels(code);
        self.authorization_calls.get_or_create(&labels).inc();
        self.authorization_call_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
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
        let open = &self.metrics.long_running;
        open.get_or_create(&self.labels.plain()).dec();
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

#[cfg(test)]
mod tests {
    use http::Method;

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
    fn label_values_are_limited_to_what_is_served() {
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
    fn the_exposition_has_the_names_that_dashboards_use() {
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
            format!(
                "apiserver_response_sizes_bucket{{{},le=\"10000\"}} 1",
                request.replace("dry_run=\"\",", "")
            ),
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
