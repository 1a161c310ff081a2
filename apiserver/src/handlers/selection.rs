//! The objects that the path and the selectors of a list or watch select.

use std::collections::HashMap;
use std::fmt;

use drydock_machinery::selector::label::Operator;
use drydock_machinery::selector::{FieldSelector, Selector};
use drydock_storage::Store;

use super::call::Call;
use crate::cache::{Freshness, Predicate, Scope, Selection};
use crate::error::ApiError;

/// The selection of a request: its namespace, its name (for a watch of one object), and its selectors.
///
/// # Errors
/// 400 for selectors that cannot be parsed or that use a field that is not selectable.
pub(super) async fn selection<S: Store>(call: &Call<'_, S>) -> Result<Selection, ApiError> {
    let query = &call.context.query;
    let labels = Selector::parse(query.first("labelSelector").unwrap_or_default())
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let text = query.first("fieldSelector").unwrap_or_default();
    let fields = FieldSelector::parse(text).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let declared = call.store.resource.capabilities.selectable_fields;
    fields
        .check_supported(declared)
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let scope = if call.name.is_empty() {
        if call.namespace.is_empty() {
            Scope::All
        } else {
            Scope::Namespace(call.namespace.clone())
        }
    } else {
        if fields
            .required_value("metadata.name")
            .is_some_and(|name| name != call.name)
        {
            return Err(ApiError::bad_request(
                "fieldSelector metadata.name doesn't match requested name",
            ));
        }
        Scope::Name {
            namespace: call.namespace.clone(),
            name: stored_name(call, &call.name).await?,
        }
    };
    let fields = with_stored_names(call, fields).await?;
    let (group, plural) = call.store.resource.key_prefix();
    Ok(Selection::new(
        group,
        plural,
        scope,
        Some(Box::new(Labels(labels))),
        Some(Box::new(Fields(fields, declared))),
    ))
}

/// No object has this name: it is not a DNS subdomain.
const NO_NAME: &str = "_";

/// A field selector whose names are those of stored objects.
async fn with_stored_names<S: Store>(
    call: &Call<'_, S>,
    fields: FieldSelector,
) -> Result<FieldSelector, ApiError> {
    if call.endpoint.face().alias.is_none() {
        return Ok(fields);
    }
    let mut names: HashMap<String, String> = HashMap::new();
    for name in fields.values("metadata.name") {
        names.insert(name.to_owned(), stored_name(call, name).await?);
    }
    Ok(fields.map_values("metadata.name", |name| {
        names.get(name).map_or(NO_NAME, String::as_str).to_owned()
    }))
}

/// The stored name of the object with a name in the version of the request; [`NO_NAME`] if there can be none.
async fn stored_name<S: Store>(call: &Call<'_, S>, name: &str) -> Result<String, ApiError> {
    let Some(alias) = call.endpoint.face().alias else {
        return Ok(name.to_owned());
    };
    let Some(stored) = (alias.stored_name)(name) else {
        return Ok(NO_NAME.to_owned());
    };
    // The stored object may have another name in this version. In a list of all namespaces it may be in any of them.
    let Ok(key) = call.endpoint.key(&call.namespace, name) else {
        return Ok(stored.to_owned());
    };
    let found = call.store.read(&key, Freshness::MostRecent).await?;
    let is_other = found.is_some_and(|object| call.endpoint.check_name(object.value(), name).is_err());
    Ok(if is_other { NO_NAME } else { stored }.to_owned())
}

/// A label selector, as a predicate of the cache.
struct Labels(Selector);

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Predicate for Labels {
    fn matches<'a>(&self, lookup: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        self.0.matches(lookup)
    }

    fn equalities(&self) -> Vec<(String, String)> {
        let requirements = self.0.requirements().iter();
        let exact = requirements.filter(|requirement| {
            matches!(
                requirement.operator(),
                Operator::Equals | Operator::DoubleEquals | Operator::In
            )
        });
        exact
            .filter_map(|requirement| match requirement.values() {
                [value] => Some((requirement.key().to_owned(), value.clone())),
                _ => None,
            })
            .collect()
    }

    fn is_empty(&self) -> bool {
        self.0.is_everything()
    }
}

/// A field selector, as a predicate of the cache, and the selectable fields of the kind.
struct Fields(FieldSelector, &'static [&'static str]);

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Predicate for Fields {
    fn matches<'a>(&self, lookup: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        self.0.matches(lookup)
    }

    fn equalities(&self) -> Vec<(String, String)> {
        ["metadata.name", "metadata.namespace"]
            .into_iter()
            .chain(self.1.iter().copied())
            .filter_map(|field| {
                self.0
                    .required_value(field)
                    .map(|value| (field.to_owned(), value.to_owned()))
            })
            .collect()
    }

    fn is_empty(&self) -> bool {
        self.0.is_everything()
    }
}
