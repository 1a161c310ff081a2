//! The flags of the plugins that carry out the policy of the cluster.

use std::path::PathBuf;

use clap::Args;

use super::error::ConfigError;
use crate::admission::{AdmissionSettings, EnabledPlugins, PluginName};

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
    /// File with an `AdmissionConfiguration` of `apiserver.config.k8s.io/v1`: the credentials for webhooks that ask for them.
    #[arg(long, env = "DRYDOCK_ADMISSION_CONTROL_CONFIG_FILE", value_name = "FILE")]
    admission_control_config_file: Option<PathBuf>,
}

impl AdmissionFlags {
    pub(super) fn validated(self) -> Result<AdmissionSettings, ConfigError> {
        let enabled = EnabledPlugins::new(self.enable_admission_plugins, self.disable_admission_plugins);
        let enabled = enabled.map_err(|both| {
            let text = format!("{both} is named by --enable-admission-plugins too");
            ConfigError::value("--disable-admission-plugins", text)
        })?;
        let Some(path) = self.admission_control_config_file else {
            return Ok(AdmissionSettings {
                enabled,
                ..AdmissionSettings::default()
            });
        };
        AdmissionSettings::read(enabled, &path)
            .map_err(|error| ConfigError::value("--admission-control-config-file", error.to_string()))
    }
}
