//! The policy of the cluster: the plugins of both phases in their order, and the objects of the host that configure them.
//!
//! kube-apiserver runs neither webhooks nor policies for requests that it forwards, so this server does, with the objects
//! that the host has for its own resources.

use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::Clock;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::attributes::{Attributes, Phase, forbidden};
use super::configuration::AdmissionSettings;
use super::enabled::PluginName;
use super::matching::operation;
use super::plugin::{MutatingPlugin, Mutation, Plugin, ValidatingPlugin};
use super::policy::PolicyContext;
use super::policy::conditions::PolicyConditions;
use super::policy::mutating::MutatingPolicies;
use super::policy::validating::ValidatingPolicies;
use super::webhook::{self, MutatingWebhooks, ValidatingWebhooks, WebhookContext};
use crate::error::ApiError;
use crate::host::Host;
use crate::http::client::{Client, SystemResolver};
use crate::metrics::AdmissionMetrics;
use crate::registry::admission::WriteAttributes;

/// How long a write waits for the objects of the host to be loaded.
const SYNC_WAIT: Duration = Duration::from_secs(10);

/// The plugins of both phases. Without plugins, as in standalone mode, there is no policy.
pub struct ClusterPolicy {
    host: Arc<dyn Host>,
    clock: Arc<dyn Clock>,
    metrics: AdmissionMetrics,
    mutating: Vec<Box<dyn MutatingPlugin>>,
    validating: Vec<Box<dyn ValidatingPlugin>>,
}

impl ClusterPolicy {
    /// These plugins, each list in the order in which they run.
    #[must_use]
    pub fn new(
        host: Arc<dyn Host>,
        clock: Arc<dyn Clock>,
        metrics: AdmissionMetrics,
        mutating: Vec<Box<dyn MutatingPlugin>>,
        validating: Vec<Box<dyn ValidatingPlugin>>,
    ) -> Self {
        Self {
            host,
            clock,
            metrics,
            mutating,
            validating,
        }
    }

    /// The enabled plugins, configured by the objects of the host.
    #[must_use]
    pub fn of_host(
        host: &Arc<dyn Host>,
        clock: Arc<dyn Clock>,
        metrics: AdmissionMetrics,
        settings: &AdmissionSettings,
        policies: &Arc<PolicyContext>,
    ) -> Self {
        let plugins = &settings.enabled;
        let follow = |name, kind| plugins.has(name).then(|| host.follow(kind)).flatten();
        let webhooks = WebhookContext {
            client: Arc::new(Client::new(SystemResolver)),
            metrics: metrics.clone(),
            conditions: Arc::new(PolicyConditions::new(Arc::clone(policies))),
            credentials: Arc::clone(&settings.mutating_webhooks),
        };
        let mut mutating: Vec<Box<dyn MutatingPlugin>> = Vec::new();
        if plugins.has(PluginName::MutatingAdmissionPolicy)
            && let Some(plugin) = MutatingPolicies::new(policies)
        {
            mutating.push(Box::new(plugin));
        }
        if let Some(followed) = follow(PluginName::MutatingAdmissionWebhook, webhook::MUTATING) {
            mutating.push(Box::new(MutatingWebhooks::new(followed, webhooks.clone())));
        }
        let mut validating: Vec<Box<dyn ValidatingPlugin>> = Vec::new();
        if plugins.has(PluginName::ValidatingAdmissionPolicy)
            && let Some(plugin) = ValidatingPolicies::new(policies)
        {
            validating.push(Box::new(plugin));
        }
        if let Some(followed) = follow(PluginName::ValidatingAdmissionWebhook, webhook::VALIDATING) {
            validating.push(Box::new(ValidatingWebhooks::new(
                followed,
                WebhookContext {
                    credentials: Arc::clone(&settings.validating_webhooks),
                    ..webhooks
                },
            )));
        }
        Self::new(Arc::clone(host), clock, metrics, mutating, validating)
    }

    fn plugins(&self) -> impl Iterator<Item = &dyn Plugin> {
        let mutating = self.mutating.iter().map(|plugin| plugin.plugin());
        let validating = self.validating.iter().map(|plugin| plugin.plugin());
        mutating.chain(validating)
    }

    /// What is not loaded yet, and why: for the readiness check.
    #[must_use]
    pub fn not_loaded(&self) -> Vec<String> {
        let sources = self.plugins().flat_map(Plugin::sources);
        sources
            .filter(|source| !source.is_synced())
            .map(|source| source.state())
            .collect()
    }

    /// Whether the mutating phase has something to do for such a write.
    #[must_use]
    pub fn mutates(&self, write: &WriteAttributes<'_>) -> bool {
        self.mutating
            .iter()
            .any(|plugin| is_concerned(plugin.plugin(), write))
    }

    /// Runs the mutating phase. Returns the changed object.
    ///
    /// # Errors
    /// Those of the plugins, and 403 while the objects that configure them are not loaded.
    pub async fn mutate(&self, write: &WriteAttributes<'_>) -> Result<Option<Value>, ApiError> {
        let started = Instant::now();
        let result = self.run_mutating(write).await;
        let operation = operation(write.operation);
        self.metrics
            .step("admit", operation, result.is_err(), started.elapsed());
        result
    }

    async fn run_mutating(&self, write: &WriteAttributes<'_>) -> Result<Option<Value>, ApiError> {
        let attributes = Attributes::new(*write, Phase::Mutating, &self.host, self.clock.now());
        let mut mutation = Mutation::new(attributes);
        loop {
            for plugin in &self.mutating {
                wait_until_loaded(plugin.plugin(), write).await?;
                if plugin.plugin().concerns(write) {
                    let run = plugin.admit(&mut mutation);
                    self.timed("admit", plugin.plugin(), write, run).await?;
                }
            }
            if !mutation.starts_again() {
                return Ok(mutation.attributes.into_changed());
            }
        }
    }

    /// Runs the validating phase.
    ///
    /// # Errors
    /// Those of the plugins, and 403 while the objects that configure them are not loaded.
    pub async fn validate(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        if !self
            .validating
            .iter()
            .any(|plugin| is_concerned(plugin.plugin(), write))
        {
            return Ok(());
        }
        let started = Instant::now();
        let result = self.run_validating(write).await;
        let operation = operation(write.operation);
        self.metrics
            .step("validate", operation, result.is_err(), started.elapsed());
        result
    }

    async fn run_validating(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        let attributes = Attributes::new(*write, Phase::Validating, &self.host, self.clock.now());
        for plugin in &self.validating {
            wait_until_loaded(plugin.plugin(), write).await?;
            if plugin.plugin().concerns(write) {
                let run = plugin.validate(&attributes);
                self.timed("validate", plugin.plugin(), write, run).await?;
            }
        }
        Ok(())
    }

    /// Records the run of a plugin.
    async fn timed(
        &self,
        step: &'static str,
        plugin: &dyn Plugin,
        write: &WriteAttributes<'_>,
        run: BoxFuture<'_, Result<(), ApiError>>,
    ) -> Result<(), ApiError> {
        let started = Instant::now();
        let result = run.await;
        let operation = operation(write.operation);
        self.metrics
            .plugin(plugin.name(), step, operation, result.is_err(), started.elapsed());
        result
    }
}

/// Whether a plugin has something to do, or does not know yet.
fn is_concerned(plugin: &dyn Plugin, write: &WriteAttributes<'_>) -> bool {
    plugin.sources().iter().any(|source| !source.is_synced()) || plugin.concerns(write)
}

async fn wait_until_loaded(plugin: &dyn Plugin, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
    let sources = plugin.sources();
    if sources.iter().all(|source| source.is_synced()) {
        return Ok(());
    }
    let loaded = async {
        for source in sources {
            source.synced().await;
        }
    };
    timeout(SYNC_WAIT, loaded)
        .await
        .map_err(|_| forbidden(write, "not yet ready to handle request"))
}

#[cfg(test)]
mod tests {
    use drydock_machinery::clock::ManualClock;
    use futures_util::FutureExt as _;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::fixtures::{FakeHost, noon};
    use crate::host::{AuthenticationConfig, Followed, FollowedKind};
    use crate::metrics::Metrics;

    /// A plugin that is configured by one kind.
    struct Configured(Arc<Followed>);

    impl Plugin for Configured {
        fn name(&self) -> &'static str {
            "Configured"
        }

        fn sources(&self) -> Vec<&Arc<Followed>> {
            vec![&self.0]
        }

        fn concerns(&self, _: &WriteAttributes<'_>) -> bool {
            true
        }
    }

    impl ValidatingPlugin for Configured {
        fn plugin(&self) -> &dyn Plugin {
            self
        }

        fn validate<'a>(&'a self, _: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
            std::future::ready(Ok(())).boxed()
        }
    }

    /// Checklist 62: what the readiness check says.
    #[test]
    fn what_is_not_loaded_is_named_with_the_reason() {
        let followed = Arc::new(Followed::new(FollowedKind::of_admission(
            "things",
            "Thing",
            &["v1"],
        )));
        let policy = ClusterPolicy::new(
            FakeHost::new(AuthenticationConfig::default()),
            Arc::new(ManualClock::new(noon())),
            Metrics::register(&mut Registry::default(), [])
                .admission()
                .clone(),
            Vec::new(),
            vec![Box::new(Configured(Arc::clone(&followed)))],
        );
        followed.set_problem("no right to list".to_owned());
        assert_eq!(
            policy.not_loaded(),
            ["things.admissionregistration.k8s.io: no right to list"]
        );
        followed.replace(Vec::new());
        assert!(policy.not_loaded().is_empty());
    }
}
