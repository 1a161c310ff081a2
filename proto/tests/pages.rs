//! The tables of fields in the pages about the kinds are those of the schemas.

use std::path::PathBuf;

use drydock_proto::kinds::KINDS;
use serde_json::Value;

const BEGIN: &str = "<!-- fields: written by proto/tests/pages.rs with UPDATE_GOLDEN=1 -->\n";
const END: &str = "<!-- end of fields -->\n";

/// The rows of a schema, one for each field, in the order of the schema.
fn rows(schema: &Value, path: &str, table: &mut String) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (name, property) in properties {
        let is_list = property["type"] == "array";
        let path = format!("{path}.{name}{}", if is_list { "[]" } else { "" });
        let inner = if is_list { &property["items"] } else { property };
        let description = property["description"]
            .as_str()
            .unwrap_or_default()
            .replace(['\n', '|'], " ");
        // An optional object has two types.
        let is_object = inner["properties"].is_object();
        let named = inner["format"].as_str().or(inner["type"].as_str());
        let mut kind = named
            .unwrap_or(if is_object { "object" } else { "any" })
            .to_owned();
        if let Some(values) = inner["enum"].as_array() {
            let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            kind = values.join(", ");
        }
        let default = &property["default"];
        let is_empty = default.as_str() == Some("") || default.is_object() || default.is_array();
        if !default.is_null() && !is_empty {
            kind = format!("{kind}; default {}", default.to_string().trim_matches('"'));
        }
        table.push_str(&["| `", &path, "` | ", &kind, " | ", &description, " |\n"].concat());
        rows(inner, &path, table);
    }
}

#[test]
fn pages_list_every_field_of_the_current_version() {
    for kind in KINDS {
        let face = kind.faces.first().expect("a kind has a version");
        let mut table = "| field | type | meaning |\n| --- | --- | --- |\n".to_owned();
        rows(&(face.spec)(), "spec", &mut table);
        rows(&(face.status)(), "status", &mut table);
        let page = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../docs/kinds")
            .join(format!("{}.md", kind.singular));
        let text = std::fs::read_to_string(&page).expect("every kind has a page");
        let (before, rest) = text.split_once(BEGIN).expect("the page has a table of fields");
        let (found, after) = rest.split_once(END).expect("the table has an end");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&page, [before, BEGIN, &table, END, after].concat())
                .expect("the page can be written");
        } else {
            assert!(
                found == table,
                "{}: UPDATE_GOLDEN=1 writes the table\n{table}",
                page.display()
            );
        }
    }
}
