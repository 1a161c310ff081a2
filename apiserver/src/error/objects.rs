//! Errors about an object, or about the permissions of a user.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use drydock_machinery::excerpt;
use drydock_machinery::field_error::{ErrorList, quoted};

use super::{ApiError, GroupResource, Reason, StatusCause, limits};

/// The attributes of a resource request that is not permitted, for the message of its 403.
#[derive(Clone, Copy, Debug)]
pub struct DeniedResource<'a> {
    /// The user's name.
    pub user: &'a str,
    /// Authorization verb; may be empty.
    pub verb: &'a str,
    /// API group.
    pub group: &'a str,
    /// Plural resource.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Namespace, or empty for cluster scope.
    pub namespace: &'a str,
    /// Object name, or empty.
    pub name: &'a str,
}

impl ApiError {
    /// 404: no such object.
    #[must_use]
    pub fn not_found(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(
            Reason::NotFound,
            format!("{resource} {} not found", quoted_name(name)),
        )
        .about(resource, name)
    }

    /// 409: an object with this name exists.
    #[must_use]
    pub fn already_exists(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(
            Reason::AlreadyExists,
            format!("{resource} {} already exists", quoted_name(name)),
        )
        .about(resource, name)
    }

    /// 409: an object with this name exists and is being deleted.
    #[must_use]
    pub fn already_exists_deleting(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(
            Reason::AlreadyExists,
            format!(
                "object is being deleted: {resource} {} already exists",
                quoted_name(name)
            ),
        )
        .about(resource, name)
    }

    /// 409, retry after 1 s: every name that was generated is in use.
    #[must_use]
    pub fn generated_name_taken(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(
            Reason::AlreadyExists,
            format!(
                "{resource} {} already exists, the server was not able to generate a unique name for the object",
                quoted_name(name)
            ),
        )
        .about(resource, name)
        .retry_after(1)
    }

    /// 409: a concurrent write changed the object, or a precondition failed; `why` completes the sentence.
    #[must_use]
    pub fn conflict(resource: GroupResource<'_>, name: &str, why: impl fmt::Display) -> Self {
        Self::new(
            Reason::Conflict,
            format!(
                "Operation cannot be fulfilled on {resource} {}: {why}",
                quoted_name(name)
            ),
        )
        .about(resource, name)
    }

    /// 422: a patch changes `metadata.uid`.
    #[must_use]
    pub fn immutable_uid(kind: GroupResource<'_>, name: &str, sent: &str) -> Self {
        let cause = StatusCause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {}: field is immutable", quoted_name(sent)),
            field: "metadata.uid".to_owned(),
        };
        Self::invalid(kind, name, vec![cause])
    }

    /// 422: an update without a resourceVersion. It names the resource where others name the kind, as in kube-apiserver.
    #[must_use]
    pub fn revision_required(resource: GroupResource<'_>, name: &str) -> Self {
        let cause = StatusCause {
            reason: "FieldValueInvalid".into(),
            message: "Invalid value: 0: must be specified for an update".to_owned(),
            field: "metadata.resourceVersion".to_owned(),
        };
        Self::invalid(resource, name, vec![cause])
    }

    /// 409: an apply would change fields of other managers. Causes are (message, field).
    #[must_use]
    pub fn apply_conflict(
        message: impl fmt::Display,
        causes: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let causes = causes.into_iter().map(|(message, field)| StatusCause {
            reason: "FieldManagerConflict".into(),
            message,
            field,
        });
        let message = excerpt::print(&message, limits::MAX_MESSAGE_BYTES);
        Self::new(Reason::Conflict, message).causes(causes)
    }

    /// 410: the revision or the continue token has expired. `continue_token` continues the list at the current state, without
    /// consistency with earlier pages; it may be empty.
    #[must_use]
    pub fn expired(message: impl Into<Cow<'static, str>>, continue_token: String) -> Self {
        let mut error = Self::new(Reason::Expired, message);
        error.0.status.metadata.continue_token = continue_token;
        error
    }

    /// 422 from causes. The message lists `field: message` of each, without duplicates.
    #[must_use]
    pub fn invalid(
        kind: GroupResource<'_>,
        name: &str,
        causes: impl IntoIterator<Item = StatusCause>,
    ) -> Self {
        let causes = limits::first_causes(causes);
        let mut seen = HashSet::new();
        let bodies: Vec<String> = causes
            .iter()
            .map(|cause| match cause.field.as_str() {
                "" => cause.message.clone(),
                field => format!("{field}: {}", cause.message),
            })
            .filter(|body| seen.insert(body.clone()))
            .collect();
        let list = match bodies.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Self::new(
            Reason::Invalid,
            format!("{kind} {} is invalid: {list}", quoted_name(name)),
        )
        .about(kind, name)
        .causes(causes)
    }

    /// 422 from validation errors; `kind` has the kind, not the plural.
    #[must_use]
    pub fn invalid_fields(kind: GroupResource<'_>, name: &str, errors: &ErrorList) -> Self {
        let causes = errors.iter().map(|error| StatusCause {
            reason: Cow::Borrowed(error.reason()),
            message: error.body().to_owned(),
            field: error.field().to_owned(),
        });
        Self::new(Reason::Invalid, errors.invalid_message(&kind.to_string(), name))
            .about(kind, name)
            .causes(causes)
    }

    /// 403 of an admission rule; `why` is the rule's text. `name` may be empty.
    #[must_use]
    pub fn forbidden(resource: GroupResource<'_>, name: &str, why: impl fmt::Display) -> Self {
        let message = if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {} is forbidden: {why}", quoted_name(name))
        };
        Self::new(Reason::Forbidden, message).about(resource, name)
    }

    /// 403: no new objects in a namespace that is being deleted. Clients match the cause.
    #[must_use]
    pub fn namespace_terminating(resource: GroupResource<'_>, name: &str, namespace: &str) -> Self {
        Self::forbidden(
            resource,
            name,
            format_args!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            ),
        )
        .causes(vec![StatusCause {
            reason: Cow::Borrowed("NamespaceTerminating"),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        }])
    }

    /// 404: the namespace of a create does not exist.
    #[must_use]
    pub fn namespace_not_found(namespace: &str) -> Self {
        Self::not_found(
            GroupResource {
                group: "",
                resource: "namespaces",
            },
            namespace,
        )
    }

    /// 403 of the authorizer for a resource; `reason` is the authorizer's reason, or empty.
    #[must_use]
    pub fn denied(denied: DeniedResource<'_>, reason: &str) -> Self {
        let resource = GroupResource {
            group: denied.group,
            resource: denied.resource,
        };
        Self::forbidden(resource, denied.name, denial_text(denied, reason))
            .escaped()
            .nosniff()
    }

    /// 403 of the authorizer for a path; `verb` is the lower-case HTTP method.
    #[must_use]
    pub fn denied_path(user: &str, verb: &str, path: &str, reason: &str) -> Self {
        let mut message = format!(
            "forbidden: User {} cannot {verb} path {}",
            quoted(user),
            quoted(path)
        );
        append_reason(&mut message, reason);
        Self::new(Reason::Forbidden, message)
            .empty_details()
            .escaped()
            .nosniff()
    }
}

/// A name in quotes, cut if it is too long to be valid.
fn quoted_name(name: &str) -> String {
    quoted(&limits::cut_name(name))
}

/// `User "u" cannot delete resource "pods" in API group "" in the namespace "ns"`, with `: reason` if there is one.
#[must_use]
fn denial_text(denied: DeniedResource<'_>, reason: &str) -> String {
    let mut text = format!(
        "User {} cannot {} resource \"{}",
        quoted(denied.user),
        denied.verb,
        denied.resource
    );
    if !denied.subresource.is_empty() {
        text.push('/');
        text.push_str(denied.subresource);
    }
    text.push_str("\" in API group \"");
    text.push_str(denied.group);
    text.push('"');
    if denied.namespace.is_empty() {
        text.push_str(" at the cluster scope");
    } else {
        text.push_str(" in the namespace \"");
        text.push_str(denied.namespace);
        text.push('"');
    }
    append_reason(&mut text, reason);
    text
}

fn append_reason(text: &mut String, reason: &str) {
    if !reason.is_empty() {
        text.push_str(": ");
        text.push_str(reason);
    }
}
