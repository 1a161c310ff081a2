//! Which objects a list or watch selects: a scope, which is a range of keys, and selectors that filter it.

use std::fmt;
use std::sync::Arc;

use drydock_storage::{Key, KeyRange};

use super::object::{CachedObject, Term, TermKind};

/// The part of a resource that a request covers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All objects.
    All,
    /// The objects of a namespace.
    Namespace(String),
    /// One object; the namespace is empty for cluster-scoped resources.
    Name {
        /// Its namespace, or empty.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// A label or field selector.
pub trait Predicate: fmt::Display + Send + Sync {
    /// Whether an object matches whose values `lookup` returns by name.
    fn matches<'a>(&self, lookup: &dyn Fn(&str) -> Option<&'a str>) -> bool;
    /// Names and the only value each may have in an object that matches.
    fn equalities(&self) -> Vec<(String, String)>;
    /// Whether everything matches.
    fn is_empty(&self) -> bool;
}

/// A scope with selectors. Cloning is cheap.
#[derive(Clone)]
pub struct Selection {
    inner: Arc<Inner>,
}

struct Inner {
    /// The prefix of all keys of the scope; continue tokens are relative to it.
    prefix: String,
    /// The keys that may match: the scope, narrowed by field selectors on name and namespace.
    range: KeyRange,
    scope: Scope,
    labels: Option<Box<dyn Predicate>>,
    fields: Option<Box<dyn Predicate>>,
    equalities: Vec<Term>,
    /// The one name that may match, when the scope spans namespaces.
    name: Option<String>,
    identity: String,
}

impl Selection {
    /// The objects of `group` and `resource` within `scope` that both selectors match.
    #[must_use]
    pub fn new(
        group: &str,
        resource: &str,
        scope: Scope,
        labels: Option<Box<dyn Predicate>>,
        fields: Option<Box<dyn Predicate>>,
    ) -> Self {
        let labels = labels.filter(|labels| !labels.is_empty());
        let fields = fields.filter(|fields| !fields.is_empty());
        let prefix = match &scope {
            Scope::All | Scope::Name { .. } => format!("{group}/{resource}/"),
            Scope::Namespace(namespace) => format!("{group}/{resource}/{namespace}/"),
        };
        let label_terms = labels.iter().flat_map(|labels| labels.equalities());
        let field_terms = fields.iter().flat_map(|fields| fields.equalities());
        let label_terms = label_terms.map(|(name, value)| Term::new(TermKind::Label, &name, &value));
        let (key_fields, field_terms): (Vec<_>, Vec<_>) =
            field_terms.partition(|(name, _)| name == "metadata.name" || name == "metadata.namespace");
        let field_terms = field_terms
            .iter()
            .map(|(name, value)| Term::new(TermKind::Field, name, value));
        let equalities = label_terms.chain(field_terms).collect();
        let (scope, name) = narrow(scope, &key_fields);
        let range = range(group, resource, &scope);
        let text = |selector: &Option<Box<dyn Predicate>>| selector.as_ref().map(ToString::to_string);
        let identity = format!("{range:?} {:?} {:?}", text(&labels), text(&fields));
        Self {
            inner: Arc::new(Inner {
                prefix,
                range,
                scope,
                labels,
                fields,
                equalities,
                name,
                identity,
            }),
        }
    }

    /// Whether the object is within the scope and matched by both selectors.
    #[must_use]
    pub fn matches(&self, object: &CachedObject) -> bool {
        self.inner.range.contains(object.key().as_str()) && self.selects(object)
    }

    /// Whether an object under this key may match, judged by the key alone.
    pub(super) fn may_match(&self, key: &Key) -> bool {
        self.inner.range.contains(key.as_str()) && self.name().is_none_or(|name| name == key.name())
    }

    /// Whether both selectors match an object of the scope.
    pub(super) fn selects(&self, object: &CachedObject) -> bool {
        let labels = self.inner.labels.as_ref();
        let fields = self.inner.fields.as_ref();
        labels.is_none_or(|labels| labels.matches(&|name: &str| object.label(name)))
            && fields.is_none_or(|fields| fields.matches(&|name: &str| object.field(name)))
    }

    /// Whether there is a label or field selector.
    #[must_use]
    pub fn has_selectors(&self) -> bool {
        self.inner.labels.is_some() || self.inner.fields.is_some()
    }

    /// The prefix of all keys of the request's scope.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    /// The keys that may match.
    #[must_use]
    pub fn range(&self) -> &KeyRange {
        &self.inner.range
    }

    pub(super) fn scope(&self) -> &Scope {
        &self.inner.scope
    }

    /// Terms that every matching object has.
    pub(super) fn equalities(&self) -> &[Term] {
        &self.inner.equalities
    }

    /// The one name that may match, when the scope spans namespaces.
    pub(super) fn name(&self) -> Option<&str> {
        self.inner.name.as_deref()
    }

    /// Equal for selections with the same scope and the same selector texts.
    pub(super) fn identity(&self) -> &str {
        &self.inner.identity
    }
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Selection").field(&self.inner.identity).finish()
    }
}

/// Narrows the scope by a field selector on name and namespace, or else finds the one name that may match in all
/// namespaces. The selector may contradict the scope: it is still evaluated for each object.
fn narrow(mut scope: Scope, key_fields: &[(String, String)]) -> (Scope, Option<String>) {
    let value = |field: &str| {
        let mut found = key_fields.iter().filter(|(name, _)| name == field);
        found.next().map(|(_, value)| value.clone())
    };
    if let (Scope::All, Some(namespace)) = (&scope, value("metadata.namespace")) {
        scope = Scope::Namespace(namespace);
    }
    match (scope, value("metadata.name")) {
        (Scope::Namespace(namespace), Some(name)) => (Scope::Name { namespace, name }, None),
        (Scope::All, name) => (Scope::All, name),
        (scope, _) => (scope, None),
    }
}

fn range(group: &str, resource: &str, scope: &Scope) -> KeyRange {
    match scope {
        Scope::All => KeyRange::resource(group, resource),
        Scope::Namespace(namespace) => KeyRange::namespace(group, resource, namespace),
        Scope::Name { namespace, name } => {
            let start = format!("{group}/{resource}/{namespace}/{name}");
            let end = format!("{start}\0");
            KeyRange { start, end }
        }
    }
}
