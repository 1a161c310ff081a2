//! An admission webhook that answers as a test tells it, for evictions in one namespace.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use drydock_tests::cluster::pki::{Authority, Credential, Validity};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::stage::Stage;

/// What the webhook answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Yes.
    Allow,
    /// No.
    Deny,
    /// HTTP status 500.
    Fail,
    /// Nothing until the caller gives up.
    Hang,
    /// No, after twelve seconds.
    DenyLate,
}

/// A running webhook. Dropping it stops it; its configuration goes with [`Webhook::remove`].
pub(crate) struct Webhook {
    state: Arc<State>,
    name: String,
    serving: JoinHandle<()>,
}

struct State {
    answer: Mutex<Answer>,
    calls: AtomicUsize,
}

impl Webhook {
    /// Starts it and registers it for evictions in the namespace. The host waits a second for its answers.
    pub(crate) async fn start(stage: &Stage, namespace: &str, answer: Answer) -> Result<Self> {
        Self::start_with(stage, namespace, answer, 1).await
    }

    /// The same; the host waits so many seconds.
    pub(crate) async fn start_with(
        stage: &Stage,
        namespace: &str,
        answer: Answer,
        seconds: u64,
    ) -> Result<Self> {
        let authority = Authority::new("webhook")?;
        let acceptor = acceptor(&authority.serving(&[], Validity::Current)?)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            answer: Mutex::new(answer),
            calls: AtomicUsize::new(0),
        });
        let serving = tokio::spawn(serve(listener, acceptor, Arc::clone(&state)));
        let name = format!("{namespace}.example.com");
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": name },
            "webhooks": [{
                "name": name,
                "clientConfig": {
                    "url": format!("https://{address}/"),
                    "caBundle": STANDARD.encode(authority.certificate()),
                },
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"], "operations": ["CREATE"],
                }],
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "timeoutSeconds": seconds,
                "admissionReviewVersions": ["v1"],
            }],
        });
        stage.kubectl().apply(&configuration.to_string()).await?;
        Ok(Self { state, name, serving })
    }

    /// Changes the answer.
    pub(crate) fn answer(&self, answer: Answer) {
        *self.state.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// How often it was called.
    pub(crate) fn calls(&self) -> usize {
        self.state.calls.load(Ordering::SeqCst)
    }

    /// Removes its configuration.
    pub(crate) async fn remove(self, stage: &Stage) -> Result<()> {
        let arguments = ["delete", "validatingwebhookconfiguration", &self.name];
        stage.kubectl().ok(&arguments).await?;
        Ok(())
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn acceptor(credential: &Credential) -> Result<TlsAcceptor> {
    let certificate = CertificateDer::from_pem_slice(credential.certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .context("the webhook's certificate")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(stream, acceptor.clone(), Arc::clone(&state)));
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, state: Arc<State>) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(move |request| respond(request, Arc::clone(&state)));
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
        .ok();
}

async fn respond(request: Request<Incoming>, state: Arc<State>) -> Result<Response<Full<Bytes>>, Infallible> {
    state.calls.fetch_add(1, Ordering::SeqCst);
    let answer = *state.answer.lock().unwrap_or_else(PoisonError::into_inner);
    let body = request
        .into_body()
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes);
    let review: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
    let is_allowed = match answer {
        Answer::Allow => true,
        Answer::Deny => false,
        Answer::Hang => std::future::pending().await,
        Answer::DenyLate => {
            tokio::time::sleep(Duration::from_secs(12)).await;
            false
        }
        Answer::Fail => {
            let mut response = Response::new(Full::from("out of order"));
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            return Ok(response);
        }
    };
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"], "allowed": is_allowed, "status": { "message": "not today" },
        },
    });
    Ok(Response::new(Full::from(review.to_string())))
}
