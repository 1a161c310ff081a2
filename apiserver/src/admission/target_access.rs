//! Writing an EvictionRequest requires permission to delete its pod.
//!
//! The response must not reveal whether the pod exists, so the pod is never looked up here. Updates of `status`, which
//! interceptors send, require no such permission.

use drydock_proto::kinds::{GROUP, evictionrequest};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::rule::{Access, Right, Rule};
use crate::authorization::Decision;
use crate::error::ApiError;
use crate::registry::admission::WriteAttributes;
use crate::registry::part::Part;

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
    async fn check(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        let applies = write.resource.group == GROUP && write.resource.plural == evictionrequest::KIND.plural;
        if !applies || write.part == Part::Status || write.changes_nothing() {
            return Ok(());
        }
        write.record_target_authorization(self.check_rights(write).await)
    }

    async fn check_rights(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        let mut pods: Vec<&str> = write
            .old
            .into_iter()
            .chain(write.object)
            .filter_map(pod_name)
            .collect();
        pods.dedup();
        for pod in pods {
            let right = Right::core("delete", "pods", write.namespace).on(pod);
            if let Decision::Forbid(reason) = self.access.decide_all_or_one(write, right).await? {
                let separator = if reason.is_empty() { "" } else { ": " };
                return Err(right.missing(write, &format!("pod \"{pod}\"{separator}{reason}")));
            }
        }
        Ok(())
    }
}

impl Rule for TargetAccess {
    fn admit<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.check(write).boxed()
    }
}
