//! PATCH with `application/apply-patch+yaml` or `application/apply-patch+cbor`: server-side apply of an object or its status.

use drydock_machinery::codec::{self, DecodeError, Decoded, FieldValidation, cbor, strict_yaml_error};
use drydock_storage::Store;
use http::{Response, StatusCode};
use serde_json::{Map, Value};

use super::call::Call;
use crate::error::ApiError;
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::endpoint::Endpoint;
use crate::registry::store::Applied;
use crate::request::negotiate::ResponseKind;
use crate::request::options::WriteOptions;

pub(super) async fn apply<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
    is_cbor: bool,
) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::Object)?;
    let bytes = body.read().await?;
    let options = WriteOptions::parse_apply(&call.context.query)?;
    let force = call.context.query.boolean("force").unwrap_or(false);
    let undecodable =
        |error: &dyn std::fmt::Display| ApiError::bad_request(format!("error decoding patch: {error}"));
    let decoded = if is_cbor {
        Decoded {
            value: cbor::decode(&bytes).map_err(|error| undecodable(&error))?,
            duplicates: Vec::new(),
        }
    } else {
        codec::yaml::decode(&bytes).map_err(|error| undecodable(&error))?
    };
    let config = match decoded.value {
        Value::Null => Value::Object(Map::new()),
        config @ Value::Object(_) => config,
        other => {
            let error = DecodeError::wrong_type(&other, "value", "map[string]interface {}");
            return Err(undecodable(&format_args!(
                "error unmarshaling JSON: while decoding JSON: {error}"
            )));
        }
    };
    call.context.audit.sent_configuration(&config);
    check_kind(&call.endpoint, &config)?;
    let format = call.format(representation)?;
    let duplicates = decoded.duplicates;
    match options.field_validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => {
            for error in &duplicates {
                call.context.warnings.add(error.to_string());
            }
        }
        FieldValidation::Strict => {
            if let Some(message) = strict_yaml_error(&duplicates) {
                return Err(ApiError::bad_request(message));
            }
        }
    }
    let applied = call
        .store
        .apply(
            call.write_request(&options),
            &call.namespace,
            &call.name,
            &config,
            force,
        )
        .await?;
    match applied {
        Applied::Created(written) => format.object(StatusCode::CREATED, &written),
        Applied::Updated(written) => format.object(StatusCode::OK, &written),
    }
}

/// Checks that a configuration is of the kind and version of the endpoint.
fn check_kind(endpoint: &Endpoint, config: &Value) -> Result<(), ApiError> {
    let text = |member: &str| config.get(member).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if kind == endpoint.kind() && *api_version == *endpoint.face().api_version {
        return Ok(());
    }
    let shown = if api_version.is_empty() { "/" } else { api_version };
    Err(ApiError::bad_request(format!(
        "invalid object type: {shown}, Kind={kind}"
    )))
}
