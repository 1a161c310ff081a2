//! The user of a request.

use std::collections::BTreeMap;

/// Name of the user without a credential.
pub const ANONYMOUS: &str = "system:anonymous";
/// Group of every authenticated user.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group of anonymous users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group whose users may do everything without a review.
pub const MASTERS: &str = "system:masters";

/// An authenticated (or anonymous) user, as reviews, admission and audit see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UserInfo {
    /// User name; never empty after authentication.
    pub name: String,
    /// Unique id, or empty.
    pub uid: String,
    /// Groups, in order.
    pub groups: Vec<String>,
    /// Further attributes: key to values.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// The user without a credential.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// Whether the user belongs to `group`.
    #[must_use]
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Whether the request had no credential.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Adds [`AUTHENTICATED`] unless the user is anonymous or already has one of the two groups.
    pub fn mark_authenticated(&mut self) {
        if !self.is_anonymous() && !self.in_group(AUTHENTICATED) && !self.in_group(UNAUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
    }
}
