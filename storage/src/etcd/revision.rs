//! The current revision, linearizably. Reads that wait together share one request.

use std::mem;
use std::sync::{Arc, Mutex};

use etcd_client::GetOptions;
use tokio::sync::oneshot;

use super::failure::Failure;
use super::members::{Request, revision_of};
use super::parts::{Parts, Shared};
use crate::{Revision, StoreError, sync};

/// The answer to one caller.
type Answer = Result<Revision, Failure>;

/// Callers that wait for the next request.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Callers>);

#[derive(Debug, Default)]
struct Callers {
    answers: Vec<oneshot::Sender<Answer>>,
    is_running: bool,
}

/// The current revision. The request is sent after this call began.
pub(super) async fn current(parts: &Shared) -> Result<Revision, StoreError> {
    parts.check_open()?;
    let (sender, receiver) = oneshot::channel();
    let is_running = {
        let mut callers = sync::lock(&parts.waiting.0);
        callers.answers.push(sender);
        mem::replace(&mut callers.is_running, true)
    };
    if !is_running {
        tokio::spawn(run(Arc::clone(parts)));
    }
    let answer = receiver.await.map_err(|_| StoreError::Closed {
        reason: "the process is shutting down".to_owned(),
    })?;
    let revision = answer.map_err(Failure::of_read)?;
    parts.announce(revision);
    Ok(revision)
}

/// Sends requests while anybody waits.
async fn run(parts: Shared) {
    loop {
        let answers = {
            let mut callers = sync::lock(&parts.waiting.0);
            if callers.answers.is_empty() {
                callers.is_running = false;
                return;
            }
            mem::take(&mut callers.answers)
        };
        let found = ask(&parts).await;
        for answer in answers {
            // A caller that is gone needs no answer.
            let _gone = answer.send(found.clone());
        }
    }
}

async fn ask(parts: &Parts) -> Answer {
    let request = Request {
        operation: "revision",
        resource: "",
    };
    let key = parts.keys.marker();
    let call = |mut connection: super::members::Connection| async move {
        let options = GetOptions::new().with_count_only();
        connection.kv.get(key, Some(options)).await
    };
    match parts.members.read(request, call).await {
        Ok(Ok(answer)) => Ok(revision_of(&answer)),
        Ok(Err(failure)) => Err(failure),
        Err(error) => Err(Failure::Refused(error.to_string())),
    }
}
