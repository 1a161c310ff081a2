//! Compares the cache with the store from time to time and asks for a reload when they differ.

use std::collections::BTreeSet;

use drydock_storage::{At, Damaged, Key, Page as ScanPage, Revision, Store, StoreError};

use super::metrics::CheckResult;
use super::parts::CacheParts;
use super::root::Root;
use super::source::SCAN_PAGE;

/// Compares without end, once per [`super::CacheLimits::check_period`].
pub(super) async fn run_checks<S: Store>(cache: &CacheParts<S>, mut random: fastrand::Rng) {
    loop {
        let period = cache.limits.check_period;
        tokio::time::sleep(period.mul_f64(1.0 + random.f64() / 2.0)).await;
        let Some(root) = cache.published.newest() else {
            continue;
        };
        match first_difference(cache, &root).await {
            Ok(None) => cache.metrics.checked(CheckResult::Equal),
            Ok(Some(difference)) => {
                tracing::error!(
                    resource = cache.source.resource,
                    revision = %root.revision,
                    key = %difference.key,
                    cached = ?difference.cached,
                    stored = ?difference.stored,
                    "the cache differs from the store and is reloaded"
                );
                cache.report_difference();
                cache.repairs.request_reload();
            }
            Err(error) => {
                cache.metrics.checked(CheckResult::Skipped);
                tracing::info!(
                    resource = cache.source.resource,
                    error = &error as &dyn std::error::Error,
                    "the cache could not be compared with the store"
                );
            }
        }
    }
}

/// A key and the revision of its last write, in the cache and in the store.
#[derive(Debug)]
struct Difference {
    key: Key,
    cached: Option<Revision>,
    stored: Option<Revision>,
}

async fn first_difference<S: Store>(
    cache: &CacheParts<S>,
    root: &Root,
) -> Result<Option<Difference>, StoreError> {
    let source = &cache.source;
    let mut cached = root.objects.cursor().peekable();
    let mut after = String::new();
    let mut damaged = BTreeSet::new();
    // A value of the store opens that did not when the cache was loaded: nothing is wrong, but it has to be loaded again.
    let mut opens_again = false;
    loop {
        let page = ScanPage {
            after: after.clone(),
            limit: SCAN_PAGE,
            damaged: Damaged::SetApart,
        };
        let scan = source.store.scan(&source.range, At::Exactly(root.revision), page);
        let scan = scan.await?;
        damaged.extend(scan.damaged.into_iter().map(|(key, _)| key));
        // An object whose stored value has become damaged since cannot be compared.
        let mut next = |until: Option<&Key>| loop {
            let object = cached.next_if(|object| until.is_none_or(|key| object.key() <= key))?;
            if !damaged.contains(object.key()) {
                return Some(object);
            }
        };
        for (key, entry) in &scan.entries {
            let stored = Some(entry.modified);
            let (key, cached, stored) = match next(Some(key)) {
                Some(object) if object.key() == key && Some(object.modified()) == stored => continue,
                Some(object) if object.key() == key => (key.clone(), Some(object.modified()), stored),
                Some(object) => (object.key().clone(), Some(object.modified()), None),
                None if root.is_sealed(key) => {
                    opens_again = true;
                    continue;
                }
                None => (key.clone(), None, stored),
            };
            return Ok(Some(Difference { key, cached, stored }));
        }
        match scan.entries.last() {
            Some((key, _)) if scan.more => key.as_str().clone_into(&mut after),
            _ => {
                if let Some(object) = next(None) {
                    return Ok(Some(Difference {
                        key: object.key().clone(),
                        cached: Some(object.modified()),
                        stored: None,
                    }));
                }
                break;
            }
        }
    }
    if opens_again {
        cache.repairs.request_reload();
    }
    let gone = root
        .damaged
        .keys()
        .find(|key| !damaged.contains(*key) && !root.is_sealed(key));
    if gone.is_none() && root.damaged.len() < damaged.len() {
        cache.repairs.suspect(damaged);
        return Ok(None);
    }
    Ok(gone.map(|key| Difference {
        key: key.clone(),
        cached: None,
        stored: None,
    }))
}
