//! Limits the watches over WebSocket of each user.
//!
//! Other watches share the connections of a front proxy; each of these takes one of the server's connections for itself, and
//! a front proxy opens as many as its users ask for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{error::ApiError, request::UserInfo};

/// How many a user may have open.
const PER_USER: usize = 100;

/// The open watches over WebSocket, by user.
#[derive(Debug, Default)]
pub(super) struct WebSockets(Arc<Mutex<HashMap<String, usize>>>);

/// One of them, until dropped.
pub(super) struct Open {
    counts: Arc<Mutex<HashMap<String, usize>>>,
    user: String,
}

impl WebSockets {
    /// Counts a watch of a user.
    ///
    /// # Errors
    /// 429 if the user has too many.
    pub(super) fn open(&self, user: &UserInfo) -> Result<Open, ApiError> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(user.name.clone()).or_default();
        if *count >= PER_USER {
            return Err(ApiError::overloaded());
        }
        *count += 1;
        Ok(Open {
            counts: Arc::clone(&self.0),
            user: user.name.clone(),
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_and_gets_it_back() {
        let user = |name: &str| UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        };
        let watches = WebSockets::default();
        let mut open: Vec<Open> = (0..PER_USER).map(|_| watches.open(&user("a")).unwrap()).collect();
        let error = watches.open(&user("a")).err().unwrap();
        assert_eq!(error.code(), 429);
        let other = watches.open(&user("b")).unwrap();
        open.pop();
        open.push(watches.open(&user("a")).unwrap());
        assert!(watches.open(&user("a")).is_err());
        drop((open, other));
        assert!(watches.0.lock().unwrap().is_empty());
    }
}
