//! `evict`: asks that pods be evicted, or withdraws.

use std::time::Duration;

use drydock_machinery::clock::Clock;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::explain::{explain_one, one_line};
use super::follow::{Frame, is_transient};
use crate::api::{Resource, Session};
use crate::args::EvictFlags;
use crate::error::Error;
use crate::explain::{Explanation, State, text};
use crate::output::{list, print_as};
use crate::pods;
use crate::terminal::{Terminal, note, print};

/// The name under which the plugin asks.
pub(crate) const REQUESTER: &str = "kubectl.drydock";
/// How often a request is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// A pod that was asked to leave.
struct Asked {
    name: String,
    uid: String,
}

pub(super) async fn run(session: &Session, flags: &EvictFlags, clock: &dyn Clock) -> Result<(), Error> {
    let namespace = session.namespace();
    let mut asked = Vec::new();
    let mut objects = Vec::new();
    for name in &flags.pods {
        let name = bare(name);
        let pod: Pod = session.get(Resource::Pods, Some(namespace), name).await?;
        let uid = pods::uid(&pod).to_owned();
        objects.push(if flags.withdraw {
            withdraw(session, name, &uid).await?
        } else {
            let request = request(name, &uid, true);
            session
                .apply(Resource::EvictionRequests, Some(namespace), &uid, &request)
                .await?
        });
        asked.push(Asked {
            name: name.to_owned(),
            uid,
        });
    }
    if !print_as(flags.output, &list(objects))? {
        for one in &asked {
            let done = if flags.withdraw { "withdrawn" } else { "requested" };
            print(&format!(
                "evictionrequest/{} {done} for pod/{}\n",
                one.uid, one.name
            ))?;
        }
    }
    if !flags.wait.wait {
        return Ok(());
    }
    if flags.wait.timeout.is_zero() {
        return wait(session, &asked, clock).await;
    }
    match tokio::time::timeout(flags.wait.timeout, wait(session, &asked, clock)).await {
        Ok(result) => result,
        Err(_) => Err(Error::TimedOut(format!(
            "pods are left after {} s; their evictions go on. See: kubectl drydock explain POD -n {namespace}",
            flags.wait.timeout.as_secs()
        ))),
    }
}

/// `pod/NAME` and `NAME`.
pub(super) fn bare(name: &str) -> &str {
    ["pod/", "pods/", "po/"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name)
}

/// The request of a pod with this requester, or, to withdraw, with none of this field manager.
fn request(pod: &str, uid: &str, is_wanted: bool) -> Value {
    let mut spec = json!({"target": {"pod": {"name": pod, "uid": uid}}});
    if is_wanted && let Some(members) = spec.as_object_mut() {
        members.insert("requesters".to_owned(), json!([{"name": REQUESTER}]));
    }
    json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "EvictionRequest",
        "metadata": {"name": uid},
        "spec": spec,
    })
}

/// Applies the request without the requester. The uid keeps an apply from creating a request that is gone.
async fn withdraw(session: &Session, pod: &str, uid: &str) -> Result<Value, Error> {
    let namespace = Some(session.namespace());
    let found: Value = session.get(Resource::EvictionRequests, namespace, uid).await?;
    let mut object = request(pod, uid, false);
    if let (Some(metadata), Some(own)) = (
        object.get_mut("metadata").and_then(Value::as_object_mut),
        found.pointer("/metadata/uid"),
    ) {
        metadata.insert("uid".to_owned(), own.clone());
    }
    session
        .apply(Resource::EvictionRequests, namespace, uid, &object)
        .await
}

/// Waits until all pods are gone.
async fn wait(session: &Session, asked: &[Asked], clock: &dyn Clock) -> Result<(), Error> {
    let terminal = Terminal::detect();
    let mut frame = Frame::default();
    let mut before: Vec<String> = Vec::new();
    loop {
        let explanations = match explain_all(session, asked, clock).await {
            Ok(explanations) => explanations,
            Err(error) if is_transient(&error) && !before.is_empty() => {
                note(&format!("waiting for the cluster: {error}"));
                frame = Frame::default();
                tokio::time::sleep(INTERVAL * 5).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let now = clock.now();
        if terminal.is_live {
            let (columns, rows) = Terminal::size();
            let lines: Vec<String> = explanations
                .iter()
                .flat_map(|one| {
                    let text = text::render(one, now, columns, terminal.colour);
                    text.lines().map(str::to_owned).collect::<Vec<_>>()
                })
                .take(rows.saturating_sub(1).max(3))
                .collect();
            frame.draw(&lines)?;
        } else {
            let lines: Vec<String> = explanations.iter().map(one_line).collect();
            for line in lines.iter().filter(|line| !before.contains(line)) {
                print(&format!("{} {line}\n", now.strftime("%H:%M:%S")))?;
            }
            before = lines;
        }
        if terminal.is_live && before.is_empty() {
            before.push(String::new());
        }
        if let Some(canceled) = explanations.iter().find(|one| one.state == State::Canceled) {
            return Err(Error::Ended(format!(
                "the eviction was canceled: {}",
                one_line(canceled)
            )));
        }
        if explanations.iter().all(|one| one.state == State::Evicted) {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Explains the pods that are not forgotten: a request that is gone with its pod has done its work.
async fn explain_all(
    session: &Session,
    asked: &[Asked],
    clock: &dyn Clock,
) -> Result<Vec<Explanation>, Error> {
    let mut explanations = Vec::new();
    for one in asked {
        explanations.extend(explain_one(session, session.namespace(), &one.name, &one.uid, clock).await?);
    }
    Ok(explanations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_names_the_pod_and_the_requester() {
        let wanted = request("db-0", "u-1", true);
        assert_eq!(wanted["metadata"]["name"], "u-1");
        assert_eq!(
            wanted["spec"]["target"]["pod"],
            json!({"name": "db-0", "uid": "u-1"})
        );
        assert_eq!(wanted["spec"]["requesters"], json!([{"name": REQUESTER}]));
        assert_eq!(request("db-0", "u-1", false)["spec"].get("requesters"), None);
        let allowed = drydock_machinery::names::AllowedNames::default();
        let path = drydock_machinery::field_error::FieldPath::new("name");
        assert!(
            allowed.validate(&path, REQUESTER).is_empty(),
            "the server accepts the name"
        );
        assert_eq!((bare("pod/a"), bare("a")), ("a", "a"));
    }
}
