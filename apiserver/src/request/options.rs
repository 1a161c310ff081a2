//! What do the query parameters and the body of a request ask of a verb? One type a verb, checked once.

use drydock_machinery::codec::FieldValidation;
use drydock_machinery::field_error::FieldPath;
use drydock_machinery::object_meta;
use drydock_storage::Revision;
use serde::Deserialize;

use super::Query;
use crate::cache::{Freshness, ListState, WatchStart};
use crate::error::{ApiError, GroupResource, StatusCause};

const GROUP: &str = "meta.k8s.io";

fn invalid(kind: &'static str, causes: Vec<StatusCause>) -> ApiError {
    ApiError::invalid(
        GroupResource {
            group: GROUP,
            resource: kind,
        },
        "",
        causes,
    )
}

fn cause(reason: &'static str, field: &str, message: impl Into<String>) -> StatusCause {
    StatusCause {
        reason: reason.into(),
        message: message.into(),
        field: field.to_owned(),
    }
}

fn check_dry_run<'a>(values: impl Iterator<Item = &'a str>, causes: &mut Vec<StatusCause>) -> bool {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|value| *value != "All") {
        let shown = serde_json::to_string(&values).unwrap_or_default();
        causes.push(cause(
            "FieldValueNotSupported",
            "dryRun",
            format!("Unsupported value: {shown}: supported values: \"All\""),
        ));
    }
    !values.is_empty()
}

/// The options of create, update and patch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Everything is checked, nothing is stored.
    pub dry_run: bool,
    /// Who owns the written fields; none = derived from the User-Agent.
    pub field_manager: Option<String>,
    /// See [`FieldValidation`].
    pub field_validation: FieldValidation,
}

impl WriteOptions {
    /// Reads the options; `kind` names them in errors: `CreateOptions`, `UpdateOptions`, `PatchOptions`.
    ///
    /// # Errors
    /// 422 with a cause for each parameter that has no meaning.
    pub fn parse(kind: &'static str, query: &Query) -> Result<Self, ApiError> {
        let mut causes = Vec::new();
        let dry_run = check_dry_run(query.all("dryRun"), &mut causes);
        let field_manager = query
            .first("fieldManager")
            .filter(|manager| !manager.is_empty())
            .map(str::to_owned);
        if let Some(manager) = &field_manager {
            check_field_manager(manager, &mut causes);
        }
        let validation = query.first("fieldValidation").unwrap_or_default();
        let field_validation = FieldValidation::parse(validation).unwrap_or_else(|| {
            let supported = FieldValidation::SUPPORTED
                .map(|name| format!("{name:?}"))
                .join(", ");
            causes.push(cause(
                "FieldValueNotSupported",
                "fieldValidation",
                format!("Unsupported value: {validation:?}: supported values: {supported}"),
            ));
            FieldValidation::default()
        });
        if kind == "PatchOptions" && query.has("force") {
            causes.push(cause(
                "FieldValueForbidden",
                "force",
                "Forbidden: may not be specified for non-apply patch",
            ));
        }
        if causes.is_empty() {
            Ok(Self {
                dry_run,
                field_manager,
                field_validation,
            })
        } else {
            Err(invalid(kind, causes))
        }
    }
}

fn check_field_manager(manager: &str, causes: &mut Vec<StatusCause>) {
    for fault in &object_meta::validate_field_manager(manager, &FieldPath::new("fieldManager")) {
        causes.push(cause(fault.reason(), fault.field(), fault.body()));
    }
}

/// What becomes of dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// Dependents go afterwards.
    Background,
    /// Dependents go first.
    Foreground,
    /// Dependents stay.
    Orphan,
}

/// What must be true of the object that is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    /// Its uid.
    pub uid: Option<String>,
    /// Its resourceVersion.
    pub resource_version: Option<String>,
}

/// The options of delete and deletecollection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Everything is checked, nothing is removed.
    pub dry_run: bool,
    /// What becomes of dependents; none = the finalizers on the object decide.
    pub propagation: Option<Propagation>,
    /// Whether the old spelling `orphanDependents: false` was used: it changes the code of the answer.
    pub explicitly_not_orphaned: bool,
    /// What must be true of the object.
    pub preconditions: Preconditions,
    /// Time for a graceful end, in seconds; kinds without one ignore it.
    pub grace_period_seconds: Option<i64>,
    /// The object is removed because its stored value cannot be read, and only then: without a look at finalizers,
    /// and with nothing else said. Needs a right of its own, and breaks whatever depends on the object.
    pub unsafe_delete: bool,
}

/// The option that asks for [`DeleteOptions::unsafe_delete`].
pub const UNSAFE_DELETE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// `DeleteOptions` on the wire.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeleteOptionsBody {
    kind: Option<String>,
    api_version: Option<String>,
    dry_run: Option<Vec<String>>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    preconditions: Option<Preconditions>,
    grace_period_seconds: Option<i64>,
    ignore_store_read_error_with_cluster_breaking_potential: Option<bool>,
}

impl DeleteOptions {
    /// Reads the options from the body when there is one, else from the query: never merged. `group_version` is that
    /// of the URL, in which clients may also write the options.
    ///
    /// # Errors
    /// 400 for a body that is no `DeleteOptions`, 422 for values that have no meaning.
    pub fn parse(
        query: &Query,
        body: Option<serde_json::Value>,
        group_version: &str,
    ) -> Result<Self, ApiError> {
        let body = match body {
            Some(value) => {
                serde_json::from_value(value).map_err(|error| ApiError::bad_request(error.to_string()))?
            }
            None => DeleteOptionsBody {
                dry_run: query
                    .has("dryRun")
                    .then(|| query.all("dryRun").map(str::to_owned).collect()),
                propagation_policy: query.first("propagationPolicy").map(str::to_owned),
                orphan_dependents: query.boolean("orphanDependents"),
                grace_period_seconds: query.integer("gracePeriodSeconds")?,
                ignore_store_read_error_with_cluster_breaking_potential: query.boolean(UNSAFE_DELETE),
                ..DeleteOptionsBody::default()
            },
        };
        Self::check(body, group_version)
    }

    fn check(body: DeleteOptionsBody, group_version: &str) -> Result<Self, ApiError> {
        let kind = body.kind.as_deref().unwrap_or_default();
        let version = body.api_version.as_deref().unwrap_or_default();
        let is_known_version = ["", "v1", "meta.k8s.io/v1", group_version].contains(&version);
        if !matches!(kind, "" | "DeleteOptions") || !is_known_version {
            return Err(ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type DeleteOptions): {kind:?} in version {version:?}"
            )));
        }
        let mut causes = Vec::new();
        let dry_run = check_dry_run(body.dry_run.iter().flatten().map(String::as_str), &mut causes);
        if body.propagation_policy.is_some() && body.orphan_dependents.is_some() {
            causes.push(cause(
                "FieldValueInvalid",
                "propagationPolicy",
                format!(
                    "Invalid value: {:?}: orphanDependents and deletionPropagation cannot be both set",
                    body.propagation_policy.as_deref().unwrap_or_default()
                ),
            ));
        }
        let unsafe_delete = body.ignore_store_read_error_with_cluster_breaking_potential == Some(true);
        if unsafe_delete {
            for (is_set, other) in [
                (
                    body.dry_run.as_ref().is_some_and(|values| !values.is_empty()),
                    "dryRun",
                ),
                (body.propagation_policy.is_some(), "propagationPolicy"),
                (body.orphan_dependents.is_some(), "orphanDependents"),
                (body.grace_period_seconds.is_some(), "gracePeriodSeconds"),
                (body.preconditions.is_some(), "preconditions"),
            ] {
                if is_set {
                    let why = format!("Invalid value: true: cannot be set together with .{other}");
                    causes.push(cause("FieldValueInvalid", UNSAFE_DELETE, why));
                }
            }
        }
        let propagation = match (body.propagation_policy.as_deref(), body.orphan_dependents) {
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), _) => {
                causes.push(cause(
                    "FieldValueNotSupported",
                    "propagationPolicy",
                    format!(
                        "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                    ),
                ));
                None
            }
        };
        if !causes.is_empty() {
            return Err(invalid("DeleteOptions", causes));
        }
        Ok(Self {
            dry_run,
            propagation,
            explicitly_not_orphaned: body.orphan_dependents == Some(false),
            preconditions: body.preconditions.unwrap_or_default(),
            grace_period_seconds: body.grace_period_seconds,
            unsafe_delete,
        })
    }

    /// Whether these options may be those of a deletecollection.
    ///
    /// # Errors
    /// 422 for the unsafe delete: damaged objects are removed one by one.
    pub fn check_for_collection(&self) -> Result<(), ApiError> {
        if !self.unsafe_delete {
            return Ok(());
        }
        let why =
            "Invalid value: true: is not allowed with DELETECOLLECTION, try again after removing the option";
        Err(invalid(
            "DeleteOptions",
            vec![cause("FieldValueInvalid", UNSAFE_DELETE, why)],
        ))
    }
}

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
    /// At most so many objects; 0 = all.
    pub limit: usize,
}

impl ListOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// 422 for combinations without a meaning, 400 for numbers that are none.
    pub fn parse(query: &Query) -> Result<Self, ApiError> {
        let version = query.first("resourceVersion").unwrap_or_default();
        let matching = query.first("resourceVersionMatch").unwrap_or_default();
        let token = query.first("continue").unwrap_or_default();
        let limit = usize::try_from(query.integer("limit")?.unwrap_or(0)).unwrap_or(0);
        // Means nothing here, and must be a number nevertheless.
        query.integer("timeoutSeconds")?;

        let mut causes = Vec::new();
        if !matching.is_empty() {
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
                    format!(
                        "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
                    ),
                )),
            }
        }
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

/// Reads the options of get: how recent the object must be.
///
/// # Errors
/// 500 for a revision that is none (as the Go server answers), 400 for `export`.
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
    /// Whether progress marks are wanted.
    pub bookmarks: bool,
    /// How long it lasts, in seconds; none = the server chooses; 0 or negative values of the client are kept apart:
    /// a negative one ends at once.
    pub timeout_seconds: Option<i64>,
}

impl WatchOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// 422 for combinations without a meaning, 400 and 500 for numbers that are none.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn causes<T: std::fmt::Debug>(parsed: Result<T, ApiError>) -> Vec<(String, String)> {
        let details = parsed.unwrap_err().status().details.clone().unwrap();
        details
            .causes
            .into_iter()
            .map(|cause| (cause.field, cause.message))
            .collect()
    }

    #[test]
    fn list_states_follow_version_match_and_limit() {
        let newest = |freshness: Freshness| ListStart::State(freshness.into());
        let not_older_than_7 = || newest(Freshness::NotOlderThan(Revision(7)));
        let exactly_7 = || ListStart::State(ListState::Exactly(Revision(7)));
        let token = || ListStart::Token("abc".to_owned());
        for (query, start) in [
            ("", newest(Freshness::MostRecent)),
            ("resourceVersion=0", newest(Freshness::Any)),
            (
                "resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=5",
                newest(Freshness::Any),
            ),
            ("resourceVersion=7", not_older_than_7()),
            ("resourceVersion=7&limit=2", exactly_7()),
            ("resourceVersion=7&resourceVersionMatch=Exact", exactly_7()),
            (
                "resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=2",
                not_older_than_7(),
            ),
            ("continue=abc", token()),
            ("continue=abc&resourceVersion=0", token()),
        ] {
            let parsed = ListOptions::parse(&Query::parse(query)).unwrap();
            assert_eq!(parsed.start, start, "{query}");
        }
    }

    #[test]
    fn list_combinations_without_a_meaning_are_refused() {
        for (query, text) in [
            ("resourceVersionMatch=Exact", "unless resourceVersion is provided"),
            (
                "resourceVersionMatch=Exact&resourceVersion=0",
                "is forbidden for resourceVersion \"0\"",
            ),
            (
                "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=a",
                "when continue is provided",
            ),
            (
                "resourceVersionMatch=Foo&resourceVersion=1",
                "supported values: \"Exact\", \"NotOlderThan\", \"\"",
            ),
            (
                "sendInitialEvents=false",
                "sendInitialEvents is forbidden for list",
            ),
        ] {
            let found = causes(ListOptions::parse(&Query::parse(query)));
            assert!(
                found.iter().any(|(_, message)| message.contains(text)),
                "{query}: {found:?}"
            );
        }
        for query in [
            "resourceVersion=abc",
            "limit=abc",
            "timeoutSeconds=abc",
            "continue=x&resourceVersion=5",
            "resourceVersion=-1",
        ] {
            assert_eq!(
                ListOptions::parse(&Query::parse(query)).unwrap_err().code(),
                400,
                "{query}"
            );
        }
    }

    #[test]
    fn watches_without_a_version_send_initial_events() {
        let initial = WatchStart::InitialEvents;
        for (query, start) in [
            ("", initial(Freshness::MostRecent)),
            ("resourceVersion=0", initial(Freshness::Any)),
            ("resourceVersion=9", WatchStart::After(Revision(9))),
            (
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
                initial(Freshness::MostRecent),
            ),
            (
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=9",
                initial(Freshness::NotOlderThan(Revision(9))),
            ),
            (
                "sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
                WatchStart::Now,
            ),
            (
                "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=4",
                WatchStart::After(Revision(4)),
            ),
        ] {
            assert_eq!(
                WatchOptions::parse(&Query::parse(query)).unwrap().start,
                start,
                "{query}"
            );
        }
    }

    #[test]
    fn watch_combinations_without_a_meaning_are_refused() {
        for (query, count) in [
            ("sendInitialEvents=true", 1),
            ("sendInitialEvents=false", 1),
            ("resourceVersionMatch=NotOlderThan", 1),
            ("sendInitialEvents=true&resourceVersionMatch=Exact", 2),
            ("continue=a", 1),
        ] {
            assert_eq!(
                causes(WatchOptions::parse(&Query::parse(query))).len(),
                count,
                "{query}"
            );
        }
    }

    #[test]
    fn delete_options_come_from_the_body_or_the_query() {
        let body =
            serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"});
        let query = Query::parse("propagationPolicy=Foreground&dryRun=All");
        let parsed = DeleteOptions::parse(&query, Some(body), "g/v").unwrap();
        assert_eq!(
            (parsed.propagation, parsed.dry_run),
            (Some(Propagation::Orphan), false)
        );
        let parsed = DeleteOptions::parse(&query, None, "g/v").unwrap();
        assert_eq!(
            (parsed.propagation, parsed.dry_run),
            (Some(Propagation::Foreground), true)
        );
    }

    #[test]
    fn delete_options_without_a_meaning_are_refused() {
        for (query, text) in [
            (
                "propagationPolicy=Later",
                "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
            ),
            (
                "propagationPolicy=Orphan&orphanDependents=true",
                "cannot be both set",
            ),
            (
                "dryRun=Some",
                "Unsupported value: [\"Some\"]: supported values: \"All\"",
            ),
        ] {
            let found = causes(DeleteOptions::parse(&Query::parse(query), None, "g/v"));
            assert!(
                found.iter().any(|(_, message)| message.contains(text)),
                "{query}: {found:?}"
            );
        }
        for (other, value) in [
            ("dryRun", serde_json::json!(["All"])),
            ("propagationPolicy", "Background".into()),
            ("orphanDependents", false.into()),
            ("gracePeriodSeconds", 0.into()),
            ("preconditions", serde_json::json!({})),
        ] {
            let body = serde_json::json!({UNSAFE_DELETE: true, other: value});
            let found = causes(DeleteOptions::parse(&Query::default(), Some(body), "g/v"));
            let why = format!("Invalid value: true: cannot be set together with .{other}");
            assert_eq!(found, [(UNSAFE_DELETE.to_owned(), why)]);
        }
        let alone = Query::parse(&format!("{UNSAFE_DELETE}=true"));
        let alone = DeleteOptions::parse(&alone, None, "g/v").unwrap();
        assert!(alone.unsafe_delete && alone.check_for_collection().is_err());
        assert!(DeleteOptions::default().check_for_collection().is_ok());
        let foreign = serde_json::json!({"kind": "Pod", "apiVersion": "v1"});
        assert_eq!(
            DeleteOptions::parse(&Query::default(), Some(foreign), "g/v")
                .unwrap_err()
                .code(),
            400
        );
    }

    #[test]
    fn write_options_are_checked() {
        for (kind, query, text) in [
            (
                "CreateOptions",
                "dryRun=Foo".to_owned(),
                "Unsupported value: [\"Foo\"]",
            ),
            (
                "CreateOptions",
                "fieldValidation=Foo".to_owned(),
                "\"\", \"Ignore\", \"Strict\", \"Warn\"",
            ),
            (
                "UpdateOptions",
                format!("fieldManager={}", "x".repeat(129)),
                "may not be more than 128 bytes",
            ),
            (
                "UpdateOptions",
                "fieldManager=%C3%A4%0A".to_owned(),
                "invalid character U+000A (at position 2)",
            ),
            (
                "PatchOptions",
                "force=false".to_owned(),
                "may not be specified for non-apply patch",
            ),
        ] {
            let found = causes(WriteOptions::parse(kind, &Query::parse(&query)));
            assert!(
                found.iter().any(|(_, message)| message.contains(text)),
                "{query}: {found:?}"
            );
        }
    }
}
