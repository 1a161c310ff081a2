//! Why a call of the eviction API failed, from its response and the budgets of the pod. Pure functions.

use std::time::Duration;

use drydock_proto::kinds::evictionrequest::MAX_MESSAGE_BYTES;

use super::budget::Known;
use super::reason::Reason;
use crate::api::Error;
use crate::rejection;

/// The longest cause, in bytes. Texts of webhooks may be long, and every refused request has one.
const MAX_CAUSE_BYTES: usize = 1024;

/// A refusal by the eviction API, or a failure of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason of the condition `Blocked`.
    pub reason: Reason,
    /// The message of the condition `Blocked`, with names and numbers.
    pub message: String,
    /// The cause in the message of the interceptor.
    pub cause: String,
    /// The result as the metric names it.
    pub result: &'static str,
    /// The delay that the API requested.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// The refusal that the error of the call means for a pod of these budgets.
    #[must_use]
    pub fn from_error(error: &Error, known: Known<'_>) -> Self {
        let Some(status) = error.status() else {
            let cause = error.cause().map(|cause| format!(": {cause}"));
            let text = format!("{error}{}", cause.unwrap_or_default());
            return Self::of_text(Reason::EvictionFailed, &text, "failed", None);
        };
        let details = status.details.as_ref();
        let causes = details.map_or(&[][..], |details| details.causes.as_slice());
        let has_cause = |reason: &str| causes.iter().any(|cause| cause.reason == reason);
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        let causes: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
        let text = format!("{} {}", status.message, causes.join(" "));
        let text = text.trim().trim_end_matches('.');
        if is_by_webhook(text) {
            return Self::of_text(Reason::Webhook, text, "refused", retry_after);
        }
        if has_cause("NamespaceTerminating") {
            return Self::of_text(Reason::NamespaceTerminating, text, "refused", retry_after);
        }
        let has_several = status.code == 500 && text.contains("more than one PodDisruptionBudget");
        if has_several || has_cause("DisruptionBudget") {
            return Self::by_budgets(known, has_several, text, retry_after);
        }
        let text = if text.is_empty() {
            format!("the API responded with code {}", status.code)
        } else {
            text.to_owned()
        };
        match status.code {
            429 => Self::of_text(Reason::Throttled, &text, "throttled", retry_after),
            401 | 503 | 504 => Self::of_text(Reason::EvictionFailed, &text, "failed", retry_after),
            _ => Self::of_text(Reason::EvictionFailed, &text, "refused", retry_after),
        }
    }

    fn of_text(reason: Reason, text: &str, result: &'static str, retry_after: Option<Duration>) -> Self {
        let cause = cut(text).to_owned();
        Self {
            reason,
            message: format!("{cause}."),
            cause,
            result,
            retry_after,
        }
    }

    fn by_budgets(known: Known<'_>, has_several: bool, text: &str, retry_after: Option<Duration>) -> Self {
        if let Some(cause) = known.unwatched {
            let message = format!(
                "{text}. PodDisruptionBudgets cannot be watched, so it is not known when the pod may leave: {cause}."
            );
            return Self {
                message: cut(&message).to_owned(),
                ..Self::of_text(Reason::BudgetNotObserved, text, "budget", retry_after)
            };
        }
        let budgets = known.budgets;
        let names: Vec<&str> = budgets.iter().map(|budget| budget.name.as_str()).collect();
        let blocked_by = rejection::budgets(&names);
        let (reason, message) = match budgets {
            // The API knows a budget that has not arrived here yet.
            [] => {
                let reason = if has_several {
                    Reason::MultipleBudgets
                } else if text.contains("still being processed") {
                    Reason::BudgetNotObserved
                } else {
                    Reason::Budget
                };
                return Self::of_text(reason, text, "budget", retry_after);
            }
            [budget] if !budget.is_observed => (
                Reason::BudgetNotObserved,
                format!(
                    "PodDisruptionBudget {} has changed and is not observed by its controller yet.",
                    budget.name
                ),
            ),
            [budget] => match &budget.sync_failure {
                Some(failure) => (
                    Reason::BudgetNotComputable,
                    format!(
                        "PodDisruptionBudget {} cannot be computed: {failure}",
                        budget.name
                    ),
                ),
                None => (
                    Reason::Budget,
                    format!(
                        "PodDisruptionBudget {} has {} healthy pods now and wants {}.",
                        budget.name, budget.healthy, budget.desired_healthy
                    ),
                ),
            },
            _ => (
                Reason::MultipleBudgets,
                format!(
                    "{} PodDisruptionBudgets select the pod, and the eviction API supports one: {}.",
                    budgets.len(),
                    names.join(", ")
                ),
            ),
        };
        Self {
            reason,
            message: cut(&message).to_owned(),
            cause: cut(&blocked_by).to_owned(),
            result: "budget",
            retry_after,
        }
    }

    /// The message of the interceptor after this many failed attempts.
    #[must_use]
    pub fn interceptor_message(&self, retries: i32) -> String {
        rejection::message(&self.cause, retries, MAX_MESSAGE_BYTES)
    }
}

/// Whether an admission webhook or policy of the host refused, or could not be called.
fn is_by_webhook(text: &str) -> bool {
    text.contains("admission webhook \"")
        || text.contains("failed calling webhook")
        || text.contains("failed to call webhook")
        || text.starts_with("ValidatingAdmissionPolicy '")
}

fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_CAUSE_BYTES))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evictionrequest::budget::Budget;
    use serde_json::{Value, json};

    fn refusal(status: Value, budgets: &[Budget]) -> Refusal {
        refusal_of(status, selected_by(budgets))
    }

    fn selected_by(budgets: &[Budget]) -> Known<'_> {
        Known {
            budgets,
            unwatched: None,
        }
    }

    fn refusal_of(status: Value, known: Known<'_>) -> Refusal {
        let error = Error::Status(Box::new(serde_json::from_value(status).unwrap()));
        Refusal::from_error(&error, known)
    }

    fn budget(name: &str) -> Budget {
        Budget {
            name: name.to_owned(),
            healthy: 2,
            desired_healthy: 3,
            is_observed: true,
            ..Budget::default()
        }
    }

    /// The response of the eviction API to a pod whose budget blocks.
    fn by_budget(cause: &str) -> Value {
        json!({
            "code": 429, "reason": "TooManyRequests",
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "details": {"causes": [{"reason": "DisruptionBudget", "message": cause}]},
        })
    }

    #[test]
    fn budgets_are_named_with_their_numbers() {
        let needs = by_budget("The disruption budget db needs 3 healthy pods and has 2 currently");
        let unobserved = Budget {
            is_observed: false,
            ..budget("db")
        };
        let failed = Budget {
            sync_failure: Some("found no controllers for pod \"web\"".to_owned()),
            ..budget("db")
        };
        let several = json!({"code": 500, "message": "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."});
        for (status, budgets, reason, message) in [
            (
                &needs,
                vec![budget("db")],
                Reason::Budget,
                "PodDisruptionBudget db has 2 healthy pods now and wants 3.",
            ),
            (
                &needs,
                vec![],
                Reason::Budget,
                "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget db needs 3 healthy pods and has 2 currently.",
            ),
            (
                &needs,
                vec![unobserved],
                Reason::BudgetNotObserved,
                "PodDisruptionBudget db has changed and is not observed by its controller yet.",
            ),
            (
                &needs,
                vec![failed],
                Reason::BudgetNotComputable,
                "PodDisruptionBudget db cannot be computed: found no controllers for pod \"web\"",
            ),
            (
                &several,
                vec![budget("db"), budget("other")],
                Reason::MultipleBudgets,
                "2 PodDisruptionBudgets select the pod, and the eviction API supports one: db, other.",
            ),
        ] {
            let refusal = refusal(status.clone(), &budgets);
            assert_eq!((refusal.reason, refusal.message.as_str()), (reason, message));
            assert_eq!(refusal.result, "budget");
        }
        let unknown = refusal(
            by_budget("The disruption budget db is still being processed by the server."),
            &[],
        );
        assert_eq!(unknown.reason, Reason::BudgetNotObserved);
        let unwatched = Known {
            budgets: &[],
            unwatched: Some("forbidden (403)"),
        };
        let unwatched = refusal_of(needs, unwatched);
        assert_eq!(unwatched.reason, Reason::BudgetNotObserved);
        assert!(
            unwatched.message.contains("budget db needs 3") && unwatched.message.contains("forbidden (403)"),
            "{}",
            unwatched.message
        );
    }

    #[test]
    fn overload_webhooks_and_namespaces_are_not_budgets() {
        let one = [budget("db")];
        let overload = json!({"code": 429, "message": "Too many requests, please try again later.", "details": {"retryAfterSeconds": 7}});
        let throttled = refusal(overload, &one);
        assert_eq!(
            (throttled.reason, throttled.result),
            (Reason::Throttled, "throttled")
        );
        assert_eq!(throttled.retry_after, Some(Duration::from_secs(7)));
        for (code, message) in [
            (403, "admission webhook \"w\" denied the request: not today"),
            (429, "admission webhook \"w\" denied the request: wait"),
            (
                500,
                "Internal error occurred: failed calling webhook \"w\": context deadline exceeded",
            ),
            (
                422,
                "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            ),
        ] {
            let refusal = refusal(json!({"code": code, "message": message}), &one);
            assert_eq!(refusal.reason, Reason::Webhook, "{message}");
            assert_eq!(refusal.cause, message);
        }
        let terminating = json!({
            "code": 403,
            "message": "unable to create new content in namespace shop because it is being terminated",
            "details": {"causes": [{"reason": "NamespaceTerminating", "message": "namespace shop is being terminated"}]},
        });
        assert_eq!(refusal(terminating, &one).reason, Reason::NamespaceTerminating);
        for code in [401, 404, 500, 503] {
            let failed = refusal(json!({"code": code, "message": "no"}), &one);
            assert_eq!(failed.reason, Reason::EvictionFailed, "{code}");
        }
        assert_eq!(
            Refusal::from_error(&Error::Timeout(Duration::from_secs(15)), selected_by(&one)).reason,
            Reason::EvictionFailed
        );
    }

    #[test]
    fn long_texts_are_cut() {
        let text = format!(
            "admission webhook \"w\" denied the request: {}",
            "ö".repeat(40_000)
        );
        let refusal = refusal(json!({"code": 403, "message": text}), &[]);
        assert!((MAX_CAUSE_BYTES - 1..=MAX_CAUSE_BYTES).contains(&refusal.cause.len()));
        assert!(
            refusal
                .interceptor_message(7)
                .ends_with(", number of retries: 7.")
        );
    }
}
