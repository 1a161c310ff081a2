//! Writing the status of an EvictionRequest requires more than RBAC on `evictionrequests/status`, which every interceptor has.
//!
//! The model is the `signers` rights of certificates:
//!
//! - what interceptor X reports (start, heartbeats, expected finish), and the cancellation policy while X is active: the verb
//!   `intercept` on `evictioninterceptors` with X as the resource name, `/` written as `.`;
//! - everything that decides about the request (order, turns, activation, `Evicted`, `Canceled`, `Blocked`, counters): the
//!   verb `coordinate` on `evictionrequests`;
//! - message and completion of X, by which a coordinator also ends the turn of a silent interceptor, and conditions of other
//!   types: either of the two.
//!
//! Only what changes is reviewed.

use std::collections::{BTreeMap, BTreeSet};

use drydock_machinery::field_error::quoted;
use drydock_proto::kinds::evictionrequest::{CANCELED, EVICTED, EvictionRequestStatus, InterceptorStatus};
use drydock_proto::kinds::{GROUP, evictioninterceptor, evictionrequest};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize as _;
use serde_json::Value;

use super::rule::{Access, Right, Rule};
use crate::authorization::Decision;
use crate::error::ApiError;
use crate::registry::admission::WriteAttributes;
use crate::registry::part::Part;

/// The types of condition that decide about a request.
const DECIDING: [&str; 3] = [EVICTED, CANCELED, "Blocked"];

pub(super) struct StatusAccess {
    pub(super) access: Access,
}

/// The rights that a change of a status requires.
#[derive(Debug, Default, PartialEq, Eq)]
struct Required<'a> {
    coordinate: bool,
    /// The interceptors for each of which `intercept` is required.
    intercept: BTreeSet<&'a str>,
    /// The interceptors for each of which `intercept` or else `coordinate` is required.
    either: BTreeSet<&'a str>,
    /// Whether `coordinate` or else `intercept` for any interceptor of the request is required.
    any: bool,
}

fn status(object: Option<&Value>) -> Option<EvictionRequestStatus> {
    match object?.get("status") {
        None | Some(Value::Null) => Some(EvictionRequestStatus::default()),
        Some(status) => EvictionRequestStatus::deserialize(status).ok(),
    }
}

impl<'a> Required<'a> {
    fn of(new: &'a EvictionRequestStatus, old: &'a EvictionRequestStatus) -> Self {
        let mut required = Self::default();
        required.entries(&new.interceptors, &old.interceptors);
        required.conditions(&new.conditions, &old.conditions);
        if new.eviction_request_cancellation_policy != old.eviction_request_cancellation_policy {
            match old.active_interceptors.first() {
                Some(active) => drop(required.intercept.insert(active)),
                None => required.coordinate = true,
            }
        }
        let rest = |status: &EvictionRequestStatus| EvictionRequestStatus {
            interceptors: Vec::new(),
            conditions: Vec::new(),
            eviction_request_cancellation_policy: None,
            ..status.clone()
        };
        required.coordinate |= rest(new) != rest(old);
        required
    }

    fn entries(&mut self, new: &'a [InterceptorStatus], old: &'a [InterceptorStatus]) {
        let before: BTreeMap<&str, &InterceptorStatus> =
            old.iter().map(|entry| (entry.name.as_str(), entry)).collect();
        // Entries are added, removed and ordered with those of targetInterceptors.
        self.coordinate |= !new
            .iter()
            .map(|entry| &entry.name)
            .eq(old.iter().map(|entry| &entry.name));
        let none = InterceptorStatus::default();
        for entry in new {
            let before = before.get(entry.name.as_str()).copied().unwrap_or(&none);
            self.coordinate |= entry.activation_time != before.activation_time;
            if entry.message != before.message || entry.completion_time != before.completion_time {
                self.either.insert(&entry.name);
            }
            let reported = InterceptorStatus {
                name: entry.name.clone(),
                activation_time: entry.activation_time.clone(),
                message: entry.message.clone(),
                completion_time: entry.completion_time.clone(),
                ..before.clone()
            };
            if *entry != reported {
                self.intercept.insert(&entry.name);
            }
        }
    }

    fn conditions(&mut self, new: &[Condition], old: &[Condition]) {
        let (new, old) = (by_type(new), by_type(old));
        for type_ in new.keys().chain(old.keys()) {
            if new.get(type_) != old.get(type_) {
                let decides = DECIDING.contains(type_);
                self.coordinate |= decides;
                self.any |= !decides;
            }
        }
    }
}

fn by_type(conditions: &[Condition]) -> BTreeMap<&str, &Condition> {
    conditions
        .iter()
        .map(|condition| (condition.type_.as_str(), condition))
        .collect()
}

impl StatusAccess {
    async fn check(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        let applies = write.resource.group == GROUP && write.resource.plural == evictionrequest::KIND.plural;
        if !applies || write.part != Part::Status {
            return Ok(());
        }
        // A status that cannot be read, which validation rejects, would be changed as a whole.
        let (Some(new), Some(old)) = (status(write.object), status(write.old)) else {
            return self.require_coordinate(write).await;
        };
        let required = Required::of(&new, &old);
        for name in &required.intercept {
            self.require_intercept(write, name).await?;
        }
        if required.coordinate {
            return self.require_coordinate(write).await;
        }
        let others: Vec<&str> = required.either.difference(&required.intercept).copied().collect();
        for name in others {
            if !self.may_intercept(write, name).await? && !self.may_coordinate(write).await? {
                return Err(intercept(write, &resource_name(name)).missing(write, &about(name)));
            }
        }
        let has_one = !required.intercept.is_empty() || !required.either.is_empty();
        if !required.any || has_one || self.may_coordinate(write).await? {
            return Ok(());
        }
        for target in &old.target_interceptors {
            if self.may_intercept(write, &target.name).await? {
                return Ok(());
            }
        }
        self.require_coordinate(write).await
    }

    async fn may_coordinate(&self, write: &WriteAttributes<'_>) -> Result<bool, ApiError> {
        let decision = self.access.decide_all_or_one(write, coordinate(write)).await?;
        Ok(decision == Decision::Allow)
    }

    async fn may_intercept(&self, write: &WriteAttributes<'_>, name: &str) -> Result<bool, ApiError> {
        let name = resource_name(name);
        let right = intercept(write, &name);
        Ok(self.access.decide(write, right).await? == Decision::Allow)
    }

    async fn require_coordinate(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        let right = coordinate(write);
        match self.access.decide_all_or_one(write, right).await? {
            Decision::Allow => Ok(()),
            Decision::Forbid(reason) => Err(right.missing(write, &reason)),
        }
    }

    async fn require_intercept(&self, write: &WriteAttributes<'_>, name: &str) -> Result<(), ApiError> {
        if self.may_intercept(write, name).await? {
            return Ok(());
        }
        Err(intercept(write, &resource_name(name)).missing(write, &about(name)))
    }
}

fn coordinate<'a>(write: &WriteAttributes<'a>) -> Right<'a> {
    Right {
        verb: "coordinate",
        group: GROUP,
        version: write.resource.storage_face().version,
        resource: evictionrequest::KIND.plural,
        namespace: write.namespace,
        name: write.name,
    }
}

fn intercept<'a>(write: &WriteAttributes<'a>, name: &'a str) -> Right<'a> {
    Right {
        verb: "intercept",
        group: GROUP,
        version: write.resource.storage_face().version,
        resource: evictioninterceptor::KIND.plural,
        namespace: "",
        name,
    }
}

/// The name of an interceptor as a resource name, which cannot contain slashes.
fn resource_name(interceptor: &str) -> String {
    interceptor.replace('/', ".")
}

fn about(interceptor: &str) -> String {
    format!("interceptor {}", quoted(interceptor))
}

impl Rule for StatusAccess {
    fn admit<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.check(write).boxed()
    }
}
