//! `explain`: finds the pods that a name stands for, and explains them.

use std::collections::{BTreeMap, BTreeSet};

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use drydock_proto::kinds::nodemaintenance::NodeMaintenance;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::read::{budgets_of, is_active_on, pods_on, selected_nodes};
use super::repeat::{Is, repeat};
use crate::api::{Resource, Session};
use crate::args::ExplainFlags;
use crate::error::Error;
use crate::explain::{Explanation, Facts, explain, text};
use crate::output::print_as;
use crate::pods;
use crate::progress::Held;
use crate::terminal::{Terminal, cut, note, print, printable};

/// Up to this many pods, their requests are read one by one; above it, all requests of their namespaces.
const FEW_PODS: usize = 50;

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Pod(String),
    Node(String),
    Maintenance(String),
    Request(String),
}

/// What is explained.
struct Explained {
    explanations: Vec<Explanation>,
    /// The pods that are left out.
    hidden: usize,
    /// What holds the drain besides pods.
    others: Vec<Held>,
    /// What to say when there is no pod.
    nothing: String,
}

pub(super) async fn run(session: &Session, flags: &ExplainFlags, clock: &dyn Clock) -> Result<(), Error> {
    let subject = resolve(session, &flags.what).await?;
    let limit = if flags.limit == 0 { usize::MAX } else { flags.limit };
    if flags.watch {
        return repeat(async || {
            let explained = explain_subject(session, &subject, limit, clock).await?;
            Ok((render(&explained, clock), Is::GoingOn))
        })
        .await;
    }
    let explained = explain_subject(session, &subject, limit, clock).await?;
    if print_as(flags.output, &explained.explanations)? {
        return Ok(());
    }
    print(&render(&explained, clock))
}

fn render(explained: &Explained, clock: &dyn Clock) -> String {
    let colour = Terminal::detect().colour;
    let columns = Terminal::size().0;
    let mut parts: Vec<String> = explained
        .explanations
        .iter()
        .map(|explanation| text::render(explanation, clock.now(), columns, colour))
        .collect();
    for held in &explained.others {
        parts.push(printable(&format!("{}: {}\n", held.reason, held.message)));
    }
    if parts.is_empty() {
        parts.push(format!("{}\n", explained.nothing));
    }
    if explained.hidden > 0 {
        parts.push(format!("{} more pods; --limit 0 shows all.\n", explained.hidden));
    }
    parts.join("\n")
}

/// What the name stands for: as it says itself, or the one kind of which there is such an object.
async fn resolve(session: &Session, what: &str) -> Result<Subject, Error> {
    if let Some((kind, name)) = what.split_once('/') {
        let name = name.to_owned();
        return match kind {
            "pod" | "pods" | "po" => Ok(Subject::Pod(name)),
            "node" | "nodes" | "no" => Ok(Subject::Node(name)),
            "nm" | "nodemaintenance" | "nodemaintenances" => Ok(Subject::Maintenance(name)),
            "er" | "evictionrequest" | "evictionrequests" => Ok(Subject::Request(name)),
            _ => Err(Error::Usage(format!(
                "{kind} cannot be explained: use pod/, node/, nm/ or er/"
            ))),
        };
    }
    let namespace = Some(session.namespace());
    let mut found = Vec::new();
    for (resource, namespace, subject) in [
        (
            Resource::NodeMaintenances,
            None,
            Subject::Maintenance(what.to_owned()),
        ),
        (Resource::Nodes, None, Subject::Node(what.to_owned())),
        (Resource::Pods, namespace, Subject::Pod(what.to_owned())),
        (
            Resource::EvictionRequests,
            namespace,
            Subject::Request(what.to_owned()),
        ),
    ] {
        match session.find::<serde_json::Value>(resource, namespace, what).await {
            Ok(Some(_)) => found.push(subject),
            Ok(None) => {}
            // Who may not read nodes can still explain a pod.
            Err(error) if error.is_forbidden() => {}
            Err(error) => return Err(error),
        }
    }
    if found.len() > 1 {
        return Err(Error::Usage(format!(
            "{what} is the name of more than one object: use pod/{what}, node/{what}, nm/{what} or er/{what}"
        )));
    }
    found.pop().ok_or_else(|| {
        Error::NotFound(format!(
            "there is no pod {what} in namespace {}, and no node or maintenance {what}",
            session.namespace()
        ))
    })
}

async fn explain_subject(
    session: &Session,
    subject: &Subject,
    limit: usize,
    clock: &dyn Clock,
) -> Result<Explained, Error> {
    match subject {
        Subject::Pod(name) => {
            let pod: Pod = session
                .get(Resource::Pods, Some(session.namespace()), name)
                .await?;
            explain_pods(session, vec![pod], None, limit, clock).await
        }
        Subject::Request(name) => explain_request(session, name, clock).await,
        Subject::Node(name) => {
            let node: Node = session.get(Resource::Nodes, None, name).await?;
            let pods = pods_on(session, std::slice::from_ref(name)).await?;
            let mut explained = explain_pods(session, pods, Some(vec![node]), limit, clock).await?;
            explained.nothing = format!("No pod has to leave node {name}.");
            Ok(explained)
        }
        Subject::Maintenance(name) => {
            let maintenance: NodeMaintenance = session.get(Resource::NodeMaintenances, None, name).await?;
            let nodes = match &maintenance.spec.node_selector {
                Some(selector) => selected_nodes(session, selector).await?,
                None => Vec::new(),
            };
            let names: Vec<String> = nodes
                .iter()
                .filter_map(|node| node.metadata.name.clone())
                .collect();
            let mut pods: Vec<Pod> = pods_on(session, &names).await?;
            pods.retain(|pod| names.iter().any(|name| name == pods::node(pod)));
            let mut explained = explain_pods(session, pods, Some(nodes), limit, clock).await?;
            let status = maintenance.status.unwrap_or_default();
            explained.others = status
                .blockers
                .iter()
                .filter(|blocker| blocker.pod.is_empty())
                .map(Held::from)
                .collect();
            explained.nothing = format!(
                "No pod has to leave the nodes of {name} (stage {}).",
                maintenance.spec.stage
            );
            Ok(explained)
        }
    }
}

/// A request by its name, also when its pod is gone.
async fn explain_request(session: &Session, name: &str, clock: &dyn Clock) -> Result<Explained, Error> {
    let namespace = Some(session.namespace());
    let request: EvictionRequest = session.get(Resource::EvictionRequests, namespace, name).await?;
    let target = request.spec.target.pod.clone().unwrap_or_default();
    let pod: Option<Pod> = session.find(Resource::Pods, namespace, &target.name).await?;
    if let Some(pod) = pod.filter(|pod| pods::uid(pod) == target.uid) {
        return explain_pods(session, vec![pod], None, 1, clock).await;
    }
    let facts = Facts {
        pod: None,
        request: Some(&request),
        node: None,
        budgets: &[],
        maintenances: &[],
        now: clock.now(),
    };
    Ok(Explained {
        explanations: vec![explain(&facts)],
        hidden: 0,
        others: Vec::new(),
        nothing: String::new(),
    })
}

/// Explains pods, those that are blocked first. With nodes, only those that have to leave.
async fn explain_pods(
    session: &Session,
    mut pods: Vec<Pod>,
    nodes: Option<Vec<Node>>,
    limit: usize,
    clock: &dyn Clock,
) -> Result<Explained, Error> {
    let nodes = match nodes {
        Some(nodes) => {
            pods.retain(pods::has_to_leave);
            nodes
        }
        None => nodes_of(session, &pods).await?,
    };
    let requests = requests_of(session, &pods).await?;
    let budgets = budgets_of(session, &pods).await?;
    let all = match session
        .list::<NodeMaintenance>(Resource::NodeMaintenances, None, &[])
        .await
    {
        Err(error) if error.is_forbidden() => {
            note("maintenances are not shown: you may not list them");
            Vec::new()
        }
        result => result?,
    };
    let now = clock.now();
    let mut by_node: BTreeMap<&str, Vec<NodeMaintenance>> = BTreeMap::new();
    for node in &nodes {
        let selecting = all.iter().filter(|maintenance| is_active_on(maintenance, node));
        let name = node.metadata.name.as_deref().unwrap_or_default();
        by_node.insert(name, selecting.cloned().collect());
    }
    let mut explanations: Vec<Explanation> = pods
        .iter()
        .map(|pod| {
            explain(&Facts {
                pod: Some(pod),
                request: requests.get(pods::uid(pod)),
                node: nodes
                    .iter()
                    .find(|node| node.metadata.name.as_deref() == Some(pods::node(pod))),
                budgets: &budgets,
                maintenances: by_node.get(pods::node(pod)).map_or(&[], Vec::as_slice),
                now,
            })
        })
        .collect();
    explanations.sort_by_key(|one| {
        let since = one.blocked.as_ref().map(|blocked| blocked.since);
        (
            one.blocked.is_none(),
            since,
            one.request.is_none(),
            one.namespace.clone(),
            one.pod.clone(),
        )
    });
    let hidden = explanations.len().saturating_sub(limit);
    explanations.truncate(limit);
    Ok(Explained {
        explanations,
        hidden,
        others: Vec::new(),
        nothing: String::new(),
    })
}

/// The nodes of pods. Who may not read nodes is told nothing about them.
async fn nodes_of(session: &Session, pods: &[Pod]) -> Result<Vec<Node>, Error> {
    let names: BTreeSet<&str> = pods
        .iter()
        .map(pods::node)
        .filter(|name| !name.is_empty())
        .collect();
    let mut nodes = Vec::new();
    for name in names {
        match session.find(Resource::Nodes, None, name).await {
            Ok(found) => nodes.extend(found),
            Err(error) if error.is_forbidden() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(nodes)
}

/// The requests of pods, by the UID of the pod.
async fn requests_of(session: &Session, pods: &[Pod]) -> Result<BTreeMap<String, EvictionRequest>, Error> {
    let mut requests = BTreeMap::new();
    if pods.len() <= FEW_PODS {
        for pod in pods {
            let found = session
                .find(
                    Resource::EvictionRequests,
                    Some(pods::namespace(pod)),
                    pods::uid(pod),
                )
                .await?;
            requests.extend(found.map(|request| (pods::uid(pod).to_owned(), request)));
        }
        return Ok(requests);
    }
    let namespaces: BTreeSet<&str> = pods.iter().map(pods::namespace).collect();
    for namespace in namespaces {
        let found: Vec<EvictionRequest> = session
            .list(Resource::EvictionRequests, Some(namespace), &[])
            .await?;
        let named = found
            .into_iter()
            .filter_map(|request| Some((request.metadata.name.clone()?, request)));
        requests.extend(named);
    }
    Ok(requests)
}

/// What a pod's explanation says in one line.
pub(super) fn one_line(explanation: &Explanation) -> String {
    let state = match &explanation.blocked {
        Some(blocked) => format!("blocked: {}: {}", blocked.reason, blocked.message),
        None => explanation
            .outcome
            .clone()
            .unwrap_or_else(|| format!("{:?}", explanation.state)),
    };
    let line = format!("{}/{}: {state}", explanation.namespace, explanation.pod);
    cut(&line.replace('\n', " "), 1000)
}

/// Explains one pod by what is stored now; `None` when neither pod nor request exists.
pub(super) async fn explain_one(
    session: &Session,
    namespace: &str,
    name: &str,
    uid: &str,
    clock: &dyn Clock,
) -> Result<Option<Explanation>, Error> {
    let pod: Option<Pod> = session.find(Resource::Pods, Some(namespace), name).await?;
    let pod = pod.filter(|pod| pods::uid(pod) == uid);
    let request: Option<EvictionRequest> = session
        .find(Resource::EvictionRequests, Some(namespace), uid)
        .await?;
    if pod.is_none() && request.is_none() {
        return Ok(None);
    }
    let known: Vec<Pod> = pod.iter().cloned().collect();
    let budgets = budgets_of(session, &known).await?;
    let nodes = nodes_of(session, &known).await?;
    Ok(Some(explain(&Facts {
        pod: pod.as_ref(),
        request: request.as_ref(),
        node: nodes.first(),
        budgets: &budgets,
        maintenances: &[],
        now: clock.now(),
    })))
}
