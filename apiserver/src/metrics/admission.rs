//! Metrics of admission, with the names of Kubernetes.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::register::{Histograms, histograms, new};

const SECONDS: [f64; 7] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0];
const CONDITION_SECONDS: [f64; 6] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.5];
/// Higher codes are counted as this one.
const HIGHEST_CODE: u16 = 600;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    name: &'static str,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    code: u16,
    rejected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    error_type: &'static str,
    rejection_code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailOpenLabels {
    name: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    name: String,
    kind: &'static str,
    r#type: &'static str,
    operation: &'static str,
}

/// What a metric is about.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The name of the webhook, or of the policy.
    pub name: &'a str,
    /// `admit` or `validating`.
    pub step: &'static str,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: &'static str,
}

/// Why a webhook leads to a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedBy {
    /// It could not be called.
    Call,
    /// This server cannot use its response.
    Internal,
    /// It denied the request.
    Webhook,
}

/// The metrics of admission. Clones share them.
#[derive(Clone)]
pub struct AdmissionMetrics {
    step_seconds: Histograms<StepLabels>,
    plugin_seconds: Histograms<PluginLabels>,
    webhook_seconds: Histograms<WebhookLabels>,
    requests: Family<RequestLabels, Counter>,
    // Counters in Kubernetes, whose names have no `_total`.
    rejections: Family<RejectionLabels, Gauge>,
    fail_open: Family<FailOpenLabels, Gauge>,
    condition_errors: Family<ConditionLabels, Counter>,
    condition_exclusions: Family<ConditionLabels, Counter>,
    condition_seconds: Histograms<ConditionLabels>,
}

const fn boolean(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

impl AdmissionMetrics {
    #[rustfmt::skip] // A table with a row per metric.
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            step_seconds: histograms(r, "apiserver_admission_step_admission_duration_seconds", "Time of a phase of admission", SECONDS),
            plugin_seconds: histograms(r, "apiserver_admission_controller_admission_duration_seconds", "Time of an admission plugin", SECONDS),
            webhook_seconds: histograms(r, "apiserver_admission_webhook_admission_duration_seconds", "Time of a call of a webhook", SECONDS),
            requests: new(r, "apiserver_admission_webhook_request", "Calls of webhooks by code"),
            rejections: new(r, "apiserver_admission_webhook_rejection_count", "Requests rejected because of a webhook"),
            fail_open: new(r, "apiserver_admission_webhook_fail_open_count", "Requests admitted although a webhook failed"),
            condition_errors: new(r, "apiserver_admission_match_condition_evaluation_errors", "Match conditions that could not be evaluated"),
            condition_exclusions: new(r, "apiserver_admission_match_condition_exclusions", "Requests excluded by match conditions"),
            condition_seconds: histograms(r, "apiserver_admission_match_condition_evaluation_seconds", "Time to evaluate match conditions", CONDITION_SECONDS),
        }
    }

    /// Records a phase of admission: `admit` or `validate`.
    pub fn step(&self, step: &'static str, operation: &'static str, rejected: bool, took: Duration) {
        let labels = StepLabels {
            r#type: step,
            operation,
            rejected: boolean(rejected),
        };
        self.step_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Records the run of a plugin in the phase `admit` or `validate`.
    pub fn plugin(
        &self,
        name: &'static str,
        step: &'static str,
        operation: &'static str,
        rejected: bool,
        took: Duration,
    ) {
        let labels = PluginLabels {
            name,
            r#type: step,
            operation,
            rejected: boolean(rejected),
        };
        self.plugin_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Records a call of a webhook and the code of its result: 200 if it allowed the request.
    pub fn called(&self, call: Call<'_>, code: u16, rejected: bool, took: Duration) {
        let labels = WebhookLabels {
            name: call.name.to_owned(),
            r#type: call.step,
            operation: call.operation,
            rejected: boolean(rejected),
        };
        self.webhook_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        let labels = RequestLabels {
            name: labels.name,
            r#type: call.step,
            operation: call.operation,
            code: code.min(HIGHEST_CODE),
            rejected: labels.rejected,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a request that is rejected because of a webhook; `code` is 0 unless the webhook denied it.
    pub fn rejected(&self, call: Call<'_>, by: RejectedBy, code: u16) {
        let labels = RejectionLabels {
            name: call.name.to_owned(),
            r#type: call.step,
            operation: call.operation,
            error_type: match by {
                RejectedBy::Call => "calling_webhook_error",
                RejectedBy::Internal => "apiserver_internal_error",
                RejectedBy::Webhook => "no_error",
            },
            rejection_code: code.min(HIGHEST_CODE),
        };
        self.rejections.get_or_create(&labels).inc();
    }

    /// Counts a request that goes on although a webhook could not be called.
    pub fn failed_open(&self, call: Call<'_>) {
        let labels = FailOpenLabels {
            name: call.name.to_owned(),
            r#type: call.step,
        };
        self.fail_open.get_or_create(&labels).inc();
    }

    /// Records an evaluation of match conditions; `kind` is `webhook` or `policy`.
    pub fn conditions(
        &self,
        call: Call<'_>,
        kind: &'static str,
        excluded: bool,
        failed: bool,
        took: Duration,
    ) {
        let labels = ConditionLabels {
            name: call.name.to_owned(),
            kind,
            r#type: call.step,
            operation: call.operation,
        };
        self.condition_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        if excluded {
            self.condition_exclusions.get_or_create(&labels).inc();
        }
        if failed {
            self.condition_errors.get_or_create(&labels).inc();
        }
    }
}
