//! What a person can do about a pod that does not leave, as sentences and commands. One arm per reason.

use serde::Serialize;

use super::{Explanation, Facts, State, TurnState};
use crate::budgets::{self, Verdict};
use crate::pods;
use crate::times::until;

/// Something that a person can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// A sentence.
    pub text: String,
    /// The command that does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

fn does(text: impl Into<String>, command: impl Into<String>) -> Advice {
    Advice {
        text: text.into(),
        command: Some(command.into()),
    }
}

fn says(text: impl Into<String>) -> Advice {
    Advice {
        text: text.into(),
        command: None,
    }
}

/// What a person can do about the pod.
pub(super) fn advice(facts: &Facts<'_>, explanation: &Explanation) -> Vec<Advice> {
    match explanation.state {
        State::Evicted => Vec::new(),
        State::Canceled => vec![does(
            "Ask again, if it still has to leave:",
            format!(
                "kubectl drydock evict {} -n {}",
                explanation.pod, explanation.namespace
            ),
        )],
        State::NotRequested if facts.maintenances.is_empty() => Vec::new(),
        State::NotRequested => vec![does(
            "Its turn in the drain plan has not come. See what comes before it:",
            format!("kubectl drydock explain node/{}", explanation.node),
        )],
        _ => explanation.blocked.as_ref().map_or_else(
            || unblocked(facts, explanation),
            |blocked| for_reason(&blocked.reason, facts, explanation),
        ),
    }
}

/// For a pod that nothing is known to block.
fn unblocked(facts: &Facts<'_>, explanation: &Explanation) -> Vec<Advice> {
    let mut active = explanation
        .turns
        .iter()
        .filter(|turn| turn.state == TurnState::Active);
    match (explanation.state, active.next()) {
        (State::Intercepted, Some(turn)) => {
            let next = turn.deadline.and_then(|deadline| until(deadline, facts.now));
            vec![says(next.map_or_else(
                || format!("Nothing to do: {} has its turn.", turn.name),
                |next| format!("Nothing to do: {} has its turn. Without a heartbeat, the next one follows in {next}.", turn.name),
            ))]
        }
        (State::Terminating, _) => vec![says("Nothing to do: the pod is stopping.")],
        _ => Vec::new(),
    }
}

fn for_reason(reason: &str, facts: &Facts<'_>, explanation: &Explanation) -> Vec<Advice> {
    let (pod, namespace, node) = (&explanation.pod, &explanation.namespace, &explanation.node);
    let budgets: Vec<String> = facts.pod.map_or_else(Vec::new, |pod| {
        let budgets = budgets::of_pod(pod, facts.budgets);
        budgets
            .into_iter()
            .map(|budget| budgets::name(budget).to_owned())
            .collect()
    });
    match reason {
        "Budget" => budget(&budgets, facts, explanation),
        "MultipleBudgets" => multiple_budgets(&budgets, namespace),
        "BudgetNotObserved" => vec![
            does(
                "See the budget:",
                format!("kubectl get pdb {} -n {namespace} -o yaml", budgets.join(" ")),
            ),
            says(
                "If it lasts, look at kube-controller-manager, whose disruption controller does not follow, or at the rights of drydock-controller, which watches budgets.",
            ),
        ],
        "BudgetNotComputable" => vec![does(
            "Repair the budget or what it selects: its pods need a controller with a scale:",
            format!("kubectl describe pdb {} -n {namespace}", budgets.join(" ")),
        )],
        "Webhook" => vec![does(
            "Ask who runs the webhook, or see its rules:",
            "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
        )],
        "Throttled" => vec![says(
            "Nothing to do: the API server is busy, and the next try follows.",
        )],
        "NamespaceTerminating" => vec![does(
            "Its namespace is being deleted, and its pods with it. See what holds that:",
            format!("kubectl get namespace {namespace} -o jsonpath='{{.status.conditions}}'"),
        )],
        "Finalizers" => vec![does(
            "See the finalizers, and why their controllers do not remove them:",
            format!("kubectl get pod {pod} -n {namespace} -o jsonpath='{{.metadata.finalizers}}'"),
        )],
        "NotDeleting" => vec![does(
            "The eviction was accepted and the pod was not deleted. See what it says:",
            format!("kubectl describe pod {pod} -n {namespace}"),
        )],
        "NodeUnreachable" => vec![
            does("See the node:", format!("kubectl describe node {node}")),
            does(
                "Only if the machine is off for good, release its pods and volumes:",
                format!("kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"),
            ),
        ],
        "InterceptorSilent" => silent(facts, explanation),
        "InterceptorRule" => vec![does(
            "Repair the rule, or delete it: while it is unknown whether it has an interceptor for the pod, the pod stays:",
            "kubectl get evictioninterceptors -o wide",
        )],
        "StaticPod" => vec![says(format!(
            "Nothing to do with kubectl: take its manifest off the node {node} (often /etc/kubernetes/manifests), if it has to leave."
        ))],
        "DaemonSetPod" => vec![says("Nothing to do: drains leave it alone.")],
        "ClockSkew" => vec![says(
            "Compare the clocks of the machines that run drydock-apiserver and drydock-controller: they differ by more than 10 s.",
        )],
        "ComesBack" => comes_back(explanation),
        "RequestRefused" | "RequestObstructed" => vec![does(
            "See the request:",
            format!(
                "kubectl get evictionrequest {} -n {namespace} -o yaml",
                facts.pod.map(pods::uid).unwrap_or_default()
            ),
        )],
        _ => vec![does(
            "See the pod:",
            format!("kubectl describe pod {pod} -n {namespace}"),
        )],
    }
}

fn budget(names: &[String], facts: &Facts<'_>, explanation: &Explanation) -> Vec<Advice> {
    let namespace = &explanation.namespace;
    let mut advice = vec![does(
        "See the budget:",
        format!("kubectl get pdb {} -n {namespace}", names.join(" ")),
    )];
    let budget = facts.pod.map(|pod| budgets::of_pod(pod, facts.budgets));
    let budget = budget.as_ref().and_then(|budgets| budgets.first().copied());
    let workload = explanation
        .workload
        .as_deref()
        .filter(|workload| pods::is_scalable(workload));
    match (budget.and_then(budgets::replicas_for_one_disruption), workload) {
        (Some(replicas), Some(workload)) => advice.push(does(
            "Run one replica more, so that one may leave:",
            format!("kubectl scale {workload} -n {namespace} --replicas={replicas}"),
        )),
        _ if budget.is_some_and(|budget| matches!(budgets::verdict(budget), Verdict::Never { .. })) => {
            advice.push(does(
                "Change the budget, since it never allows a disruption:",
                format!("kubectl edit pdb {} -n {namespace}", names.join(" ")),
            ));
        }
        _ => {}
    }
    advice.push(does(
        "See which of its pods are not healthy:",
        format!("kubectl get pods -n {namespace} -o wide"),
    ));
    advice
}

fn multiple_budgets(names: &[String], namespace: &str) -> Vec<Advice> {
    vec![
        does(
            "See the budgets:",
            format!("kubectl get pdb {} -n {namespace}", names.join(" ")),
        ),
        does(
            "Keep one of them, since Kubernetes evicts no pod with two:",
            format!(
                "kubectl delete pdb {} -n {namespace}",
                names.last().map_or("NAME", String::as_str)
            ),
        ),
    ]
}

fn silent(facts: &Facts<'_>, explanation: &Explanation) -> Vec<Advice> {
    let mut active = explanation
        .turns
        .iter()
        .filter(|turn| turn.state == TurnState::Active);
    let Some(turn) = active.next() else {
        return Vec::new();
    };
    let mut advice = vec![does(
        format!("Start or repair the program of {}. What registers it:", turn.name),
        "kubectl get evictioninterceptors",
    )];
    if let Some(next) = turn.deadline.and_then(|deadline| until(deadline, facts.now)) {
        advice.push(says(format!(
            "Or wait: without a heartbeat, the next one has its turn in {next}."
        )));
    }
    advice
}

fn comes_back(explanation: &Explanation) -> Vec<Advice> {
    let namespace = &explanation.namespace;
    match &explanation.workload {
        Some(workload) => vec![does(
            format!(
                "{workload} creates the pod again on this node, since it names the node or tolerates every taint. Change it:"
            ),
            format!("kubectl edit {workload} -n {namespace}"),
        )],
        None => vec![says(
            "Whatever creates the pod does it again on this node. Change or stop it.",
        )],
    }
}
