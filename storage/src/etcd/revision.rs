//! The current revision, linearizably. Reads that wait together share one request.

use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::failure::Failure;
use super::members::{Request, revision_of};
use super::parts::{Parts, Shared};
use super::waiting::Answer;
use crate::{Revision, StoreError, sync};

/// The current revision. The request is sent after this call began.
pub(super) async fn current(parts: &Shared) -> Result<Revision, StoreError> {
    parts.check_open()?;
    let (sender, receiver) = oneshot::channel();
    let is_running = {
        let mut callers = sync::lock(&parts.waiting.callers);
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
            let mut callers = sync::lock(&parts.waiting.callers);
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

/// Asks with the marker, so that reads notice, too, when the prefix was wiped or taken over.
async fn ask(parts: &Parts) -> Answer {
    let request = Request::of_store("revision");
    // Before the request: what is known now is in its answer.
    let expected = parts.marker.written();
    let key = parts.keys.marker();
    let call = |mut connection: super::members::Connection| async move { connection.kv.get(key, None).await };
    match parts.members.read(request, call).await {
        Ok(Ok(answer)) => match parts.check_marker(expected, answer.kvs().first()) {
            Ok(_) => Ok(revision_of(&answer)),
            Err(error) => Err(Failure::Refused(error.to_string())),
        },
        Ok(Err(failure)) => Err(failure),
        Err(error) => Err(Failure::Refused(error.to_string())),
    }
}
