//! The columns of `kubectl get evictionrequests`.

use drydock_machinery::table::{Cell, Column, ColumnType, age_of, name_of, time_until};
use drydock_proto::kinds::evictionrequest::evacuation::INSTIGATOR_PREFIX;
use drydock_proto::kinds::evictionrequest::v1alpha1::COMPLETE;
use drydock_proto::kinds::evictionrequest::{
    BLOCKED, CANCELED, EVICTED, EvictionRequestStatus, IMPERATIVE_EVICTION, INTERCEPTOR_SILENT,
    InterceptorStatus,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use crate::registry::conditions::is_true;
use crate::registry::face::Table;
use crate::registry::view::{part, text};

/// How long after its activation an interceptor may send no heartbeat before it is shown as unresponsive.
const UNRESPONSIVE_AFTER: SignedDuration = SignedDuration::from_mins(2);

pub(super) const V1ALPHA3: Table = Table {
    columns: &COLUMNS,
    cells,
};

pub(super) const V1ALPHA1: Table = Table {
    columns: &[
        Column::NAME,
        POD,
        ACTIVE,
        Column::new(
            "Completed",
            ColumnType::Boolean,
            "Whether the active interceptor has finished.",
        ),
        Column::new("Complete", ColumnType::String, "Why the request has ended."),
        REQUESTERS,
        RETRIES,
        ETA,
        Column::AGE,
        UID,
        MESSAGE,
    ],
    cells: |object, now| {
        let status = |member: &str| object.get("status").and_then(|status| status.get(member));
        let string = |member: &str| json!(status(member).and_then(Value::as_str).unwrap_or_default());
        let requesters = object.pointer("/spec/requesters").and_then(Value::as_array);
        let retries = object.pointer("/status/podEvictionStatus/failedAPIEvictionCounter");
        vec![
            name_of(object),
            json!(text(object, "/spec/target/podRef/name")),
            string("activeInterceptorName"),
            json!(status("activeInterceptorCompleted") == Some(&json!(true))),
            json!(reason(object, &[COMPLETE])),
            json!(requesters.map_or(0, Vec::len)),
            retries.cloned().unwrap_or_else(|| json!(0)),
            json!(time_to(status("expectedInterceptorFinishTime"), now)),
            age_of(object, now),
            json!(text(object, "/spec/target/podRef/uid")),
            string("message"),
        ]
    },
};

pub(super) const EVACUATION: Table = Table {
    columns: &[
        Column::NAME,
        POD,
        Column::new("Active", ColumnType::String, "The active evacuator."),
        Column::new(
            "Completed",
            ColumnType::Boolean,
            "Whether the active evacuator has finished.",
        ),
        Column::new("Complete", ColumnType::String, "Why the evacuation has ended."),
        Column::new("Instigators", ColumnType::Integer, "The number of instigators."),
        RETRIES,
        ETA,
        Column::AGE,
        MESSAGE,
    ],
    cells: |object, now| {
        let status = |member: &str| object.get("status").and_then(|status| status.get(member));
        let string = |member: &str| json!(status(member).and_then(Value::as_str).unwrap_or_default());
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let instigators = finalizers.into_iter().flatten().filter_map(Value::as_str);
        vec![
            name_of(object),
            json!(text(object, "/spec/podRef/name")),
            string("activeEvacuatorClass"),
            json!(status("activeEvacuatorCompleted") == Some(&json!(true))),
            json!(reason(object, &[EVICTED, CANCELED])),
            json!(
                instigators
                    .filter(|name| name.starts_with(INSTIGATOR_PREFIX))
                    .count()
            ),
            status("failedEvictionCounter")
                .cloned()
                .unwrap_or_else(|| json!(0)),
            json!(time_to(status("expectedEvacuationFinishTime"), now)),
            age_of(object, now),
            string("message"),
        ]
    },
};

/// The reason of the first of these conditions that is True; empty if there is none.
fn reason<'a>(object: &'a Value, types: &[&str]) -> &'a str {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let is_true = |condition: &&Value| {
        types.contains(&text(condition, "/type")) && text(condition, "/status") == "True"
    };
    let found = conditions.into_iter().flatten().find(is_true);
    found.map_or("", |condition| text(condition, "/reason"))
}

/// The time until an expected end. It stays at 0s when that time has passed.
fn time_to(expected: Option<&Value>, now: Timestamp) -> String {
    let expected = expected
        .and_then(Value::as_str)
        .and_then(|time| time.parse::<Timestamp>().ok());
    time_until(expected.map(|expected| expected.max(now)), now)
}

const POD: Column = Column::new("Pod", ColumnType::String, "The pod to evict.");
const ACTIVE: Column = Column::new("Active", ColumnType::String, "The active interceptor.");
const REQUESTERS: Column = Column::new("Requesters", ColumnType::Integer, "The number of requesters.");
const RETRIES: Column = Column::new(
    "Retries",
    ColumnType::Integer,
    "How many calls of the eviction API failed.",
);
const ETA: Column = Column::new(
    "ETA",
    ColumnType::String,
    "When the active interceptor expects to finish.",
);
const UID: Column = Column::new("UID", ColumnType::String, "The UID of the pod.").wide();
const MESSAGE: Column = Column::new(
    "Message",
    ColumnType::String,
    "The message of the outcome or of the interceptor.",
)
.wide();

pub(super) const COLUMNS: [Column; 10] = [
    Column::NAME,
    POD,
    ACTIVE,
    Column::new(
        "State",
        ColumnType::String,
        "Pending, Intercepted, Unresponsive, Evicting, Blocked, Evicted or Canceled.",
    ),
    REQUESTERS,
    RETRIES,
    ETA,
    Column::AGE,
    UID,
    MESSAGE,
];

pub(super) fn cells(object: &Value, now: Timestamp) -> Vec<Cell> {
    let status: EvictionRequestStatus = part(object, "status").unwrap_or_default();
    let active = status.active_interceptors.first().map_or("", String::as_str);
    let requesters = object
        .pointer("/spec/requesters")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    vec![
        name_of(object),
        json!(text(object, "/spec/target/pod/name")),
        json!(active),
        json!(state(&status, now).as_str()),
        json!(requesters),
        json!(retries(&status)),
        json!(expected_finish(&status, now)),
        age_of(object, now),
        json!(text(object, "/spec/target/pod/uid")),
        json!(message(&status)),
    ]
}

/// The value of the column State.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No interceptor is active yet.
    Pending,
    /// An interceptor is active.
    Intercepted,
    /// The active interceptor has sent no heartbeat for [`UNRESPONSIVE_AFTER`].
    Unresponsive,
    /// The pod's eviction API is called.
    Evicting,
    /// The condition Blocked is True: the pod cannot leave.
    Blocked,
    /// The condition Evicted is True: the pod does not exist any more.
    Evicted,
    /// The condition Canceled is True: no requester is left, or the request cannot be carried out.
    Canceled,
}

impl State {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Intercepted => "Intercepted",
            Self::Unresponsive => "Unresponsive",
            Self::Evicting => "Evicting",
            Self::Blocked => "Blocked",
            Self::Evicted => "Evicted",
            Self::Canceled => "Canceled",
        }
    }
}

fn state(status: &EvictionRequestStatus, now: Timestamp) -> State {
    if is_true(&status.conditions, EVICTED) {
        return State::Evicted;
    }
    if is_true(&status.conditions, CANCELED) {
        return State::Canceled;
    }
    if let Some(blocked) = true_condition(status, BLOCKED) {
        return if blocked.reason == INTERCEPTOR_SILENT {
            State::Unresponsive
        } else {
            State::Blocked
        };
    }
    match status.active_interceptors.first() {
        None => State::Pending,
        Some(active) if active == IMPERATIVE_EVICTION => State::Evicting,
        Some(_) if active_report(status).is_some_and(|report| is_unresponsive(report, now)) => {
            State::Unresponsive
        }
        Some(_) => State::Intercepted,
    }
}

/// Whether the interceptor has reported nothing for [`UNRESPONSIVE_AFTER`] since its activation.
fn is_unresponsive(report: &InterceptorStatus, now: Timestamp) -> bool {
    let has_reported = report.heartbeat_time.is_some() || report.completion_time.is_some();
    let activated = report.activation_time.as_ref();
    !has_reported && activated.is_some_and(|activated| now.duration_since(activated.0) > UNRESPONSIVE_AFTER)
}

fn active_report(status: &EvictionRequestStatus) -> Option<&InterceptorStatus> {
    let active = status.active_interceptors.first()?;
    status.interceptors.iter().find(|report| report.name == *active)
}

fn retries(status: &EvictionRequestStatus) -> i32 {
    status
        .pod_eviction_status
        .as_ref()
        .map_or(0, |status| status.failed_api_eviction_counter)
}

/// The time until the expected end. It stays at 0s when that time has passed.
fn expected_finish(status: &EvictionRequestStatus, now: Timestamp) -> String {
    let expected = active_report(status).and_then(|report| report.expected_finish_time.as_ref());
    time_until(expected.map(|expected| expected.0.max(now)), now)
}

fn true_condition<'a>(status: &'a EvictionRequestStatus, type_: &str) -> Option<&'a Condition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The message of the outcome, else of what blocks the pod, else of the active interceptor, else of the last processed
/// one.
fn message(status: &EvictionRequestStatus) -> &str {
    let condition = [EVICTED, CANCELED, BLOCKED]
        .into_iter()
        .find_map(|type_| true_condition(status, type_));
    if let Some(condition) = condition {
        return &condition.message;
    }
    let last = || {
        let name = status.processed_interceptors.last()?;
        status.interceptors.iter().find(|report| report.name == *name)
    };
    active_report(status)
        .or_else(last)
        .map_or("", |report| &report.message)
}
