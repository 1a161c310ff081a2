//! Locks whose data stays usable after a panic in another thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex and ignores poisoning: every critical section of this crate leaves its data consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
