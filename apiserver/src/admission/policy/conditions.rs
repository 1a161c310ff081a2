//! `matchConditions` of webhooks.

use std::sync::{Arc, OnceLock};

use drydock_machinery::policy_expression::{Decisions, Program};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::MatchCondition;

use super::definition::webhook_conditions;
use super::evaluation::{self, Conditions as Outcome};
use super::lane::Lane;
use super::{PolicyContext, input};
use crate::admission::attributes::Attributes;
use crate::admission::conditions::{ConditionCompiler, Conditions, Verdict};
use crate::registry::endpoint::Endpoint;

/// Compiles conditions of webhooks with the expressions of policies.
pub struct PolicyConditions {
    context: Arc<PolicyContext>,
}

impl PolicyConditions {
    /// Conditions whose authorization checks the server's authorizer answers.
    #[must_use]
    pub const fn new(context: Arc<PolicyContext>) -> Self {
        Self { context }
    }
}

impl ConditionCompiler for PolicyConditions {
    fn compile(&self, conditions: &[MatchCondition]) -> Box<dyn Conditions> {
        Box::new(WebhookConditions {
            context: Arc::clone(&self.context),
            lane: Lane::of_one(),
            programs: Arc::new(Lazy {
                source: conditions.to_vec(),
                programs: OnceLock::new(),
            }),
        })
    }
}

/// The conditions of a webhook, compiled when they are first evaluated.
struct WebhookConditions {
    context: Arc<PolicyContext>,
    lane: Lane,
    programs: Arc<Lazy>,
}

struct Lazy {
    source: Vec<MatchCondition>,
    programs: OnceLock<Result<Vec<Program>, String>>,
}

impl Conditions for WebhookConditions {
    fn evaluate<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, Verdict> {
        async move {
            let input = match input::of(attributes, endpoint) {
                Ok(input) => input,
                Err(error) => return Verdict::Failed(error.to_string()),
            };
            let lazy = Arc::clone(&self.programs);
            let work = move |decisions: &Decisions| {
                let programs = lazy.programs.get_or_init(|| webhook_conditions(&lazy.source));
                match programs {
                    Ok(programs) => evaluation::conditions(programs, &[], &input, decisions),
                    Err(error) => Ok(Outcome::Failed(error.clone())),
                }
            };
            let mut decisions = Arc::default();
            let user = attributes.write().caller.user;
            match evaluation::run(&self.context, &self.lane, user, &mut decisions, work).await {
                Ok(Outcome::Met) => Verdict::Met,
                Ok(Outcome::NotMet) => Verdict::NotMet,
                Ok(Outcome::Failed(error)) => Verdict::Failed(error),
                Err(error) => Verdict::Failed(error.to_string()),
            }
        }
        .boxed()
    }
}
