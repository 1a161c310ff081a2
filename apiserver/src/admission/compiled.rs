//! The configuration objects of a plugin in the form in which they are used, compiled once for each change of an object.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde_json::Value;

use crate::host::Followed;

/// An object of the host, and what was compiled from it.
pub struct Item<T> {
    /// The object.
    pub source: Arc<Value>,
    /// What it says.
    pub compiled: T,
}

/// The items of a kind at a time.
pub struct Items<T> {
    number: u64,
    /// Sorted by namespace and name.
    pub items: Vec<Arc<Item<T>>>,
}

impl<T> Items<T> {
    /// Grows with every change.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// Compiles an object.
type Compile<T> = dyn Fn(&Arc<Value>) -> T + Send + Sync;

/// Followed objects and what was compiled from them.
pub struct Compiled<T> {
    followed: Arc<Followed>,
    compile: Box<Compile<T>>,
    current: ArcSwap<Items<T>>,
    compiling: Mutex<()>,
}

impl<T> Compiled<T> {
    /// Compiles the objects when they are used. `compile` is called once for each state of an object.
    #[must_use]
    pub fn new(followed: Arc<Followed>, compile: impl Fn(&Arc<Value>) -> T + Send + Sync + 'static) -> Self {
        Self {
            followed,
            compile: Box::new(compile),
            current: ArcSwap::from_pointee(Items {
                number: 0,
                items: Vec::new(),
            }),
            compiling: Mutex::default(),
        }
    }

    /// The objects.
    #[must_use]
    pub const fn followed(&self) -> &Arc<Followed> {
        &self.followed
    }

    /// The items as they are now.
    #[must_use]
    pub fn items(&self) -> Arc<Items<T>> {
        let current = self.current.load();
        if current.number == self.followed.objects().number {
            return Arc::clone(&current);
        }
        drop(current);
        let _one_at_a_time = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let objects = Arc::clone(&self.followed.objects());
        let before = self.current.load_full();
        if before.number == objects.number {
            return before;
        }
        let item = |source: &Arc<Value>| {
            let known = before.items.iter().find(|item| Arc::ptr_eq(&item.source, source));
            known.cloned().unwrap_or_else(|| {
                Arc::new(Item {
                    source: Arc::clone(source),
                    compiled: (self.compile)(source),
                })
            })
        };
        let after = Arc::new(Items {
            number: objects.number,
            items: objects.items.iter().map(item).collect(),
        });
        self.current.store(Arc::clone(&after));
        after
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::host::FollowedKind;

    #[test]
    fn an_object_is_compiled_once_for_each_of_its_states() {
        let followed = Arc::new(Followed::new(FollowedKind::of_admission("ts", "T", &["v1"])));
        let compilations = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&compilations);
        let compiled = Compiled::new(Arc::clone(&followed), move |object| {
            counted.fetch_add(1, Ordering::Relaxed);
            object["metadata"]["name"].clone()
        });
        let names = || -> Vec<Value> {
            let items = compiled.items();
            items.items.iter().map(|item| item.compiled.clone()).collect()
        };
        assert!(names().is_empty());
        let object_of = |name: &str| Arc::new(json!({"metadata": {"name": name}}));
        let (a, b) = (object_of("a"), object_of("b"));
        followed.replace(vec![Arc::clone(&b), a]);
        assert_eq!(names(), ["a", "b"]);
        followed.replace(vec![b, object_of("c")]);
        assert_eq!(
            (names(), names()),
            (vec![json!("b"), json!("c")], vec![json!("b"), json!("c")])
        );
        assert_eq!(compilations.load(Ordering::Relaxed), 3);
    }
}
