//! The kubeconfig of the admin, with which kubectl reaches the server.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::certificates::{ADMIN, Certificates, write_private};

/// The kubeconfig of the admin of a server at `url`.
#[must_use]
pub(crate) fn render(url: &str, certificates: &Certificates) -> String {
    let encode = |pem: &str| STANDARD.encode(pem);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: drydock-standalone\n\
         clusters:\n\
         - name: drydock-standalone\n\
         \x20 cluster:\n\
         \x20   server: {url}\n\
         \x20   certificate-authority-data: {}\n\
         contexts:\n\
         - name: drydock-standalone\n\
         \x20 context:\n\
         \x20   cluster: drydock-standalone\n\
         \x20   namespace: default\n\
         \x20   user: {ADMIN}\n\
         users:\n\
         - name: {ADMIN}\n\
         \x20 user:\n\
         \x20   client-certificate-data: {}\n\
         \x20   client-key-data: {}\n",
        encode(&certificates.authority),
        encode(&certificates.admin.certificate),
        encode(&certificates.admin.key),
    )
}

/// Writes the kubeconfig atomically, readable by its owner only.
///
/// # Errors
/// The file system rejects an operation.
pub(crate) fn write(path: &Path, url: &str, certificates: &Certificates) -> io::Result<()> {
    write_private(path, &render(url, certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_can_parse_it() {
        let folder = tempfile::tempdir().unwrap();
        let certificates =
            Certificates::load_or_generate(folder.path(), "2026-01-31T12:00:00Z".parse().unwrap()).unwrap();
        let path = folder.path().join("kubeconfig");
        write(&path, "https://127.0.0.1:4444", &certificates).unwrap();
        let read = kube::config::Kubeconfig::read_from(&path).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("drydock-standalone"));
        let server = read.clusters[0].cluster.as_ref().unwrap().server.as_deref();
        assert_eq!(server, Some("https://127.0.0.1:4444"));
        let user = read.auth_infos[0].auth_info.as_ref().unwrap();
        let certificate = STANDARD
            .decode(user.client_certificate_data.as_ref().unwrap())
            .unwrap();
        assert_eq!(
            String::from_utf8(certificate).unwrap(),
            certificates.admin.certificate
        );
    }
}
