//! The options of get, list and watch.

use drydock_storage::Revision;

use super::causes::{cause, invalid};
use crate::{
    error::{ApiError, StatusCause},
    request::{
        freshness::{Freshness, ListState, WatchStart},
        query::Query,
    },
};

/// Where a list begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListStart {
    /// At the first object of this state.
    State(ListState),
    /// At the position in this continue token, which is not parsed here.
    Token(String),
}

/// The options of list and deletecollection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListOptions {
    /// Where the list begins.
    pub start: ListStart,
    /// The maximum number of objects; 0 = all.
    pub limit: usize,
}

impl ListOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// 422 for invalid combinations, 400 for numbers that do not parse.
    pub fn parse(query: &Query) -> Result<Self, ApiError> {
        let version = query.first("resourceVersion").unwrap_or_default();
        let matching = query.first("resourceVersionMatch").unwrap_or_default();
        let token = query.first("continue").unwrap_or_default();
        let limit = usize::try_from(query.integer("limit")?.unwrap_or(0)).unwrap_or(0);
        // Ignored, but must be a number.
        query.integer("timeoutSeconds")?;

        let mut causes = Vec::new();
        check_list_match(matching, version, token, &mut causes);
        if query.has("sendInitialEvents") {
            causes.push(cause(
                "FieldValueForbidden",
                "sendInitialEvents",
                "Forbidden: sendInitialEvents is forbidden for list",
            ));
        }
        if !causes.is_empty() {
            return Err(invalid("ListOptions", causes));
        }

        if !token.is_empty() {
            if !matches!(version, "" | "0") {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            return Ok(Self {
                start: ListStart::Token(token.to_owned()),
                limit,
            });
        }
        let state = match (
            parse_revision(version)
                .map_err(|text| ApiError::bad_request(format!("invalid resource version: {text}")))?,
            matching,
        ) {
            (None, _) => Freshness::MostRecent.into(),
            (Some(0), _) => Freshness::Any.into(),
            (Some(revision), "Exact") => ListState::Exactly(Revision(revision)),
            (Some(revision), "") if limit > 0 => ListState::Exactly(Revision(revision)),
            (Some(revision), _) => Freshness::NotOlderThan(Revision(revision)).into(),
        };
        Ok(Self {
            start: ListStart::State(state),
            limit,
        })
    }
}

/// Checks the `resourceVersionMatch` of a list against its other parameters.
fn check_list_match(matching: &str, version: &str, token: &str, causes: &mut Vec<StatusCause>) {
    if matching.is_empty() {
        return;
    }
    if version.is_empty() {
        causes.push(cause(
            "FieldValueForbidden",
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ));
    }
    if !token.is_empty() {
        causes.push(cause(
            "FieldValueForbidden",
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ));
    }
    match matching {
        "NotOlderThan" => {}
        "Exact" => {
            if version == "0" {
                causes.push(cause(
                    "FieldValueForbidden",
                    "resourceVersionMatch",
                    "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
        }
        other => causes.push(cause(
            "FieldValueNotSupported",
            "resourceVersionMatch",
            format!("Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""),
        )),
    }
}

/// Reads the options of get: how recent the object must be.
///
/// # Errors
/// 500 for a revision that does not parse (as the Go server responds), 400 for `export`.
pub fn get_freshness(query: &Query) -> Result<Freshness, ApiError> {
    if query.boolean("export") == Some(true) {
        return Err(ApiError::bad_request(
            "the export parameter, deprecated since v1.14, is no longer supported",
        ));
    }
    match parse_revision(query.first("resourceVersion").unwrap_or_default()) {
        Ok(None) => Ok(Freshness::MostRecent),
        Ok(Some(0)) => Ok(Freshness::Any),
        Ok(Some(revision)) => Ok(Freshness::NotOlderThan(Revision(revision))),
        Err(text) => Err(ApiError::unclassified(text)),
    }
}

/// A resourceVersion as a number; `None` when empty.
///
/// # Errors
/// The text of the field error, as the Go server spells it.
pub fn parse_revision(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ));
    }
    text.parse().map(Some).map_err(|_| {
        format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: value out of range")
    })
}

/// The options of watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchOptions {
    /// Where it begins.
    pub start: WatchStart,
    /// Whether the client wants bookmarks.
    pub bookmarks: bool,
    /// How long it lasts, in seconds; none = the server chooses. A negative value ends the watch at once.
    pub timeout_seconds: Option<i64>,
}

impl WatchOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// 422 for invalid combinations, 400 and 500 for numbers that do not parse.
    pub fn parse(query: &Query) -> Result<Self, ApiError> {
        let version = query.first("resourceVersion").unwrap_or_default();
        let matching = query.first("resourceVersionMatch").unwrap_or_default();
        let token = query.first("continue").unwrap_or_default();
        let send_initial_events = query.boolean("sendInitialEvents");
        let bookmarks = query.boolean("allowWatchBookmarks") == Some(true);
        let timeout_seconds = query.integer("timeoutSeconds")?;
        query.integer("limit")?;

        let mut causes = Vec::new();
        let forbidden = |text: &str| {
            cause(
                "FieldValueForbidden",
                "resourceVersionMatch",
                format!("Forbidden: {text}"),
            )
        };
        let implicit = matches!(version, "" | "0") && send_initial_events.is_none() && matching.is_empty();
        if send_initial_events.is_some() && matching != "NotOlderThan" {
            causes.push(forbidden(
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if send_initial_events.is_none() && !matching.is_empty() {
            causes.push(forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if !matches!(matching, "" | "NotOlderThan") {
            causes.push(cause(
                "FieldValueNotSupported",
                "resourceVersionMatch",
                format!("Unsupported value: {matching:?}: supported values: \"NotOlderThan\""),
            ));
        }
        if !token.is_empty() && (implicit || !matching.is_empty()) {
            causes.push(forbidden(
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if !causes.is_empty() {
            return Err(invalid("ListOptions", causes));
        }

        let revision = parse_revision(version).map_err(ApiError::unclassified)?;
        let start = match (revision, send_initial_events) {
            (None, None | Some(true)) => WatchStart::InitialEvents(Freshness::MostRecent),
            (Some(0), None | Some(true)) => WatchStart::InitialEvents(Freshness::Any),
            (Some(revision), Some(true)) => {
                WatchStart::InitialEvents(Freshness::NotOlderThan(Revision(revision)))
            }
            (None | Some(0), Some(false)) => WatchStart::Now,
            (Some(revision), _) => WatchStart::After(Revision(revision)),
        };
        Ok(Self {
            start,
            bookmarks,
            timeout_seconds,
        })
    }
}
