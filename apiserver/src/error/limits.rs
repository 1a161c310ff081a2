//! The limits of a response: texts in it come from clients.

use std::borrow::Cow;

use drydock_machinery::excerpt;
use drydock_machinery::field_error::MAX_ERRORS;

use super::StatusCause;

/// The maximum length of a message in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 28 * 1024;
/// The maximum total length of all causes in bytes.
const MAX_CAUSES_BYTES: usize = 28 * 1024;
/// The maximum length of a name in bytes. Valid names are shorter.
const MAX_NAME_BYTES: usize = 1024;

/// Cuts a message that is too long.
pub(super) fn cut_message(message: &mut Cow<'static, str>) {
    if let Cow::Owned(cut) = excerpt::cut(message, MAX_MESSAGE_BYTES) {
        *message = Cow::Owned(cut);
    }
}

/// The name, cut if it is too long.
pub(super) fn cut_name(name: &str) -> Cow<'_, str> {
    excerpt::cut(name, MAX_NAME_BYTES)
}

/// The causes that fit into a response. The first always does, cut if it is too long.
pub(super) fn first_causes(causes: impl IntoIterator<Item = StatusCause>) -> Vec<StatusCause> {
    let mut left = MAX_CAUSES_BYTES;
    let mut kept = Vec::new();
    for mut cause in causes.into_iter().take(MAX_ERRORS) {
        if kept.is_empty() {
            cause.field = cut_name(&cause.field).into_owned();
            cause.message = excerpt::cut(&cause.message, MAX_CAUSES_BYTES / 2).into_owned();
        }
        let Some(rest) = left.checked_sub(cause.field.len() + cause.message.len()) else {
            break;
        };
        left = rest;
        kept.push(cause);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(bytes: usize) -> StatusCause {
        StatusCause {
            message: "x".repeat(bytes),
            ..StatusCause::default()
        }
    }

    #[test]
    fn causes_are_limited_in_number_and_size() {
        assert_eq!(first_causes(std::iter::repeat(cause(1))).len(), MAX_ERRORS);
        assert_eq!(first_causes(std::iter::repeat(cause(1000))).len(), 28);
        let huge = first_causes([cause(1_000_000), cause(1)]);
        assert_eq!(huge.len(), 2);
        assert!(huge.iter().map(|cause| cause.message.len()).sum::<usize>() <= MAX_CAUSES_BYTES);
    }
}
