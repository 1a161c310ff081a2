//! Syntax errors of JSON with the text of Go's `encoding/json`. Used only after decoding has failed.

use std::borrow::Cow;

/// The kind of an open container.
#[derive(Clone, Copy, PartialEq)]
enum Within {
    Object,
    Array,
}

/// A scan over the bytes of a text.
struct Scanner<'t> {
    text: &'t str,
    at: usize,
}

type Scan = Result<(), String>;

/// The first syntax error of `text`, or `None` if it is a single JSON document.
pub(super) fn first_error(text: &str) -> Option<String> {
    let mut scanner = Scanner { text, at: 0 };
    scanner.document().err()
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// The error at the current position: an invalid character, or the end of the text.
    fn error(&self, context: &str) -> String {
        match self.text.as_bytes().get(self.at) {
            Some(&byte) => format!("invalid character {} {context}", quoted(byte)),
            None => "unexpected end of JSON input".to_owned(),
        }
    }

    fn document(&mut self) -> Scan {
        let mut open: Vec<Within> = Vec::new();
        loop {
            self.space();
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    self.space();
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                    } else {
                        open.push(Within::Object);
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    self.space();
                    if self.peek() == Some(b']') {
                        self.at += 1;
                    } else {
                        open.push(Within::Array);
                        continue;
                    }
                }
                Some(b'"') => self.string()?,
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.error("looking for beginning of value")),
            }
            // After a value: close containers, or continue with the next value.
            loop {
                self.space();
                match (open.last(), self.peek()) {
                    (None, None) => return Ok(()),
                    (None, Some(_)) => return Err(self.error("after top-level value")),
                    (Some(Within::Object), Some(b',')) => {
                        self.at += 1;
                        self.space();
                        self.key()?;
                        break;
                    }
                    (Some(Within::Array), Some(b',')) => {
                        self.at += 1;
                        break;
                    }
                    (Some(Within::Object), Some(b'}')) | (Some(Within::Array), Some(b']')) => {
                        self.at += 1;
                        open.pop();
                    }
                    (Some(Within::Object), _) => return Err(self.error("after object key:value pair")),
                    (Some(Within::Array), _) => return Err(self.error("after array element")),
                }
            }
        }
    }

    fn key(&mut self) -> Scan {
        if self.peek() != Some(b'"') {
            return Err(self.error("looking for beginning of object key string"));
        }
        self.string()?;
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.error("after object key"));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Scan {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.at += 1,
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                                    return Err(self.error("in \\u hexadecimal character escape"));
                                }
                                self.at += 1;
                            }
                        }
                        _ => return Err(self.error("in string escape code")),
                    }
                }
                Some(0..0x20) | None => return Err(self.error("in string literal")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn literal(&mut self, word: &str) -> Scan {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                return Err(self.error(&format!("in literal {word} (expecting {})", quoted(expected))));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn digits(&mut self, context: &str) -> Scan {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.error(context));
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Scan {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits("in numeric literal")?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits("after decimal point in numeric literal")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits("in exponent of numeric literal")?;
        }
        Ok(())
    }
}

/// A byte as a quoted character.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => "'\\\\'".to_owned(),
        b'\n' => "'\\n'".to_owned(),
        b'\r' => "'\\r'".to_owned(),
        b'\t' => "'\\t'".to_owned(),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

/// `text` with every unpaired surrogate escape (`\uD8xx`) replaced by `\ufffd`, or `None` if there is none.
pub(super) fn replace_lone_surrogates(text: &str) -> Option<String> {
    let mut mended = Cow::Borrowed(text);
    let mut at = 0;
    while let Some(found) = mended.get(at..).and_then(|rest| rest.find('\\')) {
        let escape = at + found;
        let unit = |from: usize| {
            let digits = mended.get(from..)?.strip_prefix("\\u")?.get(..4)?;
            u32::from_str_radix(digits, 16).ok()
        };
        at = match (unit(escape), unit(escape + 6)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => escape + 12,
            (Some(0xd800..0xe000), _) => {
                mended.to_mut().replace_range(escape..escape + 6, "\\ufffd");
                escape + 6
            }
            _ => escape + 2,
        };
    }
    match mended {
        Cow::Owned(mended) => Some(mended),
        Cow::Borrowed(_) => None,
    }
}
