//! The older versions promise that the pod of a new request exists: creating an object in them looks the pod up.
//!
//! The rule runs after [`super::target_access`], so the response reveals nothing to a user who may not delete the pod.

use std::sync::Arc;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath, quoted};
use drydock_proto::kinds::{GROUP, evictionrequest};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::rule::Rule;
use crate::error::{ApiError, GroupResource};
use crate::host::Host;
use crate::registry::admission::{Operation, WriteAttributes};

/// The resource of the target.
const PODS: GroupResource<'static> = GroupResource {
    group: "",
    resource: "pods",
};

pub(super) struct TargetLookup {
    pub(super) host: Arc<dyn Host>,
}

impl TargetLookup {
    async fn check(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        let applies = write.operation == Operation::Create
            && write.resource.group == GROUP
            && write.resource.plural == evictionrequest::KIND.plural
            && !write.endpoint.face().is_hub();
        let Some(object) = write.object.filter(|_| applies) else {
            return Ok(());
        };
        let string = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (name, uid) = (string("/spec/target/pod/name"), string("/spec/target/pod/uid"));
        let pod = self.host.pod(write.namespace, name).await;
        let pod = pod.map_err(|error| ApiError::internal("the pod could not be looked up").because(error))?;
        let pod = pod.ok_or_else(|| ApiError::not_found(PODS, name))?;
        let found = pod
            .pointer("/metadata/uid")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if found == uid {
            return Ok(());
        }
        let path = FieldPath::new("spec").child("target").child("pod").child("uid");
        let detail = format!("must be the UID of pod {}: {}", quoted(name), quoted(found));
        let errors = ErrorList::from(FieldError::invalid(&path, uid, &detail));
        Err(ApiError::invalid_fields(
            write.endpoint.group_kind(),
            &write.shown_name(),
            &write.endpoint.shown_errors(errors),
        ))
    }
}

impl Rule for TargetLookup {
    fn admit<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.check(write).boxed()
    }
}
