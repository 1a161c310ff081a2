//! The certificates of standalone mode, kept in the data directory.
//!
//! An authority signs a serving certificate for loopback and a client certificate of `system:masters`; its key is not
//! kept. All certificates are replaced before they expire.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use drydock_apiserver::request::user::MASTERS;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// The user of the client certificate.
pub(crate) const ADMIN: &str = "drydock-standalone-admin";

/// Certificates that expire within this time are replaced.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

const FOLDER: &str = "certificates";
const AUTHORITY: &str = "ca.crt";
const SERVING: (&str, &str) = ("serving.crt", "serving.key");
const CLIENT: (&str, &str) = ("admin.crt", "admin.key");

/// A certificate with its key, both in PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    /// The certificate.
    pub(crate) certificate: String,
    /// Its private key.
    pub(crate) key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// The certificates of a server in standalone mode.
#[derive(Debug, Clone)]
pub(crate) struct Certificates {
    /// The authority of both, in PEM. Clients trust it, and the server trusts client certificates that it signed.
    pub(crate) authority: String,
    /// The serving certificate, for `localhost` and the loopback addresses.
    pub(crate) serving: Identity,
    /// The client certificate of [`ADMIN`], in group `system:masters`.
    pub(crate) admin: Identity,
}

/// Why the certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A certificate cannot be generated.
    #[error("a certificate could not be generated")]
    Generate(#[from] rcgen::Error),
    /// A file cannot be read or written.
    #[error("{} cannot be used", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
}

impl Certificates {
    /// Loads the certificates from a data directory; generates them if one is missing or about to expire. Only the owner
    /// can read the files.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub(crate) fn load_or_generate(data_dir: &Path, now: Timestamp) -> Result<Self, CertificateError> {
        let folder = data_dir.join(FOLDER);
        match Self::load(&folder)? {
            Some(found) if found.are_valid_beyond(now.saturating_add(RENEW_BEFORE).unwrap_or(now)) => {
                Ok(found)
            }
            _ => {
                let generated = Self::generate(now)?;
                generated.save(&folder)?;
                Ok(generated)
            }
        }
    }

    fn load(folder: &Path) -> Result<Option<Self>, CertificateError> {
        let read = |name: &str| {
            let path = folder.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(CertificateError::File { path, source }),
            }
        };
        let identity = |(certificate, key): (&str, &str)| {
            let pair = read(certificate)?.zip(read(key)?);
            Ok::<_, CertificateError>(pair.map(|(certificate, key)| Identity { certificate, key }))
        };
        let found = read(AUTHORITY)?.zip(identity(SERVING)?).zip(identity(CLIENT)?);
        Ok(found.map(|((authority, serving), admin)| Self {
            authority,
            serving,
            admin,
        }))
    }

    /// Whether all expire later than `time`.
    fn are_valid_beyond(&self, time: Timestamp) -> bool {
        [
            &self.authority,
            &self.serving.certificate,
            &self.admin.certificate,
        ]
        .into_iter()
        .all(|pem| {
            let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok();
            der.is_some_and(|der| {
                x509_parser::parse_x509_certificate(&der)
                    .is_ok_and(|(_, parsed)| parsed.validity().not_after.timestamp() > time.as_second())
            })
        })
    }

    fn generate(now: Timestamp) -> Result<Self, CertificateError> {
        let today = now.to_zoned(TimeZone::UTC).date();
        let valid = |params: &mut CertificateParams| {
            let (from, to) = (today.saturating_sub(1.day()), today.saturating_add(1.year()));
            params.not_before =
                rcgen::date_time_ymd(from.year().into(), part(from.month()), part(from.day()));
            params.not_after = rcgen::date_time_ymd(to.year().into(), part(to.month()), part(to.day()));
        };

        let mut params = CertificateParams::new(Vec::new())?;
        valid(&mut params);
        params
            .distinguished_name
            .push(DnType::CommonName, "drydock-standalone-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);

        let mut serving = CertificateParams::new(vec!["localhost".to_owned()])?;
        valid(&mut serving);
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        serving.subject_alt_names.extend(loopback.map(SanType::IpAddress));
        serving
            .distinguished_name
            .push(DnType::CommonName, "drydock-standalone");
        serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];

        let mut admin = CertificateParams::new(Vec::new())?;
        valid(&mut admin);
        admin.distinguished_name.push(DnType::CommonName, ADMIN);
        admin.distinguished_name.push(DnType::OrganizationName, MASTERS);
        admin.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];

        let sign = |mut params: CertificateParams| {
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            let key = KeyPair::generate()?;
            let certificate = params.signed_by(&key, &issuer)?.pem();
            Ok::<_, CertificateError>(Identity {
                certificate,
                key: key.serialize_pem(),
            })
        };
        Ok(Self {
            authority,
            serving: sign(serving)?,
            admin: sign(admin)?,
        })
    }

    fn save(&self, folder: &Path) -> Result<(), CertificateError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| CertificateError::File {
                path: folder.to_owned(),
                source,
            })?;
        for (name, text) in [
            (AUTHORITY, &self.authority),
            (SERVING.0, &self.serving.certificate),
            (SERVING.1, &self.serving.key),
            (CLIENT.0, &self.admin.certificate),
            (CLIENT.1, &self.admin.key),
        ] {
            let path = folder.join(name);
            write_private(&path, text).map_err(|source| CertificateError::File { path, source })?;
        }
        Ok(())
    }
}

/// A month or a day, which is never negative.
fn part(number: i8) -> u8 {
    u8::try_from(number).unwrap_or(1)
}

/// Writes a file atomically; only its owner can read it.
///
/// # Errors
/// The file system rejects an operation.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".draft");
    let draft = PathBuf::from(draft);
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use drydock_apiserver::host::TrustBundle;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn certificates_are_reused_until_they_are_about_to_expire() {
        let folder = tempfile::tempdir().unwrap();
        let first = Certificates::load_or_generate(folder.path(), at("2026-01-31T12:00:00Z")).unwrap();
        let later = Certificates::load_or_generate(folder.path(), at("2026-12-01T12:00:00Z")).unwrap();
        assert_eq!(first.admin.certificate, later.admin.certificate);
        let renewed = Certificates::load_or_generate(folder.path(), at("2027-01-20T12:00:00Z")).unwrap();
        assert_ne!(first.admin.certificate, renewed.admin.certificate);
        let again = Certificates::load_or_generate(folder.path(), at("2027-01-20T12:00:00Z")).unwrap();
        assert_eq!(again.serving.key, renewed.serving.key);
    }

    #[test]
    fn only_the_owner_can_read_the_files() {
        let folder = tempfile::tempdir().unwrap();
        Certificates::load_or_generate(folder.path(), at("2026-01-31T12:00:00Z")).unwrap();
        for entry in fs::read_dir(folder.path().join(FOLDER)).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(
                entry.metadata().unwrap().permissions().mode() & 0o777,
                0o600,
                "{:?}",
                entry.path()
            );
        }
    }

    #[test]
    fn the_admin_is_in_system_masters() {
        let generated = Certificates::generate(at("2026-01-31T12:00:00Z")).unwrap();
        assert!(TrustBundle::from_pem(&generated.authority).is_ok());
        let der = CertificateDer::from_pem_slice(generated.admin.certificate.as_bytes()).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
        let subject = parsed.subject().to_string();
        assert!(
            subject.contains("O=system:masters") && subject.contains(&format!("CN={ADMIN}")),
            "{subject}"
        );
    }
}
