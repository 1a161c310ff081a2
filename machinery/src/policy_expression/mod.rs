//! CEL as Kubernetes evaluates it in admission policies. Start at [`Program::compile`] and [`Scope`].
//!
//! The CEL library parses expressions and expands their macros. It evaluates without a budget, with errors in other words and
//! without the types that policies construct, so expressions are evaluated here: with the costs and limits of Kubernetes
//! (1,000,000 units for an expression, a budget for all expressions of a policy), its functions and its messages.
//!
//! Types are those of values: an expression is not type-checked before it is evaluated, since kube-apiserver has checked it
//! when the policy was created. Names and functions are checked: what is unknown here cannot be compiled.
//!
//! Functions (`functions`): the standard library; the extended libraries of strings (version 2) and lists (version 3), sets,
//! optional values and loops with two variables; those of Kubernetes: lists, regular expressions, URLs, quantities, IP
//! addresses, ranges of them, semantic versions, named formats, authorization checks, and for policies that change objects
//! `Object{}`, `JSONPatch{}` and `jsonpatch.escapeKey`. Kubernetes has no others: not `math`, `base64` nor `cel.bind`.
//! The names of time zones are not known, only UTC and offsets.
//!
//! Parsing and evaluation are recursive, so both run on threads with large stacks, on which the limits of [`check`](check)
//! fit several times.

mod check;
mod eval;
mod functions;
mod macros;
mod meter;
mod operation;
mod scope;
mod value;

use std::sync::Arc;

use cel::IdedExpr;

use crate::expression::large_stack::Pool;
use crate::expression::{ScanLimits, scan};

pub use self::functions::authorizer::{AccessCheck, Check, Decision, Decisions, ResourceSubject, Subject};
pub use self::scope::{Composed, Input, Scope, Stop};
pub use self::value::{Key, Map, Struct, Value};

/// The budget of all expressions of a policy with one binding and one parameter object.
pub const POLICY_BUDGET: u64 = 10_000_000;
/// The budget of the match conditions of a policy or webhook.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;

/// How many expressions of policies are compiled or evaluated at a time. More callers of [`evaluating`] block.
pub const THREADS: usize = 4;
static POOL: Pool = Pool::new("cel-policy", THREADS);

/// What may not be exceeded before parsing: a stack of 64 MiB takes several times as much.
const SCAN: ScanLimits = ScanLimits {
    bytes: 16 * 1024,
    operators: 1_024,
    brackets: 48,
};

/// Why an expression cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The expression has too much of something.
    #[error("is too complex: more than {max} {what}")]
    TooComplex {
        /// What exceeds the limit.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// The source is not valid CEL.
    #[error("{0}")]
    Syntax(String),
    /// The expression uses an undeclared variable or type.
    #[error("undeclared reference to '{0}'")]
    UndeclaredVariable(String),
    /// The expression uses an undeclared field.
    #[error("undefined field '{0}'")]
    UndeclaredField(String),
    /// The expression calls an undeclared function.
    #[error("undeclared reference to function '{0}'")]
    UndeclaredFunction(String),
    /// The library panicked, or no thread was left.
    #[error("could not be compiled")]
    Failed,
}

/// The names that an expression may use.
#[derive(Debug, Clone, Copy, Default)]
pub struct Declarations<'a> {
    /// Variables: `object`, `params`.
    pub variables: &'a [&'a str],
    /// The names of `variables.name`.
    pub composed: &'a [&'a str],
    /// Whether `Object{}` and `JSONPatch{}` exist.
    pub patch_types: bool,
}

/// A compiled expression.
///
/// ```
/// use drydock_machinery::policy_expression::{Declarations, Decisions, Input, Program, Scope, Value};
///
/// let declarations = Declarations { variables: &["object"], ..Declarations::default() };
/// let program = Program::compile("object.name.startsWith('web-')", &declarations).unwrap();
/// let mut input = Input::default();
/// input.set("object", Value::from_json(&serde_json::json!({"name": "web-0"})));
/// let decisions = Decisions::new();
/// let value = Scope::new(&input, &[], &decisions).evaluate(&program, &mut 100).unwrap().unwrap();
/// assert!(value.equals(&Value::Bool(true)));
/// ```
#[derive(Debug, Clone)]
pub struct Program {
    source: Arc<str>,
    tree: Arc<IdedExpr>,
}

impl Program {
    /// Compiles an expression. Blocks for milliseconds: keep the result.
    ///
    /// # Errors
    /// The first reason to reject it.
    pub fn compile(source: &str, declarations: &Declarations<'_>) -> Result<Self, CompileError> {
        scan(source, &SCAN).map_err(|(what, max)| CompileError::TooComplex { what, max })?;
        let text: Arc<str> = source.into();
        let parsed = Arc::clone(&text);
        let parse = move || {
            let environment = macros::ENVIRONMENT.as_ref().map_err(|_| CompileError::Failed)?;
            let parser = environment.parser().enable_ident_escape_syntax(true);
            let parser = parser.max_recursion_depth(250);
            parser.parse(&parsed).map(Arc::new).map_err(|errors| {
                let words: Vec<String> = errors.to_string().split_whitespace().map(str::to_owned).collect();
                CompileError::Syntax(words.join(" ").chars().take(512).collect())
            })
        };
        let tree = POOL.run(parse).unwrap_or(Err(CompileError::Failed))?;
        let (variables, composed) = (owned(declarations.variables), owned(declarations.composed));
        let patch_types = declarations.patch_types;
        let checked = Arc::clone(&tree);
        let check = move || {
            let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
            let composed: Vec<&str> = composed.iter().map(String::as_str).collect();
            let declarations = Declarations {
                variables: &variables,
                composed: &composed,
                patch_types,
            };
            check::check(&checked, &declarations)
        };
        POOL.run(check).unwrap_or(Err(CompileError::Failed))?;
        Ok(Self { source: text, tree })
    }

    /// The expression as written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The message of an evaluation that failed.
    fn failed(&self, error: &str) -> String {
        format!("expression '{}' resulted in error: {error}", self.source)
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Runs the evaluation of expressions on a thread with a large stack and waits for it: call it where blocking is allowed.
/// `None` if it panicked, or no thread was left.
pub fn evaluating<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    POOL.run(work)
}

/// Fuzz target: compiles any text and evaluates it over an object.
///
/// # Panics
/// If the evaluation panics, which is a bug.
pub fn fuzz_evaluate(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else {
        return;
    };
    let declarations = Declarations {
        variables: &["object", "oldObject", "authorizer"],
        composed: &[],
        patch_types: true,
    };
    let Ok(program) = Program::compile(source, &declarations) else {
        return;
    };
    let work = move || {
        let object = serde_json::json!({
            "metadata": {"name": "web-0", "labels": {"app": "web"}},
            "spec": {"list": [1, 2, 3], "ratio": 1.5, "quantity": "1.5Gi", "ip": "10.0.0.1"},
        });
        let mut input = Input::default();
        input.set("object", Value::from_json(&object));
        input.set("oldObject", Value::Null);
        input.set("authorizer", Value::Check(Arc::new(Check::default())));
        let decisions = Decisions::new();
        let mut budget = POLICY_BUDGET;
        let value = Scope::new(&input, &[], &decisions).evaluate(&program, &mut budget);
        if let Ok(Ok(value)) = value {
            // Whatever an expression makes can be shown.
            drop(value.to_json());
        }
    };
    assert!(evaluating(work).is_some(), "an evaluation panicked");
}

#[cfg(test)]
mod tests;
