//! A client of several servers, which goes to the next one when its own does not answer.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http::StatusCode;
use hyper::body::Incoming;
use tokio::time::{sleep, timeout};

use super::shared::{Shared, count};
use crate::clients::Protocol;
use crate::load::{Call, Pool, Response, Sender};

const CONNECT: Duration = Duration::from_secs(2);
/// Longer than a server waits for etcd.
const CALL: Duration = Duration::from_secs(15);
/// The wait before a request is repeated.
const BACK_OFF: Duration = Duration::from_millis(50);

/// What came of a request.
pub(super) enum Answer {
    /// A success, or a refusal that the caller has to judge.
    Response(Response),
    /// It was not executed: it was not sent, or the server says so. Etcd may be full.
    NotExecuted { is_full: bool },
    /// It may have been executed.
    Unknown,
}

pub(super) struct Client {
    shared: Arc<Shared>,
    /// The server that it prefers.
    pub(super) home: usize,
    at: usize,
    connection: Option<Pool>,
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>, home: usize) -> Self {
        Self {
            shared,
            home,
            at: home,
            connection: None,
        }
    }

    /// Goes to the preferred server.
    pub(super) fn return_home(&mut self) {
        if self.at != self.home {
            (self.at, self.connection) = (self.home, None);
        }
    }

    /// Whether it is at the preferred server.
    pub(super) fn is_home(&self) -> bool {
        self.at == self.home
    }

    /// Goes to the next server.
    pub(super) async fn leave(&mut self) {
        self.at = (self.at + 1) % self.shared.servers.len();
        self.connection = None;
        sleep(BACK_OFF).await;
    }

    async fn connected(&mut self) -> Result<Sender> {
        if let Some(pool) = &self.connection {
            return pool.sender(0);
        }
        let server = self.shared.servers.get(self.at).context("a server")?;
        let client = server.raw_client(Protocol::Http2)?;
        let pool = timeout(CONNECT, Pool::open(&client, 1)).await;
        let pool = pool.context("the server does not accept a connection")??;
        self.connection.insert(pool).sender(0)
    }

    /// Sends a request once. After anything but an answer it is at the next server.
    pub(super) async fn call(&mut self, call: &Call) -> Answer {
        let Ok(mut sender) = self.connected().await else {
            self.leave().await;
            return Answer::NotExecuted { is_full: false };
        };
        let sent = timeout(CALL, sender.send_keeping(call.clone(), usize::MAX)).await;
        let answer = match sent {
            Ok(Ok(response)) => match response.status {
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Answer::NotExecuted {
                    is_full: String::from_utf8_lossy(&response.start).contains("NOSPACE"),
                },
                StatusCode::GATEWAY_TIMEOUT => Answer::Unknown,
                _ => return Answer::Response(response),
            },
            Ok(Err(_)) | Err(_) => Answer::Unknown,
        };
        count(&self.shared.counters.refusals);
        if !matches!(answer, Answer::NotExecuted { is_full: true }) {
            self.leave().await;
        }
        answer
    }

    /// Sends a request whose response is a stream. Neither an error nor a refusal is judged here.
    pub(super) async fn stream(&mut self, call: Call) -> Result<http::Response<Incoming>> {
        let mut sender = self.connected().await?;
        timeout(CALL, sender.stream(call))
            .await
            .context("the server does not answer")?
    }
}
