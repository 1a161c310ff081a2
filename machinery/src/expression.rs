//! CEL conditions, compiled and evaluated under limits. Start at [`Expression::compile`].
//!
//! Expressions are untrusted text, and the CEL library parses and evaluates them recursively without a budget.
//! Therefore:
//!
//! 1. Before parsing, the source is limited in bytes, operators and bracket depth.
//! 2. Parsing and evaluation run on a few threads with stacks far larger than these limits need.
//! 3. After parsing, [`check`](check) limits the size of the tree and rejects undeclared names and constructs of
//!    unpredictable cost: loops nested more than twice, computed patterns, patterns that grow when compiled.
//! 4. An expression with loops is evaluated only over lists and maps short enough for its loops.
//!
//! Conditions use the variables `pod` and `namespace`. `namespace` is a reserved word of CEL, so
//! [`reserved`](reserved) substitutes another identifier before parsing.

mod check;
pub(crate) mod large_stack;
mod reserved;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::objects::Key;
use cel::{Context, Env, Program};
use serde_json::Value;

use large_stack::Pool;

/// The variables of conditions: the pod and its namespace.
const VARIABLES: [&str; 2] = ["pod", "namespace"];
/// The maximum length of a source, in bytes.
const MAX_SOURCE_BYTES: usize = 10 * 1024;

/// With a stack of 2 MiB, the parser overflowed from 2,000 terms on in release builds and from 200 in debug builds.
const SCAN: ScanLimits = ScanLimits {
    bytes: MAX_SOURCE_BYTES,
    operators: 512,
    brackets: 32,
};

/// Why an expression is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The source has too many bytes.
    #[error("may not be more than {MAX_SOURCE_BYTES} bytes")]
    TooLong,
    /// The expression has too many of something.
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
    /// The expression uses an undeclared variable.
    #[error("undeclared reference to '{0}'")]
    UndeclaredVariable(String),
    /// The expression calls an undeclared function.
    #[error("undeclared reference to function '{0}'")]
    UndeclaredFunction(String),
    /// The expression uses a CEL feature that is not supported.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The expression cannot evaluate to a boolean.
    #[error("must evaluate to bool")]
    NotBoolean,
    /// The library panicked, or no thread was left.
    #[error("could not be compiled")]
    Failed,
}

/// Why an expression could not be evaluated. Callers must not treat this as true or false.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluateError {
    /// Evaluation failed on these variables, for example because of a missing key.
    #[error("{0}")]
    Execution(String),
    /// The result is not a boolean.
    #[error("must evaluate to bool")]
    NotBoolean,
    /// The expression has loops, and a list or map exceeds their limit.
    #[error("a list or map has more than {max} items, too many for the loops of the expression")]
    TooManyItems {
        /// The limit.
        max: usize,
    },
    /// The library panicked, or no thread was left.
    #[error("could not be evaluated")]
    Failed,
}

/// A compiled condition over a pod and its namespace.
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
    program: Arc<Program>,
    /// The maximum number of items of a list or map in a variable.
    max_items: usize,
}

/// The threads of conditions: they share none with policies of the cluster, whose cost others decide.
static THREADS: Pool = Pool::new("cel", 2);

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

impl Expression {
    /// Compiles a condition over `pod` and `namespace`. Blocks for milliseconds: cache the result.
    ///
    /// # Errors
    /// The first reason to reject it.
    pub fn compile(source: &str) -> Result<Self, CompileError> {
        scan(source, &SCAN).map_err(|(what, max)| match what {
            "bytes" => CompileError::TooLong,
            what => CompileError::TooComplex { what, max },
        })?;
        let source = reserved::replace(source);
        let compile = move || {
            let program = ENVIRONMENT.compile(&source);
            let program = program.map_err(|errors| CompileError::Syntax(one_line(&errors.to_string())))?;
            let max_items = check::check(program.expression(), &VARIABLES.map(reserved::stand_in))?;
            let program = Arc::new(program);
            Ok(Self { program, max_items })
        };
        THREADS.run(compile).unwrap_or(Err(CompileError::Failed))
    }

    /// Evaluates the condition. Blocks until it is done, which includes waiting for other evaluations: call it where
    /// blocking is allowed.
    ///
    /// # Errors
    /// See [`EvaluateError`].
    pub fn evaluate(&self, variables: &[(&str, &Value)]) -> Result<bool, EvaluateError> {
        let variables = variables
            .iter()
            .map(|(name, value)| {
                Ok((
                    reserved::stand_in(name).to_owned(),
                    converted(value, self.max_items)?,
                ))
            })
            .collect::<Result<Vec<_>, EvaluateError>>()?;
        let program = Arc::clone(&self.program);
        let evaluate = move || {
            let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
            for (name, value) in variables {
                context.add_variable_from_value(name, value);
            }
            match program.execute(&context) {
                Ok(cel::Value::Bool(result)) => Ok(result),
                Ok(_) => Err(EvaluateError::NotBoolean),
                Err(error) => Err(EvaluateError::Execution(one_line(&error.to_string()))),
            }
        };
        THREADS.run(evaluate).unwrap_or(Err(EvaluateError::Failed))
    }
}

/// What a source may have before it is parsed.
pub(crate) struct ScanLimits {
    pub(crate) bytes: usize,
    /// Every operator, dot and bracket may be a level of recursion in the parser.
    pub(crate) operators: usize,
    /// The parser's own limit does not count chains, and brackets need the most stack.
    pub(crate) brackets: usize,
}

/// Rejects sources that could overflow the parser, with what they have too much of and its limit. Characters in string
/// literals count too, so that no lexer is needed.
pub(crate) fn scan(source: &str, limits: &ScanLimits) -> Result<(), (&'static str, usize)> {
    if source.len() > limits.bytes {
        return Err(("bytes", limits.bytes));
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
    if operators > limits.operators {
        return Err(("operators", limits.operators));
    }
    let mut depth = 0_usize;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > limits.brackets {
            return Err(("nested brackets", limits.brackets));
        }
    }
    Ok(())
}

/// Converts a JSON value to a CEL value. Integers that fit are `int`, as in typed Kubernetes objects.
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

/// Joins the lines of a library message, which contains source excerpts, since a cause of a `Status` is one line.
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
