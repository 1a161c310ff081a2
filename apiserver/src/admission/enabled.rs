//! The plugins by the names that flags have, and which of them run.

use std::fmt;

/// A plugin. The order is the one in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PluginName {
    /// Rejects new objects in namespaces that are missing or being deleted.
    #[value(name = "NamespaceLifecycle")]
    NamespaceLifecycle,
    /// Rejects owner references that need rights which the user does not have. Off by default, as in kube-apiserver.
    #[value(name = "OwnerReferencesPermissionEnforcement")]
    OwnerReferencesPermissionEnforcement,
    /// Runs `MutatingAdmissionPolicy` objects.
    #[value(name = "MutatingAdmissionPolicy")]
    MutatingAdmissionPolicy,
    /// Calls mutating webhooks.
    #[value(name = "MutatingAdmissionWebhook")]
    MutatingAdmissionWebhook,
    /// Runs `ValidatingAdmissionPolicy` objects.
    #[value(name = "ValidatingAdmissionPolicy")]
    ValidatingAdmissionPolicy,
    /// Calls validating webhooks.
    #[value(name = "ValidatingAdmissionWebhook")]
    ValidatingAdmissionWebhook,
}

impl PluginName {
    /// The name in flags and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NamespaceLifecycle => "NamespaceLifecycle",
            Self::OwnerReferencesPermissionEnforcement => "OwnerReferencesPermissionEnforcement",
            Self::MutatingAdmissionPolicy => "MutatingAdmissionPolicy",
            Self::MutatingAdmissionWebhook => "MutatingAdmissionWebhook",
            Self::ValidatingAdmissionPolicy => "ValidatingAdmissionPolicy",
            Self::ValidatingAdmissionWebhook => "ValidatingAdmissionWebhook",
        }
    }
}

impl fmt::Display for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which plugins run: those of the default and those that are enabled, without those that are disabled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnabledPlugins {
    enabled: Vec<PluginName>,
    disabled: Vec<PluginName>,
}

impl EnabledPlugins {
    /// The plugins by two flags. All but `OwnerReferencesPermissionEnforcement` run by default.
    ///
    /// # Errors
    /// A plugin that both flags name.
    pub fn new(enabled: Vec<PluginName>, disabled: Vec<PluginName>) -> Result<Self, PluginName> {
        match disabled.iter().find(|name| enabled.contains(name)) {
            Some(both) => Err(*both),
            None => Ok(Self { enabled, disabled }),
        }
    }

    /// Whether a plugin runs.
    #[must_use]
    pub fn has(&self, name: PluginName) -> bool {
        let by_default = name != PluginName::OwnerReferencesPermissionEnforcement;
        (by_default || self.enabled.contains(&name)) && !self.disabled.contains(&name)
    }
}
