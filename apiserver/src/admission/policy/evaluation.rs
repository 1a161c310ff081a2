//! The evaluation of expressions, on threads of their own, and the authorization checks that it asks for.

use std::sync::Arc;

use drydock_machinery::policy_expression::{
    AccessCheck, Composed, Decision, Decisions, Input, MATCH_CONDITIONS_BUDGET, POLICY_BUDGET, Program,
    Scope, Stop, Subject, Value as Cel, evaluating,
};

use super::PolicyContext;
use super::definition::ValidatingPrograms;
use super::lane::Lane;
use crate::authorization::{Decision as Authorization, field_requirements, label_requirements};
use crate::error::ApiError;
use crate::host::{AccessReview, Attributes as ReviewAttributes, ResourceAttributes};
use crate::request::UserInfo;

/// How many authorization checks the policies of one write may ask for.
const MAX_CHECKS: usize = 256;
/// The longest text that a `messageExpression` may make, in bytes.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// What the conditions of a policy or webhook say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Conditions {
    Met,
    NotMet,
    Failed(String),
}

/// What a policy says about a write.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// One for each validation, or a single failure of the whole policy.
    pub(super) validations: Vec<Finding>,
    pub(super) annotations: Vec<(String, Result<String, String>)>,
}

/// What a validation says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Passed,
    /// The message, and the reason if the validation has one.
    Denied(String, Option<String>),
    Failed(String),
}

/// Runs blocking work, which belongs to the policy with this lane, until it needs no more answers to authorization checks.
/// `decisions` keeps the answers. Waits without a thread until there is a place.
pub(super) async fn run<T: Send + 'static>(
    context: &PolicyContext,
    lane: &Lane,
    user: &Arc<UserInfo>,
    decisions: &mut Arc<Decisions>,
    work: impl Fn(&Decisions) -> Result<T, Box<AccessCheck>> + Send + Sync + 'static,
) -> Result<T, ApiError> {
    let work = Arc::new(work);
    loop {
        let (job, known) = (Arc::clone(&work), Arc::clone(decisions));
        // In this order: what waits for its own lane takes no place of others.
        let places = [lane.place().await, context.evaluations.place().await];
        let evaluation = move || {
            // Until the work ends: it goes on if the request is given up meanwhile.
            let _places = places;
            evaluating(move || job(&known))
        };
        let outcome = tokio::task::spawn_blocking(evaluation).await;
        let Ok(Some(outcome)) = outcome else {
            return Err(ApiError::internal("a policy could not be evaluated"));
        };
        let check = match outcome {
            Ok(value) => return Ok(value),
            Err(check) => check,
        };
        let decision = if decisions.len() < MAX_CHECKS {
            decide(context, user, &check).await
        } else {
            failed("too many authorization checks".to_owned())
        };
        Arc::make_mut(decisions).insert(*check, decision);
    }
}

fn failed(error: String) -> Decision {
    Decision {
        error: Some(error),
        ..Decision::default()
    }
}

/// Asks the host whether a user may do something.
async fn decide(context: &PolicyContext, user: &Arc<UserInfo>, check: &AccessCheck) -> Decision {
    let user = match &check.service_account {
        None => Arc::clone(user),
        Some((namespace, name)) => Arc::new(UserInfo {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            ..UserInfo::default()
        }),
    };
    let attributes = match &check.subject {
        Subject::Path(path) => ReviewAttributes::Path {
            verb: check.verb.clone(),
            path: path.clone(),
        },
        Subject::Resource(subject) => ReviewAttributes::Resource(ResourceAttributes {
            verb: check.verb.clone(),
            group: subject.group.clone(),
            version: "*".to_owned(),
            resource: subject.resource.clone(),
            subresource: subject.subresource.clone(),
            namespace: subject.namespace.clone(),
            name: subject.name.clone(),
            field_selector: field_requirements(&subject.field_selector),
            label_selector: label_requirements(&subject.label_selector),
        }),
    };
    match context
        .authorizer
        .decide(&AccessReview { user, attributes })
        .await
    {
        Ok(Authorization::Allow) => Decision {
            allowed: true,
            ..Decision::default()
        },
        Ok(Authorization::Forbid(reason)) => Decision {
            reason,
            ..Decision::default()
        },
        Err(error) => failed(error.to_string()),
    }
}

/// Evaluates conditions: one that is false decides, even if another one cannot be evaluated.
pub(super) fn conditions(
    programs: &[Program],
    composed: &[Composed],
    input: &Input,
    decisions: &Decisions,
) -> Result<Conditions, Box<AccessCheck>> {
    let mut scope = Scope::new(input, composed, decisions);
    let mut budget = MATCH_CONDITIONS_BUDGET;
    let mut errors: Vec<String> = Vec::new();
    for program in programs {
        match scope.evaluate(program, &mut budget) {
            Ok(Ok(Cel::Bool(false))) => return Ok(Conditions::NotMet),
            Ok(Ok(_)) => {}
            Ok(Err(error)) if errors.contains(&error) => {}
            Ok(Err(error)) => errors.push(error),
            Err(Stop::Undecided(check)) => return Err(check),
            Err(stop) => return Ok(Conditions::Failed(stop.to_string())),
        }
    }
    Ok(match errors.as_slice() {
        [] => Conditions::Met,
        [one] => Conditions::Failed(one.clone()),
        several => Conditions::Failed(format!("[{}]", several.join(", "))),
    })
}

/// Evaluates a validating policy whose conditions are met.
pub(super) fn validate(
    programs: &ValidatingPrograms,
    input: &Input,
    decisions: &Decisions,
) -> Result<Findings, Box<AccessCheck>> {
    let mut budget = POLICY_BUDGET;
    let mut findings = Findings::default();
    let mut scope = Scope::new(input, &programs.composed, decisions);
    let mut values = Vec::new();
    for validation in &programs.validations {
        match scope.evaluate(&validation.program, &mut budget) {
            Ok(value) => values.push(value),
            Err(Stop::Undecided(check)) => return Err(check),
            Err(stop) => {
                findings.validations.push(Finding::Failed(stop.to_string()));
                return Ok(findings);
            }
        }
    }
    let mut scope = Scope::new(input, &programs.composed, decisions);
    for (validation, value) in programs.validations.iter().zip(values) {
        let finding = match value {
            Ok(Cel::Bool(true)) => Finding::Passed,
            Err(error) => Finding::Failed(error),
            Ok(_) => match message(validation.message_program.as_ref(), &mut scope, &mut budget)? {
                Err(error) => Finding::Failed(format!("failed messageExpression: {error}")),
                Ok(message) => {
                    let own = validation.message.trim();
                    let message = message.unwrap_or_else(|| match own {
                        "" => format!("failed expression: {}", validation.program.source().trim()),
                        own => own.to_owned(),
                    });
                    Finding::Denied(message, validation.reason.clone())
                }
            },
        };
        findings.validations.push(finding);
    }
    annotations(programs, input, decisions, &mut findings)?;
    Ok(findings)
}

/// The text of a `messageExpression`; `None` if there is none or it is not usable. The inner error is an exceeded budget.
fn message(
    program: Option<&Program>,
    scope: &mut Scope<'_>,
    budget: &mut u64,
) -> Result<Result<Option<String>, Stop>, Box<AccessCheck>> {
    let Some(program) = program else {
        return Ok(Ok(None));
    };
    let value = match scope.evaluate(program, budget) {
        Ok(value) => value,
        Err(Stop::Undecided(check)) => return Err(check),
        Err(stop) => return Ok(Err(stop)),
    };
    Ok(Ok(match value {
        Ok(Cel::String(text)) => {
            let text = text.trim();
            let usable = !text.is_empty() && text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n');
            usable.then(|| text.to_owned())
        }
        _ => None,
    }))
}

fn annotations(
    programs: &ValidatingPrograms,
    input: &Input,
    decisions: &Decisions,
    findings: &mut Findings,
) -> Result<(), Box<AccessCheck>> {
    let mut scope = Scope::new(input, &programs.composed, decisions);
    let mut budget = POLICY_BUDGET;
    for annotation in &programs.annotations {
        let value = match scope.evaluate(&annotation.program, &mut budget) {
            Ok(value) => value,
            Err(Stop::Undecided(check)) => return Err(check),
            Err(stop) => {
                findings.validations = vec![Finding::Failed(stop.to_string())];
                return Ok(());
            }
        };
        let text = match value {
            Ok(Cel::String(text)) if text.trim().is_empty() => continue,
            Ok(Cel::Null) => continue,
            Ok(Cel::String(text)) => Ok(text.trim().to_owned()),
            Ok(other) => Err(format!(
                "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                annotation.program.source(),
                other.type_name()
            )),
            Err(error) => Err(error),
        };
        findings.annotations.push((annotation.key.clone(), text));
    }
    Ok(())
}
