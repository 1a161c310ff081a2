//! Excerpts: texts of clients in messages, cut to a number of bytes.
//!
//! A client chooses the names and values that errors and warnings repeat. Whatever it sends, a message costs no more than
//! its limit: a value is not printed beyond it.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};

/// What stands for the rest of a text that was cut.
const REST: &str = "...";

/// The text, or its first `max_bytes` bytes (at most: characters stay whole) and `...`.
///
/// ```
/// use drydock_machinery::excerpt::cut;
///
/// assert_eq!(cut("short", 5), "short");
/// assert_eq!(cut("longer", 5), "longe...");
/// assert_eq!(cut("äö", 3), "ä...");
/// ```
#[must_use]
pub fn cut(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(max_bytes);
    Cow::Owned(format!("{}{REST}", text.get(..end).unwrap_or_default()))
}

/// Prints a value like `to_string`, but stops after `max_bytes` bytes, with `...`. The cost is that of the bytes printed.
///
/// ```
/// assert_eq!(drydock_machinery::excerpt::print(&serde_json::json!([1, 2, 3]), 4), "[1,2...");
/// ```
#[must_use]
pub fn print(value: &dyn Display, max_bytes: usize) -> String {
    let mut printed = Printed {
        text: String::new(),
        left: max_bytes,
    };
    // The only error is that the limit is reached.
    if write!(printed, "{value}").is_err() {
        printed.text.push_str(REST);
    }
    printed.text
}

/// A text that refuses to grow beyond its limit.
struct Printed {
    text: String,
    left: usize,
}

impl fmt::Write for Printed {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let fits = more.floor_char_boundary(self.left);
        self.text.push_str(more.get(..fits).unwrap_or_default());
        self.left -= fits;
        if fits == more.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Prints parts without end.
    struct Endless(Cell<usize>);

    impl Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                self.0.set(self.0.get() + 1);
                f.write_str("ab")?;
            }
        }
    }

    #[test]
    fn printing_stops_at_the_limit() {
        let endless = Endless(Cell::new(0));
        assert_eq!(print(&endless, 5), "ababa...");
        assert_eq!(endless.0.get(), 3);
        assert_eq!(print(&"abc", 3), "abc");
        assert_eq!(print(&"", 0), "");
    }

    #[test]
    fn characters_stay_whole() {
        assert_eq!(print(&"aäb", 2), "a...");
        assert_eq!(cut("aäb", 2), "a...");
        assert_eq!(cut("aäb", 3), "aä...");
    }
}
