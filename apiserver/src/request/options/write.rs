//! The options of create, update and patch.

use drydock_machinery::codec::FieldValidation;
use drydock_machinery::field_error::FieldPath;
use drydock_machinery::object_meta;

use super::causes::{cause, check_dry_run, invalid};
use crate::{
    error::{ApiError, StatusCause},
    request::query::Query,
};

/// The options of create, update and patch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Whether to check everything and store nothing.
    pub dry_run: bool,
    /// The manager of the written fields; none = derived from the User-Agent.
    pub field_manager: Option<String>,
    /// See [`FieldValidation`].
    pub field_validation: FieldValidation,
    /// `fieldValidation` as it was sent, if it was.
    pub sent_field_validation: Option<String>,
}

impl WriteOptions {
    /// Reads the options; `kind` names them in errors: `CreateOptions`, `UpdateOptions`, `PatchOptions`.
    ///
    /// # Errors
    /// 422 with a cause for each invalid parameter.
    pub fn parse(kind: &'static str, query: &Query) -> Result<Self, ApiError> {
        let mut causes = Vec::new();
        let options = Self::read(query, &mut causes);
        if kind == "PatchOptions" && query.has("force") {
            causes.push(cause(
                "FieldValueForbidden",
                "force",
                "Forbidden: may not be specified for non-apply patch",
            ));
        }
        options.unless_invalid(kind, causes)
    }

    /// Reads the options of an apply: the field manager is required.
    ///
    /// # Errors
    /// 422 with a cause for each invalid parameter.
    pub fn parse_apply(query: &Query) -> Result<Self, ApiError> {
        let mut causes = Vec::new();
        let options = Self::read(query, &mut causes);
        if options.field_manager.is_none() {
            causes.push(cause(
                "FieldValueRequired",
                "fieldManager",
                "Required value: is required for apply patch",
            ));
        }
        options.unless_invalid("PatchOptions", causes)
    }

    fn read(query: &Query, causes: &mut Vec<StatusCause>) -> Self {
        let dry_run = check_dry_run(query.all("dryRun"), causes);
        let field_manager = query
            .first("fieldManager")
            .filter(|manager| !manager.is_empty())
            .map(str::to_owned);
        if let Some(manager) = &field_manager {
            check_field_manager(manager, causes);
        }
        let validation = query.first("fieldValidation").unwrap_or_default();
        let field_validation = FieldValidation::parse(validation).unwrap_or_else(|| {
            let supported = FieldValidation::SUPPORTED
                .map(|name| format!("{name:?}"))
                .join(", ");
            causes.push(cause(
                "FieldValueNotSupported",
                "fieldValidation",
                format!("Unsupported value: {validation:?}: supported values: {supported}"),
            ));
            FieldValidation::default()
        });
        Self {
            dry_run,
            field_manager,
            field_validation,
            sent_field_validation: (!validation.is_empty()).then(|| validation.to_owned()),
        }
    }

    fn unless_invalid(self, kind: &'static str, causes: Vec<StatusCause>) -> Result<Self, ApiError> {
        if causes.is_empty() {
            Ok(self)
        } else {
            Err(invalid(kind, causes))
        }
    }
}

fn check_field_manager(manager: &str, causes: &mut Vec<StatusCause>) {
    for error in &object_meta::validate_field_manager(manager, &FieldPath::new("fieldManager")) {
        causes.push(cause(error.reason(), error.field(), error.body()));
    }
}
