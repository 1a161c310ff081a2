//! The continue token of a list: where its next page starts, and at which revision.
//!
//! The token is unpadded base64url of `{"v":"meta.k8s.io/v1","rv":N,"start":"<key after the prefix, then NUL>"}`,
//! as in Kubernetes' own servers. Clients send it back, so it is not trusted: its start is relative to the scope of
//! the request and cannot leave it.

use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine as _};
use drydock_storage::Revision;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The message for a token whose state is gone, sent with a token for the newest state.
pub const EXPIRED_WITH_TOKEN: &str = "The provided continue parameter is too old to display a consistent list \
    result. You can start a new list without the continue parameter, or use the continue token in this response \
    to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent \
    list - objects that were created, modified, or deleted between the time the first chunk was returned and now \
    may show up in the list.";

const VERSION: &str = "meta.k8s.io/v1";

/// Stands for the newest state in place of a revision.
const LATEST: i64 = -1;

/// Which state a page is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageOf {
    /// The state of the list's first page.
    Revision(Revision),
    /// The newest state: the list is not consistent any more, which its client has accepted.
    Latest,
}

/// A decoded token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinueToken {
    /// Which state the page is read from.
    pub of: PageOf,
    /// Where it starts, relative to the prefix of the list's scope; see [`super::Query::start`].
    pub start: String,
}

/// Why a token was refused; the response is 400 `invalid continue token: <this>`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TokenError {
    /// Not base64url, not JSON, or a start that leaves the scope.
    #[error("continue key is not valid: {0}")]
    Malformed(String),
    /// A version this server does not know.
    #[error("continue key is not valid: server does not recognize this encoded version {0}")]
    Version(String),
    /// No revision.
    #[error("continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)")]
    Revision,
    /// No start.
    #[error("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)")]
    EmptyStart,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(rename = "v", default)]
    version: String,
    #[serde(rename = "rv", default)]
    revision: i64,
    #[serde(default)]
    start: String,
}

impl ContinueToken {
    /// The text for `metadata.continue`.
    #[must_use]
    pub fn encode(&self) -> String {
        let revision = match self.of {
            PageOf::Revision(revision) => i64::try_from(revision.0).unwrap_or(i64::MAX),
            PageOf::Latest => LATEST,
        };
        let wire = Wire {
            version: VERSION.to_owned(),
            revision,
            start: self.start.clone(),
        };
        // Serializing strings and a number cannot fail.
        let json = serde_json::to_vec(&wire).unwrap_or_default();
        BASE64_URL_SAFE_NO_PAD.encode(json)
    }

    /// Reads the `continue` parameter.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let malformed = |error: &dyn std::fmt::Display| TokenError::Malformed(error.to_string());
        let json = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|error| {
            malformed(&format_args!(
                "illegal base64 data at input byte {}",
                position(&error)
            ))
        })?;
        let wire: Wire = serde_json::from_slice(&json).map_err(|error| malformed(&error))?;
        if wire.version != VERSION {
            return Err(TokenError::Version(wire.version));
        }
        if wire.revision == 0 {
            return Err(TokenError::Revision);
        }
        if wire.start.is_empty() {
            return Err(TokenError::EmptyStart);
        }
        // An empty segment, `.` or `..` could name another path after normalization. The first segment may be empty:
        // cluster-scoped keys have no namespace.
        let parts = wire.start.split('/').enumerate();
        let mut parts = parts.skip_while(|(index, part)| *index == 0 && part.is_empty());
        if parts.any(|(_, part)| matches!(part, "" | "." | "..")) {
            return Err(TokenError::Malformed(wire.start));
        }
        Ok(Self {
            of: match u64::try_from(wire.revision) {
                Ok(revision) => PageOf::Revision(Revision(revision)),
                Err(_) => PageOf::Latest,
            },
            start: wire.start,
        })
    }

    /// The token for the same position in the newest state.
    #[must_use]
    pub fn at_latest(&self) -> Self {
        Self {
            of: PageOf::Latest,
            start: self.start.clone(),
        }
    }
}

/// Fuzz target: decoding a token must not panic, and a decoded token must survive a round trip.
///
/// # Panics
/// If a token changes in a round trip, which is a bug.
pub fn fuzz_continue_token(bytes: &[u8]) {
    let sent = BASE64_URL_SAFE_NO_PAD.encode(bytes);
    for text in [sent.as_str(), &String::from_utf8_lossy(bytes)] {
        if let Ok(token) = ContinueToken::decode(text) {
            assert_eq!(ContinueToken::decode(&token.encode()), Ok(token));
        }
    }
}

/// The position that Go names in the error.
fn position(error: &DecodeError) -> usize {
    match error {
        DecodeError::InvalidByte(position, _) => *position,
        DecodeError::InvalidLength(length) => length.saturating_sub(1),
        DecodeError::InvalidLastSymbol { .. } | DecodeError::InvalidPadding => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(json: &str) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(json)
    }

    #[test]
    fn encoded_tokens_decode_to_themselves() {
        for of in [PageOf::Revision(Revision(42)), PageOf::Latest] {
            for start in ["ns/name\0", "name\0", "/name\0"] {
                let token = ContinueToken {
                    of,
                    start: start.to_owned(),
                };
                let back = ContinueToken::decode(&token.encode()).unwrap();
                assert_eq!(back, token);
            }
        }
    }

    #[test]
    fn the_wire_format_is_that_of_kubernetes() {
        let token = ContinueToken {
            of: PageOf::Revision(Revision(7)),
            start: "a/b\0".to_owned(),
        };
        let json = BASE64_URL_SAFE_NO_PAD.decode(token.encode()).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            r#"{"v":"meta.k8s.io/v1","rv":7,"start":"a/b\u0000"}"#
        );
        assert_eq!(token.at_latest().of, PageOf::Latest);
    }

    #[test]
    fn malformed_tokens_are_refused_with_the_messages_of_kubernetes() {
        let check = |text: &str, expected: &str| {
            let message = ContinueToken::decode(text).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message:?} for {text:?}");
        };
        check("%", "continue key is not valid: ");
        check(&token("nonsense"), "continue key is not valid: ");
        check(
            &token(r#"{"v":"v1","rv":1,"start":"a"}"#),
            "continue key is not valid: server does not recognize this encoded version v1",
        );
        check(
            &token(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
            "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        );
        check(
            &token(r#"{"v":"meta.k8s.io/v1","rv":1}"#),
            "continue key is not valid: encoded start key empty (version meta.k8s.io/v1)",
        );
        for start in ["../a", "a/../b", "./a", "a//b", "a/", "..", "//a"] {
            check(
                &token(&format!(r#"{{"v":"meta.k8s.io/v1","rv":1,"start":"{start}"}}"#)),
                &format!("continue key is not valid: {start}"),
            );
        }
    }
}
