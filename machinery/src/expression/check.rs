//! Which parsed expressions may run? Every node is looked at once.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue};

use super::CompileError;

const MAX_NODES: usize = 1024;
const MAX_DEPTH: usize = 256;
const MAX_NESTED_LOOPS: usize = 2;
const MAX_PATTERN_BYTES: usize = 256;
/// A counted repetition multiplies what it repeats when the pattern is compiled, and so do those inside of it.
const MAX_REPETITIONS: usize = 1;
const MAX_REPETITION_DIGITS: usize = 2;

/// Functions that expressions may call; operators are spelled with signs.
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

/// Types, which are values too: `type(x) == string`.
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

/// Looks at every node, and says how deep loops are nested.
pub(super) fn check(root: &IdedExpr, variables: &[&str]) -> Result<usize, CompileError> {
    let mut checker = Checker {
        names: variables.to_vec(),
        nodes: 0,
        loops: 0,
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
    Ok(checker.loops)
}

struct Checker<'a> {
    /// Variables in scope, declared ones first.
    names: Vec<&'a str>,
    nodes: usize,
    /// The deepest nesting of loops so far.
    loops: usize,
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
            Expr::Struct(_) => Err(CompileError::Unsupported("messages cannot be made")),
            Expr::Call(call) => {
                check_call(call, loops)?;
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
        self.loops = self.loops.max(inside);
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
}

fn check_call(call: &CallExpr, loops: usize) -> Result<(), CompileError> {
    let name = call.func_name.as_str();
    if name.starts_with(|first: char| first.is_alphabetic()) && !FUNCTIONS.contains(&name) {
        return Err(CompileError::UndeclaredFunction(name.to_owned()));
    }
    if name == "matches" {
        return check_pattern(call.args.last(), loops);
    }
    Ok(())
}

/// Patterns are compiled whenever they are asked, so they are short, do not grow, and are not asked in nested loops.
fn check_pattern(pattern: Option<&IdedExpr>, loops: usize) -> Result<(), CompileError> {
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
    if pattern.matches('{').count() > MAX_REPETITIONS {
        return Err(CompileError::TooComplex {
            what: "counted repetition in a pattern",
            max: MAX_REPETITIONS,
        });
    }
    let mut runs = pattern
        .split('{')
        .skip(1)
        .flat_map(|rest| rest.split(|c: char| !c.is_ascii_digit()));
    if runs.any(|digits| digits.len() > MAX_REPETITION_DIGITS) {
        return Err(CompileError::Unsupported("a pattern may repeat at most 99 times"));
    }
    if loops > 1 {
        return Err(CompileError::Unsupported("matches may not stand in nested loops"));
    }
    Ok(())
}
