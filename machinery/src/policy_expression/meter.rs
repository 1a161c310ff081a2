//! What an evaluation may cost, and why it ends without a value.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::Regex;

use super::functions::authorizer::{AccessCheck, Decisions};
use super::functions::pattern;
use super::value::Value;

/// The limit of one expression, in the units of Kubernetes.
pub(super) const EXPRESSION_LIMIT: u64 = 1_000_000;
/// The limit of items and characters that one expression reads or makes. Kubernetes counts some operations as cheap that
/// read long texts and lists; all that it counts fully stays far below.
const WORK_LIMIT: u64 = 64_000_000;
/// The maximum number of patterns of one evaluation that are compiled.
const MAX_PATTERNS: usize = 64;
/// A pattern counts as much work as this many characters for each of its bytes.
const PATTERN_WORK: u64 = 20_000;

/// Why an evaluation ended without a value.
#[derive(Debug)]
pub(super) enum Failure {
    /// An error of the expression, which `||` and `&&` can absorb.
    Error(String),
    /// The expression cost more than it may.
    CostLimit,
    /// The answer to an authorization check is not known yet.
    Undecided(Box<AccessCheck>),
}

impl Failure {
    pub(super) fn error(text: &str) -> Self {
        Self::Error(text.to_owned())
    }
}

pub(super) type Outcome = Result<Value, Failure>;

/// Counts costs.
#[derive(Debug)]
pub(super) struct Meter<'s> {
    cost: u64,
    work: u64,
    patterns: BTreeMap<Arc<str>, Regex>,
    /// The answers to authorization checks that are known.
    pub(super) decisions: &'s Decisions,
}

impl<'s> Meter<'s> {
    pub(super) const fn new(decisions: &'s Decisions) -> Self {
        Self {
            cost: 0,
            work: 0,
            patterns: BTreeMap::new(),
            decisions,
        }
    }

    /// What the evaluation cost so far.
    pub(super) const fn cost(&self) -> u64 {
        self.cost
    }

    pub(super) fn charge(&mut self, cost: u64) -> Result<(), Failure> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > EXPRESSION_LIMIT {
            return Err(Failure::CostLimit);
        }
        Ok(())
    }

    /// Counts work that costs nothing in Kubernetes.
    pub(super) fn work(&mut self, work: u64) -> Result<(), Failure> {
        self.work = self.work.saturating_add(work);
        if self.work > WORK_LIMIT {
            return Err(Failure::CostLimit);
        }
        Ok(())
    }

    /// The compiled pattern, which is kept for the next use in the same expression.
    pub(super) fn pattern(&mut self, text: &Arc<str>) -> Result<Regex, Failure> {
        if let Some(regex) = self.patterns.get(text) {
            return Ok(regex.clone());
        }
        self.work((text.len() as u64).saturating_mul(PATTERN_WORK))?;
        let regex = pattern::compile(text).map_err(Failure::Error)?;
        if self.patterns.len() < MAX_PATTERNS {
            self.patterns.insert(Arc::clone(text), regex.clone());
        }
        Ok(regex)
    }
}
