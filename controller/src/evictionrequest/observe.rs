//! Observes one request: the stored request, its pod, the budgets that select the pod, and its interceptors.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::names::AllowedNames;
use drydock_machinery::selector::Selector;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;

use super::decide::{Budget, EvictionExemption, Request, Target, TargetPod};
use super::interceptors::{self, InterceptorOrder, TooManyInterceptors};
use super::status;
use crate::api::{Error, call};
use crate::context::Context;
use crate::evictioninterceptor::rules::Rules;
use crate::pod::Pod;

/// The state of one request, for [`super::decide`].
#[derive(Debug)]
pub struct ObservedRequest {
    /// The request.
    pub request: Request,
    /// Its pod, reduced to what decisions read.
    pub target: Target,
    /// The order of its interceptors, until they are initialized.
    pub order: Option<Result<InterceptorOrder, TooManyInterceptors>>,
    /// The pod, if its UID is that of the request.
    pub pod: Option<Arc<Pod>>,
}

/// Reads the state of requests from the stores, and from the API where the stores may be stale.
#[derive(Debug)]
pub struct Observer {
    context: Arc<Context>,
    rules: Arc<Rules>,
    allowed: AllowedNames,
}

impl Observer {
    /// An observer. `allowed` contains the reserved names that interceptors may have.
    #[must_use]
    pub fn new(context: Arc<Context>, rules: Arc<Rules>, allowed: AllowedNames) -> Self {
        Self {
            context,
            rules,
            allowed,
        }
    }

    /// The current state of the request.
    ///
    /// # Errors
    ///
    /// [`Error`] of a call.
    pub async fn observe(&self, request: &EvictionRequest) -> Result<ObservedRequest, Error> {
        let model = status::model(request, &self.rule_deadlines());
        let reference = request.spec.target.pod.clone().unwrap_or_default();
        let without_pod = |request, target| {
            Ok(ObservedRequest {
                request,
                target,
                order: None,
                pod: None,
            })
        };
        if model.finished_at.is_some() || model.is_deleting {
            return without_pod(model, Target::Absent { name: reference.name });
        }
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        let pod = match self.context.stores.pods.get(namespace, &reference.name) {
            Some(pod) if pod.uid() == reference.uid => Some(pod),
            _ if reference.name.is_empty() => None,
            // The store may not contain a new pod yet, and finishing the request cannot be undone.
            _ => {
                let pods: Api<Pod> = Api::namespaced(self.context.clients.host.clone(), namespace);
                call(pods.get_opt(&reference.name)).await?.map(Arc::new)
            }
        };
        let name = reference.name;
        let Some(pod) = pod else {
            return without_pod(model, Target::Absent { name });
        };
        if pod.uid() != reference.uid {
            return without_pod(model, Target::Replaced { name });
        }
        let order = if model.interceptors.is_empty() && !pod.is_grouped() {
            let from_rules = self
                .rules
                .matching(&self.context.stores, &self.context.clients.host, &pod)
                .await?;
            Some(interceptors::order(&pod, &from_rules, &self.allowed))
        } else {
            None
        };
        Ok(ObservedRequest {
            target: Target::Present(self.target_pod(&pod)),
            request: model,
            order,
            pod: Some(pod),
        })
    }

    fn target_pod(&self, pod: &Pod) -> TargetPod {
        let budgets = self.context.stores.budgets.in_namespace(pod.namespace());
        let mut budgets: Vec<Budget> = budgets
            .iter()
            .filter(|budget| selects(budget, pod))
            .map(|budget| Budget {
                name: budget.metadata.name.clone().unwrap_or_default(),
                disruptions_allowed: disruptions_allowed(budget),
            })
            .collect();
        budgets.sort_by(|a, b| a.name.cmp(&b.name));
        TargetPod {
            name: pod.name().to_owned(),
            labels: pod.labels().clone(),
            is_terminal: pod.is_terminal(),
            is_terminating: pod.is_terminating(),
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
            budgets,
        }
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

/// `status.disruptionsAllowed` of the budget; zero before its controller has computed it.
#[must_use]
pub fn disruptions_allowed(budget: &PodDisruptionBudget) -> i32 {
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
