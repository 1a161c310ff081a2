//! The parser of label selectors: a tokenizer and a recursive-descent parser, equivalent to `k8s.io/apimachinery/pkg/labels`.

use std::collections::BTreeSet;

use super::{Operator, Requirement, key_error};
use crate::field_error::FieldPath;

/// A label selector that does not parse. `Display` prints the text of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    End,
    Open,
    Close,
    Comma,
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    Greater,
    Less,
    In,
    NotIn,
    Word(&'a str),
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::End => "",
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
            Self::Not => "!",
            Self::Equals => "=",
            Self::DoubleEquals => "==",
            Self::NotEquals => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::In => "in",
            Self::NotIn => "notin",
            Self::Word(text) => text,
        }
    }

    /// The token in a position where a word is expected: `in` and `notin` are valid keys and values.
    fn as_word(self) -> Self {
        match self {
            Self::In | Self::NotIn => Self::Word(self.text()),
            other => other,
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_symbol(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

/// The next token and the rest of the text. A zero byte ends a token; at the start of a token it ends the text.
fn next_token(text: &str) -> (Token<'_>, &str) {
    let text = text.trim_start_matches(|c: char| c.is_ascii() && is_space(c as u8));
    let (token, length) = match text.as_bytes() {
        [] | [0, ..] => return (Token::End, ""),
        [b'=', b'=', ..] => (Token::DoubleEquals, 2),
        [b'!', b'=', ..] => (Token::NotEquals, 2),
        [b'=', ..] => (Token::Equals, 1),
        [b'!', ..] => (Token::Not, 1),
        [b'(', ..] => (Token::Open, 1),
        [b')', ..] => (Token::Close, 1),
        [b',', ..] => (Token::Comma, 1),
        [b'>', ..] => (Token::Greater, 1),
        [b'<', ..] => (Token::Less, 1),
        bytes => {
            let end = bytes
                .iter()
                .position(|&byte| byte == 0 || is_symbol(byte) || is_space(byte));
            let length = end.unwrap_or(bytes.len());
            let word = match text.get(..length).unwrap_or_default() {
                "in" => Token::In,
                "notin" => Token::NotIn,
                word => Token::Word(word),
            };
            (word, length)
        }
    };
    let rest = text.get(length..).unwrap_or_default();
    (token, rest.strip_prefix('\0').unwrap_or(rest))
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        next_token(self.rest).0.as_word()
    }

    fn next_operator(&mut self) -> Token<'a> {
        let (token, rest) = next_token(self.rest);
        self.rest = rest;
        token
    }

    fn next(&mut self) -> Token<'a> {
        self.next_operator().as_word()
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, ParseError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Not => {}
                Token::End => return Ok(requirements),
                other => return Err(unexpected(other, ", expected: !, identifier, or 'end of string'")),
            }
            let requirement = self.requirement();
            requirements
                .push(requirement.map_err(|ParseError(text)| {
                    ParseError(format!("unable to parse requirement: {text}"))
                })?);
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Comma => match self.peek() {
                    Token::Word(_) | Token::Not => {}
                    other => return Err(unexpected(other, ", expected: identifier after ','")),
                },
                other => return Err(unexpected(other, ", expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, ParseError> {
        let mut token = self.next();
        let negated = token == Token::Not;
        if negated {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(unexpected(token, ", expected: identifier"));
        };
        if let Some(error) = key_error(&FieldPath::root(), key) {
            return Err(ParseError(error.to_string()));
        }
        let (operator, values) = if negated {
            (Operator::DoesNotExist, BTreeSet::new())
        } else if matches!(self.peek(), Token::End | Token::Comma) {
            (Operator::Exists, BTreeSet::new())
        } else {
            self.comparison()?
        };
        let values = values.into_iter().map(str::to_owned).collect();
        Requirement::new(&FieldPath::root(), key, operator, values)
            .map_err(|errors| ParseError(errors.to_string()))
    }

    fn comparison(&mut self) -> Result<(Operator, BTreeSet<&'a str>), ParseError> {
        let operator = match self.next_operator() {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            other => return Err(unexpected(other, ", expected: in, notin, =, ==, !=, gt, lt")),
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.set()?,
            _ => BTreeSet::from([self.exact_value()?]),
        };
        Ok((operator, values))
    }

    fn exact_value(&mut self) -> Result<&'a str, ParseError> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok("");
        }
        match self.next() {
            Token::Word(value) => Ok(value),
            other => Err(unexpected(other, ", expected: identifier")),
        }
    }

    fn set(&mut self) -> Result<BTreeSet<&'a str>, ParseError> {
        match self.next() {
            Token::Open => {}
            other => return Err(unexpected(other, " expected: '('")),
        }
        match self.peek() {
            Token::Word(_) | Token::Comma => {}
            Token::Close => {
                self.next();
                return Ok(BTreeSet::from([""]));
            }
            other => return Err(unexpected(other, ", expected: ',', ')' or identifier")),
        }
        let values = self.values()?;
        // `values` stops before the closing parenthesis.
        self.next();
        Ok(values)
    }

    fn values(&mut self) -> Result<BTreeSet<&'a str>, ParseError> {
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                Token::Word(value) => {
                    values.insert(value);
                    match self.peek() {
                        Token::Comma => {}
                        Token::Close => return Ok(values),
                        other => return Err(unexpected(other, ", expected: ',' or ')'")),
                    }
                }
                Token::Comma => {
                    if values.is_empty() {
                        values.insert("");
                    }
                    match self.peek() {
                        Token::Close => {
                            values.insert("");
                            return Ok(values);
                        }
                        Token::Comma => {
                            values.insert("");
                        }
                        _ => {}
                    }
                }
                other => return Err(unexpected(other, ", expected: ',', or identifier")),
            }
        }
    }
}

fn unexpected(token: Token<'_>, expectation: &str) -> ParseError {
    ParseError(format!("found '{}'{expectation}", token.text()))
}

pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, ParseError> {
    Parser { rest: text }.selector()
}
