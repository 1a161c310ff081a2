//! The id that log lines and the response carry: the client's own, or a new one.

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

/// `Audit-Id`.
pub(super) const HEADER: HeaderName = HeaderName::from_static("audit-id");
/// The most bytes of it that logs print.
const LOGGED_BYTES: usize = 64;

/// The id of a request.
pub(super) fn of(headers: &HeaderMap) -> HeaderValue {
    if let Some(id) = headers.get(&HEADER).filter(|id| !id.is_empty()) {
        return id.clone();
    }
    let mut buffer = Uuid::encode_buffer();
    let text = Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
    // Hexadecimal digits and dashes are always a header value.
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// The id as logs print it: at most 64 bytes, never control characters.
pub(super) fn printable(id: &HeaderValue) -> &str {
    let text = id.to_str().unwrap_or("(not printable)");
    text.get(..LOGGED_BYTES).unwrap_or(text)
}
