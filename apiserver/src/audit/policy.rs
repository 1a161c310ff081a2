//! The audit policy: which requests are recorded, at which level.
//!
//! The file has the format of the reference (`audit.k8s.io/v1`, kind `Policy`), in YAML or JSON. The first rule that matches a
//! request decides; a request that no rule matches is not recorded. Unknown members are logged and ignored, as in the
//! reference; everything else that is wrong stops the start, since a policy that records less than it says would go unnoticed.

use std::collections::BTreeSet;
use std::path::Path;

use drydock_machinery::names::dns_subdomain_errors;
use serde::Deserialize;
use serde_json::Value;

use super::AuditError;
use crate::request::{AuditLevel, Query, RequestInfo, UserInfo};

const API_VERSION: &str = "audit.k8s.io/v1";

/// A moment in the life of a request at which an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The request was authenticated, and nothing else has happened.
    RequestReceived,
    /// The head of the response is sent: watches, and requests that failed to authenticate.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// The request ended in a panic.
    Panic,
}

impl Stage {
    const ALL: [Self; 4] = [
        Self::RequestReceived,
        Self::ResponseStarted,
        Self::ResponseComplete,
        Self::Panic,
    ];

    /// The spelling in policies and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// What the policy decides about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// How much is recorded.
    pub(super) level: AuditLevel,
    /// Stages without an event.
    pub(super) omit_stages: BTreeSet<Stage>,
    /// Whether `metadata.managedFields` of bodies is left out.
    pub(super) omit_managed_fields: bool,
}

/// A policy that was read and found valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    rules: Vec<Rule>,
    unmatched: Decision,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    paths: Vec<String>,
    decision: Decision,
}

/// The members of a policy file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyFile {
    #[serde(default)]
    rules: Vec<RuleFile>,
    #[serde(default)]
    omit_stages: Vec<String>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuleFile {
    #[serde(default)]
    level: String,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// [`AuditError::ReadPolicy`] and [`AuditError::Policy`].
    pub(super) fn read(path: &Path) -> Result<Self, AuditError> {
        let text = std::fs::read_to_string(path).map_err(|source| AuditError::ReadPolicy {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|text| AuditError::Policy {
            path: path.to_owned(),
            text,
        })
    }

    /// Parses a policy. The error lists everything that is wrong, on one line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let one_line = |error: String| error.lines().next().unwrap_or_default().to_owned();
        let value: Value = serde_saphyr::from_str(text).map_err(|error| one_line(error.to_string()))?;
        let member = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        if (member("apiVersion"), member("kind")) != (API_VERSION, "Policy") {
            return Err(format!(
                "it must have apiVersion {API_VERSION} and kind Policy, not {:?} and {:?}",
                member("apiVersion"),
                member("kind")
            ));
        }
        for unknown in unknown_members(&value) {
            tracing::warn!(
                member = unknown,
                "unknown member of the audit policy, which is ignored"
            );
        }
        let file: PolicyFile = serde_json::from_value(value).map_err(|error| one_line(error.to_string()))?;
        let mut wrong = Vec::new();
        let omitted = stages("omitStages", &file.omit_stages, &mut wrong);
        let mut rules = Vec::with_capacity(file.rules.len());
        for (index, rule) in file.rules.into_iter().enumerate() {
            let path = format!("rules[{index}]");
            let level = level(&path, &rule.level, &mut wrong);
            let mut omit_stages = stages(&format!("{path}.omitStages"), &rule.omit_stages, &mut wrong);
            omit_stages.extend(&omitted);
            check_paths(&path, &rule, &mut wrong);
            check_resources(&path, &rule.resources, &mut wrong);
            rules.push(Rule {
                users: rule.users,
                groups: rule.user_groups,
                verbs: rule.verbs,
                resources: rule.resources,
                namespaces: rule.namespaces,
                paths: rule.non_resource_urls,
                decision: Decision {
                    level,
                    omit_stages,
                    omit_managed_fields: rule.omit_managed_fields.unwrap_or(file.omit_managed_fields),
                },
            });
        }
        if rules.is_empty() {
            wrong.push("rules: at least one is needed".to_owned());
        }
        if wrong.is_empty() {
            Ok(Self {
                rules,
                unmatched: Decision::default(),
            })
        } else {
            Err(wrong.join("; "))
        }
    }

    /// What the policy says about a request of a user; `None` if the user could not be authenticated.
    pub(super) fn decide(&self, user: Option<&UserInfo>, info: &RequestInfo) -> &Decision {
        let rule = self.rules.iter().find(|rule| rule.matches(user, info));
        rule.map_or(&self.unmatched, |rule| &rule.decision)
    }
}

impl Rule {
    fn matches(&self, user: Option<&UserInfo>, info: &RequestInfo) -> bool {
        let is_listed = |list: &[String], value: &str| list.iter().any(|own| own == value);
        let is_user = self.users.is_empty() || user.is_some_and(|user| is_listed(&self.users, &user.name));
        let is_in_group = self.groups.is_empty()
            || user.is_some_and(|user| user.groups.iter().any(|group| is_listed(&self.groups, group)));
        let is_verb = self.verbs.is_empty() || is_listed(&self.verbs, &info.review_verb());
        if !(is_user && is_in_group && is_verb) {
            return false;
        }
        let about_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        match &info.resource {
            Some(request) => {
                (about_resources || self.paths.is_empty())
                    && (self.namespaces.is_empty() || is_listed(&self.namespaces, &request.namespace))
                    && (self.resources.is_empty()
                        || self.resources.iter().any(|resources| {
                            let name = request.review_name();
                            resources.matches(&request.group, &request.resource, &request.subresource, name)
                        }))
            }
            None => {
                !about_resources
                    && (self.paths.is_empty() || self.paths.iter().any(|rule| path_matches(rule, &info.path)))
            }
        }
    }
}

impl GroupResources {
    fn matches(&self, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
        if self.group != group && self.group != "*" {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !self.resource_names.iter().any(|own| own == name) {
            return false;
        }
        self.resources.iter().any(|pattern| {
            pattern == "*"
                || match pattern.split_once('/') {
                    None => subresource.is_empty() && pattern == resource,
                    Some((of, "*")) => of == resource,
                    Some(("*", part)) => !subresource.is_empty() && part == subresource,
                    Some((of, part)) => of == resource && part == subresource,
                }
        })
    }
}

fn path_matches(rule: &str, path: &str) -> bool {
    match rule.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => rule == path,
    }
}

fn level(path: &str, text: &str, wrong: &mut Vec<String>) -> AuditLevel {
    let levels = [
        AuditLevel::None,
        AuditLevel::Metadata,
        AuditLevel::Request,
        AuditLevel::RequestResponse,
    ];
    if let Some(level) = levels.into_iter().find(|level| level.as_str() == text) {
        return level;
    }
    wrong.push(if text.is_empty() {
        format!("{path}.level: Required value")
    } else {
        format!(
            "{path}.level: Unsupported value: {text:?}: supported values: {:?}",
            levels.map(AuditLevel::as_str)
        )
    });
    AuditLevel::None
}

fn stages(path: &str, texts: &[String], wrong: &mut Vec<String>) -> BTreeSet<Stage> {
    let mut stages = BTreeSet::new();
    for (index, text) in texts.iter().enumerate() {
        match Stage::ALL.into_iter().find(|stage| stage.as_str() == text) {
            Some(stage) => {
                stages.insert(stage);
            }
            None => wrong.push(format!(
                "{path}[{index}]: Invalid value: {text:?}: allowed stages are {}",
                Stage::ALL.map(Stage::as_str).join(",")
            )),
        }
    }
    stages
}

fn check_paths(path: &str, rule: &RuleFile, wrong: &mut Vec<String>) {
    for (index, url) in rule.non_resource_urls.iter().enumerate() {
        let at = format!("{path}.nonResourceURLs[{index}]: Invalid value: {url:?}");
        if url == "*" {
            continue;
        }
        if !url.starts_with('/') {
            wrong.push(format!(
                "{at}: non-resource URL rules must begin with a '/' character"
            ));
        }
        if url.strip_suffix('*').unwrap_or(url).contains('*') {
            wrong.push(format!(
                "{at}: non-resource URL wildcards '*' must be the final character of the rule"
            ));
        }
    }
    let about_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
    if !rule.non_resource_urls.is_empty() && about_resources {
        wrong.push(format!(
            "{path}.nonResourceURLs: Invalid value: rules cannot apply to both regular resources and non-resource URLs"
        ));
    }
}

fn check_resources(path: &str, resources: &[GroupResources], wrong: &mut Vec<String>) {
    for (index, resources) in resources.iter().enumerate() {
        let group = &resources.group;
        if !group.is_empty() && group != "*" && !dns_subdomain_errors(group).is_empty() {
            wrong.push(format!(
                "{path}.resources[{index}].group: Invalid value: {group:?}: a lowercase RFC 1123 subdomain is needed, \
                 without a version"
            ));
        }
        if !resources.resource_names.is_empty() && resources.resources.is_empty() {
            wrong.push(format!(
                "{path}.resources[{index}].resourceNames: Invalid value: using resourceNames requires at least one resource"
            ));
        }
    }
}

/// The members of a policy file that the format does not have.
fn unknown_members(value: &Value) -> Vec<String> {
    const POLICY: [&str; 6] = [
        "apiVersion",
        "kind",
        "metadata",
        "rules",
        "omitStages",
        "omitManagedFields",
    ];
    const RULE: [&str; 9] = [
        "level",
        "users",
        "userGroups",
        "verbs",
        "resources",
        "namespaces",
        "nonResourceURLs",
        "omitStages",
        "omitManagedFields",
    ];
    const RESOURCES: [&str; 3] = ["group", "resources", "resourceNames"];
    fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
        value
            .get(name)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }
    let mut unknown = Vec::new();
    let mut check = |path: &str, value: &Value, known: &[&str]| {
        let members = value.as_object().into_iter().flat_map(|members| members.keys());
        unknown.extend(
            members
                .filter(|name| !known.contains(&name.as_str()))
                .map(|name| format!("{path}{name}")),
        );
    };
    check("", value, &POLICY);
    for (index, rule) in list(value, "rules").iter().enumerate() {
        check(&format!("rules[{index}]."), rule, &RULE);
        for (inner, resources) in list(rule, "resources").iter().enumerate() {
            check(
                &format!("rules[{index}].resources[{inner}]."),
                resources,
                &RESOURCES,
            );
        }
    }
    unknown
}

/// Fuzz target: a policy file. One that is accepted decides about a request.
pub fn fuzz_parse(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(policy) = Policy::parse(text) else { return };
    let path = "/apis/coordination.k8s.io/v1alpha3/namespaces/shop/evictionrequests/web/status";
    if let Ok(info) = RequestInfo::parse(&http::Method::GET, path, &Query::default()) {
        std::hint::black_box(policy.decide(Some(&UserInfo::default()), &info));
    }
}

#[cfg(test)]
mod tests;
