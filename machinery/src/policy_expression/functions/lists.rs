//! Lists and sets.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::operation::{add, parts};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("@sortBy", Style::Member, 1, 1),
    ("distinct", Style::Member, 0, 0),
    ("flatten", Style::Member, 0, 1),
    ("includes", Style::Member, 1, 1),
    ("indexOf", Style::Member, 1, 1),
    ("isSorted", Style::Member, 0, 0),
    ("lastIndexOf", Style::Member, 1, 1),
    ("lists.range", Style::Member, 1, 1),
    ("max", Style::Member, 0, 0),
    ("min", Style::Member, 0, 0),
    ("reverse", Style::Member, 0, 0),
    ("sets.contains", Style::Member, 2, 2),
    ("sets.equivalent", Style::Member, 2, 2),
    ("sets.intersects", Style::Member, 2, 2),
    ("slice", Style::Member, 2, 2),
    ("sort", Style::Member, 0, 0),
    ("sum", Style::Member, 0, 0),
];

pub(super) fn call(name: &str, arguments: &[Value], meter: &mut Meter<'_>) -> Outcome {
    match (name, arguments) {
        ("lists.range", [Value::Int(size)]) => return range(*size, meter),
        ("includes", [value, item]) if !matches!(value, Value::List(_)) => {
            return Ok(value.equals(item).into());
        }
        _ => {}
    }
    let [Value::List(list), rest @ ..] = arguments else {
        return Err(no_overload(name, arguments));
    };
    meter.work(arguments.iter().map(parts).sum())?;
    match (name, rest) {
        ("isSorted", []) => is_sorted(list),
        ("sum", []) => sum(list, meter),
        ("max", []) => extreme(list, name, Ordering::Less),
        ("min", []) => extreme(list, name, Ordering::Greater),
        ("indexOf", [item]) => Ok(place(list.iter().position(|other| other.equals(item)))),
        ("lastIndexOf", [item]) => Ok(place(list.iter().rposition(|other| other.equals(item)))),
        ("includes", [item]) => Ok(list.iter().any(|other| other.equals(item)).into()),
        ("sets.contains", [Value::List(other)]) => Ok(contains(list, other, meter)?.into()),
        ("sets.equivalent", [Value::List(other)]) => {
            Ok((contains(list, other, meter)? && contains(other, list, meter)?).into())
        }
        ("sets.intersects", [Value::List(other)]) => {
            meter.work((list.len() * other.len()) as u64)?;
            Ok(list.iter().any(|a| other.iter().any(|b| a.equals(b))).into())
        }
        ("slice", [Value::Int(start), Value::Int(end)]) => slice(list, *start, *end),
        ("flatten", []) => Ok(flatten(list, 1).into()),
        ("flatten", [Value::Int(depth)]) if *depth >= 0 => Ok(flatten(list, *depth).into()),
        ("flatten", [Value::Int(_)]) => Err(Failure::error("level must be non-negative")),
        ("reverse", []) => Ok(list.iter().rev().cloned().collect::<Vec<_>>().into()),
        ("distinct", []) => distinct(list, meter),
        ("sort", []) => sort(list, list, meter),
        ("@sortBy", [Value::List(keys)]) => sort(list, keys, meter),
        _ => Err(no_overload(name, arguments)),
    }
}

fn place(index: Option<usize>) -> Value {
    index.map_or(Value::Int(-1), Value::from)
}

fn range(size: i64, meter: &mut Meter<'_>) -> Outcome {
    let count = u64::try_from(size)
        .map_err(|_| Failure::Error(format!("lists.range: size must be non-negative, got {size}")))?;
    meter.work(count)?;
    Ok((0..size).map(Value::Int).collect::<Vec<_>>().into())
}

fn is_sorted(list: &[Value]) -> Outcome {
    for pair in list.windows(2) {
        let [a, b] = pair else { continue };
        match a.compare(b) {
            None => return Err(Failure::error("no such overload")),
            Some(Ordering::Greater) => return Ok(false.into()),
            Some(_) => {}
        }
    }
    Ok(true.into())
}

fn sum(list: &[Value], meter: &mut Meter<'_>) -> Outcome {
    let Some((first, rest)) = list.split_first() else {
        return Ok(Value::Int(0));
    };
    if !matches!(
        first,
        Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_)
    ) {
        return Err(Failure::error("no such overload"));
    }
    rest.iter()
        .try_fold(first.clone(), |sum, item| add(&sum, item, meter))
}

/// The first of the largest or smallest items.
fn extreme(list: &[Value], name: &str, replaced: Ordering) -> Outcome {
    let Some((first, rest)) = list.split_first() else {
        return Err(Failure::Error(format!("{name} called on empty list")));
    };
    rest.iter()
        .try_fold(first, |best, item| match best.compare(item) {
            None => Err(Failure::error("no such overload")),
            Some(order) if order == replaced => Ok(item),
            Some(_) => Ok(best),
        })
        .cloned()
}

fn contains(list: &[Value], other: &[Value], meter: &mut Meter<'_>) -> Result<bool, Failure> {
    meter.work((list.len() * other.len()) as u64)?;
    Ok(other
        .iter()
        .all(|item| list.iter().any(|candidate| candidate.equals(item))))
}

fn slice(list: &[Value], start: i64, end: i64) -> Outcome {
    let error = |why: String| Failure::Error(format!("cannot slice({start}, {end}), {why}"));
    let (Ok(from), Ok(to)) = (usize::try_from(start), usize::try_from(end)) else {
        return Err(error("negative indexes not supported".to_owned()));
    };
    if start > end {
        return Err(error(
            "start index must be less than or equal to end index".to_owned(),
        ));
    }
    match list.get(from..to) {
        Some(items) => Ok(items.to_vec().into()),
        None => Err(error(format!("list is length {}", list.len()))),
    }
}

fn flatten(list: &[Value], depth: i64) -> Vec<Value> {
    let mut flat = Vec::new();
    for item in list {
        match item {
            Value::List(items) if depth > 0 => flat.extend(flatten(items, depth - 1)),
            other => flat.push(other.clone()),
        }
    }
    flat
}

fn distinct(list: &[Value], meter: &mut Meter<'_>) -> Outcome {
    let mut found: Vec<Value> = Vec::new();
    for item in list {
        meter.work(found.len() as u64)?;
        if !found.iter().any(|other| other.equals(item)) {
            found.push(item.clone());
        }
    }
    Ok(found.into())
}

fn sort(list: &[Value], keys: &[Value], meter: &mut Meter<'_>) -> Outcome {
    if list.len() != keys.len() {
        return Err(Failure::error("no such overload"));
    }
    let Some(first) = keys.first() else {
        return Ok(Value::List(Arc::default()));
    };
    if first.compare(first).is_none() {
        return Err(Failure::error("list elements must be comparable"));
    }
    if keys.iter().any(|key| key.type_name() != first.type_name()) {
        return Err(Failure::error("list elements must have the same type"));
    }
    meter.work(parts(&keys.to_vec().into()).saturating_mul(20))?;
    let mut pairs: Vec<(&Value, &Value)> = keys.iter().zip(list).collect();
    pairs.sort_by(|(a, _), (b, _)| a.compare(b).unwrap_or(Ordering::Equal));
    Ok(pairs
        .into_iter()
        .map(|(_, item)| item.clone())
        .collect::<Vec<_>>()
        .into())
}
