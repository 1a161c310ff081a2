//! Which changes of a node maintenance are allowed, given the old and the new object. The stage only moves forward. The
//! node selector is immutable once the stage is no longer Idle, and the drain plan always.

use std::collections::BTreeSet;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath, quoted};
use drydock_machinery::names::dns_subdomain_errors;
use drydock_proto::kinds::nodemaintenance::{
    Blocker, MAX_BLOCKER_MESSAGE_BYTES, MAX_BLOCKERS, MAX_CORDONED_BEFORE, NodeMaintenanceSpec,
    NodeMaintenanceStatus, Stage, StageStatus,
};
use serde_json::{Value, json};

use super::validation::{validate_selector, validate_stage};
use crate::registry::conditions::validate_conditions;
use crate::registry::numbers::negative_error;

const IMMUTABLE: &str = "field is immutable";

/// All errors of a change of the spec. Both drain plans are complete.
pub(super) fn validate_spec_change(
    new: &NodeMaintenanceSpec,
    old: &NodeMaintenanceSpec,
    new_plan: &[Value],
    old_plan: &[Value],
) -> ErrorList {
    let path = FieldPath::new("spec");
    let mut errors = ErrorList::new();
    if new.node_selector != old.node_selector {
        if old.stage != Stage::Idle {
            let detail = format!("may change only while the stage is Idle, and it is {}", old.stage);
            errors.push(FieldError::forbidden(&path.child("nodeSelector"), &detail));
        }
        errors.extend(validate_selector(new));
    }
    errors.extend(stage_error(&new.stage, &old.stage, &path.child("stage")));
    if new_plan != old_plan {
        errors.push(FieldError::invalid(
            &path.child("drainPlan"),
            new_plan.to_vec(),
            IMMUTABLE,
        ));
    }
    errors
}

fn stage_error(new: &Stage, old: &Stage, path: &FieldPath) -> Option<FieldError> {
    if new == old {
        return None;
    }
    validate_stage(new).or_else(|| {
        (new.rank() < old.rank())
            .then(|| FieldError::invalid(path, new.as_str(), &format!("must not go back from {old}")))
    })
}

/// All errors of a change of the status.
pub(super) fn validate_status_change(new: &NodeMaintenanceStatus, old: &NodeMaintenanceStatus) -> ErrorList {
    let path = FieldPath::new("status");
    let mut errors = stage_status_errors(
        &new.stage_statuses,
        &old.stage_statuses,
        &path.child("stageStatuses"),
    );
    if let Some(drain) = &new.drain_status {
        let path = path.child("drainStatus");
        errors.extend(negative_error(
            &path.child("podsPendingEvictionRequest"),
            drain.pods_pending_eviction_request,
        ));
        errors.extend(negative_error(
            &path.child("activeEvictionRequests"),
            drain.active_eviction_requests,
        ));
    }
    for (index, node) in new.node_statuses.iter().enumerate() {
        if errors.is_full() {
            return errors;
        }
        let path = path.child("nodeStatuses").index(index);
        if node.node_ref.name.is_empty() {
            errors.push(FieldError::required(&path.child("nodeRef").child("name"), ""));
        }
        errors.extend(negative_error(
            &path.child("podsPendingEvictionRequest"),
            node.pods_pending_eviction_request,
        ));
        errors.extend(negative_error(
            &path.child("activeEvictionRequests"),
            node.active_eviction_requests,
        ));
    }
    errors.extend(negative_error(
        &path.child("selectedNodes"),
        new.selected_nodes.unwrap_or_default(),
    ));
    errors.extend(negative_error(
        &path.child("drainedNodes"),
        new.drained_nodes.unwrap_or_default(),
    ));
    errors.extend(cordoned_before_errors(
        &new.cordoned_before,
        &path.child("cordonedBefore"),
    ));
    errors.extend(blocker_errors(&new.blockers, &path.child("blockers")));
    errors.extend(validate_conditions(&new.conditions, &path.child("conditions")));
    errors
}

/// Stages that have started stay in the list, and their start time is immutable.
fn stage_status_errors(new: &[StageStatus], old: &[StageStatus], path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen = BTreeSet::new();
    for (index, stage) in new.iter().enumerate() {
        if errors.is_full() {
            return errors;
        }
        let path = path.index(index);
        if let Stage::Other(other) = &stage.name {
            errors.push(FieldError::not_supported(
                &path.child("name"),
                other.as_str(),
                Stage::KNOWN,
            ));
        }
        if !seen.insert(stage.name.as_str()) {
            errors.push(FieldError::duplicate(&path.child("name"), stage.name.as_str()));
        }
        let before = old.iter().find(|before| before.name == stage.name);
        let started = before.and_then(|before| before.start_timestamp.as_ref());
        if started.is_some() && stage.start_timestamp.as_ref() != started {
            errors.push(FieldError::invalid(
                &path.child("startTimestamp"),
                json!(stage.start_timestamp),
                IMMUTABLE,
            ));
        }
    }
    for removed in old.iter().filter(|before| !seen.contains(before.name.as_str())) {
        let detail = format!(
            "must keep the stage {}, which has started",
            quoted(removed.name.as_str())
        );
        errors.push(FieldError::required(path, &detail));
    }
    errors
}

/// A set of node names.
fn cordoned_before_errors(nodes: &[String], path: &FieldPath) -> ErrorList {
    if nodes.len() > MAX_CORDONED_BEFORE {
        return FieldError::too_many(path, nodes.len(), MAX_CORDONED_BEFORE).into();
    }
    let mut errors = ErrorList::new();
    let mut seen = BTreeSet::new();
    for (index, node) in nodes.iter().enumerate() {
        let path = path.index(index);
        if !seen.insert(node) {
            errors.push(FieldError::duplicate(&path, node.as_str()));
        }
        for detail in dns_subdomain_errors(node) {
            errors.push(FieldError::invalid(&path, node.as_str(), &detail));
        }
    }
    errors
}

fn blocker_errors(blockers: &[Blocker], path: &FieldPath) -> ErrorList {
    if blockers.len() > MAX_BLOCKERS {
        return FieldError::too_many(path, blockers.len(), MAX_BLOCKERS).into();
    }
    let mut errors = ErrorList::new();
    for (index, blocker) in blockers.iter().enumerate() {
        let path = path.index(index);
        if blocker.reason.is_empty() {
            errors.push(FieldError::required(&path.child("reason"), ""));
        }
        if blocker.message.len() > MAX_BLOCKER_MESSAGE_BYTES {
            errors.push(FieldError::too_long(
                &path.child("message"),
                MAX_BLOCKER_MESSAGE_BYTES,
            ));
        }
        if blocker.since.is_none() {
            errors.push(FieldError::required(&path.child("since"), ""));
        }
    }
    errors
}
