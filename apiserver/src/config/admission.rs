//! The flags of the plugins that carry out the policy of the cluster.

use clap::Args;

use super::error::ConfigError;
use crate::admission::{EnabledPlugins, PluginName};

/// Flags of admission plugins.
#[derive(Debug, Args)]
pub(super) struct AdmissionFlags {
    /// Admission plugins that run beside those that do by default: all but `OwnerReferencesPermissionEnforcement`.
    #[arg(
        long,
        env = "DRYDOCK_ENABLE_ADMISSION_PLUGINS",
        value_enum,
        value_delimiter = ',',
        value_name = "PLUGINS"
    )]
    enable_admission_plugins: Vec<PluginName>,
    /// Admission plugins that do not run.
    #[arg(
        long,
        env = "DRYDOCK_DISABLE_ADMISSION_PLUGINS",
        value_enum,
        value_delimiter = ',',
        value_name = "PLUGINS"
    )]
    disable_admission_plugins: Vec<PluginName>,
}

impl AdmissionFlags {
    pub(super) fn validated(self) -> Result<EnabledPlugins, ConfigError> {
        EnabledPlugins::new(self.enable_admission_plugins, self.disable_admission_plugins).map_err(|both| {
            ConfigError::value(
                "--disable-admission-plugins",
                format!("{both} is named by --enable-admission-plugins too"),
            )
        })
    }
}
