//! Does a CEL expression hold, without letting its author hurt the server?
//!
//! Expressions are foreign text, and the CEL library recurses on them without a budget. So nothing is trusted:
//!
//! 1. before parsing, the source is bounded in bytes, in operators and in the depth of its brackets;
//! 2. parsing and evaluation run on threads with stacks far larger than the bounds need;
//! 3. after parsing, [`check`](check) bounds the tree, forbids names that do not exist, and everything whose cost the
//!    source does not show: loops in loops in loops, computed patterns, patterns that grow when compiled;
//! 4. an expression with loops is not evaluated over longer lists than its loops can bear.
//!
//! Conditions speak of `pod` and `namespace`. The latter is a reserved word of CEL, so [`reserved`](reserved) puts
//! another name in its place. Start at [`Expression::compile`].

mod check;
mod reserved;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::objects::Key;
use cel::{Context, Env, Program};
use serde_json::Value;

/// What conditions may speak of: the pod, and its namespace.
pub const VARIABLES: [&str; 2] = ["pod", "namespace"];
/// The longest source, in bytes.
pub const MAX_SOURCE_BYTES: usize = 10 * 1024;

/// Every operator, dot and bracket may be a level of recursion in the parser; overflows were seen from 2,000 terms on
/// with a stack of 2 MiB in release and from 200 in debug builds.
const MAX_OPERATORS: usize = 512;
/// The parser's own bound does not see chains, and brackets cost the most stack of all.
const MAX_BRACKET_DEPTH: usize = 32;
/// Only touched pages of it are ever used.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The source has too many bytes.
    #[error("may not be more than {MAX_SOURCE_BYTES} bytes")]
    TooLong,
    /// The expression has too many of something.
    #[error("is too complex: more than {max} {what}")]
    TooComplex {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        max: usize,
    },
    /// The source is no CEL.
    #[error("{0}")]
    Syntax(String),
    /// The expression uses a variable that nobody declares.
    #[error("undeclared reference to '{0}'")]
    UndeclaredVariable(String),
    /// The expression calls a function that does not exist.
    #[error("undeclared reference to function '{0}'")]
    UndeclaredFunction(String),
    /// The expression uses a part of CEL that is switched off.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The expression cannot yield a boolean.
    #[error("must evaluate to bool")]
    NotBoolean,
    /// The library failed, or no thread could be had.
    #[error("could not be compiled")]
    Failed,
}

/// Why an expression has no answer. Never to be read as yes or no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluateError {
    /// The expression failed on these variables, such as for a missing key.
    #[error("{0}")]
    Execution(String),
    /// The expression yields something else than a boolean.
    #[error("must evaluate to bool")]
    NotBoolean,
    /// The expression has loops, and a list or map has too many items for them.
    #[error("a list or map has more than {max} items, too many for the loops of the expression")]
    TooManyItems {
        /// How many there may be.
        max: usize,
    },
    /// The library failed, or no thread could be had.
    #[error("could not be evaluated")]
    Failed,
}

/// A condition over a pod and its namespace, compiled.
///
/// ```
/// use drydock_machinery::expression::Expression;
/// use serde_json::json;
///
/// let expression = Expression::compile("pod.metadata.name.startsWith('web-')").unwrap();
/// let pod = json!({"metadata": {"name": "web-0"}});
/// assert_eq!(expression.evaluate(&[("pod", &pod)]), Ok(true));
/// ```
#[derive(Debug)]
pub struct Expression {
    program: Program,
    /// The most items of a list or map it is evaluated over.
    max_items: usize,
}

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

impl Expression {
    /// Compiles a condition over [`VARIABLES`]. Takes milliseconds and its own thread: cache the result.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub fn compile(source: &str) -> Result<Self, CompileError> {
        scan(source)?;
        let source = reserved::replace(source);
        let compile = || {
            let program = ENVIRONMENT.compile(&source);
            let program = program.map_err(|errors| CompileError::Syntax(one_line(&errors.to_string())))?;
            let max_items = check::check(program.expression(), &VARIABLES.map(reserved::stand_in))?;
            Ok(Self { program, max_items })
        };
        on_large_stack(compile).unwrap_or(Err(CompileError::Failed))
    }

    /// Whether the condition holds. Runs on its own thread, and blocks until it is done.
    ///
    /// # Errors
    /// Whatever keeps it from an answer.
    pub fn evaluate(&self, variables: &[(&str, &Value)]) -> Result<bool, EvaluateError> {
        let evaluate = || {
            let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
            for (name, value) in variables {
                context.add_variable_from_value(reserved::stand_in(name), converted(value, self.max_items)?);
            }
            match self.program.execute(&context) {
                Ok(cel::Value::Bool(answer)) => Ok(answer),
                Ok(_) => Err(EvaluateError::NotBoolean),
                Err(error) => Err(EvaluateError::Execution(one_line(&error.to_string()))),
            }
        };
        on_large_stack(evaluate).unwrap_or(Err(EvaluateError::Failed))
    }
}

/// Refuses sources that could overflow the parser. Text in quotes counts as well: what looks like it needs a lexer is
/// refused rather than lexed.
fn scan(source: &str) -> Result<(), CompileError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(CompileError::TooLong);
    }
    let operators = source
        .bytes()
        .filter(|byte| b".[({+-*/%?:&|=<>!".contains(byte))
        .count();
    // `in` is the one binary operator that is a word.
    let operators = operators
        + source
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| *word == "in")
            .count();
    if operators > MAX_OPERATORS {
        return Err(CompileError::TooComplex {
            what: "operators",
            max: MAX_OPERATORS,
        });
    }
    let mut depth = 0_usize;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_BRACKET_DEPTH {
            return Err(CompileError::TooComplex {
                what: "nested brackets",
                max: MAX_BRACKET_DEPTH,
            });
        }
    }
    Ok(())
}

/// Runs the work on a thread with room for deep recursion; `None` when there is no thread, or the work panicked.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("cel".to_owned())
            .stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, work).ok()?.join().ok()
    })
}

/// The value in CEL's terms. Whole numbers that fit are `int`, as they are in typed Kubernetes objects.
fn converted(value: &Value, max_items: usize) -> Result<cel::Value, EvaluateError> {
    let fits = |items: usize| {
        if items > max_items {
            Err(EvaluateError::TooManyItems { max: max_items })
        } else {
            Ok(())
        }
    };
    Ok(match value {
        Value::Null => cel::Value::Null,
        Value::Bool(bool) => cel::Value::Bool(*bool),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => cel::Value::Int(int),
            (None, Some(uint)) => cel::Value::UInt(uint),
            (None, None) => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::from(text.as_str()),
        Value::Array(items) => {
            fits(items.len())?;
            let items: Result<Vec<_>, _> = items.iter().map(|item| converted(item, max_items)).collect();
            cel::Value::List(Arc::new(items?))
        }
        Value::Object(members) => {
            fits(members.len())?;
            let members: Result<HashMap<Key, cel::Value>, EvaluateError> = members
                .iter()
                .map(|(key, value)| Ok((Key::from(key.clone()), converted(value, max_items)?)))
                .collect();
            cel::Value::Map(cel::objects::Map::from(members?))
        }
    })
}

/// The library's messages hold excerpts over several lines; a cause of a Status has one.
fn one_line(text: &str) -> String {
    const MAX_CHARACTERS: usize = 512;
    let words: Vec<&str> = text.split_whitespace().collect();
    reserved::restore(&words.join(" "))
        .chars()
        .take(MAX_CHARACTERS)
        .collect()
}

#[cfg(test)]
mod tests;
