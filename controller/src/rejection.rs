//! The text of a failed eviction in the message of a request's interceptor. Pure functions.

/// What precedes the cause.
const PREFIX: &str = "Could not evict the pod: ";
/// What follows the cause, before the number of failed attempts.
const SUFFIX: &str = ", number of retries: ";
/// What precedes the names of the budgets in the cause.
const BUDGETS: &str = "blocked by PodDisruptionBudget ";
/// What separates the names of budgets.
const SEPARATOR: &str = ", ";

/// The message for a cause, cut to `max_bytes`.
#[must_use]
pub fn message(cause: &str, retries: i32, max_bytes: usize) -> String {
    let suffix = format!("{SUFFIX}{retries}.");
    let end = cause.floor_char_boundary(max_bytes.saturating_sub(PREFIX.len() + suffix.len()));
    let cause = cause.get(..end).unwrap_or_default();
    format!("{PREFIX}{cause}{suffix}")
}

/// The cause of a rejection by budgets.
#[must_use]
pub fn budgets(names: &[&str]) -> String {
    format!("{BUDGETS}{}", names.join(SEPARATOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_budgets_and_counts_attempts() {
        assert_eq!(
            message(&budgets(&["db", "other"]), 12, 1000),
            "Could not evict the pod: blocked by PodDisruptionBudget db, other, number of retries: 12."
        );
    }

    #[test]
    fn message_is_cut_to_its_limit_at_the_cause() {
        let message = message(&"ö".repeat(600), 3, 500);
        assert!((499..=500).contains(&message.len()), "{}", message.len());
        assert!(message.ends_with("ö, number of retries: 3."), "{message}");
    }
}
