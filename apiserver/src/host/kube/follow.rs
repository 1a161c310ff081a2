//! Follows all objects of a kind in a version that the host serves.

use std::{
    collections::BTreeMap,
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
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::sleep;

use super::{error::bounded, mirror::WATCH_SECONDS};
use crate::host::{Followed, FollowedKind, HostError, ServedKind};

/// How often a host that does not serve a kind is asked again: it may be upgraded, or the kind may be a custom resource
/// that is created later.
const ABSENT_PAUSE: Duration = Duration::from_secs(30);
/// How many events are one change at most.
const EVENTS_AT_ONCE: usize = 1_000;
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
                    &GroupVersionKind::gvk(&kind.group, &version, &kind.kind),
                    &kind.resource,
                );
                tracing::debug!(resource = %kind.resource, %version, "following the host");
                watch(Api::all_with(client.clone(), &resource), &resource, &followed).await;
                // The version is served no more. Discovery may say so only later.
                sleep(RETRY_PAUSE).await;
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
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
}

/// The path of a group in a version, or of an object within it.
fn path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

async fn get<T: DeserializeOwned>(client: &Client, path: &str) -> Result<Option<T>, HostError> {
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(|error| HostError::Unreachable(Arc::new(error)))?;
    match bounded(client.request(request)).await {
        Ok(found) => Ok(Some(found)),
        Err(HostError::Status { code: 404, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The first version of the kind that the host serves, if any.
async fn served_version(client: &Client, kind: &FollowedKind) -> Result<Option<String>, HostError> {
    for version in kind.versions.iter() {
        let list: Option<ResourceList> = get(client, &path(&kind.group, version)).await?;
        let mut listed = list.into_iter().flat_map(|list| list.resources);
        if listed.any(|listed| listed.name == kind.resource) {
            return Ok(Some(version.to_owned()));
        }
    }
    Ok(None)
}

/// The resource of a kind.
pub(super) async fn served_kind(
    client: &Client,
    group: &str,
    version: &str,
    kind: &str,
) -> Result<Option<ServedKind>, HostError> {
    let list: Option<ResourceList> = get(client, &path(group, version)).await?;
    let listed = list.into_iter().flat_map(|list| list.resources);
    let mut own = listed.filter(|listed| listed.kind == kind && !listed.name.contains('/'));
    Ok(own.next().map(|listed| ServedKind {
        plural: listed.name,
        is_namespaced: listed.namespaced,
    }))
}

/// Reads an object in the first version of its kind.
pub(super) async fn read(
    client: &Client,
    kind: &FollowedKind,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, HostError> {
    let version = kind.versions.iter().next().unwrap_or_default();
    let group = path(&kind.group, version);
    let resource = &kind.resource;
    // Names of objects in a configuration are not escaped, and those of the host need no escapes.
    if [namespace, name]
        .iter()
        .any(|part| part.contains(['/', '?', '#', '%']))
    {
        return Ok(None);
    }
    let path = match namespace {
        "" => format!("{group}/{resource}/{name}"),
        namespace => format!("{group}/namespaces/{namespace}/{resource}/{name}"),
    };
    get(client, &path).await
}

/// The key of an object among those of its kind: namespace and name.
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

/// The objects of a kind as events tell them, sorted by namespace and name.
#[derive(Default)]
struct Mirror {
    current: BTreeMap<Key, Arc<Value>>,
    /// Those of a list that is not complete.
    listing: BTreeMap<Key, Arc<Value>>,
}

impl Mirror {
    /// Returns whether the objects have changed.
    fn apply(&mut self, event: Event<DynamicObject>, resource: &ApiResource) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(object) => {
                self.listing.extend(keyed(object, resource));
                false
            }
            Event::InitDone => {
                self.current = std::mem::take(&mut self.listing);
                true
            }
            Event::Apply(object) => {
                self.current.extend(keyed(object, resource));
                true
            }
            Event::Delete(object) => keyed(object, resource)
                .and_then(|(key, _)| self.current.remove(&key))
                .is_some(),
        }
    }
}

/// Keeps the objects current until they are dropped or the host no longer serves the version. A list replaces them when it
/// is complete. Events that arrive together are one change, since every change copies the list of all objects.
async fn watch(api: Api<DynamicObject>, resource: &ApiResource, followed: &Weak<Followed>) {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let events = watcher::watcher(api, config).default_backoff().boxed();
    let mut events = events.ready_chunks(EVENTS_AT_ONCE);
    let mut mirror = Mirror::default();
    while let Some(together) = events.next().await {
        let Some(followed) = followed.upgrade() else {
            return;
        };
        let mut changed = false;
        let mut is_gone = false;
        for event in together {
            match event {
                Ok(event) => changed |= mirror.apply(event, resource),
                Err(error) => {
                    report(&followed, resource, &error);
                    is_gone |= status_code(&error) == Some(404);
                }
            }
        }
        if changed {
            followed.replace(mirror.current.values().cloned().collect());
        }
        if is_gone {
            return;
        }
    }
}

/// Says why objects cannot be followed.
fn report(followed: &Followed, resource: &ApiResource, error: &watcher::Error) {
    let (plural, group) = (&resource.plural, &resource.group);
    if status_code(error) == Some(403) {
        let problem = format!(
            "this server has no right to list and watch {plural} in API group {group:?}: grant it in its ClusterRole"
        );
        tracing::error!("{problem}; until then writes are refused");
        followed.set_problem(problem);
    } else {
        tracing::warn!(plural, group, %error, "watching the host failed");
        followed.set_problem(error.to_string());
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    }

    #[test]
    fn objects_are_those_of_the_last_complete_list_and_the_events_after_it() {
        let resource = ApiResource {
            group: "g".to_owned(),
            version: "v1".to_owned(),
            api_version: "g/v1".to_owned(),
            kind: "Thing".to_owned(),
            plural: "things".to_owned(),
        };
        let mut mirror = Mirror::default();
        for (event, changes, expected) in [
            (Event::Init, false, &[][..]),
            (Event::InitApply(object("b")), false, &[]),
            (Event::InitApply(object("a")), false, &[]),
            (Event::InitDone, true, &["a", "b"]),
            (Event::Delete(object("c")), false, &["a", "b"]),
            (Event::Apply(object("aa")), true, &["a", "aa", "b"]),
            (Event::Delete(object("b")), true, &["a", "aa"]),
            (Event::Init, false, &["a", "aa"]),
            (Event::InitApply(object("z")), false, &["a", "aa"]),
            (Event::InitDone, true, &["z"]),
        ] {
            assert_eq!(mirror.apply(event, &resource), changes);
            let names: Vec<&str> = mirror.current.keys().map(|(_, name)| name.as_str()).collect();
            assert_eq!(names, expected);
        }
        let found = mirror.current.values().next().unwrap();
        assert_eq!(
            **found,
            json!({"apiVersion": "g/v1", "kind": "Thing", "metadata": {"name": "z"}})
        );
    }
}
