//! What is a writer called that gives no `fieldManager`?

use crate::field_error::is_printable;

/// The longest name, in bytes.
const MAX_BYTES: usize = 128;

/// The name of a writer of whom nothing is known.
pub(super) const UNKNOWN: &str = "unknown";

/// The name of a writer that gives no `fieldManager`: its `User-Agent` up to the first slash, without characters that do
/// not print, cut to 128 bytes; `unknown` when nothing is left.
#[must_use]
pub fn default_manager(user_agent: &str) -> String {
    let agent = user_agent.split('/').next().unwrap_or_default();
    let mut name = String::new();
    for character in agent.chars().filter(|character| is_printable(*character)) {
        if name.len() + character.len_utf8() > MAX_BYTES {
            break;
        }
        name.push(character);
    }
    if name.is_empty() { UNKNOWN.to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_default_to_the_user_agent() {
        for (user_agent, expected) in [
            ("kubectl/v1.37 (linux/amd64)", "kubectl"),
            ("Mozilla 5.0 x", "Mozilla 5.0 x"),
            ("a\u{7}b\u{a0}c\u{200b}/1", "abc"),
            ("\u{e9}\u{4e2d}\u{1f600}", "\u{e9}\u{4e2d}\u{1f600}"),
            ("/x", "unknown"),
            ("", "unknown"),
            (&"x".repeat(200), &"x".repeat(128)),
            (&"\u{4e2d}".repeat(50), &"\u{4e2d}".repeat(42)),
        ] {
            assert_eq!(default_manager(user_agent), expected);
        }
    }
}
