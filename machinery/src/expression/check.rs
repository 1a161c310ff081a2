//! Static checks of a parsed expression. Every node is visited once.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue};

use super::CompileError;

const MAX_NODES: usize = 1024;
const MAX_DEPTH: usize = 256;
const MAX_NESTED_LOOPS: usize = 2;
const MAX_PATTERN_BYTES: usize = 128;
/// A counted repetition multiplies the size of the repeated part when the pattern is compiled.
const MAX_REPETITIONS: usize = 1;
const MAX_REPETITION_DIGITS: usize = 2;
/// Classes such as `\w` have hundreds of ranges in Unicode, so their number is limited, and they are not allowed in a
/// pattern with a counted repetition.
const MAX_UNICODE_CLASSES: usize = 8;
/// The maximum number of items for expressions with loops, with nested loops, and with patterns in a loop, which are
/// compiled again for every item.
const MAX_ITEMS_IN_LOOP: usize = 512;
const MAX_ITEMS_IN_NESTED_LOOPS: usize = 128;
const MAX_ITEMS_FOR_PATTERNS: usize = 64;

/// Functions that expressions may call. Names of operators consist of signs and are not listed.
const FUNCTIONS: [&str; 30] = [
    "bool",
    "bytes",
    "contains",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "int",
    "lowerAscii",
    "matches",
    "size",
    "startsWith",
    "string",
    "timestamp",
    "type",
    "uint",
    "upperAscii",
    "all",
    "exists",
    "has",
];

/// Type names, which are also values: `type(x) == string`.
const TYPES: [&str; 11] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "timestamp",
    "uint",
];

/// Checks every node. Returns the maximum number of items of a list or map in a variable of the expression.
pub(super) fn check(root: &IdedExpr, variables: &[&str]) -> Result<usize, CompileError> {
    let mut checker = Checker {
        names: variables.to_vec(),
        nodes: 0,
        max_items: usize::MAX,
    };
    checker.expression(root, 0, 0)?;
    match &root.expr {
        Expr::Literal(LiteralValue::Boolean(_)) => {}
        Expr::Literal(_) | Expr::List(_) | Expr::Map(_) => return Err(CompileError::NotBoolean),
        Expr::Call(call)
            if matches!(
                call.func_name.as_str(),
                "_+_" | "_-_" | "_*_" | "_/_" | "_%_" | "-_" | "size"
            ) =>
        {
            return Err(CompileError::NotBoolean);
        }
        _ => {}
    }
    Ok(checker.max_items)
}

struct Checker<'a> {
    /// Variables in scope, declared ones first.
    names: Vec<&'a str>,
    nodes: usize,
    /// The limit so far.
    max_items: usize,
}

impl<'a> Checker<'a> {
    fn expression(&mut self, node: &'a IdedExpr, depth: usize, loops: usize) -> Result<(), CompileError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(CompileError::TooComplex {
                what: "parts",
                max: MAX_NODES,
            });
        }
        if depth > MAX_DEPTH {
            return Err(CompileError::TooComplex {
                what: "levels",
                max: MAX_DEPTH,
            });
        }
        let each = |checker: &mut Self, node: &'a IdedExpr| checker.expression(node, depth + 1, loops);
        match &node.expr {
            Expr::Unspecified => Err(CompileError::Unsupported("an expression is missing")),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) if self.names.contains(&name.as_str()) || TYPES.contains(&name.as_str()) => {
                Ok(())
            }
            Expr::Ident(name) => Err(CompileError::UndeclaredVariable(name.clone())),
            Expr::Select(select) => each(self, &select.operand),
            Expr::List(list) => list.elements.iter().try_for_each(|element| each(self, element)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => each(self, &entry.key).and_then(|()| each(self, &entry.value)),
                EntryExpr::StructField(field) => each(self, &field.value),
            }),
            Expr::Struct(_) => Err(CompileError::Unsupported("messages cannot be constructed")),
            Expr::Call(call) => {
                self.call(call, loops)?;
                call.target
                    .iter()
                    .map(AsRef::as_ref)
                    .chain(&call.args)
                    .try_for_each(|argument| each(self, argument))
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, depth, loops),
        }
    }

    fn comprehension(
        &mut self,
        comprehension: &'a ComprehensionExpr,
        depth: usize,
        loops: usize,
    ) -> Result<(), CompileError> {
        self.expression(&comprehension.iter_range, depth + 1, loops)?;
        self.expression(&comprehension.accu_init, depth + 1, loops)?;
        let inside = loops + 1;
        if inside > MAX_NESTED_LOOPS {
            return Err(CompileError::TooComplex {
                what: "nested loops",
                max: MAX_NESTED_LOOPS,
            });
        }
        self.bound(if inside > 1 {
            MAX_ITEMS_IN_NESTED_LOOPS
        } else {
            MAX_ITEMS_IN_LOOP
        });
        let scope = self.names.len();
        self.names.push(&comprehension.iter_var);
        self.names.extend(comprehension.iter_var2.as_deref());
        self.names.push(&comprehension.accu_var);
        let parts = [
            &comprehension.loop_cond,
            &comprehension.loop_step,
            &comprehension.result,
        ];
        let checked = parts
            .into_iter()
            .try_for_each(|part| self.expression(part, depth + 1, inside));
        self.names.truncate(scope);
        checked
    }

    fn call(&mut self, call: &CallExpr, loops: usize) -> Result<(), CompileError> {
        let name = call.func_name.as_str();
        if name.starts_with(|first: char| first.is_alphabetic()) && !FUNCTIONS.contains(&name) {
            return Err(CompileError::UndeclaredFunction(name.to_owned()));
        }
        if name != "matches" {
            return Ok(());
        }
        match loops {
            0 => {}
            1 => self.bound(MAX_ITEMS_FOR_PATTERNS),
            _ => {
                return Err(CompileError::Unsupported(
                    "matches may not be used in nested loops",
                ));
            }
        }
        check_pattern(call.args.last())
    }

    fn bound(&mut self, max_items: usize) {
        self.max_items = self.max_items.min(max_items);
    }
}

/// Limits a pattern, since it is compiled at every call: it must be short and must not grow when compiled.
fn check_pattern(pattern: Option<&IdedExpr>) -> Result<(), CompileError> {
    let Some(Expr::Literal(LiteralValue::String(pattern))) = pattern.map(|pattern| &pattern.expr) else {
        return Err(CompileError::Unsupported(
            "the pattern of matches must be a literal",
        ));
    };
    let pattern = pattern.inner();
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(CompileError::TooComplex {
            what: "bytes in a pattern",
            max: MAX_PATTERN_BYTES,
        });
    }
    let counts = |rest: &&str| rest.starts_with(|first: char| first.is_ascii_digit() || first == ',');
    let repetitions: Vec<&str> = pattern.split('{').skip(1).filter(counts).collect();
    if repetitions.len() > MAX_REPETITIONS {
        return Err(CompileError::TooComplex {
            what: "counted repetition in a pattern",
            max: MAX_REPETITIONS,
        });
    }
    let mut numbers = repetitions
        .iter()
        .flat_map(|rest| rest.split(|c: char| !c.is_ascii_digit()));
    if numbers.any(|digits| digits.len() > MAX_REPETITION_DIGITS) {
        return Err(CompileError::Unsupported("a pattern may repeat at most 99 times"));
    }
    let is_class = |rest: &&str| rest.starts_with(['w', 'W', 'd', 'D', 's', 'S', 'p', 'P']);
    let classes = pattern.split('\\').skip(1).filter(is_class).count();
    if classes > MAX_UNICODE_CLASSES {
        return Err(CompileError::TooComplex {
            what: "classes in a pattern",
            max: MAX_UNICODE_CLASSES,
        });
    }
    // Flags may allow space between the repeated part and the count, so no group is allowed anywhere.
    if !repetitions.is_empty() && (classes > 0 || pattern.contains('(')) {
        return Err(CompileError::Unsupported(
            "a pattern with groups or with classes such as \\w may not count repetitions",
        ));
    }
    Ok(())
}
