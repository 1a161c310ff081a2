//! The credentials for webhooks: the users of a kubeconfig, whose names say for which webhooks they are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::http::client::{Authorization, ClientCertificate, CredentialProblem};

/// What webhooks are shown that a user of the kubeconfig is for.
#[derive(Debug, Default)]
pub(super) struct Credential {
    pub(super) certificate: Option<ClientCertificate>,
    pub(super) authorization: Option<Arc<Authorization>>,
}

/// The credentials for webhooks of one kind. Without a kubeconfig there are none.
#[derive(Debug, Default)]
pub struct WebhookCredentials {
    users: HashMap<String, Arc<Credential>>,
    /// The user of the current context.
    current: Option<String>,
}

impl PartialEq for WebhookCredentials {
    /// Whether they are for the same webhooks. Secrets are not compared.
    fn eq(&self, other: &Self) -> bool {
        let is_known = |name: &String| other.users.contains_key(name);
        self.users.len() == other.users.len()
            && self.users.keys().all(is_known)
            && self.current == other.current
    }
}

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigProblem {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no kubeconfig.
    #[error("{path} is not a kubeconfig: {text}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, on one line. It has no values of the file.
        text: String,
    },
    /// A user cannot be used.
    #[error("user {user:?}: {problem}")]
    User {
        /// The name.
        user: String,
        /// Why.
        problem: UserProblem,
    },
}

/// Why a user of a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UserProblem {
    /// It has a member that this server does not support.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// Its credential is not usable.
    #[error(transparent)]
    Credential(#[from] CredentialProblem),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", default)]
#[derive(Default)]
struct Kubeconfig {
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
    current_context: String,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    #[serde(default)]
    context: Context,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    user: String,
}

/// The members as the reference reads them.
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
    r#as: Option<Value>,
    exec: Option<Value>,
    auth_provider: Option<Value>,
}

impl WebhookCredentials {
    /// Reads a kubeconfig and the files that it names, relative to its folder.
    ///
    /// # Errors
    /// [`KubeconfigProblem`].
    pub fn read(path: &Path) -> Result<Self, KubeconfigProblem> {
        let text = std::fs::read_to_string(path).map_err(|source| KubeconfigProblem::Read {
            path: path.to_owned(),
            source,
        })?;
        // The error would show the text around a fault, which may be a secret.
        let config: Kubeconfig = serde_saphyr::from_str(&text).map_err(|_| KubeconfigProblem::Invalid {
            path: path.to_owned(),
            text: "a member has the wrong type, or it is no YAML".to_owned(),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut users = HashMap::new();
        for NamedUser { name, user } in config.users {
            match user.credential(folder) {
                Ok(credential) => users.insert(name, Arc::new(credential)),
                Err(problem) => return Err(KubeconfigProblem::User { user: name, problem }),
            };
        }
        let mut contexts = config.contexts.into_iter();
        let current = contexts.find(|named| named.name == config.current_context);
        let current = current
            .map(|named| named.context.user)
            .filter(|user| !user.is_empty());
        Ok(Self { users, current })
    }

    /// The credential for a webhook at `host:port`, or at `host` for a URL without a port. Looked up as the reference does: the
    /// exact name, `*.` and the rest of it after any dot, both without the port if it is 443, `*`, and the user of the current
    /// context.
    pub(super) fn of(&self, target: &str) -> Option<&Arc<Credential>> {
        let by_name = |name: &str| {
            let wildcards = name.match_indices('.').map(|(at, _)| format!("*{}", &name[at..]));
            let mut names = std::iter::once(name.to_owned()).chain(wildcards);
            names.find_map(|name| self.users.get(&name))
        };
        let without_port = target
            .strip_suffix(":443")
            .map(|host| host.trim_matches(['[', ']']));
        by_name(target)
            .or_else(|| without_port.and_then(by_name))
            .or_else(|| self.users.get("*"))
            .or_else(|| self.users.get(self.current.as_ref()?))
    }
}

impl User {
    fn credential(&self, folder: &Path) -> Result<Credential, UserProblem> {
        for (member, is_set) in [
            ("as", self.r#as.is_some()),
            ("exec", self.exec.is_some()),
            ("auth-provider", self.auth_provider.is_some()),
        ] {
            if is_set {
                return Err(UserProblem::Unsupported(member));
            }
        }
        let chain = content(folder, &self.client_certificate, &self.client_certificate_data)?;
        let key = content(folder, &self.client_key, &self.client_key_data)?;
        let certificate = match (chain.as_slice(), key.as_slice()) {
            ([], []) => None,
            (chain, key) => Some(ClientCertificate::from_pem(chain, key)?),
        };
        let authorization = if !self.token.is_empty() {
            Some(Authorization::bearer(&self.token)?)
        } else if !self.token_file.is_empty() {
            Some(Authorization::token_file(folder.join(&self.token_file))?)
        } else if !self.username.is_empty() || !self.password.is_empty() {
            Some(Authorization::basic(&self.username, &self.password)?)
        } else {
            None
        };
        Ok(Credential {
            certificate,
            authorization: authorization.map(Arc::new),
        })
    }
}

/// The content of a member that is a file or has the data itself; empty if there is neither.
fn content(folder: &Path, file: &str, data: &str) -> Result<Vec<u8>, CredentialProblem> {
    if !data.is_empty() {
        return STANDARD.decode(data).map_err(|_| CredentialProblem::Certificate);
    }
    if file.is_empty() {
        return Ok(Vec::new());
    }
    let path = folder.join(file);
    std::fs::read(&path).map_err(|source| CredentialProblem::Read { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<WebhookCredentials, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, text).unwrap();
        let read = WebhookCredentials::read(&path);
        read.map_err(|error| {
            error
                .to_string()
                .replace(&folder.path().display().to_string(), "FOLDER")
        })
    }

    /// The cases of the reference's documentation.
    #[test]
    fn the_name_of_a_user_says_for_which_webhooks_it_is() {
        let names = [
            "hook.ns.svc",
            "hook.ns.svc:8443",
            "*.ns2.svc",
            "*.org",
            "a.b.org",
            "hook.ns.svc:444",
        ];
        let users: Vec<String> = names
            .iter()
            .map(|name| format!("- name: '{name}'\n  user: {{token: '{name}'}}"))
            .collect();
        let text = format!("users:\n{}\n", users.join("\n"));
        let with = |more: &str| read(&format!("{text}{more}")).unwrap();
        let token = |credentials: &WebhookCredentials, target: &str| {
            let found = credentials.of(target)?.authorization.as_ref()?.value();
            Some(found.to_str().unwrap().trim_start_matches("Bearer ").to_owned())
        };
        let plain = with("");
        for (target, expected) in [
            ("hook.ns.svc:443", Some("hook.ns.svc")),
            ("hook.ns.svc:8443", Some("hook.ns.svc:8443")),
            ("hook.ns.svc:8444", None),
            ("other.ns2.svc:443", Some("*.ns2.svc")),
            ("other.ns2.svc:8443", None),
            ("a.b.org", Some("a.b.org")),
            ("x.a.b.org", Some("*.org")),
            ("org", None),
        ] {
            assert_eq!(token(&plain, target).as_deref(), expected, "{target}");
        }
        let all = with("- name: '*'\n  user: {username: u, password: p}\n");
        assert_eq!(token(&all, "unknown:1").as_deref(), Some("Basic dTpw"));
        let current = with("contexts: [{name: c, context: {user: a.b.org}}]\ncurrent-context: c\n");
        assert_eq!(token(&current, "unknown:1").as_deref(), Some("a.b.org"));
    }

    #[test]
    fn a_user_that_cannot_be_used_is_refused_without_its_secrets() {
        for (user, expected) in [
            ("{exec: {command: x}}", "exec is not supported"),
            ("{auth-provider: {name: x}}", "auth-provider is not supported"),
            ("{as: x}", "as is not supported"),
            (
                "{client-certificate-data: c2VjcmV0}",
                "the client certificate and its key must both be set, and be PEM",
            ),
            (
                "{token: \"secret\\n.\"}",
                "a token or password has characters that cannot be sent",
            ),
            (
                "{tokenFile: absent}",
                "cannot read FOLDER/absent: No such file or directory (os error 2)",
            ),
        ] {
            let error = read(&format!("users: [{{name: u, user: {user}}}]")).unwrap_err();
            assert_eq!(error, format!("user \"u\": {expected}"));
        }
        let error = read("users: [{name: u, user: {token: {secret: 1}}}]").unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}
