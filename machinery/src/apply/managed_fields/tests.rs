use super::*;
use crate::apply::fixtures::{FromV1, V1, V1_SCHEMA, entries, entry, thing, time};

mod lists;
mod owners;

/// An object that is written several times, one second apart.
struct Object {
    live: Option<Value>,
    clock: u32,
}

impl Object {
    fn new() -> Self {
        Self { live: None, clock: 0 }
    }

    /// An object that is already stored, with these entries.
    fn stored(entries: &Value, members: &Value) -> Self {
        let mut live = thing(members);
        live["metadata"]["uid"] = "u".into();
        live["metadata"]["managedFields"] = entries.clone();
        Self {
            live: Some(live),
            clock: 10,
        }
    }

    /// Writes `members` with the stored list, as a client does after reading the object.
    fn put(&mut self, manager: &str, members: &Value) -> &mut Self {
        let mut new = thing(members);
        if let Some(list) = self.list() {
            new["metadata"]["managedFields"] = list;
        }
        self.write(manager, None, new)
    }

    /// Writes `members` with another list.
    fn put_with(&mut self, manager: &str, members: &Value, list: Value) -> &mut Self {
        let mut new = thing(members);
        new["metadata"]["managedFields"] = list;
        self.write(manager, None, new)
    }

    fn write(&mut self, manager: &str, subresource: Option<&str>, mut new: Value) -> &mut Self {
        self.clock += 1;
        let writer = Writer {
            manager,
            api_version: V1,
            subresource,
            time: &time(self.clock),
        };
        let endpoint = Endpoint {
            schema: &V1_SCHEMA,
            reset_fields: if subresource.is_some() {
                reset_by_status()
            } else {
                reset_by_object()
            },
            versions: &FromV1,
        };
        record_update(&endpoint, self.live.as_ref(), &mut new, &writer);
        new["metadata"]["uid"] = "u".into();
        self.live = Some(new);
        self
    }

    fn list(&self) -> Option<Value> {
        self.live.as_ref()?.pointer("/metadata/managedFields").cloned()
    }

    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert_eq!(entries(self.live.as_ref().unwrap()), expected);
    }
}
