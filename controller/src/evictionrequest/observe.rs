//! What is true of one request now? The request, its pod, the budgets in its way and its interceptors, as one
//! snapshot for [`super::decide`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::names::AllowedNames;
use drydock_machinery::selector::Selector;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;

use super::decide::{Budget, NeverEvict, Present, Request, Target};
use super::interceptors::{self, Order, Ruled, TooMany};
use super::status;
use crate::api::{Clients, Error, call};
use crate::evictioninterceptor::rules::Rules;
use crate::pod::Pod;
use crate::stores::Stores;

/// A snapshot.
#[derive(Debug)]
pub struct Observed {
    /// The request.
    pub request: Request,
    /// Its target.
    pub target: Target,
    /// The order of its interceptors, while it is to be declared.
    pub order: Option<Result<Order, TooMany>>,
    /// The pod itself, if it is the right one.
    pub pod: Option<Arc<Pod>>,
}

/// Takes snapshots.
#[derive(Debug, Clone)]
pub struct Observer {
    stores: Stores,
    clients: Clients,
    rules: Arc<Rules>,
    allowed: Arc<AllowedNames>,
}

impl Observer {
    /// An observer of these stores. The names allowed for interceptors come from the configuration.
    #[must_use]
    pub fn new(stores: Stores, clients: Clients, rules: Arc<Rules>, allowed: AllowedNames) -> Self {
        Self {
            stores,
            clients,
            rules,
            allowed: Arc::new(allowed),
        }
    }

    /// The snapshot of the request now.
    ///
    /// # Errors
    ///
    /// What became of a call to the API.
    pub async fn observe(&self, request: &EvictionRequest) -> Result<Observed, Error> {
        let model = status::model(request, &self.bounds());
        let reference = request.spec.target.pod.clone().unwrap_or_default();
        if model.finished.is_some() || model.is_deleting {
            return Ok(Observed {
                request: model,
                target: Target::Absent { name: reference.name },
                order: None,
                pod: None,
            });
        }
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        let pod = match self.stores.pods.get(namespace, &reference.name) {
            Some(pod) if pod.uid() == reference.uid => Some(pod),
            _ if reference.name.is_empty() => None,
            // The store may lag behind a pod that has just been made, and what follows cannot be taken back.
            _ => {
                let pods: Api<Pod> = Api::namespaced(self.clients.host.clone(), namespace);
                call(pods.get_opt(&reference.name)).await?.map(Arc::new)
            }
        };
        let name = reference.name;
        let Some(pod) = pod else {
            return Ok(Observed {
                request: model,
                target: Target::Absent { name },
                order: None,
                pod: None,
            });
        };
        if pod.uid() != reference.uid {
            return Ok(Observed {
                request: model,
                target: Target::Replaced { name },
                order: None,
                pod: None,
            });
        }
        let order = if model.turns.is_empty() && !pod.is_grouped() {
            let ruled = self.ruled(&pod).await?;
            Some(interceptors::order(&pod, &ruled, &self.allowed))
        } else {
            None
        };
        Ok(Observed {
            target: Target::Present(self.present(&pod)),
            request: model,
            order,
            pod: Some(pod),
        })
    }

    fn present(&self, pod: &Pod) -> Present {
        let budgets = self.stores.budgets.in_namespace(pod.namespace());
        let mut budgets: Vec<Budget> = budgets
            .iter()
            .filter(|budget| selects(budget, pod))
            .map(|budget| Budget {
                name: budget.metadata.name.clone().unwrap_or_default(),
                allowed: allowed(budget),
            })
            .collect();
        budgets.sort_by(|a, b| a.name.cmp(&b.name));
        Present {
            name: pod.name().to_owned(),
            labels: pod.labels().clone(),
            is_terminal: pod.is_terminal(),
            is_terminating: pod.is_terminating(),
            is_grouped: pod.is_grouped(),
            never_evict: if pod.is_mirror() {
                Some(NeverEvict::Mirror)
            } else {
                pod.is_daemon().then_some(NeverEvict::Daemon)
            },
            budgets,
        }
    }

    async fn ruled(&self, pod: &Pod) -> Result<Vec<Ruled>, Error> {
        self.rules.matching(&self.stores, &self.clients.host, pod).await
    }

    /// The shortest deadline that rules set for each interceptor.
    fn bounds(&self) -> HashMap<String, Duration> {
        let mut bounds = HashMap::new();
        for rule in self.stores.rules.all() {
            let seconds = rule
                .spec
                .heartbeat_deadline_seconds
                .and_then(|seconds| u64::try_from(seconds).ok());
            if let Some(bound) = seconds.map(Duration::from_secs) {
                let shortest = bounds.entry(rule.spec.interceptor_name.clone()).or_insert(bound);
                *shortest = bound.min(*shortest);
            }
        }
        bounds
    }
}

/// How many pods the budget lets go now.
#[must_use]
pub fn allowed(budget: &PodDisruptionBudget) -> i32 {
    budget
        .status
        .as_ref()
        .and_then(|status| status.disruptions_allowed)
        .unwrap_or(0)
}

/// Whether the budget selects the pod. A budget without a selector selects nothing.
#[must_use]
pub fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    budget
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref())
        .and_then(|selector| Selector::try_from(selector).ok())
        .is_some_and(|selector| selector.matches(|key| pod.labels().get(key).map(String::as_str)))
}
