//! Scans: pages of etcd, all at the revision of the first one.

use etcd_client::{GetOptions, GetResponse};

use super::failure::Failure;
use super::keyspace::RawRange;
use super::members::{Connection, Request, revision_of};
use super::parts::Shared;
use super::parts::{Parts, number};
use super::revision;
use crate::{At, Damaged, Entry, Key, KeyRange, Page, Revision, Scan, StoreError, Unread};

/// How many keys the first request asks for. Later ones ask for as many as probably have [`PAGE_BYTES`].
const FIRST_KEYS: usize = 64;
/// The most keys of a request: more are not faster, see decision 0018, and the objects after small ones may be large.
const MOST_KEYS: usize = 500;
/// About how many bytes a request should return.
const PAGE_BYTES: usize = 4 << 20;
/// How often a scan of the newest state starts over when its revision is compacted meanwhile.
pub(super) const ATTEMPTS: usize = 3;

/// Reads a range.
pub(super) async fn scan(parts: &Shared, range: &KeyRange, at: At, page: &Page) -> Result<Scan, StoreError> {
    parts.check_open()?;
    if let At::Exactly(exactly) = at {
        let oldest = parts.floors.floors().listable_from;
        if exactly < oldest {
            return Err(StoreError::Compacted {
                requested: exactly,
                floor: oldest,
            });
        }
    }
    read(parts, range, at, page).await
}

/// Reads a range, and leaves it to etcd to refuse a revision. etcd has the state of the compacted revision too, which may be the
/// newest one.
async fn read(parts: &Shared, range: &KeyRange, at: At, page: &Page) -> Result<Scan, StoreError> {
    let Some(raw) = parts.keys.range(range, &page.after) else {
        return empty(parts, at).await;
    };
    let mut attempts = 1;
    loop {
        let mut reading = Reading::new(parts, range, at, page);
        match reading.run(raw.clone()).await {
            Ok(()) => return Ok(reading.scan),
            Err(StoreError::Compacted { .. }) if at == At::Latest && attempts < ATTEMPTS => attempts += 1,
            Err(error) => return Err(error),
        }
    }
}

/// How many keys the next request asks for, after one that returned so many bytes of so many keys.
fn keys_of_next(bytes: usize, keys: usize) -> usize {
    let average = (bytes / keys.max(1)).max(1);
    (PAGE_BYTES / average).clamp(1, MOST_KEYS)
}

/// The newest revision, and how many objects it has.
pub(super) async fn count(parts: &Shared) -> Result<(Revision, u64), StoreError> {
    parts.check_open()?;
    let Some(all) = parts.keys.range(&KeyRange::all(), "") else {
        return Ok((revision::current(parts).await?, 0));
    };
    let options = GetOptions::new().with_range(all.end).with_count_only();
    let call = |mut connection: Connection| {
        let (start, options) = (all.start.clone(), options.clone());
        async move { connection.kv.get(start, Some(options)).await }
    };
    let answer = parts.members.read(Request::of_store("count"), call).await?;
    let answer = answer.map_err(Failure::of_read)?;
    Ok((
        revision_of(&answer),
        u64::try_from(answer.count()).unwrap_or_default(),
    ))
}

/// Everything that a store holds, in pages of about [`PAGE_BYTES`]. None of them is kept here.
pub(super) struct Pages<'a> {
    parts: &'a Shared,
    at: At,
    after: String,
    limit: usize,
    is_over: bool,
}

impl<'a> Pages<'a> {
    /// With the newest state, each page shows it as of its own reading.
    pub(super) fn of(parts: &'a Shared, at: At) -> Self {
        Self {
            parts,
            at,
            after: String::new(),
            limit: FIRST_KEYS,
            is_over: false,
        }
    }

    /// The entries of the next page in the order of keys; none after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<(Key, Entry)>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let page = Page {
            after: std::mem::take(&mut self.after),
            limit: self.limit,
            ..Page::default()
        };
        let found = read(self.parts, &KeyRange::all(), self.at, &page).await?;
        let sizes = found.entries.iter().map(|(_, entry)| entry.value.bytes.len());
        self.limit = keys_of_next(sizes.sum(), found.entries.len());
        match found.entries.last() {
            Some((key, _)) if found.more => key.as_str().clone_into(&mut self.after),
            _ => self.is_over = true,
        }
        Ok(Some(found.entries))
    }
}

/// The scan of an empty range.
async fn empty(parts: &Shared, at: At) -> Result<Scan, StoreError> {
    let current = revision::current(parts).await?;
    let revision = match at {
        At::Latest => current,
        At::Exactly(exactly) => parts.floors.floors().check_listable(exactly, current)?,
    };
    Ok(Scan {
        revision,
        entries: Vec::new(),
        damaged: Vec::new(),
        more: false,
    })
}

/// A scan that is being read.
struct Reading<'a> {
    parts: &'a Shared,
    group: &'a str,
    resource: &'a str,
    page: &'a Page,
    /// The revision to read at; none until the first answer of a scan of the newest state.
    at: Option<Revision>,
    keys: usize,
    scan: Scan,
}

impl<'a> Reading<'a> {
    fn new(parts: &'a Shared, range: &'a KeyRange, at: At, page: &'a Page) -> Self {
        let at = match at {
            At::Latest => None,
            At::Exactly(revision) => Some(revision),
        };
        let (group, resource) = range.group_and_resource();
        Self {
            parts,
            group,
            resource,
            page,
            at,
            keys: FIRST_KEYS,
            scan: Scan {
                revision: at.unwrap_or_default(),
                entries: Vec::new(),
                damaged: Vec::new(),
                more: false,
            },
        }
    }

    /// Reads to the end of the range or of the page.
    async fn run(&mut self, mut rest: RawRange) -> Result<(), StoreError> {
        loop {
            let wanted = match self.page.limit {
                0 => self.keys,
                // One more tells whether entries follow, damaged keys before it notwithstanding.
                limit => self
                    .keys
                    .min(limit.saturating_sub(self.scan.entries.len()).saturating_add(1)),
            };
            let answer = match self.request(&rest, wanted).await? {
                Ok(answer) => answer,
                Err(Failure::LargeAnswer) if self.keys > 1 => {
                    self.keys = (self.keys / 4).max(1);
                    continue;
                }
                Err(failure) => return Err(self.refused(failure).await),
            };
            if self.at.is_none() {
                let revision = revision_of(&answer);
                (self.at, self.scan.revision) = (Some(revision), revision);
            }
            let Some(last) = answer.kvs().last() else {
                return Ok(());
            };
            let mut next = last.key().to_vec();
            next.push(0);
            if self.take(&answer)? || !answer.more() {
                return Ok(());
            }
            rest.start = next;
        }
    }

    async fn request(
        &self,
        rest: &RawRange,
        keys: usize,
    ) -> Result<Result<GetResponse, Failure>, StoreError> {
        let request = Request {
            operation: "list",
            group: self.group,
            resource: self.resource,
        };
        let options = GetOptions::new()
            .with_range(rest.end.clone())
            .with_limit(i64::try_from(keys).unwrap_or(i64::MAX))
            .with_revision(self.at.map_or(0, number));
        let call = |mut connection: Connection| {
            let (start, options) = (rest.start.clone(), options.clone());
            async move { connection.kv.get(start, Some(options)).await }
        };
        self.parts.members.read(request, call).await
    }

    /// Takes the entries of an answer; returns whether the page is full.
    fn take(&mut self, answer: &GetResponse) -> Result<bool, StoreError> {
        let mut bytes = 0;
        for stored in answer.kvs() {
            bytes += stored.value().len();
            let key = self
                .parts
                .keys
                .key(stored.key())
                .map_err(|error| StoreError::Corrupt {
                    key: String::from_utf8_lossy(stored.key()).into_owned(),
                    reason: format!("it is no key of this store: {error}"),
                })?;
            let entry = match self.parts.entry(&key, stored) {
                Ok(entry) => entry,
                Err(found) => {
                    let error = StoreError::from(found);
                    match Unread::of(&error) {
                        Some(unread) if self.page.damaged == Damaged::SetApart => {
                            self.scan.damaged.push((key, unread));
                            continue;
                        }
                        _ => return Err(error),
                    }
                }
            };
            if self.page.limit != 0 && self.scan.entries.len() == self.page.limit {
                self.scan.more = true;
                self.drop_damaged_of_next_page();
                return Ok(true);
            }
            self.scan.entries.push((key, entry));
        }
        self.keys = keys_of_next(bytes, answer.kvs().len());
        Ok(false)
    }

    /// Damaged keys after the last entry belong to the next page.
    fn drop_damaged_of_next_page(&mut self) {
        if let Some((last, _)) = self.scan.entries.last() {
            let last: &Key = last;
            self.scan.damaged.retain(|(key, _)| key < last);
        }
    }

    /// The error for a failed request.
    async fn refused(&self, failure: Failure) -> StoreError {
        let requested = self.at.unwrap_or_default();
        match failure {
            Failure::Compacted => {
                let Parts {
                    floors,
                    members,
                    keys,
                    ..
                } = &**self.parts;
                floors.ask(members, keys).await;
                // At least the requested revision is gone, whatever etcd told.
                floors.note(requested);
                StoreError::Compacted {
                    requested,
                    floor: floors.floors().listable_from,
                }
            }
            Failure::Future => match revision::current(self.parts).await {
                Ok(current) => StoreError::Future { requested, current },
                Err(error) => error,
            },
            failure => failure.of_read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_by_keys_and_by_bytes() {
        assert_eq!(keys_of_next(0, 0), MOST_KEYS);
        assert_eq!(keys_of_next(64 * 300, 64), MOST_KEYS);
        assert_eq!(keys_of_next(64 * (64 << 10), 64), 64);
        assert_eq!(keys_of_next(3 << 20, 2), 2);
        assert_eq!(keys_of_next(2 * PAGE_BYTES, 1), 1);
    }
}
