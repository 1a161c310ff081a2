//! A create under a policy of either kind.

use std::collections::BTreeMap;

use prometheus_client::registry::Registry;

use super::*;
use crate::admission::attributes::{Attributes, Phase};
use crate::admission::creation::Creation;
use crate::admission::plugin::{MutatingPlugin as _, Mutation, ValidatingPlugin as _};
use crate::admission::policy::PolicyContext;
use crate::admission::policy::mutating::MutatingPolicies;
use crate::admission::policy::validating::ValidatingPolicies;
use crate::authorization::Authorizer;
use crate::error::ApiError;
use crate::fixtures::{FakeHost, noon};
use crate::host::reviews::{ReviewTtls, Reviews};
use crate::host::{AuthenticationConfig, Host};
use crate::metrics::Metrics;

/// What policies of a fake host share, and their metrics.
pub(super) fn context(fake: &Arc<FakeHost>) -> (Arc<PolicyContext>, Registry) {
    let host: Arc<dyn Host> = Arc::clone(fake) as _;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, []);
    let reviews = Arc::new(Reviews::new(Arc::clone(&host), ReviewTtls::default()).unwrap());
    let authorizer = Arc::new(Authorizer::new(reviews, Vec::new(), metrics));
    let context = PolicyContext::new(host, authorizer, &mut registry);
    (context, registry)
}

/// What came of a create.
pub(super) struct Applied {
    /// The errors by the validating policy and by the mutating one.
    pub(super) outcomes: [Result<(), String>; 2],
    pub(super) annotations: BTreeMap<String, String>,
    /// In the text format.
    pub(super) metrics: String,
}

/// A create of an object with the label `app: web` under a policy of either kind.
pub(super) async fn applied(policy: Value, bindings: impl IntoIterator<Item = Value>) -> Applied {
    let fake = FakeHost::new(AuthenticationConfig::default());
    let bindings: Vec<Arc<Value>> = bindings.into_iter().map(Arc::new).collect();
    let policies = vec![Arc::new(policy)];
    *fake.followed.lock().unwrap() = [
        ("validatingadmissionpolicies", policies.clone()),
        ("validatingadmissionpolicybindings", bindings.clone()),
        ("mutatingadmissionpolicies", policies),
        ("mutatingadmissionpolicybindings", bindings),
    ]
    .into();
    let (context, registry) = context(&fake);
    let host: Arc<dyn Host> = fake;
    let creation = Creation::new();
    let write = creation.write();
    let text = |error: ApiError| serde_json::to_string(error.status()).unwrap();
    let attributes = |phase| Attributes::new(write, phase, &host, noon());
    let validated = ValidatingPolicies::new(&context).unwrap();
    let validated = validated.validate(&attributes(Phase::Validating)).await;
    let mutated = MutatingPolicies::new(&context).unwrap();
    let mutated = mutated
        .admit(&mut Mutation::new(attributes(Phase::Mutating)))
        .await;
    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &registry).unwrap();
    Applied {
        outcomes: [validated.map_err(text), mutated.map_err(text)],
        annotations: creation.audit.contents().annotations.clone(),
        metrics,
    }
}

/// The errors of such a create: the validating policy's and the mutating one's.
pub(super) async fn outcomes(policy: Value, binding: Option<Value>) -> [Result<(), String>; 2] {
    applied(policy, binding).await.outcomes
}
