//! Which resources a kind of the host has, from the host's discovery.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use kube::Client;
use serde::Deserialize;
use tokio::time::Instant;

use super::error::bounded;
use crate::host::{HostError, HostResource};

/// How long a group-version is not asked for again, as in the reference.
const FRESH: Duration = Duration::from_secs(30);
/// How many group-versions are remembered: clients name them.
const REMEMBERED: usize = 256;

/// A resource in a discovery document.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Served {
    name: String,
    kind: String,
    namespaced: bool,
}

#[derive(Deserialize)]
struct ServedList {
    resources: Vec<Served>,
}

struct Known {
    at: Instant,
    resources: Arc<[Served]>,
}

/// The group-versions that were asked for lately.
#[derive(Default)]
pub(super) struct Mapping(Mutex<HashMap<String, Known>>);

impl Mapping {
    /// The resources of a kind; none if the host does not serve the group-version, or not the kind.
    pub(super) async fn resources_of(
        &self,
        client: &Client,
        api_version: &str,
        kind: &str,
    ) -> Result<Vec<HostResource>, HostError> {
        let served = match self.known(api_version) {
            Some(served) => served,
            None => self.remember(api_version, ask(client, api_version).await?),
        };
        let of_kind = served
            .iter()
            .filter(|served| served.kind == kind && !served.name.contains('/'));
        Ok(of_kind
            .map(|served| HostResource {
                plural: served.name.clone(),
                is_namespaced: served.namespaced,
            })
            .collect())
    }

    fn known(&self, api_version: &str) -> Option<Arc<[Served]>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known
            .get(api_version)
            .filter(|known| known.at.elapsed() < FRESH)?;
        Some(Arc::clone(&found.resources))
    }

    fn remember(&self, api_version: &str, resources: Arc<[Served]>) -> Arc<[Served]> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let entry = Known {
            at: Instant::now(),
            resources: Arc::clone(&resources),
        };
        known.insert(api_version.to_owned(), entry);
        resources
    }
}

async fn ask(client: &Client, api_version: &str) -> Result<Arc<[Served]>, HostError> {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
    };
    let path = match api_version.split_once('/') {
        Some((group, version)) if is_plain(group) && is_plain(version) => format!("/apis/{group}/{version}"),
        None if is_plain(api_version) => format!("/api/{api_version}"),
        _ => return Ok(Arc::default()),
    };
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(|error| HostError::Unreachable(Arc::new(error)))?;
    match bounded(client.request::<ServedList>(request)).await {
        Ok(list) => Ok(list.resources.into()),
        Err(HostError::Status { code: 404, .. }) => Ok(Arc::default()),
        Err(error) => Err(error),
    }
}
