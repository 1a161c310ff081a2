//! The query parameters of a request.
//!
//! Parsing follows Go's `url.ParseQuery`: parts with `;` or an invalid escape are dropped, the order is kept, and the first
//! value of a repeated single-valued parameter counts.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::duration::parse_go_duration;
use crate::error::ApiError;

/// The decoded query parameters of a request, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the text after the `?`.
    #[must_use]
    pub fn parse(query: &str) -> Self {
        if query.is_empty() {
            return Self::default();
        }
        let pairs = query
            .split('&')
            .filter(|part| !part.is_empty() && !part.contains(';'))
            .filter_map(|part| {
                let (name, value) = part.split_once('=').unwrap_or((part, ""));
                Some((unescape(name)?, unescape(value)?))
            });
        Self(pairs.collect())
    }

    /// The first value of a parameter; the empty string when it has none.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Every value of a parameter in order.
    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether the parameter is present.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }

    /// A boolean by Kubernetes' rule: absent is unset, `false` in any case and `0` are false, **anything else is true**,
    /// the empty string too.
    #[must_use]
    pub fn boolean(&self, name: &str) -> Option<bool> {
        self.first(name)
            .map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// A signed 64-bit number; absent or empty is unset.
    ///
    /// # Errors
    /// 400 with the text of Go's `strconv.ParseInt`.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.first(name).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        match text.parse::<i64>() {
            Ok(number) => Ok(Some(number)),
            Err(error) => {
                use std::num::IntErrorKind::{NegOverflow, PosOverflow};
                let why = match error.kind() {
                    PosOverflow | NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                Err(ApiError::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: {why}"
                )))
            }
        }
    }

    /// The time limit that the client sets (`timeout=30s`), at most `limit`; absent, zero or negative means `limit`.
    ///
    /// # Errors
    /// 400 when it is not a Go duration.
    pub fn timeout(&self, limit: Duration) -> Result<Duration, ApiError> {
        let Some(text) = self.first("timeout").filter(|text| !text.is_empty()) else {
            return Ok(limit);
        };
        match parse_go_duration(text) {
            Ok(nanoseconds) => match u64::try_from(nanoseconds) {
                Ok(nanoseconds) if nanoseconds > 0 => Ok(Duration::from_nanos(nanoseconds).min(limit)),
                _ => Ok(limit),
            },
            Err(error) => Err(ApiError::bad_request(format!(
                "invalid timeout specified in the request URL - {error}"
            ))),
        }
    }
}

fn unescape(text: &str) -> Option<String> {
    if !text.contains(['%', '+']) {
        return Some(text.to_owned());
    }
    if !escapes_are_valid(text) {
        return None;
    }
    let spaced = text.replace('+', " ");
    Some(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

/// Whether each `%` is followed by two hexadecimal digits.
pub(crate) fn escapes_are_valid(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%'
            && !(bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit())
                && bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit()))
        {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_but_false_and_zero_is_true() {
        for (query, expected) in [
            ("", None),
            ("other=1", None),
            ("watch", Some(true)),
            ("watch=", Some(true)),
            ("watch=1", Some(true)),
            ("watch=TRUE", Some(true)),
            ("watch=no", Some(true)),
            ("watch=0", Some(false)),
            ("watch=false", Some(false)),
            ("watch=False", Some(false)),
            ("watch=0&watch=1", Some(false)),
            ("watch=1&watch=0", Some(true)),
        ] {
            assert_eq!(Query::parse(query).boolean("watch"), expected, "{query}");
        }
    }

    #[test]
    fn parts_that_do_not_parse_are_dropped() {
        let query = Query::parse("a=1;2&b=%zz&c=x%2Fy&d=p+q&c=second&%65=f&&g=%e4");
        let seen: Vec<_> = query
            .0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("c", "x/y"),
                ("d", "p q"),
                ("c", "second"),
                ("e", "f"),
                ("g", "\u{fffd}")
            ]
        );
        assert_eq!(query.first("c"), Some("x/y"));
        assert_eq!(query.all("c").collect::<Vec<_>>(), ["x/y", "second"]);
    }

    #[test]
    fn integers_fail_with_the_text_of_go() {
        let check = |query: &str, expected: Result<Option<i64>, &str>| {
            let result = Query::parse(query)
                .integer("limit")
                .map_err(|error| error.to_string());
            assert_eq!(result, expected.map_err(str::to_owned), "{query}");
        };
        check("", Ok(None));
        check("limit=", Ok(None));
        check("limit=500", Ok(Some(500)));
        check("limit=-1", Ok(Some(-1)));
        check(
            "limit=abc",
            Err(r#"strconv.ParseInt: parsing "abc": invalid syntax"#),
        );
        check(
            "limit=9223372036854775808",
            Err(r#"strconv.ParseInt: parsing "9223372036854775808": value out of range"#),
        );
    }

    #[test]
    fn timeouts_lower_but_never_raise_the_limit() {
        let limit = Duration::from_mins(1);
        let check = |query: &str, expected: Result<u64, &str>| {
            let result = Query::parse(query)
                .timeout(limit)
                .map(|timeout| timeout.as_secs());
            assert_eq!(
                result.map_err(|error| error.to_string()),
                expected.map_err(str::to_owned),
                "{query}"
            );
        };
        check("", Ok(60));
        check("timeout=5s", Ok(5));
        check("timeout=2m", Ok(60));
        check("timeout=0", Ok(60));
        check("timeout=-3s", Ok(60));
        check(
            "timeout=5",
            Err(r#"invalid timeout specified in the request URL - time: missing unit in duration "5""#),
        );
    }
}
