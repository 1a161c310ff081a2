//! A KMS plugin for tests, which does as it is told.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use drydock_proto::kms::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use futures_util::stream;
use sha2::{Digest as _, Sha256};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;

use super::super::cipher::{Cipher, CipherKind};
use crate::sync::lock;

/// What the plugin does.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// What Status says.
    pub healthz: String,
    /// The version that Status names.
    pub version: String,
    /// The key that Status names and Encrypt uses.
    pub key_id: String,
    /// The key that Encrypt says it used, if it lies.
    pub encrypt_key_id: Option<String>,
    /// What Encrypt returns beside the text.
    pub annotations: BTreeMap<String, Vec<u8>>,
    /// Bytes that Encrypt appends to the text.
    pub padding: usize,
    /// Encrypt fails.
    pub fails_to_encrypt: bool,
    /// Decrypt fails.
    pub fails_to_decrypt: bool,
    /// What Decrypt returns, if not what Encrypt was given.
    pub decrypts_to: Option<Vec<u8>>,
    /// How often each call was made: Status, Encrypt, Decrypt.
    pub calls: [u32; 3],
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            healthz: "ok".to_owned(),
            version: "v2".to_owned(),
            key_id: "key-1".to_owned(),
            encrypt_key_id: None,
            annotations: [("version.kms.example.com".to_owned(), b"1".to_vec())].into(),
            padding: 0,
            fails_to_encrypt: false,
            fails_to_decrypt: false,
            decrypts_to: None,
            calls: [0; 3],
        }
    }
}

type Shared = Arc<Mutex<Behaviour>>;

/// A running plugin. It ends when it is dropped; another one may be started at the same socket then.
pub struct Plugin {
    socket: PathBuf,
    behaviour: Shared,
    runtime: Option<Runtime>,
}

impl Plugin {
    /// Starts a plugin at a socket.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn start(socket: &Path, behaviour: Behaviour) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kms-plugin")
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket)?
        };
        let behaviour: Shared = Arc::new(Mutex::new(behaviour));
        let service = KeyManagement(Arc::clone(&behaviour));
        runtime.spawn(async move {
            let incoming = stream::unfold(listener, |listener| async {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                Some((accepted, listener))
            });
            // Ends with the runtime.
            let _ended = Server::builder()
                .serve_with_incoming(service, Box::pin(incoming))
                .await;
        });
        Ok(Self {
            socket: socket.to_owned(),
            behaviour,
            runtime: Some(runtime),
        })
    }

    /// Changes what it does.
    pub fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut lock(&self.behaviour));
    }

    /// What it does, and what it was asked.
    #[must_use]
    pub fn behaviour(&self) -> Behaviour {
        lock(&self.behaviour).clone()
    }

    /// Its address, as configurations name it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // The next plugin binds it again.
        let _gone = std::fs::remove_file(&self.socket);
    }
}

/// The cipher of a key: derived from its id.
fn cipher(key_id: &str) -> Result<Cipher, Status> {
    let key = Sha256::digest(key_id.as_bytes());
    Cipher::new(CipherKind::AesGcm, &key).ok_or_else(|| Status::internal("no cipher"))
}

#[derive(Clone)]
struct KeyManagement(Shared);

/// One method of the service.
#[derive(Clone)]
struct Method(Shared);

type Answer<T> = Ready<Result<Response<T>, Status>>;

impl UnaryService<StatusRequest> for Method {
    type Response = StatusResponse;
    type Future = Answer<StatusResponse>;

    fn call(&mut self, _: Request<StatusRequest>) -> Self::Future {
        let mut behaviour = lock(&self.0);
        behaviour.calls[0] += 1;
        ready(Ok(Response::new(StatusResponse {
            version: behaviour.version.clone(),
            healthz: behaviour.healthz.clone(),
            key_id: behaviour.key_id.clone(),
        })))
    }
}

impl UnaryService<EncryptRequest> for Method {
    type Response = EncryptResponse;
    type Future = Answer<EncryptResponse>;

    fn call(&mut self, request: Request<EncryptRequest>) -> Self::Future {
        let mut behaviour = lock(&self.0);
        behaviour.calls[1] += 1;
        if behaviour.fails_to_encrypt {
            return ready(Err(Status::internal("told to fail")));
        }
        let plaintext = request.into_inner().plaintext;
        let sealed = cipher(&behaviour.key_id).and_then(|cipher| {
            let sealed = cipher.seal(b"", plaintext);
            sealed.map_err(Status::internal)
        });
        ready(sealed.map(|mut ciphertext| {
            ciphertext.resize(ciphertext.len() + behaviour.padding, 0);
            Response::new(EncryptResponse {
                ciphertext,
                key_id: behaviour
                    .encrypt_key_id
                    .clone()
                    .unwrap_or_else(|| behaviour.key_id.clone()),
                annotations: behaviour.annotations.clone(),
            })
        }))
    }
}

impl UnaryService<DecryptRequest> for Method {
    type Response = DecryptResponse;
    type Future = Answer<DecryptResponse>;

    fn call(&mut self, request: Request<DecryptRequest>) -> Self::Future {
        let mut behaviour = lock(&self.0);
        behaviour.calls[2] += 1;
        if behaviour.fails_to_decrypt {
            return ready(Err(Status::internal("told to fail")));
        }
        if let Some(plaintext) = behaviour.decrypts_to.clone() {
            return ready(Ok(Response::new(DecryptResponse { plaintext })));
        }
        let request = request.into_inner();
        let opened = cipher(&request.key_id).and_then(|cipher| {
            let opened = cipher.open(b"", request.ciphertext);
            opened.map_err(Status::invalid_argument)
        });
        ready(opened.map(|plaintext| Response::new(DecryptResponse { plaintext })))
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<http::Request<Body>> for KeyManagement {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = Method(Arc::clone(&self.0));
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/v2.KeyManagementService/Status" => {
                    let codec: ProstCodec<StatusResponse, StatusRequest> = ProstCodec::default();
                    Grpc::new(codec).unary(method, request).await
                }
                "/v2.KeyManagementService/Encrypt" => {
                    let codec: ProstCodec<EncryptResponse, EncryptRequest> = ProstCodec::default();
                    Grpc::new(codec).unary(method, request).await
                }
                "/v2.KeyManagementService/Decrypt" => {
                    let codec: ProstCodec<DecryptResponse, DecryptRequest> = ProstCodec::default();
                    Grpc::new(codec).unary(method, request).await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}
