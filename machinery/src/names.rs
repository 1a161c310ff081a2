//! Name syntax: DNS labels, subdomains, label keys and label values, and the names of requesters and interceptors.
//!
//! Each syntax is a function from text to error details, empty if the text is valid. The details are those of
//! `k8s.io/apimachinery/pkg/util/validation`. [`AllowedNames`] validates the names of requesters and interceptors.

use std::collections::BTreeSet;

use crate::field_error::{ErrorList, FieldError, FieldPath, quoted};

/// The maximum length of a DNS label and of the name part of a label key, in bytes.
const MAX_LABEL_BYTES: usize = 63;
/// The maximum length of a DNS subdomain, and so of an object name, in bytes.
const MAX_SUBDOMAIN_BYTES: usize = 253;

const DNS_LABEL_REGEX: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS_SUBDOMAIN_REGEX: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_KEY_REGEX: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE_REGEX: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const HTTP_PATH_REGEX: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";

/// Validates an RFC 1123 label: at most 63 lower-case letters, digits and dashes.
#[must_use]
pub fn dns_label_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_LABEL_BYTES {
        errors.push(too_long(MAX_LABEL_BYTES, "characters"));
    }
    if !is_dns_label_shaped(value) {
        errors.push(if is_dns_subdomain_shaped(value) {
            "must not contain dots".to_owned()
        } else {
            format!(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                 start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
                 validation is '{DNS_LABEL_REGEX}')"
            )
        });
    }
    errors
}

/// Validates an RFC 1123 subdomain: labels joined by dots, at most 253 bytes.
#[must_use]
pub fn dns_subdomain_errors(value: &str) -> Vec<String> {
    subdomain_errors(value, "characters")
}

/// `unit` is the word in the message: "characters" for names, "bytes" for the domains of label keys, as in Kubernetes.
fn subdomain_errors(value: &str, unit: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_SUBDOMAIN_BYTES {
        errors.push(too_long(MAX_SUBDOMAIN_BYTES, unit));
    }
    if !is_dns_subdomain_shaped(value) {
        errors.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{DNS_SUBDOMAIN_REGEX}')"
        ));
    }
    errors
}

/// A complete name that is valid exactly if `prefix` is a valid prefix of a generated name: a trailing dash is allowed,
/// since a suffix follows.
pub(crate) fn as_prefix(prefix: &str) -> String {
    let Some(without_dash) = prefix.strip_suffix('-') else {
        return prefix.to_owned();
    };
    let mut kept = without_dash.to_owned();
    if kept.pop().is_none() {
        return prefix.to_owned();
    }
    kept.push('a');
    kept
}

/// Validates a label key, also called a qualified name: an optional subdomain and `/`, then at most 63 letters, digits,
/// `-`, `_` and `.`.
#[must_use]
pub fn label_key_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let shape = format!(
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
         character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{LABEL_KEY_REGEX}')"
    );
    let name = match value.split_once('/') {
        None => value,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a valid label key {shape} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            errors.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            errors.extend(
                subdomain_errors(prefix, "bytes")
                    .iter()
                    .map(|detail| format!("prefix part {detail}")),
            );
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LABEL_BYTES {
        errors.push(format!("name part {}", too_long(MAX_LABEL_BYTES, "bytes")));
    }
    if !is_label_shaped(name) {
        errors.push(format!("name part {shape}"));
    }
    errors
}

/// Validates a label value: empty, or at most 63 letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn label_value_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_LABEL_BYTES {
        errors.push(too_long(MAX_LABEL_BYTES, "bytes"));
    }
    if !value.is_empty() && !is_label_shaped(value) {
        errors.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '{LABEL_VALUE_REGEX}')"
        ));
    }
    errors
}

fn too_long(max: usize, unit: &str) -> String {
    format!("must be no more than {max} {unit}")
}

fn is_dns_label_shaped(value: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    has_shape(value, inner, |byte| inner(byte) || byte == b'-')
}

fn is_dns_subdomain_shaped(value: &str) -> bool {
    value.split('.').all(is_dns_label_shaped)
}

fn is_label_shaped(value: &str) -> bool {
    has_shape(
        value,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'),
    )
}

/// Whether the first and the last byte satisfy `ends`, and all bytes satisfy `inner`.
fn has_shape(value: &str, ends: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = value.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(&first), Some(&last)) if ends(first) && ends(last))
        && bytes.iter().all(|&byte| inner(byte))
}

/// The domains reserved for Kubernetes.
const RESERVED_DOMAINS: [&str; 2] = ["k8s.io", "kubernetes.io"];

/// Names under the reserved domains that requesters and interceptors of Kubernetes and Drydock use.
const KNOWN_RESERVED_NAMES: [&str; 9] = [
    "daemonset.apps.k8s.io",
    "deployment.apps.k8s.io",
    "descheduler.k8s.io",
    "horizontalpodautoscaler.autoscaling.k8s.io",
    "imperative-eviction.k8s.io",
    "kubelet.k8s.io",
    "nodemaintenance.k8s.io",
    "replicaset.apps.k8s.io",
    "statefulset.apps.k8s.io",
];

/// The names allowed for requesters and interceptors: a fully qualified domain name or a path prefixed by a domain; under
/// `k8s.io` and `kubernetes.io`, only the names listed here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedNames {
    reserved: BTreeSet<String>,
}

impl Default for AllowedNames {
    fn default() -> Self {
        Self {
            reserved: KNOWN_RESERVED_NAMES.into_iter().map(str::to_owned).collect(),
        }
    }
}

impl Extend<String> for AllowedNames {
    /// Allows further names under the reserved domains.
    fn extend<I: IntoIterator<Item = String>>(&mut self, names: I) {
        self.reserved.extend(names);
    }
}

impl AllowedNames {
    /// Validates the name of a requester or interceptor.
    #[must_use]
    pub fn validate(&self, path: &FieldPath, name: &str) -> ErrorList {
        if name.is_empty() {
            return FieldError::required(path, "").into();
        }
        let errors = match name.split_once('/') {
            None => domain_errors(path, name),
            Some((domain, rest)) => domain_prefixed_path_errors(path, name, domain, rest),
        };
        if !errors.is_empty() {
            return errors;
        }
        let domain = name.split_once('/').map_or(name, |(domain, _)| domain);
        if is_reserved(domain) && !self.reserved.contains(name) {
            let allowed: Vec<&str> = self.reserved.iter().map(String::as_str).collect();
            let detail = format!(
                "names under k8s.io and kubernetes.io are reserved: {} is none of {}",
                quoted(name),
                allowed.join(", ")
            );
            return FieldError::forbidden(path, &detail).into();
        }
        ErrorList::new()
    }
}

fn is_reserved(domain: &str) -> bool {
    RESERVED_DOMAINS.iter().any(|reserved| {
        domain
            .strip_suffix(reserved)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn domain_errors(path: &FieldPath, name: &str) -> ErrorList {
    let errors = dns_subdomain_errors(name);
    if !errors.is_empty() {
        return FieldError::invalid(path, name, &errors.join(",")).into();
    }
    if !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        return FieldError::invalid(path, name, detail).into();
    }
    name.split('.')
        .map(|label| (label, dns_label_errors(label)))
        .filter(|(_, errors)| !errors.is_empty())
        .map(|(label, errors)| FieldError::invalid(path, label, &errors.join(",")))
        .collect()
}

fn domain_prefixed_path_errors(path: &FieldPath, name: &str, domain: &str, rest: &str) -> ErrorList {
    if domain.is_empty() || rest.is_empty() {
        let detail = r#"must be a domain-prefixed path (such as "acme.io/foo")"#;
        return FieldError::invalid(path, name, detail).into();
    }
    let mut errors: ErrorList =
        FieldError::invalid_each(path, domain, dns_subdomain_errors(domain)).collect();
    if !rest
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte))
    {
        let detail = format!("Invalid path (regex used for validation is '{HTTP_PATH_REGEX}')");
        errors.push(FieldError::invalid(path, rest, &detail));
    }
    if errors.is_empty() && name.len() > MAX_SUBDOMAIN_BYTES {
        errors.push(FieldError::invalid(
            path,
            name,
            &too_long(MAX_SUBDOMAIN_BYTES, "characters"),
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    const KEY: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

    fn check(rule: fn(&str) -> Vec<String>, cases: &[(&str, &[&str])]) {
        for (text, expected) in cases {
            assert_eq!(rule(text), *expected, "{text:?}");
        }
    }

    #[test]
    fn dns_labels_are_short_and_without_dots() {
        let long = "a".repeat(64);
        check(
            dns_label_errors,
            &[
                ("a", &[]),
                ("0-a", &[]),
                (&"a".repeat(63), &[]),
                (&long, &["must be no more than 63 characters"]),
                ("a.b", &["must not contain dots"]),
                ("A", &[LABEL]),
                ("-a", &[LABEL]),
                ("a-", &[LABEL]),
                ("", &[LABEL]),
                ("a.-", &[LABEL]),
                ("ä", &[LABEL]),
            ],
        );
    }

    #[test]
    fn subdomains_are_labels_joined_by_dots() {
        let long = "a".repeat(254);
        check(
            dns_subdomain_errors,
            &[
                ("a", &[]),
                ("a.b-c.0", &[]),
                (&"a".repeat(253), &[]),
                (&long, &["must be no more than 253 characters"]),
                ("a..b", &[SUBDOMAIN]),
                ("a.", &[SUBDOMAIN]),
                ("a_b", &[SUBDOMAIN]),
                ("", &[SUBDOMAIN]),
            ],
        );
    }

    #[test]
    fn keys_have_an_optional_domain() {
        let name = format!("name part {KEY}");
        let prefix = format!("prefix part {SUBDOMAIN}");
        let slashes = format!(
            "a valid label key {KEY} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        );
        let long = "a".repeat(64);
        let long_prefix = format!("{}/a", "a".repeat(254));
        check(
            label_key_errors,
            &[
                ("a", &[]),
                ("A_b.c-D", &[]),
                ("example.com/My.Name", &[]),
                ("", &["name part must be non-empty", &name]),
                ("/a", &["prefix part must be non-empty"]),
                ("a/", &["name part must be non-empty", &name]),
                ("A/a", &[&prefix]),
                ("a/b/c", &[&slashes]),
                ("-", &[&name]),
                (&long, &["name part must be no more than 63 bytes"]),
                (&long_prefix, &["prefix part must be no more than 253 bytes"]),
            ],
        );
    }

    #[test]
    fn values_may_be_empty() {
        let long = "a".repeat(64);
        check(
            label_value_errors,
            &[
                ("", &[]),
                ("A_b.c-D", &[]),
                ("a b", &[VALUE]),
                ("-a", &[VALUE]),
                (&long, &["must be no more than 63 bytes"]),
            ],
        );
    }

    #[test]
    fn prefixes_may_end_in_a_dash() {
        assert_eq!(as_prefix("web-"), "wea");
        assert_eq!(as_prefix("a-"), "a");
        assert_eq!(as_prefix("-"), "-");
        assert_eq!(as_prefix("web"), "web");
    }

    fn check_participant(name: &str, expected: &[(&str, &str)]) {
        let errors = AllowedNames::default().validate(&FieldPath::new("n"), name);
        let found: Vec<_> = errors
            .iter()
            .map(|error| (error.reason(), error.body()))
            .collect();
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn participants_are_domains_or_prefixed_paths() {
        for name in [
            "a.example.com",
            "example.com",
            "acme.io/foo",
            "acme.io/Foo/bar",
            "imperative-eviction.k8s.io",
            "notk8s.io",
            "k8s.io.example.com",
            "acme.io/foo.k8s.io",
        ] {
            check_participant(name, &[]);
        }
        check_participant("", &[("FieldValueRequired", "Required value")]);
        let long_label = "a".repeat(64);
        let long_domain = format!("{}com", "abcdefghi.".repeat(26));
        let long_path = format!("acme.io/{}", "a".repeat(246));
        for (name, value, detail) in [
            (
                "example",
                "example",
                "should be a domain with at least two segments separated by dots",
            ),
            ("Example.com", "Example.com", SUBDOMAIN),
            ("example.com.", "example.com.", SUBDOMAIN),
            (
                &format!("{long_label}.com"),
                &long_label,
                "must be no more than 63 characters",
            ),
            (&long_domain, &long_domain, "must be no more than 253 characters"),
            (&long_path, &long_path, "must be no more than 253 characters"),
            (
                "/foo",
                "/foo",
                r#"must be a domain-prefixed path (such as "acme.io/foo")"#,
            ),
            (
                "acme.io/",
                "acme.io/",
                r#"must be a domain-prefixed path (such as "acme.io/foo")"#,
            ),
        ] {
            check_participant(
                name,
                &[(
                    "FieldValueInvalid",
                    &format!("Invalid value: \"{value}\": {detail}"),
                )],
            );
        }
    }

    #[test]
    fn domain_and_path_of_a_participant_are_validated_separately() {
        check_participant(
            "Acme.io/f oo",
            &[
                (
                    "FieldValueInvalid",
                    &format!("Invalid value: \"Acme.io\": {SUBDOMAIN}"),
                ),
                (
                    "FieldValueInvalid",
                    "Invalid value: \"f oo\": Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
                ),
            ],
        );
    }

    #[test]
    fn reserved_domains_need_an_entry_in_the_list() {
        let path = FieldPath::new("n");
        let mut names = AllowedNames::default();
        for name in [
            "foo.k8s.io",
            "foo.kubernetes.io",
            "k8s.io/foo",
            "k8s.io",
            "kubelet.k8s.io/foo",
        ] {
            let errors = names.validate(&path, name);
            assert_eq!(
                errors.iter().map(FieldError::reason).collect::<Vec<_>>(),
                ["FieldValueForbidden"],
                "{name}"
            );
        }
        assert!(names.validate(&path, "foo.k8s.io").to_string().starts_with(
            "n: Forbidden: names under k8s.io and kubernetes.io are reserved: \"foo.k8s.io\" is none of daemonset.apps.k8s.io, "
        ));
        names.extend(["foo.k8s.io".to_owned()]);
        assert!(names.validate(&path, "foo.k8s.io").is_empty());
        assert!(!names.validate(&path, "bar.foo.k8s.io").is_empty());
    }
}
