//! Errors in options: the causes of a 422.

use crate::error::{ApiError, GroupResource, StatusCause};

const GROUP: &str = "meta.k8s.io";

/// The 422 with these causes; `kind` names the options.
pub(super) fn invalid(kind: &'static str, causes: Vec<StatusCause>) -> ApiError {
    ApiError::invalid(
        GroupResource {
            group: GROUP,
            resource: kind,
        },
        "",
        causes,
    )
}

pub(super) fn cause(reason: &'static str, field: &str, message: impl Into<String>) -> StatusCause {
    StatusCause {
        reason: reason.into(),
        message: message.into(),
        field: field.to_owned(),
    }
}

/// Whether it is a dry run. `All` is the only value.
pub(super) fn check_dry_run<'a>(
    values: impl Iterator<Item = &'a str>,
    causes: &mut Vec<StatusCause>,
) -> bool {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|value| *value != "All") {
        let shown = serde_json::to_string(&values).unwrap_or_default();
        causes.push(cause(
            "FieldValueNotSupported",
            "dryRun",
            format!("Unsupported value: {shown}: supported values: \"All\""),
        ));
    }
    !values.is_empty()
}
