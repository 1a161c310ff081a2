//! The host: the cluster that this server is an aggregated API server of.
//!
//! [`Host`] is the interface: [`kube`] implements it over a real kube-apiserver, standalone mode over its own storage, and
//! tests with a fake.

mod followed;
pub mod kube;
pub mod published;
pub mod request_header;
pub mod reviews;
pub mod trust;

use std::{collections::BTreeMap, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::Value;
use tokio::sync::watch;

pub use self::followed::{Followed, FollowedKind, Objects, Versions};
use self::request_header::RequestHeaderConfig;
pub use self::trust::TrustBundle;
use crate::request::UserInfo;

/// The trusted authorities and the front proxy, as the host publishes them. New values apply from the next request, on open
/// connections too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationConfig {
    /// Authorities of users' client certificates; without them no certificate authenticates a user.
    pub client_ca: Option<Arc<TrustBundle>>,
    /// How the front proxy names users; without it no header authenticates a user.
    pub request_header: Option<Arc<RequestHeaderConfig>>,
}

/// Why a call to the host failed. Neither a yes nor a no: callers fail the request.
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
    /// Too many reviews wait for the host already.
    #[error("too many reviews wait for the host")]
    Overloaded,
    /// No connection, or it broke.
    #[error("the host cannot be reached: {0}")]
    Unreachable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The mirror that has the objects is not loaded yet.
    #[error("{0} are not loaded yet")]
    NotSynced(&'static str),
    /// The storage of the host does not work now; in standalone mode it is the one of this server.
    #[error("the storage of the host is not available: {0}")]
    Unavailable(String),
}

/// The outcome of a token review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The token is valid and belongs to this user.
    Authenticated(Arc<UserInfo>),
    /// The token is unknown, without a reason.
    Unknown,
    /// The token was rejected, with the host's reason.
    Refused(String),
}

/// Asks whether a user may do something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessReview {
    /// The user, after impersonation, with all groups and extras: the host's authorizers may depend on any of them.
    pub user: Arc<UserInfo>,
    /// What the user wants to do.
    pub attributes: Attributes,
}

/// The attributes of a review.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// A resource.
    Resource(ResourceAttributes),
    /// A path that is not a resource.
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

/// A resource that the host serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostResource {
    /// The plural name, as in paths.
    pub plural: String,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SelectorRequirement {
    /// Label key or field path.
    pub key: String,
    /// How the values are compared.
    pub operator: SelectorOperator,
    /// Values; empty for the existence operators.
    pub values: Vec<String>,
}

/// The operators of a review.
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

/// The outcome of an [`AccessReview`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// Allowed, with the authorizer's reason.
    Allowed(String),
    /// Denied by an authorizer, with its reason.
    Denied(String),
    /// No authorizer allows it, which is forbidden too. The reason is empty for RBAC without errors.
    NoOpinion(String),
}

/// The state of a namespace, for creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// New objects can be created in it.
    Active(Arc<BTreeMap<String, String>>),
    /// It is being deleted, and nothing can be created in it.
    Terminating(Arc<BTreeMap<String, String>>),
    /// It does not exist.
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

/// The resource of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedKind {
    /// Plural.
    pub plural: String,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

/// The name and labels of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMetadata {
    /// Node name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// An event about an object.
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
    /// Whether it is a warning.
    pub warning: bool,
    /// One word in `UpperCamelCase`.
    pub reason: String,
    /// The action that was taken.
    pub action: String,
    /// A sentence, at most 1024 bytes.
    pub note: String,
}

/// The cluster that this server belongs to.
///
/// The implementation limits the time of every call. Reviews go through [`reviews::Reviews`], which caches them.
pub trait Host: Send + Sync + 'static {
    /// The authentication settings and their changes.
    fn authentication(&self) -> watch::Receiver<Arc<AuthenticationConfig>>;

    /// Asks which user a bearer token belongs to. The token must not be logged or stored.
    fn review_token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenVerdict, HostError>>;

    /// Asks whether a user may do something.
    fn review_access<'a>(
        &'a self,
        review: &'a AccessReview,
    ) -> BoxFuture<'a, Result<AccessVerdict, HostError>>;

    /// The state of a namespace. A namespace that was just created is found.
    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, HostError>>;

    /// The current pod, unknown fields included.
    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, HostError>>;

    /// Every node, from a complete cache.
    fn nodes(&self) -> BoxFuture<'_, Result<Arc<[NodeMetadata]>, HostError>>;

    /// Versions of an API group that the host serves itself, which this server must not serve.
    fn served_locally<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<Vec<String>, HostError>>;

    /// The resources of a kind; none if the host does not serve the kind in this version.
    fn resources_of<'a>(
        &'a self,
        _api_version: &'a str,
        _kind: &'a str,
    ) -> BoxFuture<'a, Result<Vec<HostResource>, HostError>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }

    /// Records an event: best effort, and never awaited by a request.
    fn record_event(&self, event: HostEvent);

    /// Whether the caches behind these calls are complete and followed: the readiness check `informer-sync`.
    fn is_synced(&self) -> bool;

    /// The resource of a kind that the host serves; `None` if it does not serve it.
    fn served_kind<'a>(
        &'a self,
        _group: &'a str,
        _version: &'a str,
        _kind: &'a str,
    ) -> BoxFuture<'a, Result<Option<ServedKind>, HostError>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// Reads an object of a kind, in its first version; `None` if there is none. The namespace is empty for cluster-scoped
    /// kinds.
    fn read<'a>(
        &'a self,
        _kind: &'a FollowedKind,
        _namespace: &'a str,
        _name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, HostError>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// Follows all objects of a kind until they are dropped; `None` for a host without such objects, which has no policy.
    fn follow(&self, _kind: FollowedKind) -> Option<Arc<Followed>> {
        None
    }

    /// Returns when the host is no longer followed because of a bug, which only a restart can mend.
    fn failed(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }
}
