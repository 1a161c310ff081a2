//! Who asks that a pod leaves, or withdraws that, must be allowed to delete the pod.
//!
//! The answer must not tell whether the pod exists, so it is never looked up here. Status has rights of its own, since
//! interceptors write it.

use drydock_proto::kinds::{GROUP, evictionrequest};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::{Access, Rule};
use crate::authorization::Decision;
use crate::error::ApiError;
use crate::registry::admission::Attributes;
use crate::registry::resource::Part;

pub(super) struct TargetAccess {
    pub(super) access: Access,
}

fn pod_name(object: &Value) -> Option<&str> {
    object
        .pointer("/spec/target/pod/name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
}

impl TargetAccess {
    async fn check(&self, write: &Attributes<'_>) -> Result<(), ApiError> {
        let applies = write.resource.group == GROUP && write.resource.plural == evictionrequest::KIND.plural;
        if !applies || write.part == Part::Status || write.changes_nothing() {
            return Ok(());
        }
        let mut pods: Vec<&str> = write
            .old
            .into_iter()
            .chain(write.object)
            .filter_map(pod_name)
            .collect();
        pods.dedup();
        for pod in pods {
            // The right to every pod of the namespace is asked for first: one cached answer then serves thousands of requests.
            if self.access.may_delete(write, "pods", write.namespace, "").await? == Decision::Allow {
                return Ok(());
            }
            if let Decision::Forbid(reason) = self
                .access
                .may_delete(write, "pods", write.namespace, pod)
                .await?
            {
                let user = &write.caller.user.name;
                let namespace = write.namespace;
                let tail = if reason.is_empty() {
                    String::new()
                } else {
                    format!(": {reason}")
                };
                let why = format!(
                    "User \"{user}\" cannot delete resource \"pods\" in API group \"\" in the namespace \
                     \"{namespace}\": pod \"{pod}\"{tail}"
                );
                return Err(ApiError::forbidden(
                    write.resource.group_resource(),
                    write.name,
                    why,
                ));
            }
        }
        Ok(())
    }
}

impl Rule for TargetAccess {
    fn admit<'a>(&'a self, write: &'a Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.check(write).boxed()
    }
}
