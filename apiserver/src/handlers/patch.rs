//! Changing an object by a patch.

use bytes::Bytes;
use drydock_machinery::codec::{self, FieldValidation, strict_decoding_error, strict_errors};
use drydock_machinery::patch::{self, PatchError};
use drydock_storage::Store;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use serde_json::Value;

use super::body::Target;
use super::{Call, response};
use crate::error::{ApiError, GroupResource, StatusCause};
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::resource::metadata_text;
use crate::registry::store::{Change, WriteRequest};
use crate::registry::strategy::StrategicMerge;
use crate::request::RequestContext;
use crate::request::negotiate::Answer;
use crate::request::options::WriteOptions;

/// What a patch may be here. Apply is refused, and strategic merge where the kind knows none, as with custom resources.
const PATCH_TYPES: &[&str] = &["application/json-patch+json", "application/merge-patch+json"];

#[derive(Debug, Clone, Copy)]
enum PatchType {
    Json,
    Merge,
    Strategic(StrategicMerge),
}

struct Patch<'a> {
    type_: PatchType,
    bytes: Bytes,
    target: Target<'a>,
    validation: FieldValidation,
    context: &'a RequestContext,
    warned: bool,
}

/// A patched document that does not decode: 422 with the field `patch`.
fn undecodable(patched: &Value, why: &dyn std::fmt::Display) -> ApiError {
    let shown = serde_json::to_string(&patched.to_string()).unwrap_or_default();
    ApiError::invalid(
        GroupResource {
            group: "",
            resource: "",
        },
        "",
        vec![StatusCause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {shown}: {why}"),
            field: "patch".to_owned(),
        }],
    )
}

impl Change for Patch<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, ApiError> {
        let patched = match self.type_ {
            PatchType::Json => patch::json::apply(current, &self.bytes),
            PatchType::Merge => patch::merge::apply(current, &self.bytes, self.validation),
            PatchType::Strategic(apply) => apply(current, &self.bytes),
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
        for (member, expected) in [
            ("kind", self.target.resource.kind),
            ("apiVersion", &self.target.version.api_version),
        ] {
            // What the patch has removed is that of the URL, as in the body of an update.
            if let Some(members) = object.as_object_mut() {
                members.entry(member).or_insert_with(|| expected.into());
            }
        }
        let before = object.clone();
        for (member, expected) in [
            ("kind", self.target.resource.kind),
            ("apiVersion", &self.target.version.api_version),
        ] {
            let said = object.get(member).and_then(Value::as_str).unwrap_or_default();
            if said != expected {
                let why =
                    format!("unable to find an object of {member} {said:?} here, expected {expected:?}");
                return Err(undecodable(&before, &why));
            }
        }
        let unknown = self
            .target
            .fit(&mut object)
            .map_err(|error| undecodable(&before, &error))?;
        let strict = strict_errors(patched.strict, unknown);
        match self.validation {
            FieldValidation::Strict if !strict.is_empty() => {
                return Err(undecodable(&before, &strict_decoding_error(&strict)));
            }
            FieldValidation::Warn if !self.warned => {
                for error in &strict {
                    self.context.warnings.add(error.to_string());
                }
                self.warned = true;
            }
            _ => {}
        }
        let uid = metadata_text(current, "uid");
        if metadata_text(&object, "uid") != uid && !metadata_text(&object, "uid").is_empty() {
            return Err(ApiError::invalid(
                self.target.resource.group_kind(),
                metadata_text(current, "name"),
                vec![StatusCause {
                    reason: "FieldValueInvalid".into(),
                    message: format!(
                        "Invalid value: {:?}: field is immutable",
                        metadata_text(&object, "uid")
                    ),
                    field: "metadata.uid".to_owned(),
                }],
            ));
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
        "application/strategic-merge-patch+json" => match call.store.resource.strategy.strategic_merge() {
            Some(apply) => PatchType::Strategic(apply),
            None => return Err(ApiError::unsupported_media_type(PATCH_TYPES)),
        },
        "application/apply-patch+yaml" => {
            return Err(ApiError::unsupported_media_type(PATCH_TYPES));
        }
        _ => return Err(ApiError::unsupported_media_type_route()),
    };
    let representation = call.negotiate(Answer::Object)?;
    let bytes = body.read().await?;
    let options = WriteOptions::parse("PatchOptions", &call.context.query)?;
    if codec::json::decode(&bytes).is_err() {
        return Err(patch_error(PatchError::NotJson));
    }
    let form: response::Form<'_> = call.form(representation)?;
    let mut change = Patch {
        type_,
        bytes,
        target: call.target(),
        validation: options.field_validation,
        context: &call.context,
        warned: false,
    };
    let request = WriteRequest {
        context: &call.context,
        options: &options,
        version: &call.version,
        part: call.part,
    };
    let written = call
        .store
        .update(request, &call.namespace, &call.name, &mut change)
        .await?;
    form.object(StatusCode::OK, &written)
}
