//! Observes one request: the stored request, its pod, the budgets that select the pod, and its interceptors.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_machinery::names::AllowedNames;
use drydock_machinery::selector::Selector;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;

use super::budget::Budget;
use super::gone_pods::GonePods;
use super::interceptors::{self, InterceptorOrder};
use super::snapshot::{EvictionExemption, NoOrder, PodDeletion, Request, Target, TargetPod};
use super::status;
use crate::api::{Error, call};
use crate::context::Context;
use crate::evictioninterceptor::rules::{Matching, Rules};
use crate::informer::{ObjectKey, key_of};
use crate::pod::Pod;
use crate::request_labels::{self, LabelChanges};
use crate::stores::{SYNC_FAILED, is_ready};
use crate::sync::lock;

/// The state of one request, for [`super::decide`].
#[derive(Debug)]
pub struct ObservedRequest {
    /// The request.
    pub request: Request,
    /// Its pod, reduced to what decisions read.
    pub target: Target,
    /// The order of its interceptors, until they are initialized.
    pub order: Option<Result<InterceptorOrder, NoOrder>>,
    /// The pod, if its UID is that of the request.
    pub pod: Option<Arc<Pod>>,
}

/// Reads the state of requests from the stores, and from the API where the stores may be stale.
#[derive(Debug)]
pub struct Observer {
    context: Arc<Context>,
    rules: Arc<Rules>,
    allowed: AllowedNames,
    selectors: BudgetSelectors,
    gone_pods: Arc<GonePods>,
    /// Labels of requests that their pods do not have and that this program may not remove. Losing them costs a call.
    foreign_labels: Mutex<HashMap<ObjectKey, BTreeSet<String>>>,
}

impl Observer {
    /// An observer. `allowed` contains the reserved names that interceptors may have.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        rules: Arc<Rules>,
        allowed: AllowedNames,
        gone_pods: Arc<GonePods>,
    ) -> Self {
        Self {
            context,
            rules,
            allowed,
            selectors: BudgetSelectors::default(),
            gone_pods,
            foreign_labels: Mutex::default(),
        }
    }

    /// The current state of the request.
    ///
    /// # Errors
    ///
    /// [`Error`] of a call.
    pub async fn observe(&self, request: &EvictionRequest) -> Result<ObservedRequest, Error> {
        let mut model = status::model(request, &self.rule_deadlines());
        let reference = request.spec.target.pod.clone().unwrap_or_default();
        let without_pod = |request, target| {
            Ok(ObservedRequest {
                request,
                target,
                order: None,
                pod: None,
            })
        };
        if model.finished_at.is_some() {
            return without_pod(model, Target::Absent { name: reference.name });
        }
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        let pod = match self.context.stores.pods.get(namespace, &reference.name) {
            Some(pod) if pod.uid() == reference.uid => Some(pod),
            known if self.gone_pods.contains(&reference.uid) => known,
            _ if reference.name.is_empty() => None,
            // The store may not contain a new pod yet, and finishing the request cannot be undone.
            _ => {
                let pods: Api<Pod> = Api::namespaced(self.context.clients.host.clone(), namespace);
                Box::pin(call(pods.get_opt(&reference.name))).await?.map(Arc::new)
            }
        };
        let name = reference.name;
        let Some(pod) = pod else {
            return without_pod(model, Target::Absent { name });
        };
        if pod.uid() != reference.uid {
            return without_pod(model, Target::Replaced { name });
        }
        if model.is_deleting {
            // Only the end of its pod matters any more.
            let target = Target::Present(self.target_pod(&pod));
            return without_pod(model, target);
        }
        let order = if model.interceptors.is_empty() && !pod.is_grouped() {
            Some(Box::pin(self.order(&pod)).await?)
        } else {
            None
        };
        let target = self.target_pod(&pod);
        model.label_changes = self.label_changes(request, &pod).await?;
        Ok(ObservedRequest {
            target: Target::Present(target),
            request: model,
            order,
            pod: Some(pod),
        })
    }

    async fn order(&self, pod: &Pod) -> Result<Result<InterceptorOrder, NoOrder>, Error> {
        let matching = self
            .rules
            .matching(&self.context.stores, &self.context.clients.host, pod)
            .await?;
        Ok(match matching {
            Matching::Known(from_rules) => {
                interceptors::order(pod, &from_rules, &self.allowed).map_err(NoOrder::TooMany)
            }
            Matching::Unknown(rule) => Err(NoOrder::Unknown(rule)),
        })
    }

    /// How the labels of the request are to change. It loses those that it has from its pod and that the pod has lost; a label
    /// that somebody else has set stays.
    async fn label_changes(&self, request: &EvictionRequest, pod: &Pod) -> Result<LabelChanges, Error> {
        let labels = request.metadata.labels.as_ref();
        let mut changes = self.context.labels.changes(pod.labels(), labels);
        let extra = self.context.labels.extra(pod.labels(), labels);
        let obsolete = self.obsolete(key_of(request), extra).await?;
        changes.extend(obsolete.into_iter().map(|label| (label, None)));
        Ok(changes)
    }

    /// Those of the labels that the request has from this program alone.
    async fn obsolete(&self, key: ObjectKey, extra: BTreeSet<String>) -> Result<BTreeSet<String>, Error> {
        if extra.is_empty() {
            self.forget(&key);
            return Ok(extra);
        }
        if lock(&self.foreign_labels)
            .get(&key)
            .is_some_and(|foreign| extra.is_subset(foreign))
        {
            return Ok(BTreeSet::new());
        }
        // The typed object has no managed fields.
        let requests: Api<EvictionRequest> = Api::namespaced(self.context.clients.drydock.clone(), &key.0);
        let current = Box::pin(call(requests.get_metadata(&key.1))).await?;
        let managers = current.metadata.managed_fields.unwrap_or_default();
        let ours = request_labels::set_by_us_alone(&managers);
        let foreign = extra.difference(&ours).cloned().collect();
        lock(&self.foreign_labels).insert(key, foreign);
        Ok(extra.intersection(&ours).cloned().collect())
    }

    /// Forgets what is known about a request.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.foreign_labels).remove(key);
    }

    fn target_pod(&self, pod: &Pod) -> TargetPod {
        let unwatched_budgets = self.context.stores.unwatched_budgets();
        TargetPod {
            name: pod.name().to_owned(),
            is_terminal: pod.is_terminal(),
            deletion: self.deletion(pod),
            is_grouped: pod.is_grouped(),
            exemption: if pod.is_mirror() {
                Some(EvictionExemption::StaticPod)
            } else {
                pod.is_daemon_set_pod()
                    .then_some(if pod.is_tolerant_daemon_set_pod() {
                        EvictionExemption::TolerantDaemonSetPod
                    } else {
                        EvictionExemption::DaemonSetPod
                    })
            },
            budgets: if unwatched_budgets.is_none() {
                self.budgets(pod)
            } else {
                Vec::new()
            },
            unwatched_budgets,
        }
    }

    fn deletion(&self, pod: &Pod) -> Option<PodDeletion> {
        let ends_at = pod.metadata.deletion_timestamp.as_ref()?.0;
        let node = pod.spec.node_name.as_deref();
        let node = node.and_then(|name| self.context.stores.nodes.get("", name));
        Some(PodDeletion {
            ends_at,
            finalizers: pod.metadata.finalizers.clone().unwrap_or_default(),
            unready_node: node
                .filter(|node| !is_ready(node))
                .and_then(|node| node.metadata.name.clone()),
        })
    }

    /// The budgets that protect the pod, by name. The eviction API ignores budgets for pending pods.
    fn budgets(&self, pod: &Pod) -> Vec<Budget> {
        if pod.is_pending() {
            return Vec::new();
        }
        let budgets = self.context.stores.budgets.in_namespace(pod.namespace());
        let mut budgets: Vec<Budget> = budgets
            .iter()
            .filter(|budget| self.selectors.select(budget, pod))
            .map(|budget| budget_of(budget, pod))
            .collect();
        budgets.sort_by(|a, b| a.name.cmp(&b.name));
        budgets
    }

    /// The shortest heartbeat deadline that rules set for each interceptor.
    fn rule_deadlines(&self) -> HashMap<String, Duration> {
        let mut deadlines = HashMap::new();
        for object in self.context.stores.interceptors.all() {
            let seconds = object
                .spec
                .heartbeat_deadline_seconds
                .and_then(|seconds| u64::try_from(seconds).ok());
            if let Some(deadline) = seconds.map(Duration::from_secs) {
                let name = object.spec.interceptor_name.clone();
                let shortest = deadlines.entry(name).or_insert(deadline);
                *shortest = deadline.min(*shortest);
            }
        }
        deadlines
    }
}

/// The budget as decisions about the pod see it.
#[must_use]
pub fn budget_of(budget: &PodDisruptionBudget, pod: &Pod) -> Budget {
    let status = budget.status.clone().unwrap_or_default();
    let number = Option::unwrap_or_default;
    let (healthy, desired_healthy) = (number(status.current_healthy), number(status.desired_healthy));
    let policy = budget
        .spec
        .as_ref()
        .and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let sync_failure = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.reason == SYNC_FAILED)
        .map(|condition| condition.message.clone());
    Budget {
        name: budget.metadata.name.clone().unwrap_or_default(),
        version: budget.metadata.resource_version.clone().unwrap_or_default(),
        disruptions_allowed: number(status.disruptions_allowed),
        healthy,
        desired_healthy,
        is_observed: status.observed_generation.unwrap_or_default()
            >= budget.metadata.generation.unwrap_or_default(),
        sync_failure,
        lets_pod_go: !pod.is_ready()
            && (policy == Some("AlwaysAllow") || (healthy >= desired_healthy && desired_healthy > 0)),
    }
}

/// The selector of the budget. A budget without one, or with an invalid one, selects nothing.
#[must_use]
pub fn selector_of(budget: &PodDisruptionBudget) -> Option<Selector> {
    let selector = budget.spec.as_ref()?.selector.as_ref()?;
    Selector::try_from(selector).ok()
}

/// Whether the selector of a budget matches the pod.
#[must_use]
pub fn selects(selector: Option<&Selector>, pod: &Pod) -> bool {
    selector.is_some_and(|selector| selector.matches(|key| pod.labels().get(key).map(String::as_str)))
}

/// The selectors of budgets, compiled once per generation.
#[derive(Debug, Default)]
struct BudgetSelectors(Mutex<HashMap<String, CompiledSelector>>);

/// The generation that a selector was compiled from, and the selector.
type CompiledSelector = (Option<i64>, Option<Arc<Selector>>);

/// How many compiled selectors are kept. A cluster with more budgets compiles some again.
const MAX_SELECTORS: usize = 20_000;

impl BudgetSelectors {
    /// Whether the budget selects the pod.
    fn select(&self, budget: &PodDisruptionBudget, pod: &Pod) -> bool {
        let generation = budget.metadata.generation;
        let uid = budget.metadata.uid.as_deref().unwrap_or_default();
        let known = lock(&self.0)
            .get(uid)
            .filter(|known| known.0 == generation)
            .cloned();
        // Without a UID or a generation, nothing tells one budget from another.
        let (_, selector) = known
            .filter(|_| !uid.is_empty() && generation.is_some())
            .unwrap_or_else(|| {
                let compiled = (generation, selector_of(budget).map(Arc::new));
                let mut selectors = lock(&self.0);
                if selectors.len() >= MAX_SELECTORS {
                    selectors.clear();
                }
                selectors.insert(uid.to_owned(), compiled.clone());
                compiled
            });
        selects(selector.as_deref(), pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{pod, typed};
    use serde_json::json;

    #[test]
    fn selectors_of_budgets_are_compiled_once_per_generation() {
        let selectors = BudgetSelectors::default();
        let budget = |uid: &str, generation: Option<i64>, app: &str| -> PodDisruptionBudget {
            typed(json!({
                "metadata": {"name": "b", "uid": uid, "generation": generation},
                "spec": {"selector": {"matchLabels": {"app": app}}},
            }))
        };
        let web = pod(&json!({"metadata": {"labels": {"app": "web"}}}));
        assert!(selectors.select(&budget("1", Some(1), "web"), &web));
        // The generation says that the selector is the same one.
        assert!(selectors.select(&budget("1", Some(1), "db"), &web));
        assert!(!selectors.select(&budget("1", Some(2), "db"), &web));
        assert!(!selectors.select(&budget("2", Some(2), "db"), &web));
        assert!(selectors.select(&budget("", Some(1), "web"), &web));
        assert!(!selectors.select(&budget("", Some(1), "db"), &web));
        let without: PodDisruptionBudget = typed(json!({"metadata": {"uid": "3", "generation": 1}}));
        assert!(!selectors.select(&without, &web));
    }
}
