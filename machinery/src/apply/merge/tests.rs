//! Applies as a server carries them out. The expected results are those of kube-apiserver 1.37.

use serde_json::json;

use super::*;
use crate::apply::fixtures::{FromV1, FromV2, V1, V1_SCHEMA, V2, V2_SCHEMA, entries, entry, thing, time};
use crate::apply::managed_fields::{Versions, record_update, reset_by_object, reset_by_status};

mod fields;
mod kubectl;
mod lists;
mod model;
mod properties;
mod versions;

/// An object that is written several times, one second apart. Behaves as a server with a status subresource.
struct Object {
    live: Option<Value>,
    clock: u32,
}

/// How an apply of the tests is sent.
#[derive(Clone, Copy, Default)]
struct Options {
    is_forced: bool,
    is_status: bool,
    is_v2: bool,
}

const PLAIN: Options = Options {
    is_forced: false,
    is_status: false,
    is_v2: false,
};
const FORCED: Options = Options {
    is_forced: true,
    ..PLAIN
};
const STATUS: Options = Options {
    is_status: true,
    ..PLAIN
};

impl Object {
    fn new() -> Self {
        Self { live: None, clock: 0 }
    }

    /// An object that was created by an update of `manager`.
    fn created(manager: &str, members: &Value) -> Self {
        let mut object = Self::new();
        object.put(manager, members);
        object
    }

    /// Applies a configuration without checking the result, and returns it.
    fn try_apply(&mut self, manager: &str, config: &Value, options: Options) -> Result<Applied, ApplyError> {
        self.clock += 1;
        let time = time(self.clock);
        let writer = Writer {
            manager,
            api_version: if options.is_v2 { V2 } else { V1 },
            subresource: options.is_status.then_some("status"),
            time: &time,
        };
        let endpoint = Endpoint {
            schema: if options.is_v2 { &V2_SCHEMA } else { &V1_SCHEMA },
            reset_fields: if options.is_status {
                reset_by_status()
            } else {
                reset_by_object()
            },
            versions: if options.is_v2 { &FromV2 } else { &FromV1 },
        };
        let convert = |object: &Value| {
            if options.is_v2 {
                FromV1.convert(object, V2)
            } else {
                Some(object.clone())
            }
        };
        let live = self.live.as_ref().map(|live| convert(live).unwrap());
        let mut config = thing(config);
        config["apiVersion"] = writer.api_version.into();
        let applied = apply(&endpoint, live.as_ref(), &config, &writer, options.is_forced)?;
        let mut object = applied.object.clone();
        if options.is_v2 {
            object = FromV1.revert(&object, V2).unwrap();
        }
        self.store(object, options.is_status);
        Ok(applied)
    }

    /// Stores an object, with the parts that the endpoint resets.
    fn store(&mut self, mut new: Value, is_status: bool) {
        let live = self
            .live
            .take()
            .unwrap_or_else(|| json!({"metadata": {"uid": "u"}}));
        let mut keep = |name: &str| match live.get(name) {
            Some(part) => new[name] = part.clone(),
            None => drop(new.as_object_mut().unwrap().remove(name)),
        };
        if is_status {
            keep("spec");
            let list = new["metadata"].get("managedFields").cloned();
            new["metadata"] = live["metadata"].clone();
            new["metadata"]["managedFields"] = list.unwrap_or_default();
        } else {
            keep("status");
            new["metadata"]["uid"] = live["metadata"]["uid"].clone();
        }
        V1_SCHEMA.conform(&mut new).unwrap();
        self.live = Some(new);
    }

    #[track_caller]
    fn apply_with(&mut self, manager: &str, config: &Value, options: Options) -> &mut Self {
        if let Err(error) = self.try_apply(manager, config, options) {
            panic!("{error}");
        }
        self
    }

    #[track_caller]
    fn apply(&mut self, manager: &str, config: &Value) -> &mut Self {
        self.apply_with(manager, config, PLAIN)
    }

    /// Checks that an apply fails with a conflict, without changing the object.
    #[track_caller]
    fn conflicts(&mut self, manager: &str, config: &Value, options: Options, message: &str) -> &mut Self {
        let error = self.try_apply(manager, config, options).expect_err(message);
        assert!(matches!(error, ApplyError::Conflicts(_)), "{error}");
        assert_eq!(error.to_string(), format!("Apply failed with {message}"));
        self
    }

    /// Checks that an apply changes nothing.
    #[track_caller]
    fn is_noop(&mut self, manager: &str, config: &Value, options: Options) -> &mut Self {
        let before = self.live.clone();
        let applied = self.try_apply(manager, config, options).unwrap();
        assert!(!applied.is_changed, "{}", applied.object);
        assert_eq!(self.live, before);
        self
    }

    /// Replaces the object, as an update by a client that read it before.
    fn put(&mut self, manager: &str, members: &Value) -> &mut Self {
        self.update(manager, members, false)
    }

    /// Replaces the status.
    fn put_status(&mut self, manager: &str, status: &Value) -> &mut Self {
        self.update(manager, &json!({ "status": status }), true)
    }

    fn update(&mut self, manager: &str, members: &Value, is_status: bool) -> &mut Self {
        self.clock += 1;
        let time = time(self.clock);
        let writer = Writer {
            manager,
            api_version: V1,
            subresource: is_status.then_some("status"),
            time: &time,
        };
        let endpoint = Endpoint {
            schema: &V1_SCHEMA,
            reset_fields: if is_status {
                reset_by_status()
            } else {
                reset_by_object()
            },
            versions: &FromV1,
        };
        let mut new = thing(members);
        V1_SCHEMA.conform(&mut new).unwrap();
        record_update(&endpoint, self.live.as_ref(), &mut new, &writer);
        self.store(new, is_status);
        self
    }

    /// Removes `managedFields`, after which the object is not tracked.
    fn untracked(&mut self) -> &mut Self {
        take_list(self.live.as_mut().unwrap());
        self
    }

    #[track_caller]
    fn owners(&mut self, expected: &[&str]) -> &mut Self {
        assert_eq!(entries(self.live.as_ref().unwrap()), expected);
        self
    }

    fn at(&self, pointer: &str) -> Option<&Value> {
        self.live.as_ref()?.pointer(pointer)
    }

    /// Checks a value; null means absent.
    #[track_caller]
    fn has(&mut self, pointer: &str, expected: &Value) -> &mut Self {
        assert_eq!(self.at(pointer).unwrap_or(&Value::Null), expected, "{pointer}");
        self
    }
}

fn spec(members: &Value) -> Value {
    json!({ "spec": members })
}

fn priority(priority: i32) -> Value {
    spec(&json!({ "priority": priority }))
}

/// An atomic item of `spec.requesters`.
fn requester(name: &str, intent: &str) -> Value {
    json!({"name": name, "intent": intent})
}

fn requesters(items: &[Value]) -> Value {
    spec(&json!({ "requesters": items }))
}

fn granular(items: &[Value]) -> Value {
    spec(&json!({ "granular": items }))
}

fn labels(labels: &Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

fn finalizers(finalizers: &[&str]) -> Value {
    json!({"metadata": {"finalizers": finalizers}})
}

fn active(items: &[&str]) -> Value {
    json!({"status": {"active": items}})
}

fn conditions(items: &[Value]) -> Value {
    json!({"status": {"conditions": items}})
}
