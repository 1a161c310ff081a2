//! Which writes a webhook or a policy is for: rules, selectors, and the match policy.
//!
//! The versions of a resource are equivalent, and so are two resources that show the same stored objects: a rule about
//! `evictionrequests` with `matchPolicy: Equivalent` is not bypassed through `evacuations`.

use drydock_machinery::field_error::ErrorList;
use drydock_machinery::selector::label::Selector;
use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, RuleWithOperations,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::attributes::Attributes;
use crate::error::ApiError;
use crate::registry::admission::{Operation, WriteAttributes};
use crate::registry::endpoint::Endpoint;
use crate::registry::part::Part;

/// Which writes a webhook, a policy or a binding is for. Without rules every resource matches.
#[derive(Debug)]
pub struct Matcher {
    namespace_selector: Result<Selector, String>,
    object_selector: Result<Selector, String>,
    excluded: Vec<Rule>,
    rules: Vec<Rule>,
    /// Whether a binding without rules matches every resource.
    any_resource: bool,
    /// `matchPolicy: Equivalent`.
    equivalent: bool,
}

/// One rule. Empty `names` stand for all.
#[derive(Debug)]
struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<(String, String)>,
    scope: Scope,
    names: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    Namespaced,
    Cluster,
}

impl Scope {
    fn parse(text: Option<&str>) -> Self {
        match text {
            Some("Namespaced") => Self::Namespaced,
            Some("Cluster") => Self::Cluster,
            _ => Self::All,
        }
    }
}

/// Resources with their subresource, which is empty for the resource itself.
fn resources(listed: Option<&[String]>) -> Vec<(String, String)> {
    let split = |resource: &String| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        (resource.to_owned(), subresource.to_owned())
    };
    listed.unwrap_or_default().iter().map(split).collect()
}

/// What rules are compared with.
#[derive(Debug, Clone, Copy)]
struct Target<'a> {
    operation: &'static str,
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    is_namespaced: bool,
}

impl<'a> Target<'a> {
    fn of(write: &WriteAttributes<'a>, endpoint: &Endpoint) -> Self {
        Self {
            operation: operation(write.operation),
            group: endpoint.resource().group,
            version: endpoint.face().version,
            resource: endpoint.face().names.plural,
            subresource: match write.part {
                Part::Main => "",
                Part::Status => "status",
            },
            is_namespaced: !write.namespace.is_empty(),
        }
    }
}

/// The operation as rules and reviews spell it.
#[must_use]
pub const fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    }
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|own| own == "*" || own == value)
}

impl Rule {
    fn of_webhook(rule: &RuleWithOperations) -> Self {
        Self {
            operations: rule.operations.clone().unwrap_or_default(),
            groups: rule.api_groups.clone().unwrap_or_default(),
            versions: rule.api_versions.clone().unwrap_or_default(),
            resources: resources(rule.resources.as_deref()),
            scope: Scope::parse(rule.scope.as_deref()),
            names: Vec::new(),
        }
    }

    fn of_policy(rule: &NamedRuleWithOperations) -> Self {
        Self {
            operations: rule.operations.clone().unwrap_or_default(),
            groups: rule.api_groups.clone().unwrap_or_default(),
            versions: rule.api_versions.clone().unwrap_or_default(),
            resources: resources(rule.resources.as_deref()),
            scope: Scope::parse(rule.scope.as_deref()),
            names: rule.resource_names.clone().unwrap_or_default(),
        }
    }

    /// Whether it matches, names excepted.
    fn matches(&self, target: Target<'_>) -> bool {
        let is_in_scope = match self.scope {
            Scope::All => true,
            Scope::Namespaced => target.is_namespaced,
            Scope::Cluster => !target.is_namespaced,
        };
        is_in_scope
            && has(&self.operations, target.operation)
            && has(&self.groups, target.group)
            && has(&self.versions, target.version)
            && self.resources.iter().any(|(resource, subresource)| {
                (resource == "*" || resource == target.resource)
                    && (subresource == "*" || subresource == target.subresource)
            })
    }

    fn names(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|own| own == name)
    }
}

fn selector(selector: Option<&LabelSelector>) -> Result<Selector, String> {
    let Some(selector) = selector else {
        return Ok(Selector::everything());
    };
    Selector::try_from(selector).map_err(|errors: ErrorList| {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        texts.join(", ")
    })
}

impl Matcher {
    /// The writes that a webhook is for.
    #[must_use]
    pub fn of_webhook(
        rules: Option<&Vec<RuleWithOperations>>,
        namespace_selector: Option<&LabelSelector>,
        object_selector: Option<&LabelSelector>,
        match_policy: Option<&str>,
    ) -> Self {
        Self {
            namespace_selector: selector(namespace_selector),
            object_selector: selector(object_selector),
            excluded: Vec::new(),
            rules: rules.into_iter().flatten().map(Rule::of_webhook).collect(),
            any_resource: false,
            equivalent: match_policy != Some("Exact"),
        }
    }

    /// The writes that a policy or a binding is for. A binding without `matchResources` matches whatever its policy does.
    #[must_use]
    pub fn of_policy(resources: Option<&MatchResources>) -> Self {
        let rules = |rules: Option<&Vec<NamedRuleWithOperations>>| -> Vec<Rule> {
            rules.into_iter().flatten().map(Rule::of_policy).collect()
        };
        let own = rules(resources.and_then(|resources| resources.resource_rules.as_ref()));
        Self {
            namespace_selector: selector(
                resources.and_then(|resources| resources.namespace_selector.as_ref()),
            ),
            object_selector: selector(resources.and_then(|resources| resources.object_selector.as_ref())),
            excluded: rules(resources.and_then(|resources| resources.exclude_resource_rules.as_ref())),
            any_resource: own.is_empty(),
            rules: own,
            equivalent: resources.and_then(|resources| resources.match_policy.as_deref()) != Some("Exact"),
        }
    }

    /// Whether any write with these attributes could match, whatever its objects and namespace. Costs no copies.
    #[must_use]
    pub fn may_match(&self, write: &WriteAttributes<'_>) -> bool {
        if self.any_resource {
            return true;
        }
        let matches = |endpoint: &Endpoint| {
            let target = Target::of(write, endpoint);
            self.rules.iter().any(|rule| rule.matches(target))
        };
        matches(write.endpoint)
            || self.equivalent && Endpoint::all(write.endpoint.resource()).any(|endpoint| matches(&endpoint))
    }

    /// The version in which a write matches; `None` if it does not match.
    ///
    /// # Errors
    /// 404 for a missing namespace, 500 if it cannot be looked up or a selector is invalid.
    pub async fn find(&self, attributes: &Attributes<'_>) -> Result<Option<Endpoint>, ApiError> {
        // The rules are compared first, since that needs no lookup. The order makes no difference to the result, except
        // that a write that no rule matches does not fail for its namespace.
        if !self.may_match(attributes.write())
            || !self.matches_namespace(attributes).await?
            || !self.matches_object(attributes)?
        {
            return Ok(None);
        }
        if self.first_match(&self.excluded, attributes).is_some() {
            return Ok(None);
        }
        if self.any_resource {
            return Ok(Some(attributes.write().endpoint.clone()));
        }
        Ok(self.first_match(&self.rules, attributes).cloned())
    }

    /// The version of the first rule that matches: the version of the request if any rule matches it.
    fn first_match<'a>(&self, rules: &[Rule], attributes: &'a Attributes<'_>) -> Option<&'a Endpoint> {
        let write = attributes.write();
        let name = attributes.name();
        let matches =
            |rule: &Rule, endpoint: &Endpoint| rule.matches(Target::of(write, endpoint)) && rule.names(&name);
        let mut versions = attributes.versions();
        let requested = versions.next()?;
        if rules.iter().any(|rule| matches(rule, requested)) {
            return Some(requested);
        }
        if !self.equivalent {
            return None;
        }
        let others: Vec<&Endpoint> = versions.collect();
        rules
            .iter()
            .find_map(|rule| others.iter().find(|endpoint| matches(rule, endpoint)).copied())
    }

    async fn matches_namespace(&self, attributes: &Attributes<'_>) -> Result<bool, ApiError> {
        let selector = self.namespace_selector.as_ref().map_err(ApiError::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let Some(labels) = attributes.namespace_labels().await? else {
            return Ok(true);
        };
        Ok(selector.matches(|key| labels.get(key).map(String::as_str)))
    }

    fn matches_object(&self, attributes: &Attributes<'_>) -> Result<bool, ApiError> {
        let selector = self.object_selector.as_ref().map_err(ApiError::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let selects = |object: &Value| {
            selector.matches(|key| {
                object
                    .pointer("/metadata/labels")?
                    .get(key)
                    .and_then(Value::as_str)
            })
        };
        Ok(attributes.hub().is_some_and(selects) || attributes.old_hub().is_some_and(selects))
    }
}
