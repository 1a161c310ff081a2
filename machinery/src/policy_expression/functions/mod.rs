//! The functions of expressions, one file for each library of Kubernetes. [`LIBRARIES`] lists them all.

pub(super) mod authorizer;
pub(super) mod convert;
pub(super) mod cost;
pub(super) mod format;
mod lists;
pub(super) mod network;
mod optional;
pub(super) mod pattern;
pub(super) mod quantity;
mod text;
mod text_format;
pub(super) mod time;
pub(super) mod url;
mod version;

use std::collections::HashMap;
use std::sync::LazyLock;

use cel::IdedExpr;
use cel::common::ast::Expr;

use super::meter::{Failure, Meter, Outcome};
use super::value::Value;

/// How a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `f(x)`
    Global,
    /// `x.f()`
    Member,
    /// Both.
    Either,
}

/// A function: its name, how it is called, and how many arguments it takes at least and at most, without the target.
type Function = (&'static str, Style, usize, usize);

/// Computes a function of a library; the target is the first argument.
type Call = fn(&str, &[Value], &mut Meter<'_>) -> Outcome;

/// The functions of Kubernetes 1.37 in admission policies.
static LIBRARIES: [(&[Function], Call); 12] = [
    (convert::FUNCTIONS, convert::call),
    (time::FUNCTIONS, time::call),
    (text::FUNCTIONS, text::call),
    (pattern::FUNCTIONS, pattern::call),
    (lists::FUNCTIONS, lists::call),
    (optional::FUNCTIONS, optional::call),
    (quantity::FUNCTIONS, quantity::call),
    (network::FUNCTIONS, network::call),
    (url::FUNCTIONS, url::call),
    (version::FUNCTIONS, version::call),
    (format::FUNCTIONS, format::call),
    (authorizer::FUNCTIONS, authorizer::call),
];

/// The libraries' entries of each name. Some names stand in several libraries, for different types.
static BY_NAME: LazyLock<HashMap<&str, Vec<(Function, Call)>>> = LazyLock::new(|| {
    let mut names = HashMap::<&str, Vec<_>>::new();
    for (functions, call) in LIBRARIES {
        for function in functions {
            names.entry(function.0).or_default().push((*function, call));
        }
    }
    names
});

/// Whether a function of this name can be called like this.
pub(super) fn exists(name: &str, member: bool, arguments: usize) -> bool {
    let entries = BY_NAME.get(name).map(Vec::as_slice).unwrap_or_default();
    entries.iter().any(|((_, style, least, most), _)| {
        let fits = match style {
            Style::Global => !member,
            Style::Member => member,
            Style::Either => true,
        };
        fits && (*least..=*most).contains(&arguments)
    })
}

/// The full name of a function that is called like a member of its library: `sets.contains`.
pub(super) fn namespaced(target: &IdedExpr, function: &str) -> Option<String> {
    let Expr::Ident(library) = &target.expr else {
        return None;
    };
    let name = format!("{library}.{function}");
    BY_NAME.contains_key(name.as_str()).then_some(name)
}

/// Calls a function.
pub(super) fn call(name: &str, arguments: &[Value], meter: &mut Meter<'_>) -> Outcome {
    let entries = BY_NAME.get(name).map(Vec::as_slice).unwrap_or_default();
    let mut outcome = Err(no_overload(name, arguments));
    for (_, call) in entries {
        outcome = call(name, arguments, meter);
        if !matches!(&outcome, Err(Failure::Error(error)) if error.starts_with("no such overload")) {
            break;
        }
    }
    outcome
}

/// The error of a call with arguments of other types.
pub(super) fn no_overload(name: &str, arguments: &[Value]) -> Failure {
    let types: Vec<&str> = arguments.iter().map(Value::type_name).collect();
    Failure::Error(format!("no such overload: {name}({})", types.join(", ")))
}

/// The name of the type that an identifier names, if it does.
pub(super) fn type_named(name: &str) -> Option<&'static str> {
    const TYPES: [&str; 17] = [
        "bool",
        "bytes",
        "double",
        "google.protobuf.Duration",
        "google.protobuf.Timestamp",
        "int",
        "kubernetes.NamedFormat",
        "kubernetes.Quantity",
        "kubernetes.Semver",
        "kubernetes.URL",
        "list",
        "map",
        "net.CIDR",
        "net.IP",
        "null_type",
        "string",
        "uint",
    ];
    TYPES
        .into_iter()
        .chain(["optional_type", "type"])
        .find(|known| *known == name)
}
