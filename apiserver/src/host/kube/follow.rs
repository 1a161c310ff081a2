//! Follows all objects of a kind in a version that the host serves.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt;
use http::Request;
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::sleep;

use super::{error::bounded, mirror::WATCH_SECONDS};
use crate::host::{Followed, FollowedKind, HostError};

/// How often a host that does not serve a kind is asked again: it may be upgraded, or the kind may be a custom resource
/// that is created later.
const ABSENT_PAUSE: Duration = Duration::from_secs(30);
/// The pause after a failed discovery.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Follows the objects until they are dropped.
pub(super) async fn follow(client: Client, followed: Weak<Followed>) {
    loop {
        let Some(kind) = followed.upgrade().map(|followed| followed.kind().clone()) else {
            return;
        };
        match served_version(&client, &kind).await {
            Ok(Some(version)) => {
                let resource = ApiResource::from_gvk_with_plural(
                    &GroupVersionKind::gvk(&kind.group, version, &kind.kind),
                    &kind.resource,
                );
                tracing::debug!(resource = %kind.resource, version, "following the host");
                watch(Api::all_with(client.clone(), &resource), &resource, &followed).await;
            }
            Ok(None) => {
                let Some(followed) = followed.upgrade() else {
                    return;
                };
                if !followed.is_synced() || !followed.objects().items.is_empty() {
                    tracing::info!(resource = %kind.resource, group = %kind.group, "the host does not serve this kind");
                    followed.replace(Vec::new());
                }
                drop(followed);
                sleep(ABSENT_PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(resource = %kind.resource, %error, "the served versions cannot be read");
                if let Some(followed) = followed.upgrade() {
                    followed.set_problem(error.to_string());
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

#[derive(Deserialize)]
struct ResourceList {
    resources: Vec<ListedResource>,
}

#[derive(Deserialize)]
struct ListedResource {
    name: String,
}

/// The first version of the kind that the host serves, if any.
async fn served_version(client: &Client, kind: &FollowedKind) -> Result<Option<&'static str>, HostError> {
    for version in kind.versions.iter().copied() {
        let path = if kind.group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{}/{version}", kind.group)
        };
        let request = Request::get(path)
            .body(Vec::new())
            .map_err(|error| HostError::Unreachable(Arc::new(error)))?;
        match bounded(client.request::<ResourceList>(request)).await {
            Ok(list) if list.resources.iter().any(|listed| listed.name == kind.resource) => {
                return Ok(Some(version));
            }
            Ok(_) | Err(HostError::Status { code: 404, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The key of an object among those of its kind.
type Key = (String, String);

fn keyed(mut object: DynamicObject, resource: &ApiResource) -> Option<(Key, Arc<Value>)> {
    let key = (
        object.metadata.namespace.clone().unwrap_or_default(),
        object.metadata.name.clone().unwrap_or_default(),
    );
    // The items of a list have no types.
    object.types.get_or_insert_with(|| TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    });
    let object = serde_json::to_value(object).ok()?;
    Some((key, Arc::new(object)))
}

/// Keeps the objects current until they are dropped or the host no longer serves the version. A list replaces them when it
/// is complete.
async fn watch(api: Api<DynamicObject>, resource: &ApiResource, followed: &Weak<Followed>) {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let mut events = watcher::watcher(api, config).default_backoff().boxed();
    let mut current: HashMap<Key, Arc<Value>> = HashMap::new();
    let mut listing = HashMap::new();
    while let Some(event) = events.next().await {
        let Some(followed) = followed.upgrade() else {
            return;
        };
        match event {
            Ok(Event::Init) => {
                listing.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listing.extend(keyed(object, resource));
                continue;
            }
            Ok(Event::InitDone) => current = std::mem::take(&mut listing),
            Ok(Event::Apply(object)) => current.extend(keyed(object, resource)),
            Ok(Event::Delete(object)) => {
                if let Some((key, _)) = keyed(object, resource) {
                    current.remove(&key);
                }
            }
            Err(error) => {
                let code = status_code(&error);
                let (plural, group) = (&resource.plural, &resource.group);
                if code == Some(403) {
                    let problem = format!(
                        "this server has no right to list and watch {plural} in API group {group:?}: grant it in \
                         its ClusterRole"
                    );
                    tracing::error!("{problem}; until then writes are refused");
                    followed.set_problem(problem);
                } else {
                    tracing::warn!(plural, group, %error, "watching the host failed");
                    followed.set_problem(error.to_string());
                }
                if code == Some(404) {
                    return;
                }
                continue;
            }
        }
        followed.replace(current.values().cloned().collect());
    }
}

/// The HTTP status that the host responded with.
fn status_code(error: &watcher::Error) -> Option<u16> {
    let source = match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => source,
        watcher::Error::WatchError(status) => return Some(status.code),
        watcher::Error::NoResourceVersion => return None,
    };
    match source {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
