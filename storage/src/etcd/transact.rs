//! Gets and conditional writes of one key.

use bytes::Bytes;
use etcd_client::{Compare, CompareOp, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::failure::Failure;
use super::members::{Connection, Request, revision_of};
use super::parts::{Parts, number, revision};
use crate::record::StoredState;
use crate::{Found, Key, Outcome, Removable, Revision, StoreError, Transaction, Value, Write};

/// What etcd accepts in one request by default.
pub(super) const REQUEST_BYTES: usize = 3 << 19;
/// What a request needs besides the value: the key twice, the marker, their frames.
const REQUEST_OVERHEAD: usize = 4 << 10;
/// The largest body of a record.
pub(super) const BODY_BYTES: usize = REQUEST_BYTES - REQUEST_OVERHEAD;
/// The most operations of a transaction.
pub(super) const OPERATIONS: usize = 2;
/// A revision that no key has.
const NEVER: i64 = -1;

fn unexpected() -> StoreError {
    StoreError::Unavailable {
        reason: "an answer of etcd has an unexpected form".to_owned(),
    }
}

/// The condition on the key: its last write, 0 for an absent key.
fn base(write: &Write) -> i64 {
    match write.base() {
        None => 0,
        Some(Revision(0)) => NEVER,
        Some(base) => i64::try_from(base.0).unwrap_or(NEVER),
    }
}

fn operation(write: &Write) -> &'static str {
    match write {
        Write::Create(_) => "create",
        Write::Update { .. } => "update",
        Write::Delete { .. } => "delete",
    }
}

impl Parts {
    /// Reads one key, linearizably.
    pub(super) async fn get(&self, key: &Key) -> Result<Found, StoreError> {
        self.check_open()?;
        let answer = self.get_stored(key).await?;
        let entry = answer.kvs().first().map(|stored| self.entry(key, stored));
        Ok(Found {
            revision: revision_of(&answer),
            entry: entry.transpose()?,
        })
    }

    async fn get_stored(&self, key: &Key) -> Result<GetResponse, StoreError> {
        let request = Request::of("get", key);
        let raw = &self.keys.object(key);
        let call = |mut connection: Connection| async move { connection.kv.get(raw.as_str(), None).await };
        self.members.read(request, call).await?.map_err(Failure::of_read)
    }

    /// Writes one key if its condition holds. The outcome is unknown if etcd does not answer.
    pub(super) async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.check_open()?;
        transaction.check_size()?;
        let Transaction { key, write, .. } = transaction;
        let body = write.value().map(|value| self.body(&key, value)).transpose()?;
        let raw = self.keys.object(&key);
        let effect = match &body {
            Some(body) => TxnOp::put(raw.as_str(), body.as_slice(), None),
            None => TxnOp::delete(raw.as_str(), None),
        };
        let request = Request::of(operation(&write), &key);
        self.write(request, &key, base(&write), effect).await
    }

    /// Sends a write until the marker it is conditional on is known.
    async fn write(
        &self,
        request: Request<'_>,
        key: &Key,
        base: i64,
        effect: TxnOp,
    ) -> Result<Outcome, StoreError> {
        loop {
            let marker = self.marker.written();
            let txn = self.txn(key, base, effect.clone(), marker);
            let txn = &txn;
            let call = |mut connection: Connection| async move { connection.kv.txn(txn.clone()).await };
            let sent = self.members.write(request, call).await?;
            let answer = match sent {
                Ok(answer) => answer,
                Err(failure) => {
                    let failure = Box::pin(self.settled(failure, key, base)).await;
                    if matches!(failure, Failure::Doubtful(_)) {
                        self.metrics.unknown.inc();
                    }
                    return Err(failure.of_write());
                }
            };
            let at = revision_of(&answer);
            if answer.succeeded() {
                if marker.is_none() {
                    self.marker.note_written(at);
                }
                self.metrics.revision.set(number(at));
                return Ok(Outcome::Committed { revision: at });
            }
            let [current, found] = both(&answer).ok_or_else(unexpected)?;
            if self.check_marker(marker, found.as_ref())? {
                self.metrics.conflicts.inc();
                let current = current.map(|stored| self.entry(key, &stored)).transpose()?;
                return Ok(Outcome::Conflict {
                    revision: at,
                    current,
                });
            }
        }
    }

    /// The write that exceeds etcd's quota is applied, and all the same answered with its error. Whether this one was is
    /// read from the key, which is still as the write expected it if it was not.
    async fn settled(&self, failure: Failure, key: &Key, base: i64) -> Failure {
        if failure != Failure::NoSpace {
            return failure;
        }
        let found = match self.get(key).await {
            Ok(read) => read.entry.map_or(0, |entry| number(entry.modified)),
            Err(error) => return Failure::Doubtful(format!("etcd is full: {error}")),
        };
        if found == base {
            failure
        } else {
            Failure::Doubtful("etcd became full with this write".to_owned())
        }
    }

    /// One write: conditional on the key and on the marker, which is written with the first object.
    fn txn(&self, key: &Key, base: i64, effect: TxnOp, marker: Option<Revision>) -> Txn {
        let (raw, marker_key) = (self.keys.object(key), self.keys.marker());
        let is_at = |key: &str, at| Compare::mod_revision(key, CompareOp::Equal, at);
        let mut effects = vec![effect];
        if marker.is_none() {
            effects.push(TxnOp::put(marker_key, self.marker.bytes(), None));
        }
        let conditions = [is_at(&raw, base), is_at(marker_key, marker.map_or(0, number))];
        Txn::new()
            .when(conditions)
            .and_then(effects)
            .or_else([TxnOp::get(raw.as_str(), None), TxnOp::get(marker_key, None)])
    }

    /// Whether the marker is as expected; if it was unknown, it is learnt.
    pub(super) fn check_marker(
        &self,
        expected: Option<Revision>,
        found: Option<&KeyValue>,
    ) -> Result<bool, StoreError> {
        let at = found.map(|stored| revision(stored.mod_revision()));
        if at == expected {
            return Ok(true);
        }
        let reason = match (expected, found) {
            (None, Some(stored)) => {
                let at = revision(stored.mod_revision());
                match self.marker.learn(&self.keys, stored.value(), at) {
                    Ok(()) => return Ok(false),
                    Err(error) => error.to_string(),
                }
            }
            (_, Some(_)) => format!("another version took the prefix {} over", self.keys.prefix()),
            (_, None) => format!("the prefix {} was wiped", self.keys.prefix()),
        };
        self.members.fail(&reason);
        Err(StoreError::Closed { reason })
    }

    /// The body of a record, which must fit into a request.
    pub(super) fn body(&self, key: &Key, value: &Value) -> Result<Vec<u8>, StoreError> {
        let body = self
            .records
            .state_body(key, value)
            .map_err(|error| error.of_write())?;
        if body.len() > BODY_BYTES {
            return Err(StoreError::TooLarge {
                found: body.len(),
                limit: BODY_BYTES,
            });
        }
        Ok(body)
    }

    /// Whether the value of a key, last written at `at`, is sealed with a key that nothing is sealed with any more.
    pub(super) async fn is_stale(&self, key: &Key, at: Revision) -> Result<bool, StoreError> {
        self.check_open()?;
        if !self.records.seal().has_stale() {
            return Ok(false);
        }
        let answer = self.get_stored(key).await?;
        let Some(stored) = answer.kvs().first() else {
            return Ok(false);
        };
        if revision(stored.mod_revision()) != at {
            return Ok(false);
        }
        let decoded = StoredState::unplaced(&Bytes::copy_from_slice(stored.value()));
        let decoded = decoded.map_err(|error| error.of_read(key.as_str()))?;
        Ok(decoded.seal().is_stale(&**self.records.seal(), key))
    }

    /// Removes a key whose value cannot be read.
    pub(super) async fn remove_damaged(&self, key: &Key, which: Removable) -> Result<Outcome, StoreError> {
        self.check_open()?;
        let answer = self.get_stored(key).await?;
        let Some(stored) = answer.kvs().first() else {
            return Err(StoreError::NotDamaged);
        };
        match self.entry(key, stored) {
            Ok(_) => return Err(StoreError::NotDamaged),
            Err(unreadable) if which == Removable::Damaged && !unreadable.error.is_damage() => {
                return Err(unreadable.error.of_read(key.as_str()));
            }
            Err(_) => {}
        }
        let request = Request::of("delete", key);
        let effect = TxnOp::delete(self.keys.object(key), None);
        self.write(request, key, stored.mod_revision(), effect).await
    }
}

/// The values of the two gets of a failed write: of the key and of the marker.
fn both(answer: &TxnResponse) -> Option<[Option<KeyValue>; 2]> {
    let mut found = answer.op_responses().into_iter().map(|response| match response {
        TxnOpResponse::Get(mut answer) => Some(answer.take_kvs().pop()),
        _ => None,
    });
    Some([found.next()??, found.next()??])
}
