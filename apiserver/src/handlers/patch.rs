//! PATCH of an object or its status, by a JSON patch, a merge patch, or a strategic merge patch. An apply goes on in
//! [`apply`].

use bytes::Bytes;
use drydock_machinery::codec::{self, FieldValidation, strict_errors};
use drydock_machinery::excerpt;
use drydock_machinery::field_error::quoted;
use drydock_machinery::patch::{self, PatchError};
use drydock_storage::Store;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use serde_json::Value;

use super::apply;
use super::call::Call;
use crate::error::{ApiError, GroupResource, StatusCause};
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::endpoint::Endpoint;
use crate::registry::resource::StrategicMerge;
use crate::registry::store::Change;
use crate::request::Warnings;
use crate::request::negotiate::ResponseKind;
use crate::request::options::WriteOptions;

/// How much of a patched object an error about it prints, in bytes.
const MAX_SHOWN_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy)]
enum PatchType {
    Json,
    Merge,
    Strategic(Option<StrategicMerge>),
}

/// The patch of a request, as a change that the registry applies to the current object.
struct Patch<'a> {
    type_: PatchType,
    bytes: Bytes,
    endpoint: &'a Endpoint,
    validation: FieldValidation,
    warnings: &'a Warnings,
    /// Whether the warnings were added: the patch is applied again after a conflict.
    warned: bool,
}

/// 422 with the field `patch`, for a patched object that cannot be decoded.
fn undecodable(patched: &Value, why: &dyn std::fmt::Display) -> ApiError {
    let shown = excerpt::print(patched, MAX_SHOWN_BYTES);
    ApiError::invalid(
        GroupResource {
            group: "",
            resource: "",
        },
        "",
        vec![StatusCause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {}: {why}", quoted(&shown)),
            field: "patch".to_owned(),
        }],
    )
}

impl Change for Patch<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, ApiError> {
        let patched = match self.type_ {
            PatchType::Json => patch::json::apply(current, &self.bytes),
            PatchType::Merge => patch::merge::apply(current, &self.bytes, self.validation),
            PatchType::Strategic(Some(apply)) => apply(current, &self.bytes),
            PatchType::Strategic(None) => {
                patch::strategic::apply(current, &self.bytes, &self.endpoint.face().schema)
            }
        }
        .map_err(patch_error)?;
        let mut object = patched.value;
        if object
            .get("metadata")
            .is_none_or(|metadata| !metadata.is_object())
        {
            return Err(ApiError::bad_request(
                "the patch leaves the object without metadata",
            ));
        }
        let (kind, api_version) = (self.endpoint.kind(), &*self.endpoint.face().api_version);
        let type_meta = [("kind", kind), ("apiVersion", api_version)];
        for (member, expected) in type_meta {
            // A patch may remove them. Then those of the URL are set, as for the body of an update.
            if let Some(members) = object.as_object_mut() {
                members.entry(member).or_insert_with(|| expected.into());
            }
        }
        let before = object.clone();
        let sent = |member: &str| object.get(member).and_then(Value::as_str).unwrap_or_default();
        let (sent_kind, sent_version) = (sent("kind"), sent("apiVersion"));
        if (sent_kind, sent_version) != (kind, api_version) {
            let why = format!("no kind \"{sent_kind}\" is registered for version \"{sent_version}\"");
            return Err(undecodable(&before, &why));
        }
        let unknown = self
            .endpoint
            .conform(&mut object)
            .map_err(|error| undecodable(&before, &error))?;
        let strict = strict_errors(patched.strict, unknown);
        let warnings = self
            .validation
            .check(strict)
            .map_err(|error| undecodable(&before, &error))?;
        if !self.warned {
            for warning in &warnings {
                self.warnings.add(warning.to_string());
            }
            self.warned = true;
        }
        Ok(object)
    }

    fn uid_is_precondition(&self) -> bool {
        false
    }
}

fn patch_error(error: PatchError) -> ApiError {
    match &error {
        PatchError::NotJson | PatchError::NotAnObject | PatchError::Decode(_) => {
            ApiError::bad_request(error.to_string())
        }
        PatchError::TooManyOperations { .. } => ApiError::too_large(error.to_string()),
        PatchError::Operation { .. } => ApiError::unprocessable().because(error),
    }
}

pub(super) async fn patch<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
) -> Result<Response<ResponseBody>, ApiError> {
    let text = call
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let type_ = match text.split(';').next().unwrap_or_default().trim() {
        "application/json-patch+json" => PatchType::Json,
        "application/merge-patch+json" => PatchType::Merge,
        "application/strategic-merge-patch+json" => {
            PatchType::Strategic(call.store.resource.capabilities.strategic_merge)
        }
        "application/apply-patch+yaml" => return Box::pin(apply::apply(call, body, false)).await,
        "application/apply-patch+cbor" => return Box::pin(apply::apply(call, body, true)).await,
        _ => return Err(ApiError::unsupported_media_type_route()),
    };
    let representation = call.negotiate(ResponseKind::Object)?;
    let bytes = body.read().await?;
    let options = WriteOptions::parse("PatchOptions", &call.context.query)?;
    if codec::json::decode(&bytes).is_err() {
        return Err(patch_error(PatchError::NotJson));
    }
    call.context.audit.sent_patch(&bytes);
    let format = call.format(representation)?;
    let mut change = Patch {
        type_,
        bytes,
        endpoint: &call.endpoint,
        validation: options.field_validation,
        warnings: &call.context.warnings,
        warned: false,
    };
    let written = call
        .store
        .update(
            call.write_request(&options),
            &call.namespace,
            &call.name,
            &mut change,
        )
        .await?;
    format.object(StatusCode::OK, &written)
}
