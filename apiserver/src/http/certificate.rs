//! Client certificates: their contents, and their verification against the trusted authorities.
//!
//! The TLS layer has only proved that the client holds the key. Issuer and validity are verified per request, with the
//! current authorities. A result is cached for a minute per connection and bundle, since verifying a chain costs more than
//! the rest of a request.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aws_lc_rs::digest;
use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::host::TrustBundle;

/// How long the result of a verification is cached.
const CACHE_TIME: Duration = Duration::from_mins(1);
/// Bundles that a connection is verified against: those for users and for the front proxy.
const BUNDLES: usize = 2;
/// The subject attribute with the user's uid.
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";

/// The certificates that a client presented, leaf first.
pub struct PeerCertificates {
    chain: Vec<CertificateDer<'static>>,
    leaf: Result<Leaf, Unreadable>,
    verified: Mutex<Vec<Verification>>,
}

/// The contents of the leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The last common name of the subject, or empty.
    pub common_name: String,
    /// Every organization of the subject.
    pub organizations: Vec<String>,
    /// The uid attribute of the subject, or empty.
    pub uid: String,
    /// Lower-case hex SHA-256 of the certificate.
    pub fingerprint: String,
    /// Serial number in hex.
    pub serial: String,
    /// Start of validity, in seconds since 1970.
    pub not_before: i64,
    /// End of validity, in seconds since 1970.
    pub not_after: i64,
}

/// The leaf is not an X.509 certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client's certificate cannot be read")]
pub struct Unreadable;

/// Why a certificate is not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CertificateError {
    /// See [`Unreadable`].
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Expired or not yet valid.
    #[error("certificate {serial} is not valid now")]
    OutOfTime {
        /// Serial number.
        serial: String,
    },
    /// Not issued by the authorities, or not for clients.
    #[error("verifying certificate {serial} failed")]
    Untrusted {
        /// Serial number.
        serial: String,
        /// The error of the verification.
        #[source]
        cause: rustls::Error,
    },
}

/// A cached result.
struct Verification {
    bundle: Arc<TrustBundle>,
    at: Timestamp,
    result: Result<(), rustls::Error>,
}

impl fmt::Debug for PeerCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerCertificates")
            .field("leaf", &self.leaf)
            .finish_non_exhaustive()
    }
}

impl PeerCertificates {
    /// The certificates from the TLS layer; none when the client presented none.
    #[must_use]
    pub fn new(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let leaf = chain.first()?;
        Some(Self {
            leaf: read_leaf(leaf),
            chain: chain
                .iter()
                .map(|certificate| certificate.clone().into_owned())
                .collect(),
            verified: Mutex::new(Vec::with_capacity(BUNDLES)),
        })
    }

    /// The contents of the leaf, if the authorities in `bundle` issued it and it is valid at `now`.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn verified(&self, bundle: &Arc<TrustBundle>, now: Timestamp) -> Result<&Leaf, CertificateError> {
        let leaf = self.leaf.as_ref().map_err(|unreadable| *unreadable)?;
        let second = now.as_second();
        if second < leaf.not_before || second > leaf.not_after {
            return Err(CertificateError::OutOfTime {
                serial: leaf.serial.clone(),
            });
        }
        self.verify(bundle, now)
            .map(|()| leaf)
            .map_err(|cause| CertificateError::Untrusted {
                serial: leaf.serial.clone(),
                cause,
            })
    }

    fn verify(&self, bundle: &Arc<TrustBundle>, now: Timestamp) -> Result<(), rustls::Error> {
        let is_fresh = |known: &Verification| {
            let age = now.duration_since(known.at);
            !age.is_negative() && age.unsigned_abs() < CACHE_TIME
        };
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let known = verified
            .iter()
            .find(|known| Arc::ptr_eq(&known.bundle, bundle) && is_fresh(known));
        if let Some(known) = known {
            return known.result.clone();
        }
        let Some((leaf, intermediates)) = self.chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        let time = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or(0)));
        let result = bundle.verify(leaf, intermediates, time);
        // Requests of users are verified against both bundles: the result for one must not displace that for the other.
        verified.retain(is_fresh);
        if verified.len() >= BUNDLES {
            verified.remove(0);
        }
        verified.push(Verification {
            bundle: Arc::clone(bundle),
            at: now,
            result: result.clone(),
        });
        result
    }
}

fn read_leaf(der: &CertificateDer<'_>) -> Result<Leaf, Unreadable> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| Unreadable)?;
    let subject = certificate.subject();
    let mut leaf = Leaf {
        common_name: String::new(),
        organizations: Vec::new(),
        uid: String::new(),
        fingerprint: hex(digest::digest(&digest::SHA256, der).as_ref()),
        serial: certificate.raw_serial_as_string(),
        not_before: certificate.validity().not_before.timestamp(),
        not_after: certificate.validity().not_after.timestamp(),
    };
    for attribute in subject.iter_attributes() {
        let oid = attribute.attr_type();
        let Ok(value) = attribute.as_str() else { continue };
        if *oid == x509_parser::oid_registry::OID_X509_COMMON_NAME {
            value.clone_into(&mut leaf.common_name);
        } else if *oid == x509_parser::oid_registry::OID_X509_ORGANIZATION_NAME {
            leaf.organizations.push(value.to_owned());
        } else if oid.to_id_string() == UID_ATTRIBUTE {
            value.clone_into(&mut leaf.uid);
        }
    }
    Ok(leaf)
}

/// Lower-case hex.
fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // Writing into a String cannot fail.
            let _ok = write!(text, "{byte:02x}");
            text
        })
}

/// When a PEM certificate expires, in seconds since 1970.
pub(super) fn expiry(der: &CertificateDer<'_>) -> Option<i64> {
    read_leaf(der).ok().map(|leaf| leaf.not_after)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};

    use super::*;

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn the_results_for_both_bundles_are_cached_for_a_minute() {
        let (users, front_proxy) = (authority("users"), authority("front-proxy"));
        let leaf = CertificateParams::default()
            .signed_by(&KeyPair::generate().unwrap(), &users)
            .unwrap();
        let presented = PeerCertificates::new(&[leaf.der().clone()]).unwrap();
        let bundle = |authority: &CertifiedIssuer<'static, KeyPair>| {
            Arc::new(TrustBundle::from_pem(&authority.pem()).unwrap())
        };
        let (users, front_proxy) = (bundle(&users), bundle(&front_proxy));
        let verified_at = || -> Vec<i64> {
            let verified = presented.verified.lock().unwrap();
            verified.iter().map(|known| known.at.as_second()).collect()
        };
        let verify = |second: i64| {
            let now = Timestamp::from_second(second).unwrap();
            assert!(presented.verified(&front_proxy, now).is_err());
            assert!(presented.verified(&users, now).is_ok());
        };
        let start = 1_800_000_000;
        verify(start);
        verify(start + 59);
        assert_eq!(verified_at(), [start, start]);
        verify(start + 60);
        assert_eq!(verified_at(), [start + 60, start + 60]);
    }
}
