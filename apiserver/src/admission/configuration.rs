//! The file of `--admission-control-config-file`, in the reference's format: `AdmissionConfiguration`, with the credentials for
//! webhooks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::enabled::{EnabledPlugins, PluginName};
use super::webhook::WebhookCredentials;

const API_VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];
const KIND: &str = "AdmissionConfiguration";
const WEBHOOK_API_VERSION: &str = "apiserver.config.k8s.io/v1";
const WEBHOOK_KIND: &str = "WebhookAdmissionConfiguration";

/// Which plugins run, and how they are configured by files.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AdmissionSettings {
    /// Which run.
    pub enabled: EnabledPlugins,
    /// For mutating webhooks.
    pub mutating_webhooks: Arc<WebhookCredentials>,
    /// For validating webhooks.
    pub validating_webhooks: Arc<WebhookCredentials>,
}

/// Why a file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionFileError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not valid.
    #[error("{path} is invalid: {text}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, on one line.
        text: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigurationFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    plugins: Vec<PluginConfiguration>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PluginConfiguration {
    name: String,
    #[serde(default)]
    path: String,
    configuration: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookConfiguration {
    api_version: String,
    kind: String,
    #[serde(default)]
    kube_config_file: String,
}

impl AdmissionSettings {
    /// Reads the file, and those that it names.
    ///
    /// # Errors
    /// [`AdmissionFileError`], also for plugins that this server does not have or that take no configuration.
    pub fn read(enabled: EnabledPlugins, path: &Path) -> Result<Self, AdmissionFileError> {
        let text = read(path)?;
        let invalid = |text: String| AdmissionFileError::Invalid {
            path: path.to_owned(),
            text,
        };
        let file: ConfigurationFile = decode(&text).map_err(invalid)?;
        expect(&file.api_version, &file.kind, &API_VERSIONS, KIND).map_err(invalid)?;
        let mut settings = Self {
            enabled,
            ..Self::default()
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        for (index, plugin) in file.plugins.into_iter().enumerate() {
            let at = |text: String| invalid(format!("plugins[{index}]: {text}"));
            let name = PluginName::from_str(&plugin.name, false);
            let name = name.map_err(|_| at(format!("there is no plugin {:?}", plugin.name)))?;
            let credentials = match name {
                PluginName::MutatingAdmissionWebhook => &mut settings.mutating_webhooks,
                PluginName::ValidatingAdmissionWebhook => &mut settings.validating_webhooks,
                _ => return Err(at(format!("{name} takes no configuration"))),
            };
            let configuration = match (plugin.configuration, plugin.path.as_str()) {
                (Some(configuration), _) => {
                    serde_json::from_value(configuration).map_err(|error| error.to_string())
                }
                (None, "") => continue,
                (None, path) => decode(&read(&folder.join(path))?),
            };
            let configuration: WebhookConfiguration = configuration.map_err(&at)?;
            *credentials = Arc::new(configuration.credentials().map_err(&at)?);
        }
        Ok(settings)
    }
}

impl WebhookConfiguration {
    fn credentials(self) -> Result<WebhookCredentials, String> {
        expect(
            &self.api_version,
            &self.kind,
            &[WEBHOOK_API_VERSION],
            WEBHOOK_KIND,
        )?;
        let path = Path::new(&self.kube_config_file);
        if self.kube_config_file.is_empty() {
            return Ok(WebhookCredentials::default());
        }
        if !path.is_absolute() {
            return Err(format!(
                "kubeConfigFile: Invalid value: {:?}: must be an absolute file path",
                self.kube_config_file
            ));
        }
        WebhookCredentials::read(path).map_err(|error| format!("kubeConfigFile: {error}"))
    }
}

fn read(path: &Path) -> Result<String, AdmissionFileError> {
    std::fs::read_to_string(path).map_err(|source| AdmissionFileError::Read {
        path: path.to_owned(),
        source,
    })
}

fn decode<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    serde_saphyr::from_str(text).map_err(|error| first_line(error.to_string()))
}

fn expect(api_version: &str, kind: &str, versions: &[&str], expected: &str) -> Result<(), String> {
    if versions.contains(&api_version) && kind == expected {
        return Ok(());
    }
    let version = versions.first().copied().unwrap_or_default();
    Err(format!(
        "it must have apiVersion {version} and kind {expected}, not {api_version:?} and {kind:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file beside a kubeconfig and a configuration of webhooks.
    fn settings(text: &str) -> Result<AdmissionSettings, String> {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, "users: [{name: '*', user: {token: t}}]").unwrap();
        let webhooks = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: {}}}",
            kubeconfig.display()
        );
        std::fs::write(folder.path().join("webhooks.yaml"), &webhooks).unwrap();
        let path = folder.path().join("admission.yaml");
        std::fs::write(&path, text.replace("WEBHOOKS", &webhooks)).unwrap();
        let read = AdmissionSettings::read(EnabledPlugins::default(), &path);
        read.map_err(|error| {
            error
                .to_string()
                .replace(&folder.path().display().to_string(), "FOLDER")
        })
    }

    fn with(plugins: &str) -> Result<AdmissionSettings, String> {
        settings(&format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: {plugins}}}"
        ))
    }

    #[test]
    fn webhooks_of_each_kind_have_the_credentials_of_their_plugin() {
        for (plugins, mutating, validating) in [
            ("[]", false, false),
            (
                "[{name: ValidatingAdmissionWebhook, configuration: WEBHOOKS}]",
                false,
                true,
            ),
            (
                "[{name: MutatingAdmissionWebhook, path: webhooks.yaml}]",
                true,
                false,
            ),
            ("[{name: MutatingAdmissionWebhook}]", false, false),
        ] {
            let found = with(plugins).unwrap();
            let has = |credentials: &WebhookCredentials| format!("{credentials:?}").contains('*');
            assert_eq!(
                (has(&found.mutating_webhooks), has(&found.validating_webhooks)),
                (mutating, validating),
                "{plugins}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let webhook = |configuration: &str| {
            with(&format!(
                "[{{name: ValidatingAdmissionWebhook, configuration: {configuration}}}]"
            ))
        };
        let file = "FOLDER/admission.yaml is invalid: ";
        for (found, expected) in [
            (
                settings("{apiVersion: v1, kind: AdmissionConfiguration}"),
                "it must have apiVersion apiserver.config.k8s.io/v1 and kind AdmissionConfiguration, not \"v1\" and \
                 \"AdmissionConfiguration\"",
            ),
            (
                with("[{name: PodSecurity}]"),
                "plugins[0]: there is no plugin \"PodSecurity\"",
            ),
            (
                with("[{name: NamespaceLifecycle}]"),
                "plugins[0]: NamespaceLifecycle takes no configuration",
            ),
            (
                webhook("{apiVersion: v1, kind: X}"),
                "plugins[0]: it must have apiVersion apiserver.config.k8s.io/v1 and kind WebhookAdmissionConfiguration, not \
                 \"v1\" and \"X\"",
            ),
            (
                webhook(
                    "{apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: k}",
                ),
                "plugins[0]: kubeConfigFile: Invalid value: \"k\": must be an absolute file path",
            ),
            (
                webhook(
                    "{apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: /absent}",
                ),
                "plugins[0]: kubeConfigFile: cannot read /absent: No such file or directory (os error 2)",
            ),
        ] {
            assert_eq!(found.unwrap_err(), format!("{file}{expected}"));
        }
        let unknown = webhook("{apiVersion: v1, kind: X, staticManifestsDir: /x}").unwrap_err();
        assert!(
            unknown.contains("unknown field `staticManifestsDir`"),
            "{unknown}"
        );
        let absent = with("[{name: MutatingAdmissionWebhook, path: absent.yaml}]").unwrap_err();
        assert_eq!(
            absent,
            "cannot read FOLDER/absent.yaml: No such file or directory (os error 2)"
        );
    }
}
