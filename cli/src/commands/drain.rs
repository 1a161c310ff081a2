//! `drain`: creates a NodeMaintenance, or goes on with the one that is there.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use drydock_machinery::clock::Clock;
use drydock_machinery::codec::yaml;
use drydock_machinery::selector::Selector;
use drydock_machinery::selector::label::{Operator, Requirement};
use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, Stage};
use serde_json::{Value, json};

use super::end::set_stage;
use super::follow::{Goal, follow};
use super::read;
use crate::api::{Resource, Session};
use crate::args::{DrainFlags, NodesFlags};
use crate::error::Error;
use crate::output::print_as;
use crate::terminal::{note, print};

/// The largest plan file, in bytes.
const MAX_PLAN_BYTES: u64 = 1024 * 1024;
/// How long a completed maintenance of the same name may take to go.
const REPLACE_DEADLINE: Duration = Duration::from_mins(1);
/// How often that is looked at.
const REPLACE_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn run(session: &Session, flags: &DrainFlags, clock: &dyn Clock) -> Result<(), Error> {
    let selector = node_selector(session, &flags.nodes).await?;
    let plan = flags.plan.as_deref().map(read_plan).transpose()?;
    let name = match &flags.name {
        Some(name) => name.clone(),
        None => default_name(&flags.nodes),
    };
    let mut spec = json!({"stage": Stage::Drain, "nodeSelector": selector});
    if let Some(members) = spec.as_object_mut() {
        if let Some(plan) = &plan {
            members.insert("drainPlan".to_owned(), plan.clone());
        }
        if !flags.reason.is_empty() {
            members.insert("reason".to_owned(), json!(flags.reason));
        }
    }
    let object = json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "NodeMaintenance",
        "metadata": {"name": name},
        "spec": spec,
    });
    let found: Option<Value> = session.find(Resource::NodeMaintenances, None, &name).await?;
    let (object, done) = match found {
        None => (
            session.create(Resource::NodeMaintenances, None, &object).await?,
            "created",
        ),
        Some(found) => continue_with(session, found, &object).await?,
    };
    if !print_as(flags.nodes.output, &object)? {
        print(&format!("nodemaintenance/{name} {done}\n"))?;
        if !flags.wait.wait {
            note(&format!(
                "It goes on by itself. Follow it: kubectl drydock status {name} --watch"
            ));
        }
    }
    if flags.wait.wait {
        follow(session, &name, Goal::Drained, flags.wait.timeout, clock).await?;
    }
    Ok(())
}

/// Goes on with a maintenance of the same name: it must be about the same nodes. One that is completed is replaced.
async fn continue_with(
    session: &Session,
    found: Value,
    wanted: &Value,
) -> Result<(Value, &'static str), Error> {
    let typed: NodeMaintenance =
        serde_json::from_value(found.clone()).map_err(|error| Error::Decode(error.to_string()))?;
    let name = typed.metadata.name.clone().unwrap_or_default();
    if typed.spec.stage == Stage::Complete || typed.metadata.deletion_timestamp.is_some() {
        replace(session, &typed).await?;
        let created = session.create(Resource::NodeMaintenances, None, wanted).await?;
        return Ok((created, "created, in place of a completed one"));
    }
    if found.pointer("/spec/nodeSelector") != wanted.pointer("/spec/nodeSelector") {
        return Err(Error::Refused(format!(
            "the maintenance {name} exists and selects other nodes: choose another name with --name"
        )));
    }
    if wanted.pointer("/spec/drainPlan").is_some() {
        return Err(Error::Refused(format!(
            "the maintenance {name} exists, and its plan cannot change: go on without --plan, or choose another name \
             with --name"
        )));
    }
    if typed.spec.stage == Stage::Drain {
        return Ok((found, "is draining already"));
    }
    let object = set_stage(session, &typed, &Stage::Drain).await?;
    Ok((object, "goes on to drain"))
}

/// Deletes a completed maintenance and waits until it is gone.
async fn replace(session: &Session, old: &NodeMaintenance) -> Result<(), Error> {
    let name = old.metadata.name.as_deref().unwrap_or_default();
    let uid = old.metadata.uid.as_deref().unwrap_or_default();
    if old.metadata.deletion_timestamp.is_none() {
        session
            .delete(Resource::NodeMaintenances, None, name, uid)
            .await?;
    }
    let gone = async {
        while session
            .find::<Value>(Resource::NodeMaintenances, None, name)
            .await?
            .is_some()
        {
            tokio::time::sleep(REPLACE_INTERVAL).await;
        }
        Ok(())
    };
    tokio::time::timeout(REPLACE_DEADLINE, gone).await.map_err(|_| {
        Error::TimedOut(format!(
            "the completed maintenance {name} is being deleted and not gone yet"
        ))
    })?
}

/// The selector that the flags describe. Named nodes must exist.
async fn node_selector(session: &Session, flags: &NodesFlags) -> Result<Value, Error> {
    if let Some(text) = &flags.selector {
        let selector = Selector::parse(text).map_err(|error| Error::Usage(format!("--selector: {error}")))?;
        if selector.is_everything() {
            return Err(Error::Usage(
                "--selector is empty: it would select every node".to_owned(),
            ));
        }
        let expressions: Vec<Value> = selector.requirements().iter().map(expression).collect();
        return Ok(json!({"nodeSelectorTerms": [{"matchExpressions": expressions}]}));
    }
    let mut names: Vec<&str> = flags.nodes.iter().map(|name| bare(name)).collect();
    names.sort_unstable();
    names.dedup();
    for name in &names {
        read::node(session, name).await?;
    }
    Ok(by_name(&names))
}

/// A selector of nodes by name: one term each, since a requirement on the name has one value.
fn by_name(names: &[&str]) -> Value {
    let terms: Vec<Value> = names
        .iter()
        .map(|name| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}))
        .collect();
    json!({"nodeSelectorTerms": terms})
}

/// A requirement of a label selector, as node selectors write it.
fn expression(requirement: &Requirement) -> Value {
    let operator = match requirement.operator() {
        Operator::Equals | Operator::DoubleEquals | Operator::In => "In",
        Operator::NotEquals | Operator::NotIn => "NotIn",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
        Operator::GreaterThan => "Gt",
        Operator::LessThan => "Lt",
    };
    let mut expression = json!({"key": requirement.key(), "operator": operator});
    if !requirement.values().is_empty()
        && let Some(members) = expression.as_object_mut()
    {
        members.insert("values".to_owned(), json!(requirement.values()));
    }
    expression
}

/// `node/NAME` and `NAME`.
pub(super) fn bare(name: &str) -> &str {
    ["node/", "nodes/", "no/"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name)
}

/// A name that the same nodes always lead to, so that a repeated drain goes on with the first one.
fn default_name(flags: &NodesFlags) -> String {
    let mut names: Vec<&str> = flags.nodes.iter().map(|name| bare(name)).collect();
    names.sort_unstable();
    names.dedup();
    match (names.as_slice(), &flags.selector) {
        // The longest name of an object is 253 bytes.
        ([only], None) if only.len() <= 240 => format!("drain-{only}"),
        (names, selector) => {
            let text = selector.clone().unwrap_or_else(|| names.join(","));
            format!("drain-{:08x}", fingerprint(&text))
        }
    }
}

/// FNV-1a: short, and the same on every machine.
fn fingerprint(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The drain plan in a file: a list, or an object that has one.
fn read_plan(path: &Path) -> Result<Value, Error> {
    let what = format!("the plan {}", path.display());
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(MAX_PLAN_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_PLAN_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Error::io(&what, error))?;
    if bytes.len() as u64 > MAX_PLAN_BYTES {
        return Err(Error::Usage(format!("{what} is larger than 1 MiB")));
    }
    parse_plan(&bytes).map_err(|why| Error::Usage(format!("{what} {why}")))
}

fn parse_plan(bytes: &[u8]) -> Result<Value, String> {
    let decoded = yaml::decode(bytes).map_err(|error| format!("is not YAML: {error}"))?;
    let plan = ["/spec/drainPlan", "/drainPlan", ""]
        .iter()
        .find_map(|pointer| decoded.value.pointer(pointer).filter(|value| value.is_array()));
    match plan {
        Some(plan) => Ok(plan.clone()),
        None => Err("has no list of entries and no drainPlan".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str], selector: Option<&str>) -> NodesFlags {
        NodesFlags {
            nodes: names.iter().map(|name| (*name).to_owned()).collect(),
            selector: selector.map(str::to_owned),
            output: None,
        }
    }

    #[test]
    fn the_same_nodes_have_the_same_name() {
        assert_eq!(default_name(&nodes(&["node/a"], None)), "drain-a");
        let two = default_name(&nodes(&["b", "a"], None));
        assert_eq!(two, default_name(&nodes(&["a", "b", "a"], None)));
        assert_ne!(two, default_name(&nodes(&["a", "c"], None)));
        assert_eq!(
            default_name(&nodes(&[], Some("pool=old"))),
            default_name(&nodes(&[], Some("pool=old")))
        );
        assert_eq!(two.len(), "drain-01234567".len());
    }

    #[test]
    fn selectors_become_node_selectors() {
        let selector = Selector::parse("pool=old,zone in (a,b),!gpu,disk,size>3,tier!=x").unwrap();
        let expressions: Vec<Value> = selector.requirements().iter().map(expression).collect();
        assert_eq!(
            json!(expressions),
            json!([
                {"key": "disk", "operator": "Exists"},
                {"key": "gpu", "operator": "DoesNotExist"},
                {"key": "pool", "operator": "In", "values": ["old"]},
                {"key": "size", "operator": "Gt", "values": ["3"]},
                {"key": "tier", "operator": "NotIn", "values": ["x"]},
                {"key": "zone", "operator": "In", "values": ["a", "b"]},
            ])
        );
        assert_eq!(
            by_name(&["a", "b"])["nodeSelectorTerms"][1]["matchFields"][0]["values"],
            json!(["b"])
        );
    }

    #[test]
    fn plans_are_lists_or_objects_with_one() {
        let entry = json!([{"podType": "Default", "podPriority": 5}]);
        for text in [
            "- {podType: Default, podPriority: 5}",
            "drainPlan: [{podType: Default, podPriority: 5}]",
            r#"{"kind": "NodeMaintenance", "spec": {"drainPlan": [{"podType": "Default", "podPriority": 5}]}}"#,
        ] {
            assert_eq!(parse_plan(text.as_bytes()), Ok(entry.clone()), "{text}");
        }
        for text in ["", "kind: Pod", "{"] {
            assert!(parse_plan(text.as_bytes()).is_err(), "{text}");
        }
    }
}
