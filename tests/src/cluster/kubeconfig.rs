//! Kubeconfig files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::pki::Credential;

/// A kubeconfig with all certificates and keys embedded.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    document: Value,
}

impl Kubeconfig {
    /// For a client certificate. `server` is a URL, `ca` a PEM bundle.
    #[must_use]
    pub fn with_certificate(server: &str, ca: &str, credential: &Credential) -> Self {
        Self::new(
            server,
            ca,
            &json!({
                "client-certificate-data": STANDARD.encode(&credential.certificate),
                "client-key-data": STANDARD.encode(&credential.key),
            }),
        )
    }

    /// For a bearer token, such as a service account's.
    #[must_use]
    pub fn with_token(server: &str, ca: &str, token: &str) -> Self {
        Self::new(server, ca, &json!({ "token": token }))
    }

    /// The same, for a server whose certificate is for another name than that in its URL.
    #[must_use]
    pub fn with_server_name(mut self, name: &str) -> Self {
        if let Some(cluster) = self.document.pointer_mut("/clusters/0/cluster") {
            cluster["tls-server-name"] = json!(name);
        }
        self
    }

    fn new(server: &str, ca: &str, user: &Value) -> Self {
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "drydock",
                "cluster": { "server": server, "certificate-authority-data": STANDARD.encode(ca) },
            }],
            "users": [{ "name": "drydock", "user": user }],
            "contexts": [{ "name": "drydock", "context": { "cluster": "drydock", "user": "drydock" } }],
            "current-context": "drydock",
        });
        Self { document }
    }

    /// The file's text: JSON, which is YAML too.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{:#}\n", self.document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_name_belongs_to_the_cluster() {
        let kubeconfig = Kubeconfig::with_token("https://127.0.0.1:1", "PEM", "t").with_server_name("a.svc");
        let document: Value = serde_json::from_str(&kubeconfig.to_text()).unwrap();
        let cluster = &document["clusters"][0]["cluster"];
        assert_eq!(cluster["tls-server-name"], "a.svc");
        assert_eq!(cluster["server"], "https://127.0.0.1:1");
    }
}
