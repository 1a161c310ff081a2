//! The interfaces of the plugins that carry out the policy of the cluster, and what a mutating pass remembers.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::attributes::Attributes;
use crate::error::ApiError;
use crate::host::Followed;
use crate::registry::admission::WriteAttributes;

/// What a plugin of either phase is configured by.
pub trait Plugin: Send + Sync {
    /// The name, as in `--disable-admission-plugins` and in metrics.
    fn name(&self) -> &'static str;

    /// The objects of the host that it is configured by. Until they are loaded, writes wait.
    fn sources(&self) -> Vec<&Arc<Followed>>;

    /// Whether it may have something to do for such a write. Called for every write: it must be cheap. The objects of the
    /// write are not read.
    fn concerns(&self, write: &WriteAttributes<'_>) -> bool;
}

/// A plugin of the mutating phase.
pub trait MutatingPlugin: Send + Sync {
    /// Its name and configuration.
    fn plugin(&self) -> &dyn Plugin;

    /// Changes the object through [`Attributes::change`], or rejects the write.
    ///
    /// # Errors
    /// The response to the client.
    fn admit<'a>(&'a self, mutation: &'a mut Mutation<'_>) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// A plugin of the validating phase.
pub trait ValidatingPlugin: Send + Sync {
    /// Its name and configuration.
    fn plugin(&self) -> &dyn Plugin;

    /// Allows or rejects the write.
    ///
    /// # Errors
    /// The response to the client.
    fn validate<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// `reinvocationPolicy` of a mutating webhook or policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reinvocation {
    /// It runs once.
    Never,
    /// It runs once more if another one has changed the object after it.
    IfNeeded,
}

/// A mutating pass over one write: at most two rounds over all plugins.
pub struct Mutation<'a> {
    /// The write and the object as changed so far.
    pub attributes: Attributes<'a>,
    round: u8,
    /// How many changes were made.
    changes: u32,
    /// How many changes had been made after each run of the first round.
    ran: HashMap<String, u32>,
}

impl<'a> Mutation<'a> {
    /// The start of the first round.
    #[must_use]
    pub fn new(attributes: Attributes<'a>) -> Self {
        Self {
            attributes,
            round: 0,
            changes: 0,
            ran: HashMap::new(),
        }
    }

    /// The round: 0, or 1 for reinvocations.
    #[must_use]
    pub const fn round(&self) -> u8 {
        self.round
    }

    /// Whether a webhook or a policy runs in this round. `id` tells it from all others of all plugins.
    #[must_use]
    pub fn runs(&self, id: &str, reinvocation: Reinvocation) -> bool {
        if self.round == 0 {
            return true;
        }
        reinvocation == Reinvocation::IfNeeded
            && self.ran.get(id).is_some_and(|&changes| changes < self.changes)
    }

    /// Counts a change that was made through [`Attributes::change`], if `changed`, and the run that ends with it.
    pub fn ran(&mut self, id: &str, changed: bool) {
        self.changes += u32::from(changed);
        self.ran.insert(id.to_owned(), self.changes);
    }

    /// Starts the second round if anything has changed in the first.
    pub(super) fn starts_again(&mut self) -> bool {
        let starts = self.round == 0 && self.changes > 0;
        self.round += u8::from(starts);
        starts
    }
}
