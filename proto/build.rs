//! Generates code from the `.proto` files, without protoc: Rust types for the storage records, and the tables of
//! `src/protobuf.rs` for the messages of the kinds.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// The messages of kinds: `k8s.io/api/<group>/<version>/generated.proto`, found by their folders.
const KINDS: &str = "proto/k8s.io/api/coordination";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let records = protox::compile(["proto/storage/v1/record.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(records)?;
    // Sorted annotations: what is written does not depend on a hash seed.
    let kms = protox::compile(["proto/kms/v2/api.proto"], ["proto"])?;
    prost_build::Config::new().btree_map(["."]).compile_fds(kms)?;

    let mut files = Vec::new();
    for version in fs::read_dir(KINDS)? {
        files.push(version?.path().join("generated.proto"));
    }
    files.sort();
    let messages = tables(&protox::compile(files, ["proto"])?)?;
    fs::write(Path::new(&env::var("OUT_DIR")?).join("messages.rs"), messages)?;
    Ok(())
}

/// A static for each message, and the list of all.
fn tables(set: &FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    let mut messages = BTreeMap::new();
    for file in &set.file {
        for message in &file.message_type {
            messages.insert(format!("{}.{}", file.package(), message.name()), message);
        }
    }
    let mut out = String::new();
    let mut all = String::new();
    for (name, message) in &messages {
        let static_name = static_name(name);
        writeln!(out, "#[doc = \"`{name}`.\"]")?;
        writeln!(
            out,
            "pub static {static_name}: Message = Message {{ name: \"{name}\", fields: &["
        )?;
        let mut fields: Vec<&FieldDescriptorProto> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        for field in fields {
            let (is_repeated, kind) = kind(field, message)?;
            let make = if is_repeated { "list" } else { "one" };
            writeln!(
                out,
                "Field::{make}({}, \"{}\", {kind}),",
                field.number(),
                field.name()
            )?;
        }
        writeln!(out, "] }};")?;
        write!(all, "&{static_name}, ")?;
    }
    writeln!(
        out,
        "/// Every message, sorted by name.\npub static MESSAGES: &[&Message] = &[{all}];"
    )?;
    Ok(out)
}

/// `k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta` → `META_V1_LIST_META`.
fn static_name(name: &str) -> String {
    let mut segments: Vec<&str> = name.split('.').collect();
    let start = segments.len().saturating_sub(3);
    let mut out = String::new();
    for segment in segments.drain(start..) {
        if !out.is_empty() {
            out.push('_');
        }
        let mut before = '_';
        for letter in segment.chars() {
            if letter.is_ascii_uppercase() && before.is_ascii_lowercase() {
                out.push('_');
            }
            out.push(letter.to_ascii_uppercase());
            before = letter;
        }
    }
    out
}

/// Whether a field is a list, and its type as an expression.
fn kind(field: &FieldDescriptorProto, message: &DescriptorProto) -> Result<(bool, String), Box<dyn Error>> {
    let is_repeated = field.label() == Label::Repeated;
    Ok(match field.r#type() {
        Type::String => (is_repeated, "FieldKind::Text".to_owned()),
        Type::Int32 => (is_repeated, "FieldKind::Int32".to_owned()),
        Type::Int64 => (is_repeated, "FieldKind::Int64".to_owned()),
        Type::Bool => (is_repeated, "FieldKind::Boolean".to_owned()),
        Type::Bytes => (is_repeated, "FieldKind::Bytes".to_owned()),
        Type::Message => {
            let type_name = field.type_name().trim_start_matches('.');
            let entry = message.nested_type.iter().find(|nested| {
                nested
                    .options
                    .as_ref()
                    .is_some_and(prost_types::MessageOptions::map_entry)
                    && type_name.ends_with(&format!(".{}", nested.name()))
            });
            match entry {
                Some(entry) if entry.field.iter().all(|part| part.r#type() == Type::String) => {
                    (false, "FieldKind::Map".to_owned())
                }
                Some(entry) => return Err(format!("{}: only maps of strings", entry.name()).into()),
                None if type_name == "k8s.io.apimachinery.pkg.apis.meta.v1.Time" => {
                    (is_repeated, "FieldKind::Time".to_owned())
                }
                None if type_name == "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1" => {
                    (is_repeated, "FieldKind::FieldSet".to_owned())
                }
                None => (
                    is_repeated,
                    format!("FieldKind::Message(&{})", static_name(type_name)),
                ),
            }
        }
        other => return Err(format!("{}: {other:?} is not supported", field.name()).into()),
    })
}
