//! The older versions promise that the pod of a new request exists, and that the request has the interceptors of the pod from
//! its creation on: creating an object in them looks the pod up.
//!
//! This runs after the rules, [`super::target_access`] among them, so the response reveals nothing to a user who may not
//! delete the pod.

use std::sync::{Arc, OnceLock};

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath, quoted};
use drydock_proto::kinds::{GROUP, evictionrequest};
use serde_json::Value;

use super::pod_interceptors::{self, InterceptorRules};
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
    /// Set once the server has its stores.
    pub(super) rules: OnceLock<Arc<dyn InterceptorRules>>,
}

impl TargetLookup {
    /// The new object with the interceptors of its pod; `None` if this is no such write, or the controller has to decide.
    ///
    /// # Errors
    /// 404 if there is no such pod, 422 if it has another UID, 500 if the host cannot be asked.
    pub(super) async fn complete(&self, write: &WriteAttributes<'_>) -> Result<Option<Value>, ApiError> {
        let applies = write.operation == Operation::Create
            && write.resource.group == GROUP
            && write.resource.plural == evictionrequest::KIND.plural
            && !write.endpoint.face().is_hub();
        let Some(object) = write.object.filter(|_| applies) else {
            return Ok(None);
        };
        let pod = self.target(write, object).await?;
        let Some(rules) = self.rules.get() else {
            return Ok(None);
        };
        let order = pod_interceptors::order(&*self.host, &**rules, write.namespace, &pod).await?;
        let Some(order) = order else {
            return Ok(None);
        };
        if !write.dry_run {
            for skipped in order.skipped {
                self.host
                    .record_event(pod_interceptors::skipped_event(&pod, &skipped));
            }
        }
        let mut completed = object.clone();
        evictionrequest::declare_interceptors(&mut completed, &order.names);
        Ok(Some(completed))
    }

    /// The pod that the request names.
    async fn target(&self, write: &WriteAttributes<'_>, object: &Value) -> Result<Value, ApiError> {
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
            return Ok(pod);
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
