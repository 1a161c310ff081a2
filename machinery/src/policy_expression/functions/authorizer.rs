//! Authorization checks: `authorizer.group('').resource('pods').namespace('a').check('delete').allowed()`.
//!
//! An evaluation cannot wait for the answer to a check. It stops at the first one whose answer is not known; the caller asks
//! for it and evaluates again with it. Costs allow two checks in an expression.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Function, Style, no_overload};
use crate::names::{dns_label_errors, dns_subdomain_errors};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("allowed", Style::Member, 0, 0),
    ("check", Style::Member, 1, 1),
    ("error", Style::Member, 0, 0),
    ("errored", Style::Member, 0, 0),
    ("fieldSelector", Style::Member, 1, 1),
    ("group", Style::Member, 1, 1),
    ("labelSelector", Style::Member, 1, 1),
    ("name", Style::Member, 1, 1),
    ("namespace", Style::Member, 1, 1),
    ("path", Style::Member, 1, 1),
    ("reason", Style::Member, 0, 0),
    ("resource", Style::Member, 1, 1),
    ("serviceAccount", Style::Member, 2, 2),
    ("subresource", Style::Member, 1, 1),
];

/// The answers to checks.
pub type Decisions = BTreeMap<AccessCheck, Decision>;

/// A question whether a user may do something.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessCheck {
    /// The namespace and name of a service account; the user of the request if absent.
    pub service_account: Option<(String, String)>,
    /// The verb.
    pub verb: String,
    /// What the verb is done to.
    pub subject: Subject,
}

/// What a check is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A path that is not one of a resource.
    Path(String),
    /// A resource.
    Resource(ResourceSubject),
}

impl Default for Subject {
    fn default() -> Self {
        Self::Resource(ResourceSubject::default())
    }
}

/// A resource, or some of its objects. Empty texts stand for all.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceSubject {
    /// The API group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// A field selector, as written.
    pub field_selector: String,
    /// A label selector, as written.
    pub label_selector: String,
}

/// The answer to a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the user may do it.
    pub allowed: bool,
    /// Why.
    pub reason: String,
    /// Why there is no answer.
    pub error: Option<String>,
}

/// A check under construction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Check {
    stage: Stage,
    service_account: Option<(String, String)>,
    path: String,
    resource: ResourceSubject,
}

/// How far the construction is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Start,
    Path,
    Group,
    Resource,
}

impl Check {
    /// The check of the request's own resource: the variable `authorizer.requestResource`.
    #[must_use]
    pub fn of_resource(resource: ResourceSubject) -> Self {
        Self {
            stage: Stage::Resource,
            resource,
            ..Self::default()
        }
    }

    /// The name of the type in expressions.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Start => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Value {
        let mut check = self.clone();
        change(&mut check);
        Value::Check(Arc::new(check))
    }

    fn question(&self, verb: &str) -> AccessCheck {
        AccessCheck {
            service_account: self.service_account.clone(),
            verb: verb.to_owned(),
            subject: match self.stage {
                Stage::Path => Subject::Path(self.path.clone()),
                _ => Subject::Resource(self.resource.clone()),
            },
        }
    }
}

pub(super) fn call(name: &str, arguments: &[Value], meter: &mut Meter<'_>) -> Outcome {
    match arguments {
        [Value::Decision(decision)] => Ok(match name {
            "allowed" => decision.allowed.into(),
            "reason" => decision.reason.as_str().into(),
            "errored" => decision.error.is_some().into(),
            "error" => decision.error.as_deref().unwrap_or_default().into(),
            _ => return Err(no_overload(name, arguments)),
        }),
        [
            Value::Check(check),
            Value::String(namespace),
            Value::String(account),
        ] if name == "serviceAccount" && check.stage == Stage::Start => {
            if !dns_subdomain_errors(account).is_empty() {
                return Err(Failure::error("Invalid service account name"));
            }
            if !dns_label_errors(namespace).is_empty() {
                return Err(Failure::error("Invalid service account namespace"));
            }
            let account = (namespace.to_string(), account.to_string());
            Ok(check.with(|check| check.service_account = Some(account)))
        }
        [Value::Check(check), Value::String(text)] => {
            build(check, name, text, meter).unwrap_or_else(|| Err(no_overload(name, arguments)))
        }
        _ => Err(no_overload(name, arguments)),
    }
}

/// One step of the construction; `None` if a check at this stage has no such step.
fn build(check: &Check, name: &str, text: &str, meter: &Meter<'_>) -> Option<Outcome> {
    let owned = text.to_owned();
    Some(match (check.stage, name) {
        (Stage::Start, "path") if text.is_empty() => Err(Failure::error("path must not be empty")),
        (Stage::Start, "path") => Ok(check.with(|check| {
            check.stage = Stage::Path;
            check.path = owned;
        })),
        (Stage::Start, "group") => Ok(check.with(|check| {
            check.stage = Stage::Group;
            check.resource.group = owned;
        })),
        (Stage::Group, "resource") if text.is_empty() => Err(Failure::error("resource must not be empty")),
        (Stage::Group, "resource") => Ok(check.with(|check| {
            check.stage = Stage::Resource;
            check.resource.resource = owned;
        })),
        (Stage::Resource, "subresource") => Ok(check.with(|check| check.resource.subresource = owned)),
        (Stage::Resource, "namespace") => Ok(check.with(|check| check.resource.namespace = owned)),
        (Stage::Resource, "name") => Ok(check.with(|check| check.resource.name = owned)),
        (Stage::Resource, "fieldSelector") => Ok(check.with(|check| check.resource.field_selector = owned)),
        (Stage::Resource, "labelSelector") => Ok(check.with(|check| check.resource.label_selector = owned)),
        (Stage::Path | Stage::Resource, "check") => {
            let question = check.question(text);
            match meter.decisions.get(&question) {
                Some(decision) => Ok(Value::Decision(Arc::new(decision.clone()))),
                None => Err(Failure::Undecided(Box::new(question))),
            }
        }
        _ => return None,
    })
}
