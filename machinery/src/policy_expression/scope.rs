//! The variables of the expressions of one policy, and their evaluation in turn.

use std::collections::BTreeMap;

use super::eval::Evaluator;
use super::functions::authorizer::{AccessCheck, Decisions};
use super::meter::{Failure, Meter, Outcome};
use super::value::Value;
use super::{CompileError, Program};

/// The variables that expressions of a policy see.
#[derive(Debug, Clone, Default)]
pub struct Input {
    roots: BTreeMap<String, Value>,
}

impl Input {
    /// Declares a variable, such as `object`.
    pub fn set(&mut self, name: &str, value: Value) {
        self.roots.insert(name.to_owned(), value);
    }
}

/// A variable that is itself an expression: `variables.name`.
#[derive(Debug)]
pub struct Composed {
    /// The name.
    pub name: String,
    /// The expression, or why it cannot be compiled.
    pub program: Result<Program, CompileError>,
}

/// Why no more expressions can be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The expressions of the policy together cost more than they may.
    #[error("validation failed due to running out of cost budget, no further validation rules will be run")]
    OutOfBudget,
    /// The answer to an authorization check is not known: ask for it and start again.
    #[error("the permission of a user is not known")]
    Undecided(Box<AccessCheck>),
}

/// The evaluation of the expressions of one policy with one set of variables.
#[derive(Debug)]
pub struct Scope<'s> {
    input: &'s Input,
    composed: &'s [Composed],
    decisions: &'s Decisions,
    /// The values of variables that were evaluated.
    known: BTreeMap<&'s str, Result<Value, String>>,
    /// What their evaluation cost since it was last counted.
    composed_cost: u64,
}

impl<'s> Scope<'s> {
    /// Starts the evaluation. `decisions` are the answers to authorization checks that are known.
    #[must_use]
    pub const fn new(input: &'s Input, composed: &'s [Composed], decisions: &'s Decisions) -> Self {
        Self {
            input,
            composed,
            decisions,
            known: BTreeMap::new(),
            composed_cost: 0,
        }
    }

    /// Evaluates an expression and subtracts what it cost from the budget. The inner error is one of the expression, in the
    /// words of Kubernetes.
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn evaluate(&mut self, program: &Program, budget: &mut u64) -> Result<Result<Value, String>, Stop> {
        let (outcome, cost) = self.run(program);
        let cost = cost.saturating_add(std::mem::take(&mut self.composed_cost));
        let value = match outcome {
            Ok(value) => Ok(value),
            Err(Failure::Error(error)) => Err(program.failed(&error)),
            Err(Failure::CostLimit) => Err(program.failed(COST_LIMIT)),
            Err(Failure::Undecided(check)) => return Err(Stop::Undecided(check)),
        };
        *budget = budget.checked_sub(cost).ok_or(Stop::OutOfBudget)?;
        Ok(value)
    }

    fn run(&mut self, program: &Program) -> (Outcome, u64) {
        let meter = Meter::new(self.decisions);
        let mut evaluator = Evaluator {
            scope: self,
            meter,
            locals: Vec::new(),
        };
        let outcome = evaluator.evaluate(&program.tree);
        (outcome, evaluator.meter.cost())
    }

    pub(super) fn root(&self, name: &str) -> Option<Value> {
        self.input.roots.get(name).cloned()
    }

    /// The value of `variables.name`, which is evaluated when it is first used.
    pub(super) fn composed(&mut self, name: &str) -> Outcome {
        if let Some(value) = self.known.get(name) {
            return value.clone().map_err(Failure::Error);
        }
        // The last of several of the same name counts.
        let Some(variable) = self.composed.iter().rfind(|variable| variable.name == name) else {
            return Err(Failure::Error(format!("no such key: {name}")));
        };
        let value = match &variable.program {
            Err(error) => Err(format!(
                "composited variable \"{name}\" fails to compile: {error}"
            )),
            Ok(program) => {
                let (outcome, cost) = self.run(program);
                self.composed_cost = self.composed_cost.saturating_add(cost);
                let failed =
                    |error: &str| format!("composited variable \"{name}\" fails to evaluate: {error}");
                match outcome {
                    Ok(value) => Ok(value),
                    Err(Failure::Error(error)) => Err(failed(&error)),
                    Err(Failure::CostLimit) => Err(failed(COST_LIMIT)),
                    Err(undecided) => return Err(undecided),
                }
            }
        };
        self.known.insert(&variable.name, value.clone());
        value.map_err(Failure::Error)
    }
}

const COST_LIMIT: &str = "operation cancelled: actual cost limit exceeded";
