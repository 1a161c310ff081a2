//! `preflight`: reads what a drain would meet, and prints what blocks or hurts it.

use std::collections::BTreeSet;

use drydock_machinery::clock::Clock;
use k8s_openapi::api::core::v1::Node;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::drain::bare;
use super::read;
use super::repeat::{Is, repeat};
use crate::api::{Resource, Session};
use crate::args::{Format, NodesFlags, PreflightFlags};
use crate::error::Error;
use crate::output::print_as;
use crate::pods;
use crate::preflight::{Facts, Finding, FoundPod, Severity, findings, text};
use crate::terminal::{Terminal, print};

pub(super) async fn run(session: &Session, flags: &PreflightFlags, clock: &dyn Clock) -> Result<(), Error> {
    if flags.watch {
        return repeat(async || {
            let facts = read_facts(session, &flags.nodes).await?;
            let findings = findings(&facts, clock.now());
            let terminal = Terminal::detect();
            let text = text::render(&facts, &findings, Terminal::size().0, terminal.colour);
            let is = if blocks(&findings) { Is::GoingOn } else { Is::Over };
            Ok((text, is))
        })
        .await;
    }
    let flags = &flags.nodes;
    let facts = read_facts(session, flags).await?;
    let findings = findings(&facts, clock.now());
    if !print_as(flags.output, &findings)? {
        let columns = if flags.output == Some(Format::Wide) {
            usize::MAX / 2
        } else {
            Terminal::size().0
        };
        print(&text::render(
            &facts,
            &findings,
            columns,
            Terminal::detect().colour,
        ))?;
    }
    if blocks(&findings) {
        return Err(Error::Blocked);
    }
    Ok(())
}

/// Whether something would block the drain.
fn blocks(findings: &[Finding]) -> bool {
    let mut findings = findings.iter();
    findings.any(|finding| finding.severity == Severity::Blocks)
}

async fn read_facts(session: &Session, flags: &NodesFlags) -> Result<Facts, Error> {
    let nodes = if let Some(selector) = &flags.selector {
        let query = [("labelSelector", selector.as_str())];
        let found: Vec<Node> = session.list(Resource::Nodes, None, &query).await?;
        found.into_iter().filter_map(|node| node.metadata.name).collect()
    } else {
        for name in &flags.nodes {
            read::node(session, bare(name)).await?;
        }
        let mut names: Vec<String> = flags.nodes.iter().map(|name| bare(name).to_owned()).collect();
        names.sort();
        names.dedup();
        names
    };
    if nodes.is_empty() {
        return Err(Error::NotFound("the selector selects no node".to_owned()));
    }
    let objects: Vec<Value> = read::pods_on(session, &nodes).await?;
    let mut pods = Vec::new();
    for object in objects {
        let pod = serde_json::from_value(object.clone()).map_err(|error| Error::Decode(error.to_string()))?;
        pods.push(FoundPod { pod, object });
    }
    pods.retain(|found| nodes.iter().any(|name| name == pods::node(&found.pod)));
    let namespaces: BTreeSet<String> = pods
        .iter()
        .map(|found| pods::namespace(&found.pod).to_owned())
        .collect();
    let mut facts = Facts {
        nodes,
        pods,
        ..Facts::default()
    };
    let mut unread = Vec::new();
    for namespace in &namespaces {
        let namespace = Some(namespace.as_str());
        facts
            .neighbours
            .extend(allowed(session, Resource::Pods, namespace, "other pods", &mut unread).await?);
        facts
            .budgets
            .extend(allowed(session, Resource::Budgets, namespace, "budgets", &mut unread).await?);
        facts
            .claims
            .extend(allowed(session, Resource::Claims, namespace, "volumes", &mut unread).await?);
    }
    facts.volumes = allowed(session, Resource::Volumes, None, "volumes", &mut unread).await?;
    facts.namespaces = allowed(session, Resource::Namespaces, None, "namespaces", &mut unread).await?;
    facts.rules = allowed(
        session,
        Resource::EvictionInterceptors,
        None,
        "interceptors",
        &mut unread,
    )
    .await?;
    facts.requests = allowed(
        session,
        Resource::EvictionRequests,
        None,
        "eviction requests",
        &mut unread,
    )
    .await?;
    unread.sort();
    unread.dedup();
    facts.unread = unread;
    Ok(facts)
}

/// A list; empty, with a note about what is not checked, for who may not read it.
async fn allowed<T: DeserializeOwned>(
    session: &Session,
    resource: Resource,
    namespace: Option<&str>,
    what: &str,
    unread: &mut Vec<String>,
) -> Result<Vec<T>, Error> {
    match session.list(resource, namespace, &[]).await {
        Err(error) if error.is_forbidden() => {
            unread.push(format!("{what} (forbidden)"));
            Ok(Vec::new())
        }
        // Standalone mode does not serve everything.
        Err(error) if error.is_not_found() => {
            unread.push(format!("{what} (not served)"));
            Ok(Vec::new())
        }
        result => result,
    }
}
