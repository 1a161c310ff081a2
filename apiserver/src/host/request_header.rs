//! Front-proxy authentication: the aggregator names the user in request headers.
//!
//! The aggregator connects with a front-proxy certificate. The headers count only on such connections. Any other client
//! that sends them is authenticated by its own credentials, and the headers are removed.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, header};
use percent_encoding::percent_decode_str;

use super::trust::TrustBundle;
use crate::request::{UserInfo, query::escapes_are_valid};

/// How the front proxy is recognised, and its headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeaderConfig {
    /// Authorities of the front-proxy certificate; without them the headers never count.
    pub ca: Option<Arc<TrustBundle>>,
    /// Allowed common names of the certificate, compared exactly; an empty list = any certificate of the authorities. Without
    /// a list none is allowed.
    pub allowed_names: Option<Vec<String>>,
    /// Headers with the user name; the first non-empty one counts.
    pub username_headers: Vec<HeaderName>,
    /// Headers with the uid. Empty unless the host publishes that it removes them from client requests.
    pub uid_headers: Vec<HeaderName>,
    /// Headers with groups, one per line.
    pub group_headers: Vec<HeaderName>,
    /// Lower-case prefixes of headers with extra attributes.
    pub extra_prefixes: Vec<String>,
}

/// A value that is not UTF-8: rejected, since it would appear differently in reviews and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an identity header is not UTF-8")]
pub struct NotUtf8;

impl RequestHeaderConfig {
    /// Whether a verified certificate with this common name may name users.
    #[must_use]
    pub fn allows(&self, common_name: &str) -> bool {
        self.allowed_names
            .as_ref()
            .is_some_and(|names| names.is_empty() || names.iter().any(|name| name == common_name))
    }

    /// The user in the headers; none without a user name. Call it only for a verified front-proxy certificate.
    ///
    /// # Errors
    /// [`NotUtf8`].
    pub fn user(&self, headers: &HeaderMap) -> Result<Option<UserInfo>, NotUtf8> {
        let Some(name) = first_non_empty(headers, &self.username_headers)? else {
            return Ok(None);
        };
        let uid = first_non_empty(headers, &self.uid_headers)?.unwrap_or_default();
        let mut user = UserInfo {
            name,
            uid,
            ..UserInfo::default()
        };
        for header in &self.group_headers {
            for value in headers.get_all(header) {
                let group = utf8(value.as_bytes())?;
                if !group.is_empty() {
                    user.groups.push(group.to_owned());
                }
            }
        }
        for prefix in &self.extra_prefixes {
            for (header, value) in headers {
                let Some(key) = header.as_str().strip_prefix(prefix.as_str()) else {
                    continue;
                };
                let value = utf8(value.as_bytes())?.to_owned();
                user.extra.entry(extra_key(key)).or_default().push(value);
            }
        }
        Ok(Some(user))
    }

    /// Removes every credential and identity header, so that no handler, log or outgoing call sees one.
    pub fn strip(&self, headers: &mut HeaderMap) {
        strip_standard(headers);
        for header in self
            .username_headers
            .iter()
            .chain(&self.uid_headers)
            .chain(&self.group_headers)
        {
            headers.remove(header);
        }
        for prefix in self
            .extra_prefixes
            .iter()
            .filter(|prefix| prefix.as_str() != EXTRA_PREFIX)
        {
            strip_prefix(headers, prefix);
        }
    }
}

const EXTRA_PREFIX: &str = "x-remote-extra-";
const STANDARD: [HeaderName; 3] = [
    HeaderName::from_static("x-remote-user"),
    HeaderName::from_static("x-remote-uid"),
    HeaderName::from_static("x-remote-group"),
];

/// Removes `Authorization` and the identity headers of the standard names.
pub fn strip_standard(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    for name in &STANDARD {
        headers.remove(name);
    }
    strip_prefix(headers, EXTRA_PREFIX);
}

fn strip_prefix(headers: &mut HeaderMap, prefix: &str) {
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(prefix))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, NotUtf8> {
    std::str::from_utf8(bytes).map_err(|_| NotUtf8)
}

/// The first value of the first header whose first value is not empty. A second line of a header is ignored.
fn first_non_empty(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, NotUtf8> {
    for name in names {
        if let Some(value) = headers.get(name) {
            let value = utf8(value.as_bytes())?;
            if !value.is_empty() {
                return Ok(Some(value.to_owned()));
            }
        }
    }
    Ok(None)
}

/// The key of an extra: lower-case, percent-decoded; unchanged when an escape is invalid.
#[must_use]
pub fn extra_key(raw: &str) -> String {
    let lower = raw.to_ascii_lowercase();
    if !escapes_are_valid(&lower) {
        return lower;
    }
    match percent_decode_str(&lower).decode_utf8() {
        Ok(decoded) => decoded.into_owned(),
        Err(_) => lower,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn config() -> RequestHeaderConfig {
        RequestHeaderConfig {
            username_headers: vec![HeaderName::from_static("x-remote-user")],
            uid_headers: vec![HeaderName::from_static("x-remote-uid")],
            group_headers: vec![HeaderName::from_static("x-remote-group")],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
            ..RequestHeaderConfig::default()
        }
    }

    fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value).unwrap(),
            );
        }
        headers
    }

    #[test]
    fn the_first_line_of_the_user_header_counts_and_groups_are_not_split() {
        let user = config()
            .user(&headers(&[
                ("X-Remote-User", "jürgen".as_bytes()),
                ("X-Remote-User", b"second"),
                ("X-Remote-Uid", b"u-1"),
                ("X-Remote-Group", b"a,b"),
                ("X-Remote-Group", b""),
                ("X-Remote-Group", b"c"),
                ("X-Remote-Group", b"c"),
            ]))
            .unwrap()
            .unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jürgen", "u-1"));
        assert_eq!(user.groups, ["a,b", "c", "c"]);
    }

    #[test]
    fn no_user_name_means_no_user() {
        for lines in [
            &[][..],
            &[("x-remote-user", &b""[..]), ("x-remote-user", b"rescue")],
        ] {
            assert_eq!(config().user(&headers(lines)), Ok(None));
        }
        let unconfigured = RequestHeaderConfig::default();
        assert_eq!(unconfigured.user(&headers(&[("x-remote-user", b"a")])), Ok(None));
    }

    #[test]
    fn the_uid_is_ignored_unless_configured_and_always_removed() {
        let config = RequestHeaderConfig {
            uid_headers: Vec::new(),
            ..config()
        };
        let mut headers = headers(&[("x-remote-user", b"a"), ("x-remote-uid", b"u")]);
        assert_eq!(config.user(&headers).unwrap().unwrap().uid, "");
        config.strip(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn extra_keys_are_lower_case_and_decoded_once() {
        for (header, key) in [
            ("x-reMote-EXTRA-Acme.Com%2fproject", "acme.com/project"),
            ("X-Remote-Extra-%C3%A4", "ä"),
            ("X-Remote-Extra-bad%zz", "bad%zz"),
            ("X-Remote-Extra-%ff", "%ff"),
            ("X-Remote-Extra-a%252fb", "a%2fb"),
        ] {
            let user = config()
                .user(&headers(&[
                    ("x-remote-user", b"a"),
                    (header, b"v"),
                    (header, b""),
                ]))
                .unwrap()
                .unwrap();
            let expected = [(key.to_owned(), vec!["v".to_owned(), String::new()])];
            assert_eq!(user.extra.into_iter().collect::<Vec<_>>(), expected, "{header}");
        }
    }

    #[test]
    fn values_that_are_not_utf8_are_rejected() {
        assert_eq!(
            config().user(&headers(&[("x-remote-user", b"\xff")])),
            Err(NotUtf8)
        );
        assert_eq!(
            config().user(&headers(&[("x-remote-user", b"a"), ("x-remote-group", b"\xff")])),
            Err(NotUtf8)
        );
    }

    #[test]
    fn credentials_and_identity_are_removed_and_other_headers_kept() {
        let mut headers = headers(&[
            ("authorization", b"Bearer x"),
            ("x-remote-user", b"a"),
            ("x-remote-group", b"g"),
            ("x-remote-group", b"h"),
            ("x-remote-extra-a", b"1"),
            ("x-remote-extra-b", b"2"),
            ("x-who", b"w"),
            ("x-why-1", b"y"),
            ("accept", b"*/*"),
        ]);
        let config = RequestHeaderConfig {
            username_headers: vec![HeaderName::from_static("x-who")],
            extra_prefixes: vec!["x-why-".to_owned()],
            ..RequestHeaderConfig::default()
        };
        config.strip(&mut headers);
        assert_eq!(
            headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["accept"]
        );
    }

    #[test]
    fn allowed_names_are_exact_and_an_empty_list_allows_any() {
        let named = RequestHeaderConfig {
            allowed_names: Some(vec!["front".to_owned()]),
            ..config()
        };
        let unknown = RequestHeaderConfig {
            allowed_names: None,
            ..config()
        };
        assert!(!unknown.allows("front"));
        assert!(named.allows("front"));
        assert!(!named.allows("Front"));
        assert!(!named.allows(""));
        let any = RequestHeaderConfig {
            allowed_names: Some(Vec::new()),
            ..config()
        };
        assert!(any.allows("anything"));
    }
}
