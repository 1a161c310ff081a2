//! `matchConditions` of webhooks: the interface of their evaluator.

use futures_util::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::MatchCondition;

use super::attributes::Attributes;
use crate::registry::endpoint::Endpoint;

/// What the conditions of a webhook say about a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All are true: the webhook is called.
    Met,
    /// One is false: the webhook is not called, even if another one cannot be evaluated.
    NotMet,
    /// None is false, and at least one cannot be evaluated: the failure policy decides. The text is for the client.
    Failed(String),
}

/// Compiles conditions.
pub trait ConditionCompiler: Send + Sync {
    /// Compiles the conditions of a webhook, once for each state of its configuration. Errors show when they are evaluated.
    fn compile(&self, conditions: &[MatchCondition]) -> Box<dyn Conditions>;
}

/// The compiled conditions of a webhook. There is at least one.
pub trait Conditions: Send + Sync {
    /// Evaluates the conditions for a write, with its objects in the version in which the webhook matched.
    fn evaluate<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, Verdict>;
}

/// For tests without policies. Evaluates nothing: the failure policy of each webhook with conditions decides.
#[cfg(test)]
pub(crate) struct Unevaluated;

#[cfg(test)]
impl ConditionCompiler for Unevaluated {
    fn compile(&self, _: &[MatchCondition]) -> Box<dyn Conditions> {
        Box::new(Self)
    }
}

#[cfg(test)]
impl Conditions for Unevaluated {
    fn evaluate<'a>(&'a self, _: &'a Attributes<'_>, _: &'a Endpoint) -> BoxFuture<'a, Verdict> {
        let text = "this server cannot evaluate matchConditions";
        Box::pin(std::future::ready(Verdict::Failed(text.to_owned())))
    }
}
