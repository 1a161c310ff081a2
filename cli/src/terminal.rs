//! What standard output is: a terminal of some size, with or without colour, or a file or pipe.

use std::io::{IsTerminal as _, Write as _};

use crate::error::Error;

/// The width of output that is no terminal, for lines that are cut.
const DEFAULT_WIDTH: usize = 120;
/// The height of a terminal that does not tell it.
const DEFAULT_HEIGHT: usize = 24;

/// Whether text has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Escape sequences are written.
    On,
    /// Plain text.
    Off,
}

/// What a piece of text means, and so which colour it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Done, or as it should be.
    Good,
    /// Held, or wrong.
    Bad,
    /// Worth a look.
    Warning,
    /// A heading.
    Heading,
    /// Less important.
    Faint,
}

impl Colour {
    /// The text in the colour of its meaning.
    #[must_use]
    pub fn paint(self, meaning: Meaning, text: &str) -> String {
        let code = match (self, meaning) {
            (Self::Off, _) => return text.to_owned(),
            (Self::On, Meaning::Good) => "32",
            (Self::On, Meaning::Bad) => "31",
            (Self::On, Meaning::Warning) => "33",
            (Self::On, Meaning::Heading) => "1",
            (Self::On, Meaning::Faint) => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// Whether screens can be redrawn.
    pub is_live: bool,
    /// Whether text has colours.
    pub colour: Colour,
}

impl Terminal {
    /// Looks at standard output, at `NO_COLOR` (<https://no-color.org>) and at `TERM`.
    #[must_use]
    pub fn detect() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        Self::from_facts(std::io::stdout().is_terminal(), is_dumb, is_set("NO_COLOR"))
    }

    const fn from_facts(is_terminal: bool, is_dumb: bool, is_without_colour: bool) -> Self {
        let is_live = is_terminal && !is_dumb;
        Self {
            is_live,
            colour: if is_live && !is_without_colour {
                Colour::On
            } else {
                Colour::Off
            },
        }
    }

    /// Columns and lines, asked anew each time: windows change.
    #[must_use]
    pub fn size() -> (usize, usize) {
        match rustix::termios::tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_col > 0 => (
                usize::from(size.ws_col),
                if size.ws_row == 0 {
                    DEFAULT_HEIGHT
                } else {
                    usize::from(size.ws_row)
                },
            ),
            _ => (DEFAULT_WIDTH, DEFAULT_HEIGHT),
        }
    }
}

/// Writes text to standard output.
///
/// # Errors
///
/// [`Error::OutputClosed`] when nobody reads it, [`Error::Io`] otherwise.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Error::io("standard output", error))
}

/// Writes a line to standard error, for people.
#[expect(
    clippy::print_stderr,
    reason = "this is the one place that does it for commands"
)]
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// Cuts a line to a number of columns; a cut line ends with `~`. Text from the cluster may contain control characters:
/// they are shown as `?`, so that no object can write to the terminal.
#[must_use]
pub fn cut(line: &str, columns: usize) -> String {
    let clean = printable(line);
    if clean.chars().count() <= columns {
        return clean;
    }
    let mut cut: String = clean.chars().take(columns.saturating_sub(1)).collect();
    cut.push('~');
    cut
}

/// The text with `?` for each control character except line breaks.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '\n' => '\n',
            '\t' => ' ',
            character if character.is_control() => '?',
            character => character,
        })
        .collect()
}

/// Breaks a text into lines of at most `columns`, at spaces where possible.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(10);
    let mut lines = Vec::new();
    for paragraph in printable(text).lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let mut word = word;
            let length = |text: &str| text.chars().count();
            if !line.is_empty() && length(&line) + 1 + length(word) > columns {
                lines.push(std::mem::take(&mut line));
            }
            while length(word) > columns {
                let at = word.char_indices().nth(columns).map_or(word.len(), |(at, _)| at);
                let (head, tail) = word.split_at(at);
                lines.push(head.to_owned());
                word = tail;
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        if !line.is_empty() {
            lines.push(line);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_needs_a_terminal_that_wants_it() {
        for (is_terminal, is_dumb, no_color, is_live, colour) in [
            (true, false, false, true, Colour::On),
            (true, false, true, true, Colour::Off),
            (true, true, false, false, Colour::Off),
            (false, false, false, false, Colour::Off),
        ] {
            let terminal = Terminal::from_facts(is_terminal, is_dumb, no_color);
            assert_eq!(terminal, Terminal { is_live, colour });
        }
        assert_eq!(Colour::Off.paint(Meaning::Bad, "x"), "x");
        assert_eq!(Colour::On.paint(Meaning::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
    }

    #[test]
    fn lines_are_cut_and_cleaned() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde~");
        assert_eq!(cut("äöüäöüä", 6), "äöüäö~");
        assert_eq!(cut("a\u{1b}[2Jb\tc", 20), "a?[2Jb c");
    }

    #[test]
    fn texts_are_wrapped_at_spaces() {
        assert_eq!(
            wrap("the budget allows\nno disruption at all", 12),
            ["the budget", "allows", "no", "disruption", "at all"]
        );
        assert_eq!(wrap("abcdefghijklmno p", 10), ["abcdefghij", "klmno p"]);
        assert!(wrap("", 10).is_empty());
    }
}
