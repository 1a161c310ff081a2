//! A disruption budget as decisions about one pod see it.

/// A disruption budget that selects the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Budget {
    /// Its name.
    pub name: String,
    /// Its resource version.
    pub version: String,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
    /// How many healthy pods it has.
    pub healthy: i32,
    /// How many healthy pods it wants.
    pub desired_healthy: i32,
    /// Whether its controller has observed its current generation.
    pub is_observed: bool,
    /// Why its controller cannot compute it.
    pub sync_failure: Option<String>,
    /// Whether it does not protect this pod: the pod is pending, or unhealthy and the budget lets such pods go.
    pub lets_pod_go: bool,
}

/// What is known about the budgets of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known<'a> {
    /// Those that select it.
    pub budgets: &'a [Budget],
    /// Why none is known.
    pub unwatched: Option<&'a str>,
}

impl Budget {
    /// How many pods the budget lets go now.
    #[must_use]
    pub fn places(&self) -> u32 {
        if self.is_observed {
            u32::try_from(self.disruptions_allowed).unwrap_or_default()
        } else {
            0
        }
    }
}
