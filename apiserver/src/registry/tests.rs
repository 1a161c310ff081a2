//! Helpers for the tests of the kinds' rules.

mod conversions;

use drydock_machinery::field_error::ErrorList;
use serde_json::Value;

use super::strategy::WriteContext;

/// Field, reason, and body without the example that some rules append in parentheses.
pub(super) type Cause<'a> = (&'a str, &'a str, &'a str);

/// Compares errors with expected causes; `subject` is what was validated.
#[track_caller]
pub(super) fn assert_causes(errors: &ErrorList, expected: &[Cause<'_>], subject: &Value) {
    let found: Vec<Cause<'_>> = errors
        .iter()
        .map(|error| {
            let body = error.body().split(" (e.g.").next().unwrap();
            (error.field(), error.reason(), body)
        })
        .collect();
    assert_eq!(found, expected, "{subject}");
}

/// A write at noon, in an active namespace.
pub(super) fn context() -> WriteContext {
    WriteContext {
        now: "2026-01-01T12:00:00Z".parse().unwrap(),
        namespace_terminating: false,
    }
}
