//! Static checks of a parsed expression. Every node is visited once.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, StructExpr, operators};

use super::{CompileError, Declarations, functions};

/// The maximum number of parts of an expression.
pub(super) const MAX_NODES: usize = 8 * 1024;
/// Evaluation is recursive: this many levels need a fraction of its stack.
pub(super) const MAX_DEPTH: usize = 1_024;

/// Operators and functions that are part of the evaluation.
const OPERATORS: [&str; 21] = [
    operators::ADD,
    operators::CONDITIONAL,
    operators::DIVIDE,
    operators::EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::IN,
    operators::INDEX,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::LOGICAL_AND,
    operators::LOGICAL_NOT,
    operators::LOGICAL_OR,
    operators::MODULO,
    operators::MULTIPLY,
    operators::NEGATE,
    operators::NOT_EQUALS,
    operators::NOT_STRICTLY_FALSE,
    operators::OPT_INDEX,
    operators::OPT_SELECT,
    operators::SUBSTRACT,
];

/// Checks all nodes of an expression.
pub(super) fn check(root: &IdedExpr, declarations: &Declarations<'_>) -> Result<(), CompileError> {
    let mut checker = Checker {
        declarations,
        locals: Vec::new(),
        nodes: 0,
    };
    checker.node(root, 0)
}

struct Checker<'a> {
    declarations: &'a Declarations<'a>,
    /// Variables of loops.
    locals: Vec<&'a str>,
    nodes: usize,
}

impl<'a> Checker<'a> {
    fn node(&mut self, node: &'a IdedExpr, depth: usize) -> Result<(), CompileError> {
        self.nodes += 1;
        for (count, max, what) in [(self.nodes, MAX_NODES, "parts"), (depth, MAX_DEPTH, "levels")] {
            if count > max {
                return Err(CompileError::TooComplex { what, max });
            }
        }
        let depth = depth + 1;
        match &node.expr {
            Expr::Unspecified => Err(CompileError::Syntax("an expression is missing".to_owned())),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => match &select.operand.expr {
                Expr::Ident(root) if root == "variables" && !self.locals.contains(&"variables") => {
                    if self.declarations.composed.contains(&select.field.as_str()) {
                        return Ok(());
                    }
                    Err(CompileError::UndeclaredField(select.field.clone()))
                }
                // The first names of a type, such as `google` of `google.protobuf.Duration`.
                Expr::Ident(root) if matches!(root.as_str(), "google" | "kubernetes" | "net") => Ok(()),
                _ => self.node(&select.operand, depth),
            },
            Expr::List(list) => list
                .elements
                .iter()
                .try_for_each(|element| self.node(element, depth)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.node(&entry.key, depth)?;
                    self.node(&entry.value, depth)
                }
                EntryExpr::StructField(field) => self.node(&field.value, depth),
            }),
            Expr::Struct(message) => self.message(message, depth),
            Expr::Call(call) => self.call(call, depth),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, depth),
        }
    }

    fn name(&self, name: &str) -> Result<(), CompileError> {
        let declared = self.locals.contains(&name)
            || self.declarations.variables.contains(&name)
            || functions::type_named(name).is_some();
        if declared {
            return Ok(());
        }
        Err(CompileError::UndeclaredVariable(name.to_owned()))
    }

    fn message(&mut self, message: &'a StructExpr, depth: usize) -> Result<(), CompileError> {
        let name = message.type_name.as_str();
        let known = name == "Object" || name == "JSONPatch" || name.starts_with("Object.");
        if !self.declarations.patch_types || !known {
            return Err(CompileError::UndeclaredVariable(name.to_owned()));
        }
        message.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::StructField(field) => {
                let fields = ["op", "path", "from", "value"];
                if name == "JSONPatch" && !fields.contains(&field.field.as_str()) {
                    return Err(CompileError::UndeclaredField(field.field.clone()));
                }
                self.node(&field.value, depth)
            }
            EntryExpr::MapEntry(entry) => self.node(&entry.value, depth),
        })
    }

    fn call(&mut self, call: &'a CallExpr, depth: usize) -> Result<(), CompileError> {
        let mut name = call.func_name.clone();
        let mut target = call.target.as_deref();
        let member = target.is_some();
        if let Some(qualified) = target.and_then(|target| functions::namespaced(target, &name)) {
            name = qualified;
            target = None;
        }
        let is_operator = OPERATORS.contains(&name.as_str()) || name == "cel.@mapInsert";
        // Only policies that change objects have the function.
        let hidden = name == "jsonpatch.escapeKey" && !self.declarations.patch_types;
        if (!is_operator && !functions::exists(&name, member, call.args.len())) || hidden {
            return Err(CompileError::UndeclaredFunction(name));
        }
        target
            .into_iter()
            .chain(&call.args)
            .try_for_each(|node| self.node(node, depth))
    }

    fn comprehension(&mut self, fold: &'a ComprehensionExpr, depth: usize) -> Result<(), CompileError> {
        self.node(&fold.iter_range, depth)?;
        self.node(&fold.accu_init, depth)?;
        let scope = self.locals.len();
        self.locals.push(&fold.accu_var);
        self.locals.push(&fold.iter_var);
        self.locals.extend(fold.iter_var2.as_deref());
        self.node(&fold.loop_cond, depth)?;
        self.node(&fold.loop_step, depth)?;
        self.locals.truncate(scope + 1);
        let result = self.node(&fold.result, depth);
        self.locals.truncate(scope);
        result
    }
}
