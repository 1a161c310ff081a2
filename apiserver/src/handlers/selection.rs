//! Which objects do the path and the selectors of a list or watch name?

use drydock_machinery::selector::{field, label};
use drydock_storage::Store;

use super::Call;
use crate::cache::{Scope, Selection};
use crate::error::ApiError;

/// The selection of a request: its namespace, its name (of a single-object watch), and its selectors.
///
/// # Errors
/// 400 for selectors that cannot be parsed or name a field that cannot be selected by.
pub(super) fn selection<S: Store>(call: &Call<'_, S>) -> Result<Selection, ApiError> {
    let query = &call.context.query;
    let labels = label::Selector::parse(query.first("labelSelector").unwrap_or_default())
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let text = query.first("fieldSelector").unwrap_or_default();
    let fields = field::Selector::parse(text).map_err(|error| ApiError::bad_request(error.to_string()))?;
    fields
        .check_supported(&["metadata.name", "metadata.namespace"])
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let scope = if call.name.is_empty() {
        if call.namespace.is_empty() { Scope::All } else { Scope::Namespace(call.namespace.clone()) }
    } else {
        let contradicts = fields
            .requirements()
            .iter()
            .any(|requirement| requirement.field() == "metadata.name" && !requirement.matches(&call.name));
        if contradicts {
            return Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        Scope::Name { namespace: call.namespace.clone(), name: call.name.clone() }
    };
    let (group, plural) = call.store.resource.key_prefix();
    Ok(Selection::new(group, plural, scope, Some(Box::new(labels)), Some(Box::new(fields))))
}
