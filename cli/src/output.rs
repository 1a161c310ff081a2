//! Objects as JSON or YAML.

use serde::Serialize;
use serde_json::Value;

use crate::args::Format;
use crate::error::Error;
use crate::terminal::print;

/// Prints data in a format; returns false for formats that are text.
///
/// # Errors
///
/// [`Error`] of the output.
pub(crate) fn print_as(format: Option<Format>, data: &impl Serialize) -> Result<bool, Error> {
    let text = match format {
        None | Some(Format::Wide) => return Ok(false),
        Some(Format::Json) => serde_json::to_string_pretty(data)
            .map(|text| text + "\n")
            .map_err(|error| Error::Decode(error.to_string()))?,
        Some(Format::Yaml) => {
            // Through a value, so that both formats have the same members in the same order.
            let value = serde_json::to_value(data).map_err(|error| Error::Decode(error.to_string()))?;
            serde_saphyr::to_string(&value).map_err(|error| Error::Decode(error.to_string()))?
        }
    };
    print(&text)?;
    Ok(true)
}

/// Objects as a `List`; one object stays itself.
#[must_use]
pub(crate) fn list(mut objects: Vec<Value>) -> Value {
    match (objects.pop(), objects.is_empty()) {
        (Some(only), true) => only,
        (Some(last), false) => {
            objects.push(last);
            as_list(&objects)
        }
        (None, _) => as_list(&objects),
    }
}

/// Objects as a `List`.
#[must_use]
pub(crate) fn as_list(objects: &[Value]) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects})
}
