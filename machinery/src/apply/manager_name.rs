//! The default field manager of writes without `fieldManager`.

use crate::field_error::is_printable;
use crate::object_meta::MAX_FIELD_MANAGER_BYTES;

/// The field manager if neither `fieldManager` nor a usable `User-Agent` was sent.
pub(super) const UNKNOWN: &str = "unknown";

/// The field manager of a write without `fieldManager`: its `User-Agent` up to the first slash, without unprintable
/// characters, truncated to 128 bytes; `unknown` if nothing is left.
#[must_use]
pub fn default_manager(user_agent: &str) -> String {
    let agent = user_agent.split('/').next().unwrap_or_default();
    let mut name = String::new();
    for character in agent.chars().filter(|character| is_printable(*character)) {
        if name.len() + character.len_utf8() > MAX_FIELD_MANAGER_BYTES {
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
    fn the_default_manager_is_derived_from_the_user_agent() {
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
