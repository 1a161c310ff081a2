//! Rights that a user is allowed for one object after the other. Reviewing such a right for all objects, of which the
//! host says that it includes each of them, takes one call instead of thousands.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::host::{AccessReview, Attributes};

/// For how many objects a right is reviewed before it is reviewed for all.
const OBJECTS: u32 = 8;
/// The verbs on objects; `create` is one where an apply creates the object that it names. Others, such as `impersonate` and
/// `unsafe-delete-ignore-read-errors`, are always reviewed by name.
const VERBS: [&str; 5] = ["create", "get", "update", "patch", "delete"];
/// The rights that are counted at a time.
const CAPACITY: usize = 1024;

/// Counts reviews of single objects that were allowed, by the review for all objects.
pub(super) struct Repeated {
    counts: Mutex<HashMap<AccessReview, Count>>,
    window: Duration,
}

struct Count {
    allowed: u32,
    since: Instant,
}

impl Repeated {
    /// Counts within this time. Where reviews are not cached at all, nothing is counted either.
    pub(super) fn within(window: Duration) -> Self {
        Self {
            counts: Mutex::default(),
            window,
        }
    }

    /// Whether the right was allowed for several objects lately.
    pub(super) fn is_often(&self, all: &AccessReview) -> bool {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .get(all)
            .is_some_and(|count| count.allowed >= OBJECTS && count.since.elapsed() < self.window)
    }

    /// The right was allowed: for another object, or for all objects.
    pub(super) fn allowed(&self, all: &AccessReview) {
        if self.window.is_zero() {
            return;
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(all) {
            if count.since.elapsed() >= self.window {
                count.allowed = 0;
                count.since = Instant::now();
            }
            count.allowed = count.allowed.saturating_add(1);
            return;
        }
        if counts.len() >= CAPACITY {
            counts.retain(|_, count| count.since.elapsed() < self.window);
        }
        if counts.len() < CAPACITY {
            let since = Instant::now();
            counts.insert(all.clone(), Count { allowed: 1, since });
        }
    }
}

/// The review of the same right for all objects; `None` for a review that names no object.
pub(super) fn for_all_objects(review: &AccessReview) -> Option<AccessReview> {
    let Attributes::Resource(attributes) = &review.attributes else {
        return None;
    };
    if attributes.name.is_empty() || !VERBS.contains(&attributes.verb.as_str()) {
        return None;
    }
    let mut all = attributes.clone();
    all.name.clear();
    Some(AccessReview {
        user: review.user.clone(),
        attributes: Attributes::Resource(all),
    })
}
