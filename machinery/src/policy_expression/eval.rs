//! Evaluation of a parsed expression, with the costs that Kubernetes counts.

use std::sync::Arc;

use cel::IdedExpr;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapExpr, SelectExpr, StructExpr,
    operators,
};

use super::functions::{self, cost};
use super::meter::{Failure, Meter, Outcome};
use super::operation;
use super::scope::Scope;
use super::value::{Key, Map, Struct, Value, entry};

const LIST_COST: u64 = 10;
const MAP_COST: u64 = 30;
const STRUCT_COST: u64 = 40;
/// The variable in which macros accumulate. No expression can name it.
pub(super) const ACCUMULATOR: &str = "@result";

/// Evaluates one expression.
pub(super) struct Evaluator<'e, 's, 'p> {
    pub(super) scope: &'e mut Scope<'s>,
    pub(super) meter: Meter<'s>,
    /// Variables of loops, innermost last.
    pub(super) locals: Vec<(&'p str, Slot)>,
}

/// The value of a variable, or the error that a loop has come to and a later round may override.
type Slot = Result<Value, Arc<str>>;

impl<'p> Evaluator<'_, '_, 'p> {
    pub(super) fn evaluate(&mut self, node: &'p IdedExpr) -> Outcome {
        match &node.expr {
            Expr::Unspecified => Err(Failure::error("unsupported expression")),
            Expr::Literal(literal) => Ok(constant(literal)),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(map),
            Expr::Struct(message) => self.message(message),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn variable(&mut self, name: &str) -> Outcome {
        self.meter.charge(1)?;
        if let Some((_, value)) = self.locals.iter().rev().find(|(local, _)| *local == name) {
            return value
                .clone()
                .map_err(|error| Failure::Error(error.as_ref().to_owned()));
        }
        if let Some(value) = self.scope.root(name) {
            return Ok(value);
        }
        match functions::type_named(name) {
            Some(name) => Ok(Value::Type(name.into())),
            None => Err(Failure::Error(format!("no such attribute(s): {name}"))),
        }
    }

    /// The value of a dotted name that is a variable or a type as a whole, such as `variables.x`.
    fn qualified(&mut self, select: &SelectExpr) -> Option<Outcome> {
        let Expr::Ident(root) = &select.operand.expr else {
            return functions::type_named(&dotted(select)?).map(|name| Ok(Value::Type(name.into())));
        };
        if self.locals.iter().any(|(local, _)| local == root) {
            return None;
        }
        match root.as_str() {
            // Variables that are not declared are found when the expression is compiled.
            "variables" if select.test => Some(Ok(Value::Bool(true))),
            "variables" => Some(
                self.meter
                    .charge(2)
                    .and_then(|()| self.scope.composed(&select.field)),
            ),
            "authorizer" => {
                let value = self.scope.root(&format!("{root}.{}", select.field))?;
                Some(self.meter.charge(1).map(|()| value))
            }
            _ => None,
        }
    }

    fn select(&mut self, select: &'p SelectExpr) -> Outcome {
        if let Some(value) = self.qualified(select) {
            return value;
        }
        let operand = self.evaluate(&select.operand)?;
        let key = Value::from(select.field.as_str());
        if select.test {
            return Ok(Value::Bool(operation::find(&operand, &key)?.is_some()));
        }
        self.meter.charge(1)?;
        operation::select(&operand, &key)
    }

    fn call(&mut self, call: &'p CallExpr) -> Outcome {
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::LOGICAL_AND, [a, b]) => self.logical(a, b, false),
            (operators::LOGICAL_OR, [a, b]) => self.logical(a, b, true),
            (operators::CONDITIONAL, [condition, yes, no]) => match self.evaluate(condition)? {
                Value::Bool(true) => self.evaluate(yes),
                Value::Bool(false) => self.evaluate(no),
                _ => Err(Failure::error("no such overload")),
            },
            (operators::NOT_STRICTLY_FALSE, [operand]) => {
                self.meter.charge(1)?;
                match self.evaluate(operand) {
                    Ok(Value::Bool(value)) => Ok(Value::Bool(value)),
                    Ok(_) | Err(Failure::Error(_)) => Ok(Value::Bool(true)),
                    Err(stop) => Err(stop),
                }
            }
            (operators::OPT_SELECT | operators::OPT_INDEX, [operand, key]) => {
                let operand = self.evaluate(operand)?;
                let key = self.evaluate(key)?;
                self.meter.charge(1)?;
                let found = operation::find(&operand, &key)?;
                Ok(Value::Optional(found.map(Arc::new)))
            }
            (operators::INDEX, [operand, key]) => {
                let operand = self.evaluate(operand)?;
                let key = self.evaluate(key)?;
                self.meter.charge(1)?;
                operation::select(&operand, &key)
            }
            (operators::ADD, [accumulator, item]) if is_accumulator(accumulator) => self.append(item),
            ("cel.@mapInsert", [_, key, value]) => {
                let key = self.evaluate(key)?;
                let value = self.evaluate(value)?;
                self.insert(vec![(key, value)])
            }
            ("cel.@mapInsert", [_, entries]) => match self.evaluate(entries)? {
                Value::Map(entries) => self.insert(
                    entries
                        .iter()
                        .map(|(key, value)| (key.value(), value.clone()))
                        .collect(),
                ),
                _ => Err(Failure::error("no such overload")),
            },
            ("or" | "orValue", [fallback]) if call.target.is_some() => self.or_else(call, fallback),
            _ => self.function(call),
        }
    }

    /// A function or operator whose arguments are all evaluated.
    fn function(&mut self, call: &'p CallExpr) -> Outcome {
        let mut arguments = Vec::with_capacity(call.args.len() + 1);
        let mut name = std::borrow::Cow::Borrowed(call.func_name.as_str());
        if let Some(target) = &call.target {
            match functions::namespaced(target, &call.func_name) {
                Some(qualified) => name = qualified.into(),
                None => arguments.push(self.evaluate(target)?),
            }
        }
        for argument in &call.args {
            arguments.push(self.evaluate(argument)?);
        }
        // Some functions cost less than the work they cause: what they read counts before they run.
        self.meter.work(arguments.iter().map(Value::size).sum())?;
        let result = match operation::apply(&name, &arguments, &mut self.meter) {
            Some(result) => result?,
            None => functions::call(&name, &arguments, &mut self.meter)?,
        };
        self.meter.charge(cost::of(&name, &arguments, &result))?;
        Ok(result)
    }

    /// `&&` and `||`: an error counts only if the other side does not decide.
    fn logical(&mut self, a: &'p IdedExpr, b: &'p IdedExpr, deciding: bool) -> Outcome {
        let first = match self.evaluate(a) {
            Ok(Value::Bool(value)) if value == deciding => return Ok(Value::Bool(deciding)),
            Ok(Value::Bool(_)) => None,
            Ok(_) => Some(Failure::error("no such overload")),
            Err(error @ Failure::Error(_)) => Some(error),
            Err(stop) => return Err(stop),
        };
        match (self.evaluate(b), first) {
            (Ok(Value::Bool(value)), _) if value == deciding => Ok(Value::Bool(deciding)),
            (Err(stop), _) if !matches!(stop, Failure::Error(_)) => Err(stop),
            (_, Some(error)) | (Err(error), None) => Err(error),
            (Ok(Value::Bool(_)), None) => Ok(Value::Bool(!deciding)),
            (Ok(_), None) => Err(Failure::error("no such overload")),
        }
    }

    /// `target.or(fallback)` and `target.orValue(fallback)`: the fallback is evaluated only if it is needed.
    fn or_else(&mut self, call: &'p CallExpr, fallback: &'p IdedExpr) -> Outcome {
        let Some(target) = &call.target else {
            return Err(Failure::error("no such overload"));
        };
        match self.evaluate(target)? {
            Value::Optional(Some(value)) if call.func_name == "orValue" => Ok(value.as_ref().clone()),
            value @ Value::Optional(Some(_)) => Ok(value),
            Value::Optional(None) => self.evaluate(fallback),
            _ => Err(Failure::error("no such overload")),
        }
    }

    fn list(&mut self, list: &'p ListExpr) -> Outcome {
        let mut items = Vec::with_capacity(list.elements.len());
        for (index, element) in list.elements.iter().enumerate() {
            match self.evaluate(element)? {
                value if !list.optional_indices.contains(&index) => items.push(value),
                Value::Optional(value) => items.extend(value.map(|value| value.as_ref().clone())),
                value => {
                    return Err(Failure::Error(format!(
                        "cannot initialize optional list element from non-optional value {value}"
                    )));
                }
            }
        }
        // Lists of constants are built when the expression is compiled.
        let constant = |element: &IdedExpr| matches!(element.expr, Expr::Literal(_));
        if items.is_empty() || !list.elements.iter().all(constant) {
            self.meter.charge(LIST_COST)?;
        }
        Ok(items.into())
    }

    fn map(&mut self, map: &'p MapExpr) -> Outcome {
        let mut entries = Map::new();
        for node in &map.entries {
            let EntryExpr::MapEntry(node) = &node.expr else {
                return Err(Failure::error("unsupported expression"));
            };
            let key = self.evaluate(&node.key)?;
            let value = self.evaluate(&node.value)?;
            let Some(value) = optional_entry(&key, value, node.optional)? else {
                continue;
            };
            let Some(key) = Key::of(&key) else {
                return Err(Failure::Error(format!(
                    "unsupported key type: {}",
                    key.type_name()
                )));
            };
            if entries.contains_key(&key) {
                return Err(Failure::Error(format!(
                    "failed with repeated key: {}",
                    key.value()
                )));
            }
            entries.insert(key, value);
        }
        self.meter.charge(MAP_COST)?;
        Ok(Value::Map(Arc::new(entries)))
    }

    fn message(&mut self, message: &'p StructExpr) -> Outcome {
        let mut fields = std::collections::BTreeMap::new();
        for node in &message.entries {
            let EntryExpr::StructField(node) = &node.expr else {
                return Err(Failure::error("unsupported expression"));
            };
            let value = self.evaluate(&node.value)?;
            let name = Value::from(node.field.as_str());
            if let Some(value) = optional_entry(&name, value, node.optional)? {
                fields.insert(node.field.clone(), value);
            }
        }
        self.meter.charge(STRUCT_COST)?;
        Ok(Value::Struct(Arc::new(Struct {
            type_name: message.type_name.clone(),
            fields,
        })))
    }

    fn comprehension(&mut self, fold: &'p ComprehensionExpr) -> Outcome {
        let range = self.evaluate(&fold.iter_range)?;
        let initial = self.evaluate(&fold.accu_init)?;
        let depth = self.locals.len();
        self.locals.push((&fold.accu_var, Ok(initial)));
        let result = self.iterate(fold, &range);
        let result = result.and_then(|()| self.evaluate(&fold.result));
        self.locals.truncate(depth);
        result
    }

    fn iterate(&mut self, fold: &'p ComprehensionExpr, range: &Value) -> Result<(), Failure> {
        let two = fold.iter_var2.as_deref();
        match range {
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    let pair = match two {
                        Some(_) => (index.into(), Some(item.clone())),
                        None => (item.clone(), None),
                    };
                    if !self.step(fold, pair)? {
                        break;
                    }
                }
                Ok(())
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    if !self.step(fold, (key.value(), two.map(|_| value.clone())))? {
                        break;
                    }
                }
                Ok(())
            }
            other if two.is_some() => Err(Failure::Error(format!(
                "unsupported comprehension range type: {}",
                operation::go_type(other)
            ))),
            other => Err(Failure::Error(format!(
                "got '{}', expected iterable type",
                operation::go_type(other)
            ))),
        }
    }

    /// One round of a loop; false when it ends early.
    fn step(
        &mut self,
        fold: &'p ComprehensionExpr,
        (first, second): (Value, Option<Value>),
    ) -> Result<bool, Failure> {
        let depth = self.locals.len();
        self.locals.push((&fold.iter_var, Ok(first)));
        if let (Some(name), Some(value)) = (fold.iter_var2.as_deref(), second) {
            self.locals.push((name, Ok(value)));
        }
        let goes_on = self.evaluate(&fold.loop_cond)?;
        if matches!(goes_on, Value::Bool(false)) {
            self.locals.truncate(depth);
            return Ok(false);
        }
        let next = self.evaluate(&fold.loop_step);
        self.locals.truncate(depth);
        let next = match next {
            Ok(next) => Ok(next),
            // The error stays the state of the loop, which a later round may override: `exists` and `all`.
            Err(Failure::Error(message)) if is_logical(&fold.loop_step) => Err(message.into()),
            Err(failure) => return Err(failure),
        };
        if let Some((_, accumulator)) = self.locals.last_mut() {
            *accumulator = next;
        }
        Ok(true)
    }

    /// Takes the value that a loop accumulates, so that adding to it need not copy it.
    fn take_accumulator(&mut self) -> Result<Value, Failure> {
        self.meter.charge(1)?;
        let slot = self
            .locals
            .iter_mut()
            .rev()
            .find(|(name, _)| *name == ACCUMULATOR);
        match slot {
            Some((_, value)) => std::mem::replace(value, Ok(Value::Null))
                .map_err(|error| Failure::Error(error.as_ref().to_owned())),
            None => Err(Failure::error("no such attribute(s): @result")),
        }
    }

    fn restore_accumulator(&mut self, value: Value) {
        let slot = self
            .locals
            .iter_mut()
            .rev()
            .find(|(name, _)| *name == ACCUMULATOR);
        if let Some((_, slot)) = slot {
            *slot = Ok(value);
        }
    }

    /// `@result + item` of a macro.
    fn append(&mut self, item: &'p IdedExpr) -> Outcome {
        let item = self.evaluate(item)?;
        let accumulated = self.take_accumulator()?;
        self.meter.charge(1)?;
        match (accumulated, item) {
            (Value::List(mut list), Value::List(items)) => {
                self.meter.work(items.len() as u64)?;
                Arc::make_mut(&mut list).extend(items.iter().cloned());
                Ok(Value::List(list))
            }
            (accumulated, item) => {
                let sum = operation::add(&accumulated, &item, &mut self.meter);
                self.restore_accumulator(accumulated);
                sum
            }
        }
    }

    /// `cel.@mapInsert(@result, key, value)` and `cel.@mapInsert(@result, entries)` of macros.
    fn insert(&mut self, entries: Vec<(Value, Value)>) -> Outcome {
        self.meter.charge(1)?;
        self.meter.work(entries.len() as u64)?;
        let Value::Map(mut map) = self.take_accumulator()? else {
            return Err(Failure::error("no such overload"));
        };
        for (key, value) in entries {
            let Some(owned) = Key::of(&key) else {
                return Err(Failure::Error(format!(
                    "unsupported key type: {}",
                    key.type_name()
                )));
            };
            if entry(&map, &key).is_some() {
                return Err(Failure::Error(format!("insert failed: key {key} already exists")));
            }
            Arc::make_mut(&mut map).insert(owned, value);
        }
        Ok(Value::Map(map))
    }
}

/// The value of an entry, which is absent if it is optional and has none.
fn optional_entry(key: &Value, value: Value, optional: bool) -> Result<Option<Value>, Failure> {
    match value {
        value if !optional => Ok(Some(value)),
        Value::Optional(value) => Ok(value.map(|value| value.as_ref().clone())),
        value => Err(Failure::Error(format!(
            "cannot initialize optional entry '{key}' from non-optional value {value}"
        ))),
    }
}

fn is_accumulator(node: &IdedExpr) -> bool {
    matches!(&node.expr, Expr::Ident(name) if name == ACCUMULATOR)
}

fn is_logical(node: &IdedExpr) -> bool {
    matches!(&node.expr, Expr::Call(call) if matches!(call.func_name.as_str(), operators::LOGICAL_AND | operators::LOGICAL_OR))
}

/// The dotted name that a selection is, if it is one.
fn dotted(select: &SelectExpr) -> Option<String> {
    let mut names = vec![select.field.as_str()];
    let mut node = &select.operand.expr;
    loop {
        match node {
            Expr::Select(select) if !select.test => {
                names.push(&select.field);
                node = &select.operand.expr;
            }
            Expr::Ident(name) => {
                names.push(name);
                names.reverse();
                return Some(names.join("."));
            }
            _ => return None,
        }
    }
}

fn constant(literal: &LiteralValue) -> Value {
    match literal {
        LiteralValue::Boolean(value) => Value::Bool(*value.inner()),
        LiteralValue::Bytes(value) => Value::Bytes(value.inner().into()),
        LiteralValue::Double(value) => Value::Double(*value.inner()),
        LiteralValue::Int(value) => Value::Int(*value.inner()),
        LiteralValue::Null => Value::Null,
        LiteralValue::String(value) => Value::from(value.inner()),
        LiteralValue::UInt(value) => Value::Uint(*value.inner()),
    }
}
