//! What the client shows of itself to servers that ask for it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::Instant;

/// How old a token from a file may become before the file is read again.
const TOKEN_AGE: Duration = Duration::from_mins(1);

/// Why a credential cannot be used. No text shows a secret.
#[derive(Debug, thiserror::Error)]
pub enum CredentialProblem {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The certificate or its key is no PEM, or there is only one of them.
    #[error("the client certificate and its key must both be set, and be PEM")]
    Certificate,
    /// A token or password has characters that no header has.
    #[error("a token or password has characters that cannot be sent")]
    Text,
}

/// A certificate and its key.
pub struct ClientCertificate {
    id: u64,
    pub(super) chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ClientCertificate {
    /// A certificate with those that lead to its authority, and its key, both in PEM.
    ///
    /// # Errors
    /// [`CredentialProblem::Certificate`].
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, CredentialProblem> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let key = PrivateKeyDer::from_pem_slice(key);
        let (Some(chain), Ok(key)) = (chain, key) else {
            return Err(CredentialProblem::Certificate);
        };
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            chain,
            key,
        })
    }

    /// Tells it from all others.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
    }
}

/// The header `Authorization`.
pub enum Authorization {
    /// Always the same.
    Fixed(HeaderValue),
    /// A bearer token that is read from a file again and again.
    File {
        /// The file.
        path: PathBuf,
        /// What it had, and when it was read.
        known: Mutex<(HeaderValue, Instant)>,
    },
}

impl Authorization {
    /// A bearer token.
    ///
    /// # Errors
    /// [`CredentialProblem::Text`].
    pub fn bearer(token: &str) -> Result<Self, CredentialProblem> {
        Ok(Self::Fixed(secret(&format!("Bearer {}", token.trim()))?))
    }

    /// A user name and a password.
    ///
    /// # Errors
    /// [`CredentialProblem::Text`].
    pub fn basic(user: &str, password: &str) -> Result<Self, CredentialProblem> {
        let encoded = STANDARD.encode(format!("{user}:{password}"));
        Ok(Self::Fixed(secret(&format!("Basic {encoded}"))?))
    }

    /// The bearer token in a file.
    ///
    /// # Errors
    /// The file cannot be read, or has no token.
    pub fn token_file(path: PathBuf) -> Result<Self, CredentialProblem> {
        let known = Mutex::new((read(&path)?, Instant::now()));
        Ok(Self::File { path, known })
    }

    /// The value to be sent now. If the file cannot be read any more, the last token that it had.
    #[must_use]
    pub fn value(&self) -> HeaderValue {
        match self {
            Self::Fixed(value) => value.clone(),
            Self::File { path, known } => {
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                if known.1.elapsed() >= TOKEN_AGE {
                    known.1 = Instant::now();
                    match read(path) {
                        Ok(value) => known.0 = value,
                        Err(error) => tracing::warn!(%error, "the token of webhooks is not read again"),
                    }
                }
                known.0.clone()
            }
        }
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization")
    }
}

fn read(path: &Path) -> Result<HeaderValue, CredentialProblem> {
    let token = std::fs::read_to_string(path).map_err(|source| CredentialProblem::Read {
        path: path.to_owned(),
        source,
    })?;
    secret(&format!("Bearer {}", token.trim()))
}

fn secret(text: &str) -> Result<HeaderValue, CredentialProblem> {
    let mut value = HeaderValue::try_from(text).map_err(|_| CredentialProblem::Text)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_read_again_and_kept_while_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let authorization = Authorization::token_file(path.clone()).unwrap();
        std::fs::write(&path, "two").unwrap();
        assert_eq!(authorization.value(), "Bearer one");
        tokio::time::advance(TOKEN_AGE).await;
        assert_eq!(authorization.value(), "Bearer two");
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(TOKEN_AGE).await;
        assert_eq!(authorization.value(), "Bearer two");
        assert!(authorization.value().is_sensitive());
        assert!(Authorization::token_file(path).is_err());
        assert!(Authorization::bearer("a\nb").is_err());
        assert_eq!(Authorization::basic("u", "p").unwrap().value(), "Basic dTpw");
    }
}
