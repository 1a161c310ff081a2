//! The keys and certificates of a cluster.
//!
//! ```text
//! cluster authority      clients of kube-apiserver (admin, components, users), its serving certificate
//! front-proxy authority  the aggregator's client certificate, which may set identity headers
//! drydock authority      the serving certificate of drydock-apiserver (the APIService's caBundle)
//! ```
//!
//! All keys are ECDSA P-256. A certificate is valid until 2120 or expired in 2021.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

/// The common name of the aggregator's client certificate, as in kubeadm.
pub const FRONT_PROXY_NAME: &str = "front-proxy-client";

/// A certificate and its private key, both PEM.
#[derive(Clone, Debug)]
pub struct Credential {
    /// The certificate.
    pub certificate: String,
    /// Its private key, PKCS #8.
    pub key: String,
}

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// From 2020 to 2120.
    Current,
    /// From 2020 to 2021.
    Expired,
}

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority, of a cluster or an unrelated one for security tests.
    ///
    /// # Errors
    /// The key cannot be generated.
    pub fn new(common_name: &str) -> Result<Self> {
        let mut params = params(common_name, None, Validity::Current);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("generate an authority's key")?;
        let issuer = CertifiedIssuer::self_signed(params, key).context("sign an authority's certificate")?;
        Ok(Self { issuer })
    }

    /// The authority's own certificate, PEM, for CA bundles.
    #[must_use]
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A client certificate. Kubernetes takes the common name as the user and the organization as the group.
    ///
    /// # Errors
    /// The key cannot be generated.
    pub fn client(
        &self,
        common_name: &str,
        organization: Option<&str>,
        validity: Validity,
    ) -> Result<Credential> {
        let mut params = params(common_name, organization, validity);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    /// A serving certificate for 127.0.0.1, `localhost` and the given DNS names.
    ///
    /// # Errors
    /// A name is not a DNS name, or the key cannot be generated.
    pub fn serving(&self, names: &[&str], validity: Validity) -> Result<Credential> {
        let mut params = params(names.first().copied().unwrap_or("localhost"), None, validity);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))];
        for name in ["localhost"].iter().chain(names) {
            let name = (*name)
                .try_into()
                .with_context(|| format!("{name} is not a DNS name"))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        self.sign(&params)
    }

    /// A serving certificate for these addresses, which its owner may also present as a client, as a member of etcd does to
    /// itself.
    ///
    /// # Errors
    /// The key cannot be generated.
    pub fn serving_at(&self, addresses: &[IpAddr], validity: Validity) -> Result<Credential> {
        let mut params = params("server", None, validity);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.subject_alt_names = addresses.iter().copied().map(SanType::IpAddress).collect();
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Credential> {
        let key = KeyPair::generate().context("generate a key")?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .context("sign a certificate")?;
        Ok(Credential {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn params(common_name: &str, organization: Option<&str>, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization);
    }
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = match validity {
        Validity::Current => date_time_ymd(2120, 1, 1),
        Validity::Expired => date_time_ymd(2021, 1, 1),
    };
    params
}

/// All keys and certificates of a control plane.
pub struct Pki {
    /// Signs the clients of kube-apiserver and its serving certificate.
    pub cluster: Authority,
    /// Signs only the aggregator's client certificate.
    pub front_proxy: Authority,
    /// Signs the serving certificate of drydock-apiserver.
    pub drydock: Authority,
    /// The serving certificate of kube-apiserver, the controller manager and the scheduler.
    pub serving: Credential,
    /// Group `system:masters`: all rights.
    pub admin: Credential,
    /// The controller manager.
    pub controller_manager: Credential,
    /// The scheduler.
    pub scheduler: Credential,
    /// A user without role bindings: `somebody`.
    pub somebody: Credential,
    /// The client certificate of the aggregator: [`FRONT_PROXY_NAME`].
    pub aggregator: Credential,
    /// Signs service-account tokens (private key, PEM).
    pub service_account_key: String,
    /// Verifies service-account tokens (public key, PEM).
    pub service_account_public_key: String,
}

impl Pki {
    /// New keys for a new cluster.
    ///
    /// # Errors
    /// A key cannot be generated.
    pub fn new() -> Result<Self> {
        let cluster = Authority::new("cluster")?;
        let front_proxy = Authority::new("front-proxy")?;
        let service_account = KeyPair::generate().context("generate the service-account key")?;
        let client = |name, group| cluster.client(name, group, Validity::Current);
        Ok(Self {
            serving: cluster.serving(&["kubernetes.default.svc", "kubernetes"], Validity::Current)?,
            admin: client("admin", Some("system:masters"))?,
            controller_manager: client("system:kube-controller-manager", None)?,
            scheduler: client("system:kube-scheduler", None)?,
            somebody: client("somebody", None)?,
            aggregator: front_proxy.client(FRONT_PROXY_NAME, None, Validity::Current)?,
            service_account_key: service_account.serialize_pem(),
            service_account_public_key: service_account.public_key_pem(),
            drydock: Authority::new("drydock-serving")?,
            cluster,
            front_proxy,
        })
    }
}
