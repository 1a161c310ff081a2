//! What does the server ask the cluster it serves for?
//!
//! [`Host`] is the seam: [`kube`] speaks to a real kube-apiserver, standalone mode answers from its own storage, and
//! tests use a fake. Start at [`Host`].

pub mod kube;
pub mod published;
pub mod request_header;
pub mod reviews;
pub mod trust;

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::watch;

use self::request_header::RequestHeaderConfig;
pub use self::trust::TrustBundle;
use crate::request::UserInfo;

/// Who vouches for whom, as the host publishes it. New values count for the next request, on open connections too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationConfig {
    /// Authorities of users' client certificates; without them no certificate authenticates its holder.
    pub client_ca: Option<Arc<TrustBundle>>,
    /// How the front proxy speaks for users; without it no header authenticates.
    pub request_header: Option<Arc<RequestHeaderConfig>>,
}

/// Why a question to the host has no answer. Never read as yes or no: callers refuse the request.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The host responded with an error.
    #[error("the host responded with {code}: {message}")]
    Status {
        /// HTTP status.
        code: u16,
        /// The host's text.
        message: String,
    },
    /// No response in time.
    #[error("the host did not respond in time")]
    Timeout,
    /// No connection, or it broke.
    #[error("the host cannot be reached: {0}")]
    Unreachable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The mirror that has the objects is not loaded yet.
    #[error("{0} are not loaded yet")]
    NotSynced(&'static str),
}

/// The host's answer on a bearer token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The token is good and names this user.
    Authenticated(Arc<UserInfo>),
    /// The token is unknown, without a reason.
    Unknown,
    /// The token was refused, with the host's reason.
    Refused(String),
}

/// May this user do that?
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessReview {
    /// The user, after impersonation, with all groups and extras: the host's authorizers may depend on any of them.
    pub user: Arc<UserInfo>,
    /// What is to be done.
    pub attributes: Attributes,
}

/// What a review is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// A resource of some group.
    Resource(ResourceAttributes),
    /// A path that is no resource.
    Path {
        /// Lower-case HTTP method.
        verb: String,
        /// Decoded path.
        path: String,
    },
}

/// A resource, one object of it or a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceAttributes {
    /// Verb; may be empty.
    pub verb: String,
    /// API group; empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural resource.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty for cluster scope.
    pub namespace: String,
    /// Object name, or empty.
    pub name: String,
    /// Field requirements of a list, watch or deletecollection.
    pub field_selector: Vec<SelectorRequirement>,
    /// Label requirements of a list, watch or deletecollection.
    pub label_selector: Vec<SelectorRequirement>,
}

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SelectorRequirement {
    /// Label key or field path.
    pub key: String,
    /// How the values matter.
    pub operator: SelectorOperator,
    /// Values; empty for the existence operators.
    pub values: Vec<String>,
}

/// The operators a review knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SelectorOperator {
    /// One of the values.
    In,
    /// None of the values.
    NotIn,
    /// Present.
    Exists,
    /// Absent.
    DoesNotExist,
}

impl SelectorOperator {
    /// The spelling in a review.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
        }
    }
}

/// The host's answer to an [`AccessReview`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// Allowed, with the authorizer's reason.
    Allowed(String),
    /// Forbidden by an authorizer, with its reason.
    Denied(String),
    /// Nobody allows it, which is forbidden too. The reason is empty for RBAC without faults.
    NoOpinion(String),
}

/// A namespace as creates see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// It takes new objects.
    Active(Arc<BTreeMap<String, String>>),
    /// It is being deleted and takes nothing new.
    Terminating(Arc<BTreeMap<String, String>>),
    /// There is none.
    Missing,
}

impl Namespace {
    /// The namespace's labels; none when it is missing.
    #[must_use]
    pub fn labels(&self) -> Option<&BTreeMap<String, String>> {
        match self {
            Self::Active(labels) | Self::Terminating(labels) => Some(labels),
            Self::Missing => None,
        }
    }
}

/// A node as selectors see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMetadata {
    /// Node name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Something that happened to an object, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEvent {
    /// `apiVersion` of the object.
    pub api_version: String,
    /// `kind` of the object.
    pub kind: String,
    /// Namespace of the object; cluster-scoped ones are reported in `default`.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Uid of the object, or empty.
    pub uid: String,
    /// Whether it needs attention.
    pub warning: bool,
    /// One word in upper camel case.
    pub reason: String,
    /// What was done.
    pub action: String,
    /// A sentence, at most 1024 bytes.
    pub note: String,
}

/// The cluster we serve for.
///
/// Every call is bounded in time by the implementation. Reviews are asked through [`reviews::Reviews`], which caches.
pub trait Host: Send + Sync + 'static {
    /// Who vouches for whom, now and from now on.
    fn authentication(&self) -> watch::Receiver<Arc<AuthenticationConfig>>;

    /// Asks who a bearer token stands for. The token must not be logged or kept.
    fn review_token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenVerdict, HostError>>;

    /// Asks whether a user may do something.
    fn review_access<'a>(
        &'a self,
        review: &'a AccessReview,
    ) -> BoxFuture<'a, Result<AccessVerdict, HostError>>;

    /// Looks a namespace up. A namespace created a moment ago is found.
    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, HostError>>;

    /// Reads a pod as the host has it now, unknown fields included.
    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, HostError>>;

    /// Every node, from a cache that is complete.
    fn nodes(&self) -> BoxFuture<'_, Result<Arc<[NodeMetadata]>, HostError>>;

    /// Versions of an API group that the host serves itself, so that we must not claim them.
    fn served_locally<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<Vec<String>, HostError>>;

    /// Reports an event; best effort, never awaited by a request.
    fn record_event(&self, event: HostEvent);

    /// Whether the caches behind these answers are complete: the `informer-sync` check of readiness.
    fn is_synced(&self) -> bool;
}
