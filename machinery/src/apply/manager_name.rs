//! What is a writer called? By its `fieldManager`, else by its `User-Agent`.

/// The longest name of a field manager, in bytes.
pub const MAX_BYTES: usize = 128;

/// The name of a writer of whom nothing is known.
pub const UNKNOWN: &str = "unknown";

/// Why a text is no `fieldManager`. `Display` is the detail of the field error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ManagerNameError {
    /// More than 128 bytes: a `TooLong` error.
    #[error("may not be more than {MAX_BYTES} bytes")]
    TooLong,
    /// A character that does not print: an `Invalid` error.
    #[error("invalid character U+{:04X} (at position {position})", u32::from(*.character))]
    Unprintable {
        /// The character.
        character: char,
        /// Its offset in bytes.
        position: usize,
    },
}

/// Checks a `fieldManager`. The empty text passes: it means that none is given.
///
/// # Errors
///
/// Every fault of the name, the length first.
pub fn check_manager(name: &str) -> Result<(), Vec<ManagerNameError>> {
    let mut faults = Vec::new();
    if name.len() > MAX_BYTES {
        faults.push(ManagerNameError::TooLong);
    }
    if let Some((position, character)) = name
        .char_indices()
        .find(|(_, character)| !is_printable(*character))
    {
        faults.push(ManagerNameError::Unprintable { character, position });
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

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

/// Letters, marks, numbers, punctuation, symbols and the ASCII space.
fn is_printable(character: char) -> bool {
    match character {
        ' '..='~' => true,
        '\0'..='\u{7f}' => false,
        // The standard library escapes what does not print. It also escapes marks, but only at the start of a text.
        _ => {
            let text = String::from_iter(['a', character]);
            text.escape_debug().count() == 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_and_are_short() {
        for name in [
            "",
            "kubectl",
            "a b",
            "\u{e9}",
            "e\u{301}",
            "\u{4e2d}",
            "\u{1f600}",
            "\"\\'",
            &"x".repeat(128),
        ] {
            assert_eq!(check_manager(name), Ok(()), "{name:?}");
        }
        for (name, expected) in [
            (
                "abc\n",
                vec!["invalid character U+000A (at position 3)".to_owned()],
            ),
            (
                "\u{e9}\u{a0}",
                vec!["invalid character U+00A0 (at position 2)".to_owned()],
            ),
            (
                "\u{200b}",
                vec!["invalid character U+200B (at position 0)".to_owned()],
            ),
            (
                "\u{7f}",
                vec!["invalid character U+007F (at position 0)".to_owned()],
            ),
            (
                &"\u{e9}".repeat(65),
                vec!["may not be more than 128 bytes".to_owned()],
            ),
        ] {
            let faults: Vec<_> = check_manager(name)
                .unwrap_err()
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(faults, expected, "{name:?}");
        }
        assert_eq!(check_manager(&"\n".repeat(129)).unwrap_err().len(), 2);
    }

    #[test]
    fn names_default_to_the_user_agent() {
        for (user_agent, expected) in [
            ("kubectl/v1.37 (linux/amd64)", "kubectl"),
            ("Mozilla 5.0 x", "Mozilla 5.0 x"),
            ("a\u{7}b\u{a0}c/1", "abc"),
            ("/x", "unknown"),
            ("", "unknown"),
            (&"x".repeat(200), &"x".repeat(128)),
        ] {
            assert_eq!(default_manager(user_agent), expected);
        }
        let wide = "\u{4e2d}".repeat(50);
        assert_eq!(default_manager(&wide), "\u{4e2d}".repeat(42));
    }
}
