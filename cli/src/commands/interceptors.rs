//! `interceptors`: who acts before a pod is evicted.

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use serde_json::{Value, json};

use super::evict::bare;
use super::repeat::{Is, repeat};
use crate::api::{Resource, Session};
use crate::args::{Format, PodFlags};
use crate::error::Error;
use crate::interceptors::{Heard, Interceptor, declared, heard};
use crate::output::print_as;
use crate::pods;
use crate::table::table;
use crate::terminal::{note, print, printable};
use crate::times::ago;

/// What is found about a pod.
struct Found {
    rows: Vec<(Interceptor, Heard)>,
    /// Declarations that have no effect.
    skipped: Vec<String>,
}

pub(super) async fn run(session: &Session, flags: &PodFlags, clock: &dyn Clock) -> Result<(), Error> {
    if flags.watch {
        return repeat(async || {
            let found = find(session, flags, clock).await?;
            let mut text = render(&found.rows, clock.now(), false);
            let skipped = found.skipped.iter();
            text.extend(skipped.map(|skipped| format!("skipped: {}\n", printable(skipped))));
            Ok((text, Is::GoingOn))
        })
        .await;
    }
    let found = find(session, flags, clock).await?;
    let now = clock.now();
    let data: Vec<Value> = found
        .rows
        .iter()
        .map(|(interceptor, heard)| {
            json!({
                "name": interceptor.name, "priority": interceptor.priority, "source": interceptor.source,
                "heard": describe(heard, now),
            })
        })
        .collect();
    if !print_as(flags.output, &data)? {
        print(&render(&found.rows, now, flags.output == Some(Format::Wide)))?;
    }
    for skipped in &found.skipped {
        note(&format!("skipped: {}", printable(skipped)));
    }
    Ok(())
}

async fn find(session: &Session, flags: &PodFlags, clock: &dyn Clock) -> Result<Found, Error> {
    let namespace = session.namespace();
    let object: Value = session
        .get(Resource::Pods, Some(namespace), bare(&flags.pod))
        .await?;
    let pod: Pod =
        serde_json::from_value(object.clone()).map_err(|error| Error::Decode(error.to_string()))?;
    let rules: Vec<EvictionInterceptor> = session.list(Resource::EvictionInterceptors, None, &[]).await?;
    let its_namespace: Option<Namespace> = match session.find(Resource::Namespaces, None, namespace).await {
        Err(error) if error.is_forbidden() => None,
        result => result?,
    };
    // Whether an interceptor has been heard of is known from all requests that one may read.
    let requests: Vec<EvictionRequest> = match session.list(Resource::EvictionRequests, None, &[]).await {
        Err(error) if error.is_forbidden() => {
            session
                .list(Resource::EvictionRequests, Some(namespace), &[])
                .await?
        }
        result => result?,
    };
    let found = declared(&pod, &object, &rules, its_namespace.as_ref());
    let own = requests.iter().find(|request| {
        request.metadata.namespace.as_deref() == Some(namespace)
            && request.metadata.name.as_deref() == Some(pods::uid(&pod))
    });
    let interceptors = as_requested(found.interceptors, own);
    let now = clock.now();
    let rows = interceptors
        .into_iter()
        .map(|interceptor| {
            let heard = heard(&interceptor.name, &requests, now);
            (interceptor, heard)
        })
        .collect();
    Ok(Found {
        rows,
        skipped: found.skipped,
    })
}

/// The order that the request has stored; it does not change afterwards.
fn as_requested(declared: Vec<Interceptor>, request: Option<&EvictionRequest>) -> Vec<Interceptor> {
    let stored = request.and_then(|request| request.status.as_ref());
    let stored = stored
        .map(|status| status.target_interceptors.as_slice())
        .unwrap_or_default();
    if stored.is_empty() {
        return declared;
    }
    stored
        .iter()
        .map(|target| {
            let known = declared.iter().find(|known| known.name == target.name);
            known.cloned().unwrap_or_else(|| Interceptor {
                name: target.name.clone(),
                priority: None,
                source: "the eviction request".to_owned(),
            })
        })
        .collect()
}

fn describe(heard: &Heard, now: Timestamp) -> String {
    match heard {
        Heard::BuiltIn => "built in".to_owned(),
        Heard::Last(at) => format!("{} ago", ago(Some(*at), now)),
        Heard::Silent(since, requests) => {
            format!("silent for {} in {requests} requests", ago(Some(*since), now))
        }
        Heard::NeverAsked => "never asked".to_owned(),
    }
}

fn render(rows: &[(Interceptor, Heard)], now: Timestamp, is_wide: bool) -> String {
    let mut header = vec!["TURN", "INTERCEPTOR", "PRIORITY", "HEARD"];
    if is_wide {
        header.push("SOURCE");
    }
    let rows: Vec<Vec<String>> = rows
        .iter()
        .enumerate()
        .map(|(index, (interceptor, heard))| {
            let mut row = vec![
                (index + 1).to_string(),
                interceptor.name.clone(),
                interceptor
                    .priority
                    .map_or_else(|| "-".to_owned(), |priority| priority.to_string()),
                describe(heard, now),
            ];
            if is_wide {
                row.push(interceptor.source.clone());
            }
            row.iter().map(|cell| printable(cell)).collect()
        })
        .collect();
    table(&header, &rows)
}
