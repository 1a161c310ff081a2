//! A server with many admission webhooks: the path of a call says how it answers. It keeps every review.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use drydock_tests::cluster::pki::{Authority, Validity};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The reviews by path.
type Reviews = Arc<Mutex<HashMap<String, Vec<Value>>>>;

/// A running server. Dropping it stops it.
pub(crate) struct Reviewer {
    pub(crate) address: SocketAddr,
    authority: Authority,
    reviews: Reviews,
    serving: JoinHandle<()>,
}

impl Drop for Reviewer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Reviewer {
    /// A server for everybody.
    pub(crate) async fn start() -> Result<Self> {
        Self::start_for(WebPkiClientVerifier::no_client_auth()).await
    }

    /// A server for clients with a certificate of an authority.
    pub(crate) async fn start_for_clients_of(clients: &Authority) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(clients.certificate().as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        Self::start_for(clients.build()?).await
    }

    async fn start_for(clients: Arc<dyn ClientCertVerifier>) -> Result<Self> {
        let authority = Authority::new("reviewer")?;
        let credential = authority.serving(&[], Validity::Current)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(credential.certificate.as_bytes())?],
                PrivateKeyDer::from_pem_slice(credential.key.as_bytes())?,
            )
            .context("the reviewer's certificate")?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let reviews = Reviews::default();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let serving = tokio::spawn(serve(listener, acceptor, Arc::clone(&reviews)));
        Ok(Self {
            address,
            authority,
            reviews,
            serving,
        })
    }

    /// The `clientConfig` of the webhook with a path.
    pub(crate) fn client_config(&self, path: &str) -> Value {
        json!({
            "url": format!("https://{}/{path}", self.address),
            "caBundle": STANDARD.encode(self.authority.certificate()),
        })
    }

    /// The reviews of a path, in the order of their arrival. They are forgotten.
    pub(crate) fn taken(&self, path: &str) -> Vec<Value> {
        let mut reviews = self.reviews.lock().unwrap_or_else(PoisonError::into_inner);
        reviews.remove(&format!("/{path}")).unwrap_or_default()
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, reviews: Reviews) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, reviews) = (acceptor.clone(), Arc::clone(&reviews));
        tokio::spawn(async move {
            let stream = match acceptor.accept(stream).into_fallible().await {
                Ok(stream) => stream,
                Err((_, mut stream)) => {
                    // Until the client closes: what it sent and nobody read would make the kernel drop the alert.
                    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
                    return;
                }
            };
            let service = service_fn(move |request| respond(request, Arc::clone(&reviews)));
            let connection = hyper::server::conn::http1::Builder::new();
            connection
                .serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        });
    }
}

async fn respond(request: Request<Incoming>, reviews: Reviews) -> io::Result<Response<Full<Bytes>>> {
    let path = request.uri().path().to_owned();
    let body = request
        .into_body()
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes);
    let review: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
    reviews
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(path.clone())
        .or_default()
        .push(review.clone());
    let path = path.trim_start_matches('/').to_owned();
    Ok(match answer_of(&path) {
        How::Hangs => std::future::pending().await,
        How::Drops => return Err(io::ErrorKind::ConnectionReset.into()),
        How::Raw(code, media_type, body) => {
            let mut response = Response::new(Full::from(body));
            *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
            if let Ok(media_type) = media_type.parse() {
                response.headers_mut().insert("content-type", media_type);
            }
            if code == 307 {
                response
                    .headers_mut()
                    .insert("location", http::HeaderValue::from_static("/allow"));
            }
            response
        }
        How::Reviewed(edit) => {
            let mut answer = json!({
                "apiVersion": review["apiVersion"],
                "kind": "AdmissionReview",
                "response": { "uid": review["request"]["uid"], "allowed": true },
            });
            edit(&mut answer, &review["request"]);
            Response::new(Full::from(answer.to_string()))
        }
    })
}

/// How a webhook answers.
enum How {
    Hangs,
    /// Ends the connection instead.
    Drops,
    Raw(u16, &'static str, &'static str),
    Reviewed(fn(&mut Value, &Value)),
}

/// Sets a JSON patch.
fn patch(answer: &mut Value, operations: &Value) {
    answer["response"]["patchType"] = json!("JSONPatch");
    answer["response"]["patch"] = json!(STANDARD.encode(operations.to_string()));
}

/// Adds `note` to an annotation that both webhooks of the reinvocation extend.
fn note(answer: &mut Value, request: &Value, note: &str) {
    let annotations = &request["object"]["metadata"]["annotations"];
    let before = annotations["example.com/notes"].as_str().unwrap_or_default();
    let mut annotations = annotations.clone();
    annotations["example.com/notes"] = json!(format!("{before}{note}"));
    patch(
        answer,
        &json!([{ "op": "add", "path": "/metadata/annotations", "value": annotations }]),
    );
}

fn answer_of(path: &str) -> How {
    match path {
        "hang" => How::Hangs,
        "drop" => How::Drops,
        "500" => How::Raw(500, "text/plain", "out of order"),
        "404" => How::Raw(404, "text/plain", "nothing here"),
        "status" => How::Raw(
            503,
            "application/json",
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not now","code":503}"#,
        ),
        "empty" => How::Raw(200, "application/json", ""),
        "text" => How::Raw(200, "text/plain", "yes"),
        "no-json" => How::Raw(200, "application/json", "out of order"),
        "redirect" => How::Raw(307, "", ""),
        _ => How::Reviewed(edit_of(path)),
    }
}

fn edit_of(path: &str) -> fn(&mut Value, &Value) {
    match path {
        "deny" => |answer, _| {
            answer["response"]["allowed"] = json!(false);
            answer["response"]["status"] = json!({ "code": 418, "reason": "Teapot", "message": "not today",
                "details": { "causes": [{ "reason": "R", "message": "m", "field": "spec" }], "retryAfterSeconds": 3 } });
        },
        "deny-in-silence" => |answer, _| answer["response"]["allowed"] = json!(false),
        "deny-by-reason" => |answer, _| {
            answer["response"]["allowed"] = json!(false);
            answer["response"]["status"] = json!({ "code": 200, "reason": "Forbidden" });
        },
        "wrong-uid" => |answer, _| answer["response"]["uid"] = json!("other"),
        "no-response" => |answer, _| answer["response"] = Value::Null,
        "no-types" => |answer, _| {
            answer["apiVersion"] = Value::Null;
            answer["kind"] = Value::Null;
        },
        "no-patch-type" => |answer, _| answer["response"]["patch"] = json!(STANDARD.encode("[]")),
        "no-patch" => |answer, _| answer["response"]["patchType"] = json!("JSONPatch"),
        "warn" => |answer, _| {
            answer["response"]["warnings"] = json!(["mind the \"gap\"", "mind the \"gap\"", "ä\\"]);
        },
        _ => patching(path),
    }
}

/// Answers with a patch.
fn patching(path: &str) -> fn(&mut Value, &Value) {
    match path {
        "other-patch-type" => |answer, _| {
            patch(
                answer,
                &json!([{ "op": "add", "path": "/metadata/annotations", "value": {} }]),
            );
            answer["response"]["patchType"] = json!("MergePatch");
        },
        "failing-patch" => |answer, _| patch(answer, &json!([{ "op": "remove", "path": "/spec/nothing" }])),
        "patch-always" => |answer, _| {
            patch(
                answer,
                &json!([{ "op": "add", "path": "/metadata/labels/by", "value": "x" }]),
            );
        },
        "label" => |answer, request| {
            if request["object"].is_object() {
                patch(
                    answer,
                    &json!([{ "op": "add", "path": "/metadata/labels/by", "value": "webhook" }]),
                );
            }
        },
        "unknown-field" => |answer, request| {
            if request["object"].is_object() {
                patch(
                    answer,
                    &json!([{ "op": "add", "path": "/spec/unknown", "value": 1 }]),
                );
            }
        },
        "broken-owners" => |answer, request| {
            if request["object"]["metadata"]["managedFields"].is_array() {
                patch(
                    answer,
                    &json!([{ "op": "replace", "path": "/metadata/managedFields/0/operation", "value": "Guess" }]),
                );
            }
        },
        "rename" => |answer, request| {
            if request["operation"] == "UPDATE" {
                patch(
                    answer,
                    &json!([{ "op": "replace", "path": "/metadata/name", "value": "other" }]),
                );
            }
        },
        "target" => |answer, _| {
            patch(
                answer,
                &json!([{ "op": "replace", "path": "/spec/target/pod/name", "value": "other" }]),
            );
        },
        "rename-creates" => |answer, _| {
            let name = "0ad31500-0000-4000-8000-00000000beef";
            patch(
                answer,
                &json!([{ "op": "replace", "path": "/metadata/name", "value": name }]),
            );
        },
        "move" => |answer, request| {
            if request["object"].is_object() {
                patch(
                    answer,
                    &json!([{ "op": "replace", "path": "/metadata/namespace", "value": "default" }]),
                );
            }
        },
        "note-a" => |answer, request| {
            if request["operation"] == "CREATE" {
                note(answer, request, "a");
            }
        },
        "note-b" => |answer, request| {
            if request["operation"] == "CREATE" {
                note(answer, request, "b");
            }
        },
        _ => |_, _| {},
    }
}
