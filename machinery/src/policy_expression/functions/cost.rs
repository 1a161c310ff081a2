//! What a call costs, in the units of Kubernetes (`k8s.io/apiserver/pkg/cel/library/cost.go`, and cel-go
//! `interpreter/runtimecost.go` for the standard functions).

use cel::common::ast::operators;

use crate::policy_expression::value::Value;

/// The cost of a call.
pub(in crate::policy_expression) fn of(name: &str, arguments: &[Value], result: &Value) -> u64 {
    let size = |index: usize| arguments.get(index).map_or(0, Value::size);
    match name {
        "check" => 350_000,
        "fieldSelector" | "labelSelector" => 10 + tenth(size(1)) + size(1).div_ceil(2) * 50,
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => {
            arguments.first().map_or(0, traversal)
        }
        "ip" if matches!(arguments.first(), Some(Value::Cidr(_))) => 1,
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver"
        | "ip"
        | "format"
        | "strings.quote" => tenth(size(0)),
        "replace" | "split" | "ip.isCanonical" => fifth(size(0)),
        "join" => fifth(result.size()),
        "matches" | "find" | "findAll" => pattern(size(0), size(1)),
        "validate" => match arguments.first() {
            Some(Value::Format(format)) => pattern(size(1), format.pattern),
            _ => 1,
        },
        "containsIP" => fifth(size(0)) + other_text(arguments),
        "containsCIDR" => fifth(size(0)) + tenth(size(0)) + 1 + other_text(arguments),
        "startsWith" | "endsWith" => tenth(size(1)),
        "contains" => tenth(size(0)) * tenth(size(1)),
        "sets.contains" | "sets.intersects" => size(0).saturating_mul(size(1)).max(1),
        "sets.equivalent" => size(0).saturating_mul(size(1)).saturating_mul(2).max(1),
        "sort" | "@sortBy" | "distinct" => size(0).saturating_mul(size(0)).max(1),
        "lists.range" | "reverse" | "slice" | "flatten" => result.size().max(1),
        "string" | "bytes" if matches!(arguments.first(), Some(Value::String(_) | Value::Bytes(_))) => {
            tenth(size(0))
        }
        operators::IN if matches!(arguments.get(1), Some(Value::List(_))) => size(1),
        operators::EQUALS | operators::NOT_EQUALS if is_plain(arguments) => tenth(size(0).min(size(1))),
        operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
            tenth(size(0).min(size(1)))
        }
        operators::ADD if matches!(arguments.first(), Some(Value::String(_) | Value::Bytes(_))) => {
            tenth(size(0).saturating_add(size(1)))
        }
        _ => 1,
    }
}

const fn tenth(size: u64) -> u64 {
    size.div_ceil(10)
}

const fn fifth(size: u64) -> u64 {
    size.div_ceil(5)
}

/// A pattern is estimated to have one part for every four characters.
const fn pattern(text: u64, pattern: u64) -> u64 {
    tenth(text.saturating_add(1)).saturating_mul(pattern.div_ceil(4))
}

/// The cost of parsing the second argument if it is a text.
fn other_text(arguments: &[Value]) -> u64 {
    match arguments.get(1) {
        Some(text @ Value::String(_)) => tenth(text.size()),
        _ => 0,
    }
}

/// Whether two values are compared by size: values of the Kubernetes libraries are not.
fn is_plain(arguments: &[Value]) -> bool {
    !matches!(
        arguments.first(),
        Some(
            Value::Quantity(_)
                | Value::Ip(_)
                | Value::Cidr(_)
                | Value::Format(_)
                | Value::Url(_)
                | Value::Semver(_)
                | Value::Check(_)
                | Value::Decision(_)
        )
    )
}

/// The cost of going through a list with its texts.
fn traversal(value: &Value) -> u64 {
    match value {
        Value::List(items) => items.iter().map(|item| 1 + texts(item)).sum(),
        other => tenth(other.size()),
    }
}

fn texts(value: &Value) -> u64 {
    match value {
        Value::String(_) | Value::Bytes(_) => tenth(value.size()),
        _ => 0,
    }
}
