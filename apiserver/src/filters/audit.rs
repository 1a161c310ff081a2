//! Writes the audit events of a request: one when it is authenticated, and one or two with its outcome.
//!
//! The outcome is written around everything else, so that it has the code that the client gets: after time limits and panics,
//! before compression. A watch has an event when it starts and one when it ends. In the blocking modes the outcome is stored
//! before the response is sent, except for streams, whose outcome is known when they end.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};

use super::state::RequestState;
use crate::{
    audit::{Arrival, Auditor, Outcome, RESPONSE_BYTES, ResponseContents, Stage, Trail},
    error::{ApiError, Status},
    http::{
        body::ResponseBody,
        connection::Connection,
        failure::{Failure, Reported},
    },
    request::{AuditLevel, RequestInfo, UserInfo, audit::ResponseMessage},
};

/// Begins the audit of a request, and writes that it was received. `user` is none if the credentials are not valid: then there
/// is one event, with the outcome.
///
/// # Errors
/// 500 if the event is not stored and the operator wants no request without one.
pub(super) async fn begin(
    auditor: Option<&Arc<Auditor>>,
    state: &RequestState,
    user: Option<&Arc<UserInfo>>,
    uri: &Uri,
    headers: &HeaderMap,
    connection: &Connection,
) -> Result<(), ApiError> {
    let Some(auditor) = auditor else {
        return Ok(());
    };
    let begun = auditor.begin(&Arrival {
        audit_id: &state.audit_id,
        info: &state.info,
        user,
        uri,
        headers,
        remote: connection.remote,
        received: state.received,
    });
    let Some(trail) = begun else {
        return Ok(());
    };
    state.audit_with(Arc::clone(&trail));
    if user.is_none() {
        return Ok(());
    }
    trail.write(Stage::RequestReceived, None).await.map_err(|error| {
        auditor.rejected();
        let target = uri.path_and_query();
        ApiError::dependency_failed(target.map_or("/", |target| target.as_str()), &error).because(error)
    })
}

/// Writes the outcome of a request.
pub(super) async fn finish(
    mut response: Response<ResponseBody>,
    state: &RequestState,
) -> Response<ResponseBody> {
    let Some(trail) = state.trail() else {
        return response;
    };
    let outcome = outcome(&mut response, state, trail);
    // Only a first event that is not stored rejects a request.
    let write = async |stage, outcome| drop(trail.write(stage, Some(outcome)).await);
    if !trail.is_authenticated() {
        write(Stage::ResponseStarted, outcome).await;
        return response;
    }
    if state.panic().is_some() {
        write(Stage::Panic, outcome).await;
        return response;
    }
    if state.info.is_long_running() {
        write(Stage::ResponseStarted, outcome.clone()).await;
    }
    if !response.body().is_stream() {
        write(Stage::ResponseComplete, outcome).await;
        return response;
    }
    let rest = Rest {
        trail: Arc::clone(trail),
        outcome,
        sent: Arc::default(),
    };
    let records = response.body().is_document() && records_body(trail, &state.info);
    let sent = Arc::clone(&rest.sent);
    response.map(|body| {
        let body = if records {
            body.inspected(move |bytes| sent.lock().unwrap_or_else(PoisonError::into_inner).add(bytes))
        } else {
            body
        };
        body.holding(rest)
    })
}

/// Whether the body of the response is recorded: objects, lists and errors of resources, and discovery.
fn records_body(trail: &Trail, info: &RequestInfo) -> bool {
    let is_api = info.resource.is_some() || info.path.starts_with("/apis") || info.path.starts_with("/api");
    is_api && trail.record().includes(AuditLevel::RequestResponse)
}

fn outcome(response: &mut Response<ResponseBody>, state: &RequestState, trail: &Trail) -> Outcome {
    let status = match state.panic() {
        Some(panic) => Some(Arc::new(Status {
            reason: "InternalError".into(),
            message: format!("APIServer panic'd: {panic}").into(),
            details: None,
            ..ApiError::panicked().status().clone()
        })),
        None => reported(response),
    };
    let is_upgraded = response.body().is_stream() && state.is_upgrade;
    let code = if is_upgraded {
        StatusCode::SWITCHING_PROTOCOLS
    } else {
        response.status()
    };
    let mut outcome = Outcome {
        code: code.as_u16(),
        status,
        ..Outcome::default()
    };
    if state.panic().is_none() && records_body(trail, &state.info) && response.body().is_document() {
        outcome.is_truncated = response.body().size().is_some_and(|size| size > RESPONSE_BYTES);
        if !outcome.is_truncated {
            outcome.body = Some(ResponseContents {
                media_type: media_type(response),
                chunks: response.body().buffers().cloned().collect(),
                message: response
                    .extensions_mut()
                    .remove::<ResponseMessage>()
                    .map(|ResponseMessage(message)| message),
            });
        }
    }
    outcome
}

/// The Status in a response; none in objects and plain text.
fn reported(response: &mut Response<ResponseBody>) -> Option<Arc<Status>> {
    if let Some(Reported(status)) = response.extensions_mut().remove::<Reported>() {
        return Some(status);
    }
    let Failure(error) = response.extensions().get::<Failure>()?;
    (!error.is_text()).then(|| Arc::new(error.status().clone()))
}

fn media_type(response: &Response<ResponseBody>) -> String {
    let text = response
        .headers()
        .get(header::CONTENT_TYPE)
        .map(HeaderValue::to_str);
    let text = text.and_then(Result::ok).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_owned()
}

/// What was sent of a response whose length is not known before.
#[derive(Default)]
struct Sent {
    chunks: Vec<Bytes>,
    bytes: u64,
}

impl Sent {
    fn add(&mut self, bytes: &Bytes) {
        self.bytes += bytes.len() as u64;
        if self.bytes > RESPONSE_BYTES {
            self.chunks.clear();
        } else {
            self.chunks.push(bytes.clone());
        }
    }
}

/// The last event of a response that is still being sent. It is written when the response ends.
struct Rest {
    trail: Arc<Trail>,
    outcome: Outcome,
    sent: Arc<Mutex<Sent>>,
}

impl Drop for Rest {
    fn drop(&mut self) {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap_or_else(PoisonError::into_inner));
        let mut outcome = std::mem::take(&mut self.outcome);
        if sent.bytes > RESPONSE_BYTES {
            outcome.body = None;
            outcome.is_truncated = true;
        } else if let Some(body) = &mut outcome.body {
            body.chunks = sent.chunks;
        }
        self.trail.write_later(Stage::ResponseComplete, outcome);
    }
}
