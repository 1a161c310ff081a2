//! The labels of the server's metrics.

use http::Method;
use prometheus_client::encoding::EncodeLabelSet;

use crate::request::{RequestInfo, ResourceRequest, Verb};

/// A resource that the server serves. Only these are values of the labels group, version and resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServedResource {
    /// API group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Plural resource.
    pub resource: &'static str,
}

/// The labels of most request metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub(super) verb: &'static str,
    pub(super) dry_run: &'static str,
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) resource: &'static str,
    pub(super) subresource: &'static str,
    pub(super) scope: &'static str,
    pub(super) component: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestCodeLabels {
    pub(super) verb: &'static str,
    pub(super) dry_run: &'static str,
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) resource: &'static str,
    pub(super) subresource: &'static str,
    pub(super) scope: &'static str,
    pub(super) component: &'static str,
    pub(super) code: u16,
}

/// What a request was for, as aborted requests have it in the reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AbortLabels {
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
}

/// The labels of request metrics without `dry_run` in the reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PlainLabels {
    #[prometheus(flatten)]
    target: AbortLabels,
    component: &'static str,
}

/// The same with a code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PlainCodeLabels {
    #[prometheus(flatten)]
    plain: PlainLabels,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabels {
    pub(super) request_kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FilterLabels {
    pub(super) filter: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabels {
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct UserLabels {
    pub(super) username: &'static str,
}

/// `code` of a call to the host, `<error>` without an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CallLabels {
    pub(super) code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabels {
    pub(super) git_version: &'static str,
    pub(super) platform: String,
}

impl BuildLabels {
    pub(super) fn current() -> Self {
        Self {
            git_version: crate::version::GIT_VERSION,
            platform: crate::version::platform(),
        }
    }
}

/// The `result` label of an authentication or authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Authenticated.
    Success,
    /// No credential.
    Failure,
    /// An invalid credential, or the host cannot be asked.
    Error,
    /// Allowed.
    Allowed,
    /// Denied by an authorizer.
    Denied,
    /// Neither allowed nor denied.
    NoOpinion,
}

impl Outcome {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Error => "error",
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NoOpinion => "no-opinion",
        }
    }
}

pub(super) fn call_labels(code: Option<u16>) -> CallLabels {
    CallLabels {
        code: code.map_or_else(|| "<error>".to_owned(), |code| code.to_string()),
    }
}

impl RequestLabels {
    /// The labels of a request, or none when it names nothing that is served.
    pub(super) fn of(served: &[ServedResource], info: &RequestInfo, dry_run: bool) -> Option<Self> {
        let Some(request) = &info.resource else {
            let subresource = match info.path.as_str() {
                "/healthz" => "/healthz",
                "/livez" => "/livez",
                "/readyz" => "/readyz",
                _ => return None,
            };
            return Some(Self {
                verb: if info.method == Method::GET {
                    "GET"
                } else {
                    "other"
                },
                dry_run: "",
                group: "",
                version: "",
                resource: "",
                subresource,
                scope: "",
                component: "",
            });
        };
        let served = served.iter().find(|served| {
            served.resource == request.resource
                && served.version == request.version
                && served.group == request.group
        })?;
        Some(Self {
            verb: verb_label(info, request),
            dry_run: if dry_run { "All" } else { "" },
            group: served.group,
            version: served.version,
            resource: served.resource,
            subresource: if request.subresource == "status" {
                "status"
            } else {
                ""
            },
            scope: if !request.name.is_empty() || request.verb == Verb::Create {
                "resource"
            } else if request.namespace.is_empty() {
                "cluster"
            } else {
                "namespace"
            },
            component: "apiserver",
        })
    }

    pub(super) const fn target(&self) -> AbortLabels {
        AbortLabels {
            verb: self.verb,
            group: self.group,
            version: self.version,
            resource: self.resource,
            subresource: self.subresource,
            scope: self.scope,
        }
    }

    pub(super) const fn plain(&self) -> PlainLabels {
        PlainLabels {
            target: self.target(),
            component: self.component,
        }
    }

    pub(super) const fn plain_with_code(&self, code: u16) -> PlainCodeLabels {
        PlainCodeLabels {
            plain: self.plain(),
            code,
        }
    }

    pub(super) fn with_code(&self, code: u16) -> RequestCodeLabels {
        let Self {
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
        } = *self;
        RequestCodeLabels {
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
            code,
        }
    }
}

fn verb_label(info: &RequestInfo, request: &ResourceRequest) -> &'static str {
    match request.verb {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create => "POST",
        Verb::Update => "PUT",
        Verb::Patch if info.is_apply => "APPLY",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
        Verb::Proxy => "CONNECT",
        Verb::None => "other",
    }
}

pub(super) fn user_label(user: &str) -> &'static str {
    match user {
        "admin" => "admin",
        "client" => "client",
        "kube_proxy" => "kube_proxy",
        "kubelet" => "kubelet",
        "system:serviceaccount:kube-system:default" => "system:serviceaccount:kube-system:default",
        user if user.contains('@') => "email_id",
        _ => "other",
    }
}
