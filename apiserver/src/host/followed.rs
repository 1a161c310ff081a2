//! Objects of the host that are followed: a list of all objects of a kind that is kept current.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A kind of object of the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FollowedKind {
    /// API group; empty for core.
    pub group: Cow<'static, str>,
    /// Plural.
    pub resource: Cow<'static, str>,
    /// Kind, in CamelCase.
    pub kind: Cow<'static, str>,
    /// The versions that can be read, the preferred one first. Their objects must have the same shape where it is read.
    pub versions: Cow<'static, [&'static str]>,
}

impl FollowedKind {
    /// A kind of group `admissionregistration.k8s.io`.
    #[must_use]
    pub const fn of_admission(
        resource: &'static str,
        kind: &'static str,
        versions: &'static [&'static str],
    ) -> Self {
        Self {
            group: Cow::Borrowed("admissionregistration.k8s.io"),
            resource: Cow::Borrowed(resource),
            kind: Cow::Borrowed(kind),
            versions: Cow::Borrowed(versions),
        }
    }
}

/// All objects of a kind at a time.
#[derive(Debug, Default)]
pub struct Objects {
    /// Grows with every change.
    pub number: u64,
    /// Complete objects, sorted by namespace and name.
    pub items: Vec<Arc<Value>>,
}

/// The objects of a kind, kept current. Dropping it ends the task that follows the host.
pub struct Followed {
    kind: FollowedKind,
    objects: ArcSwap<Objects>,
    synced: watch::Sender<bool>,
    problem: Mutex<String>,
    unused: CancellationToken,
}

impl std::fmt::Debug for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Followed")
            .field("kind", &self.kind)
            .field("synced", &self.is_synced())
            .finish_non_exhaustive()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.unused.cancel();
    }
}

impl Followed {
    /// No objects, not loaded yet.
    #[must_use]
    pub fn new(kind: FollowedKind) -> Self {
        Self {
            kind,
            objects: ArcSwap::default(),
            synced: watch::Sender::new(false),
            problem: Mutex::default(),
            unused: CancellationToken::new(),
        }
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> &FollowedKind {
        &self.kind
    }

    /// Cancelled when nothing uses the objects any more.
    #[must_use]
    pub fn unused(&self) -> CancellationToken {
        self.unused.clone()
    }

    /// The objects now.
    #[must_use]
    pub fn objects(&self) -> arc_swap::Guard<Arc<Objects>> {
        self.objects.load()
    }

    /// Replaces the objects: with the first call they are loaded. Only the task that follows the host may call it.
    pub fn replace(&self, mut items: Vec<Arc<Value>>) {
        items.sort_by(|one, other| identity(one).cmp(&identity(other)));
        let number = self.objects.load().number + 1;
        self.objects.store(Arc::new(Objects { number, items }));
        self.set_problem(String::new());
        self.synced.send_replace(true);
    }

    /// Whether the first list is complete, or the host does not serve the kind.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until the objects are loaded.
    pub async fn synced(&self) {
        // The sender lives as long as this value, so this does not fail.
        drop(self.synced.subscribe().wait_for(|synced| *synced).await);
    }

    /// Sets why the objects cannot be loaded.
    pub fn set_problem(&self, problem: String) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// What is not loaded, and why if that is known.
    #[must_use]
    pub fn state(&self) -> String {
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        let separator = if problem.is_empty() { "" } else { ": " };
        format!("{}.{}{separator}{problem}", self.kind.resource, self.kind.group)
    }
}

/// Namespace and name of an object.
fn identity(object: &Value) -> (&str, &str) {
    let text = |member: &str| {
        let value = object.get("metadata").and_then(|metadata| metadata.get(member));
        value.and_then(Value::as_str).unwrap_or_default()
    };
    (text("namespace"), text("name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn objects_are_sorted_and_loaded_by_the_first_list() {
        let followed = Followed::new(FollowedKind::of_admission("things", "Thing", &["v1"]));
        followed.set_problem("no right".to_owned());
        assert_eq!(
            (followed.is_synced(), followed.state()),
            (false, "things.admissionregistration.k8s.io: no right".to_owned())
        );
        let named = |name: &str| Arc::new(json!({"metadata": {"name": name}}));
        followed.replace(vec![named("b"), named("a")]);
        followed.synced().await;
        let objects = followed.objects();
        assert_eq!(
            (objects.number, &objects.items),
            (1, &vec![named("a"), named("b")])
        );
        assert_eq!(followed.state(), "things.admissionregistration.k8s.io");
        let unused = followed.unused();
        drop(objects);
        drop(followed);
        assert!(unused.is_cancelled());
    }
}
