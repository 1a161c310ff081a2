//! What became of a rule? Whether it was understood, and how many pods it matches, in the status of every
//! EvictionInterceptor. Start at [`Controller::reconcile`].

pub mod rules;

use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::evictioninterceptor::{ACCEPTED, EvictionInterceptor, EvictionInterceptorStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};

use crate::api::{Clients, Error, call, status_patch};
use crate::evictionrequest::status::whole_seconds;
use crate::informer::Change;
use crate::stores::{Informers, Stores};
use crate::work_queue::{Outcome, WorkQueue};
use rules::{Rule, Rules, documents};

/// How often pods are counted anew.
const COUNT_EVERY: Duration = Duration::from_mins(1);
/// How often they are where every pod has to be read whole.
const COUNT_WHOLE_EVERY: Duration = Duration::from_mins(5);
/// How many whole pods are read at a time.
const PAGE: u32 = 500;

/// The controller of rules.
#[derive(Debug)]
pub struct Controller {
    stores: Stores,
    clients: Clients,
    rules: Arc<Rules>,
    clock: Arc<dyn Clock>,
}

impl Controller {
    /// A controller over these parts.
    #[must_use]
    pub fn new(stores: Stores, clients: Clients, rules: Arc<Rules>, clock: Arc<dyn Clock>) -> Self {
        Self {
            stores,
            clients,
            rules,
            clock,
        }
    }

    /// Looks at the rule of that name.
    pub async fn reconcile(&self, name: String) -> Outcome {
        match self.report(&name).await {
            Ok(every) => Outcome::Wait(every.and_then(|every| self.clock.now().checked_add(every).ok())),
            Err(error) if error.is_not_found() => Outcome::Wait(None),
            Err(error) if error.is_conflict() => Outcome::Retry,
            Err(error) => {
                tracing::warn!(name, %error, "an eviction interceptor was not reconciled");
                Outcome::Retry
            }
        }
    }

    async fn report(&self, name: &str) -> Result<Option<Duration>, Error> {
        let Some(object) = self.stores.rules.get("", name) else {
            return Ok(None);
        };
        let rule = self.rules.of(&object);
        let (matched, every, fault) = match &*rule {
            Ok(rule) if rule.has_conditions() => (self.count_whole(rule).await?, COUNT_WHOLE_EVERY, None),
            Ok(rule) => (self.count(rule), COUNT_EVERY, None),
            Err(fault) => (0, COUNT_EVERY, Some(fault.to_string())),
        };
        let mut status = object.status.clone().unwrap_or_default();
        status.matched_pods = Some(matched);
        self.accept(&object, &mut status, fault);
        let resource_version = object.metadata.resource_version.as_deref();
        if let Some(patch) = status_patch(resource_version, object.status.as_ref(), &status) {
            let api: Api<EvictionInterceptor> = Api::all(self.clients.ours.clone());
            call(api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))).await?;
        }
        Ok(Some(every))
    }

    fn accept(
        &self,
        object: &EvictionInterceptor,
        status: &mut EvictionInterceptorStatus,
        fault: Option<String>,
    ) {
        let (state, reason, message) = match fault {
            None => ("True", "Accepted", "The rule is in force.".to_owned()),
            Some(fault) => ("False", "Invalid", fault),
        };
        let known = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == ACCEPTED);
        let since = known
            .filter(|known| known.status == state)
            .map(|known| known.last_transition_time.clone());
        let condition = Condition {
            type_: ACCEPTED.to_owned(),
            status: state.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: object.metadata.generation,
            last_transition_time: since.unwrap_or_else(|| whole_seconds(self.clock.now())),
        };
        status.conditions.retain(|condition| condition.type_ != ACCEPTED);
        status.conditions.push(condition);
    }

    fn count(&self, rule: &Rule) -> i32 {
        let matched = self
            .stores
            .pods
            .all()
            .iter()
            .filter(|pod| {
                let namespace = self.stores.namespaces.get("", pod.namespace());
                rule.selects(namespace.as_deref(), pod.labels())
            })
            .count();
        i32::try_from(matched).unwrap_or(i32::MAX)
    }

    async fn count_whole(&self, rule: &Rule) -> Result<i32, Error> {
        let api = documents(&self.clients.host, None);
        let mut parameters = ListParams::default().labels(&rule.pod_selector()).limit(PAGE);
        let mut matched = 0_i32;
        loop {
            let page = call(api.list(&parameters)).await?;
            for pod in page.items {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let namespace = self.stores.namespaces.get("", namespace);
                let labels = pod.metadata.labels.clone().unwrap_or_default();
                let document = serde_json::to_value(&pod).unwrap_or_default();
                if rule.selects(namespace.as_deref(), &labels) && rule.is_met(&document, namespace.as_deref())
                {
                    matched = matched.saturating_add(1);
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(matched),
            }
        }
    }
}

/// Has changes of rules bring them into the queue.
pub fn listen(informers: &mut Informers, rules: &Arc<Rules>, queue: &Arc<WorkQueue<String>>) {
    let (queue, rules) = (Arc::clone(queue), Arc::clone(rules));
    informers
        .rules
        .listen(move |change: &Change<EvictionInterceptor>| {
            let Some(object) = change.latest() else { return };
            if change.new.is_none() {
                rules.forget(object.metadata.uid.as_deref().unwrap_or_default());
            }
            queue.add(object.metadata.name.clone().unwrap_or_default());
        });
}
