//! The text of a failed eviction in the message of a request's interceptor: written by the evictionrequest controller,
//! read by the nodemaintenance controller. Pure functions.

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

/// The cause in a message; `None` for messages about something else.
#[must_use]
pub fn cause(message: &str) -> Option<&str> {
    let (cause, _) = message.strip_prefix(PREFIX)?.rsplit_once(SUFFIX)?;
    Some(cause)
}

/// The cause of a rejection by budgets.
#[must_use]
pub fn budgets(names: &[&str]) -> String {
    format!("{BUDGETS}{}", names.join(SEPARATOR))
}

/// The reason of a cause, as blockers name it.
#[must_use]
pub fn reason(cause: &str) -> &'static str {
    match cause.strip_prefix(BUDGETS) {
        Some(names) if names.contains(SEPARATOR) => "MultipleBudgets",
        Some(_) => "Budget",
        None if cause.starts_with("admission webhook ") => "Webhook",
        None => "EvictionFailed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_is_read_as_it_was_written() {
        let webhook = "admission webhook \"w\" denied the request: not today, number of retries: 7";
        for (written, expected) in [
            (budgets(&["db"]), "Budget"),
            (budgets(&["db", "other"]), "MultipleBudgets"),
            (webhook.to_owned(), "Webhook"),
            (
                "no response from the API within 15 s".to_owned(),
                "EvictionFailed",
            ),
        ] {
            let message = message(&written, 12, 1000);
            assert!(message.ends_with(", number of retries: 12."), "{message}");
            assert_eq!(cause(&message), Some(written.as_str()));
            assert_eq!(reason(&written), expected);
        }
        assert_eq!(cause("blocked: static pod"), None);
        assert_eq!(cause(""), None);
    }

    #[test]
    fn message_is_cut_to_its_limit_at_the_cause() {
        let message = message(&"ö".repeat(600), 3, 500);
        assert!((499..=500).contains(&message.len()), "{}", message.len());
        assert!(cause(&message).is_some());
    }
}
