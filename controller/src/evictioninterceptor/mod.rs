//! The controller of EvictionInterceptors. It reports in the status of each whether its rule was accepted and how many
//! pods it matches. Start at [`Controller::reconcile`].

pub mod rules;

use std::sync::Arc;
use std::time::Duration;

use drydock_proto::kinds::evictioninterceptor::{ACCEPTED, EvictionInterceptor, EvictionInterceptorStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::{DynamicObject, ListParams};

use crate::api::{Error, call, merge_patch_status, status_patch};
use crate::conditions::{set_condition, whole_seconds};
use crate::context::Context;
use crate::informer::Change;
use crate::stores::Informers;
use crate::work_queue::{Outcome, WorkQueue};
use rules::{Rule, Rules, blocking, complete_pods};

/// How often matched pods are counted.
const COUNT_INTERVAL: Duration = Duration::from_mins(1);
/// How often they are counted where conditions require complete pods from the API.
const COMPLETE_COUNT_INTERVAL: Duration = Duration::from_mins(5);
/// How many complete pods are listed per page.
const PAGE_SIZE: u32 = 500;

/// The evictioninterceptor controller.
#[derive(Debug)]
pub struct Controller {
    context: Arc<Context>,
    rules: Arc<Rules>,
}

impl Controller {
    /// A controller. It shares the compiled rules with the evictionrequest controller.
    #[must_use]
    pub fn new(context: Arc<Context>, rules: Arc<Rules>) -> Self {
        Self { context, rules }
    }

    /// Updates the status of the EvictionInterceptor of this name.
    pub async fn reconcile(&self, name: String) -> Outcome {
        match self.update_status(&name).await {
            Ok(next) => Outcome::Wait(next.and_then(|next| self.context.clock.now().checked_add(next).ok())),
            Err(error) if error.is_not_found() => Outcome::Wait(None),
            Err(error) if error.is_conflict() => Outcome::Retry,
            Err(error) => {
                let cause = error.cause();
                tracing::warn!(name, %error, cause, "reconciling an eviction interceptor failed");
                Outcome::Retry
            }
        }
    }

    /// Returns after how long the status is updated again.
    async fn update_status(&self, name: &str) -> Result<Option<Duration>, Error> {
        let Some(object) = self.context.stores.interceptors.get("", name) else {
            return Ok(None);
        };
        let rule = self.rules.get_or_compile(&object);
        let (matched, next, error) = match &*rule {
            Ok(rule) if rule.has_conditions() => {
                (self.count_complete(rule).await?, COMPLETE_COUNT_INTERVAL, None)
            }
            Ok(rule) => (self.count(rule), COUNT_INTERVAL, None),
            Err(error) => (0, COUNT_INTERVAL, Some(error.to_string())),
        };
        let mut status = object.status.clone().unwrap_or_default();
        status.matched_pods = Some(matched);
        self.set_accepted(&object, &mut status, error);
        let resource_version = object.metadata.resource_version.as_deref();
        if let Some(patch) = status_patch(resource_version, object.status.as_ref(), &status) {
            let api: Api<EvictionInterceptor> = Api::all(self.context.clients.drydock.clone());
            merge_patch_status(&api, name, &patch).await?;
        }
        Ok(Some(next))
    }

    fn set_accepted(
        &self,
        object: &EvictionInterceptor,
        status: &mut EvictionInterceptorStatus,
        error: Option<String>,
    ) {
        let (state, reason, message) = match error {
            None => ("True", "Accepted", "The rule is in force.".to_owned()),
            Some(error) => ("False", "Invalid", error),
        };
        let condition = Condition {
            type_: ACCEPTED.to_owned(),
            status: state.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: object.metadata.generation,
            last_transition_time: whole_seconds(self.context.clock.now()),
        };
        set_condition(&mut status.conditions, condition);
    }

    /// Counts the pods that both selectors match, from the store.
    fn count(&self, rule: &Rule) -> i32 {
        let matched = self
            .context
            .stores
            .pods
            .all()
            .iter()
            .filter(|pod| {
                let namespace = self.context.stores.namespaces.get("", pod.namespace());
                rule.selects(namespace.as_deref(), pod.labels())
            })
            .count();
        i32::try_from(matched).unwrap_or(i32::MAX)
    }

    /// Counts the pods that match a rule with conditions, from the API. Without a pod that its selectors match, the API
    /// is not called.
    async fn count_complete(&self, rule: &Arc<Rule>) -> Result<i32, Error> {
        if self.count(rule) == 0 {
            return Ok(0);
        }
        let api = complete_pods(&self.context.clients.host, None);
        let mut parameters = ListParams::default()
            .labels(&rule.pod_selector())
            .limit(PAGE_SIZE);
        let mut matched = 0_i32;
        loop {
            let page = call(api.list(&parameters)).await?;
            let (rule, namespaces) = (Arc::clone(rule), self.context.stores.namespaces.clone());
            let count = blocking(move || {
                let is_match = |pod: &&DynamicObject| {
                    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                    let namespace = namespaces.get("", namespace);
                    let labels = pod.metadata.labels.clone().unwrap_or_default();
                    let namespace = namespace.as_deref();
                    let pod = || serde_json::to_value(pod).unwrap_or_default();
                    rule.selects(namespace, &labels)
                        && rule.conditions_hold(&pod(), namespace).unwrap_or(false)
                };
                page.items.iter().filter(is_match).count()
            });
            let count = i32::try_from(count.await.unwrap_or_default()).unwrap_or(i32::MAX);
            matched = matched.saturating_add(count);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(matched),
            }
        }
    }
}

/// Queues EvictionInterceptors when their rule changes. Their status is written by this controller itself.
pub fn add_handlers(informers: &mut Informers, rules: &Arc<Rules>, queue: &Arc<WorkQueue<String>>) {
    let (queue, rules) = (Arc::clone(queue), Arc::clone(rules));
    informers
        .interceptors
        .add_handler(move |change: &Change<EvictionInterceptor>| {
            let Some(object) = change.latest() else { return };
            if !is_new_rule(change) {
                return;
            }
            if change.new.is_none() {
                rules.remove(object.metadata.uid.as_deref().unwrap_or_default());
            }
            queue.add(object.metadata.name.clone().unwrap_or_default());
        });
}

/// Whether the change is not of the status or the metadata alone.
fn is_new_rule(change: &Change<EvictionInterceptor>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            old.metadata.uid != new.metadata.uid || old.metadata.generation != new.metadata.generation
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests;
