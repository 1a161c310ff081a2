//! The commit mark: the newest revision that is known to have been durable.
//!
//! A small file with two alternating, checksummed slots, overwritten after each sync of the log and before the writes are
//! acknowledged. A store whose log ends below the mark has lost acknowledged writes. The engine cannot detect that: a log
//! cut exactly at the end of a record opens cleanly. The file itself is synced once a second and at shutdown; an older mark
//! is never wrong.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crc32fast::hash;
use uuid::Uuid;

use crate::Revision;
use crate::clock::Clock;
use crate::sync::lock;

/// Size of the file: one block, so that no slot spans two.
const FILE_BYTES: u64 = 4096;
/// Where the two slots start.
const SLOTS: [u64; 2] = [0, 2048];
/// First bytes of a slot.
const MAGIC: [u8; 8] = *b"ddmark01";
/// Magic, count, uuid, boot id, revision, time, flags, checksum.
const SLOT_BYTES: usize = 8 + 8 + 16 + 16 + 8 + 8 + 4 + 4;

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The store it belongs to.
    pub(crate) store: Uuid,
    /// The boot of the machine during which it was written.
    pub(crate) boot: Uuid,
    /// The newest revision that is known to be synced.
    pub(crate) synced: Revision,
    /// When it was written, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Whether the store was closed in order.
    pub(crate) is_clean: bool,
    /// Whether the log was synced by interval only.
    pub(crate) is_relaxed: bool,
}

impl Mark {
    /// Whether it was certainly written during this boot: a nil boot id may stand for any boot.
    pub(crate) fn is_of_boot(&self, boot: Uuid) -> bool {
        !boot.is_nil() && self.boot == boot
    }
}

/// The mark of an open store. Written by the commit thread, synced by the sync thread.
pub(crate) struct CommitMark {
    file: MarkFile,
    /// What all marks of this process have in common.
    template: Mark,
    clock: Arc<dyn Clock>,
}

impl CommitMark {
    pub(crate) fn new(file: MarkFile, template: Mark, clock: Arc<dyn Clock>) -> Self {
        Self {
            file,
            template,
            clock,
        }
    }

    /// The identity of the store.
    pub(crate) fn store(&self) -> Uuid {
        self.template.store
    }

    /// Writes that everything up to `synced` is durable, and whether the store is closed in order.
    pub(crate) fn write(&self, synced: Revision, is_clean: bool) -> io::Result<()> {
        self.file.write(&Mark {
            synced,
            is_clean,
            at_ms: self.clock.now_ms(),
            ..self.template
        })
    }

    /// Syncs what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct MarkFile {
    file: File,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// How many marks have been written, of all processes.
    count: u64,
    /// The store was closed in order: this process writes no other mark.
    is_final: bool,
}

impl MarkFile {
    /// Creates the file of a new store and syncs it.
    pub(crate) fn create(path: &Path, mark: &Mark) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.set_len(FILE_BYTES)?;
        let file = Self {
            file,
            slots: Mutex::default(),
        };
        file.write(mark)?;
        file.write(mark)?;
        file.file.sync_all()?;
        Ok(file)
    }

    /// Opens the file of an existing store; no mark if neither slot is intact.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<Mark>)> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let newest = newest_slot(&file)?;
        let count = newest.map_or(0, |(count, _)| count);
        let file = Self {
            file,
            slots: Mutex::new(Slots {
                count,
                is_final: false,
            }),
        };
        Ok((file, newest.map(|(_, mark)| mark)))
    }

    /// Reads the mark without opening the file for writing.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Mark>> {
        Ok(newest_slot(&File::open(path)?)?.map(|(_, mark)| mark))
    }

    /// Overwrites the older slot. Does nothing after the mark of an orderly close, which a late sync must not revert.
    pub(crate) fn write(&self, mark: &Mark) -> io::Result<()> {
        let mut slots = lock(&self.slots);
        if slots.is_final && !mark.is_clean {
            return Ok(());
        }
        slots.is_final = mark.is_clean;
        slots.count += 1;
        let slot = encode(slots.count, mark);
        let at = if slots.count.is_multiple_of(2) {
            SLOTS[0]
        } else {
            SLOTS[1]
        };
        self.file.write_all_at(&slot, at)
    }

    /// Syncs what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        fail::fail_point!("mark-sync", |_| Err(io::Error::other("injected by a failpoint")));
        self.file.sync_data()
    }
}

fn newest_slot(file: &File) -> io::Result<Option<(u64, Mark)>> {
    let mut newest: Option<(u64, Mark)> = None;
    for at in SLOTS {
        let mut slot = [0; SLOT_BYTES];
        match file.read_exact_at(&mut slot, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
            Err(error) => return Err(error),
        }
        if let Some((count, mark)) = decode(&slot)
            && newest.is_none_or(|(best, _)| count > best)
        {
            newest = Some((count, mark));
        }
    }
    Ok(newest)
}

fn encode(count: u64, mark: &Mark) -> Vec<u8> {
    let mut slot = Vec::with_capacity(SLOT_BYTES);
    slot.extend_from_slice(&MAGIC);
    slot.extend_from_slice(&count.to_le_bytes());
    slot.extend_from_slice(mark.store.as_bytes());
    slot.extend_from_slice(mark.boot.as_bytes());
    slot.extend_from_slice(&mark.synced.0.to_le_bytes());
    slot.extend_from_slice(&mark.at_ms.to_le_bytes());
    slot.extend_from_slice(&(u32::from(mark.is_clean) | u32::from(mark.is_relaxed) << 1).to_le_bytes());
    let checksum = hash(&slot);
    slot.extend_from_slice(&checksum.to_le_bytes());
    slot
}

fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(u64, Mark)> {
    let (content, checksum) = slot.split_last_chunk::<4>()?;
    if hash(content) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let (magic, rest) = content.split_first_chunk::<8>()?;
    let (count, rest) = rest.split_first_chunk::<8>()?;
    let (store, rest) = rest.split_first_chunk::<16>()?;
    let (boot, rest) = rest.split_first_chunk::<16>()?;
    let (synced, rest) = rest.split_first_chunk::<8>()?;
    let (at_ms, rest) = rest.split_first_chunk::<8>()?;
    let (flags, _) = rest.split_first_chunk::<4>()?;
    if *magic != MAGIC {
        return None;
    }
    let flags = u32::from_le_bytes(*flags);
    let mark = Mark {
        store: Uuid::from_bytes(*store),
        boot: Uuid::from_bytes(*boot),
        synced: Revision(u64::from_le_bytes(*synced)),
        at_ms: u64::from_le_bytes(*at_ms),
        is_clean: flags & 1 != 0,
        is_relaxed: flags & 2 != 0,
    };
    Some((u64::from_le_bytes(*count), mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(synced: u64) -> Mark {
        Mark {
            store: Uuid::from_u128(7),
            boot: Uuid::from_u128(8),
            synced: Revision(synced),
            at_ms: 99,
            is_clean: synced % 2 == 1,
            is_relaxed: synced % 3 == 1,
        }
    }

    #[test]
    fn the_newest_slot_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        MarkFile::create(&path, &mark(1)).unwrap();
        for synced in 2..7 {
            let (file, _) = MarkFile::open(&path).unwrap();
            file.write(&mark(synced)).unwrap();
            file.sync().unwrap();
            assert_eq!(MarkFile::read(&path).unwrap(), Some(mark(synced)));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), FILE_BYTES);
    }

    #[test]
    fn the_mark_of_an_orderly_close_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let file = MarkFile::create(&path, &mark(2)).unwrap();
        let end = mark(5);
        assert!(end.is_clean);
        file.write(&end).unwrap();
        file.write(&mark(4)).unwrap();
        assert_eq!(MarkFile::read(&path).unwrap(), Some(end));
    }

    #[test]
    fn a_nil_boot_id_never_counts_as_the_same_boot() {
        let mark = mark(2);
        assert!(mark.is_of_boot(mark.boot));
        assert!(!mark.is_of_boot(Uuid::from_u128(9)));
        let nameless = Mark {
            boot: Uuid::nil(),
            ..mark
        };
        assert!(!nameless.is_of_boot(Uuid::nil()));
    }

    #[test]
    fn a_torn_slot_leaves_the_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let file = MarkFile::create(&path, &mark(4)).unwrap();
        file.write(&mark(5)).unwrap();
        // The third write went to the second slot.
        file.file.write_all_at(&[0xff; 8], SLOTS[1] + 40).unwrap();
        assert_eq!(MarkFile::read(&path).unwrap(), Some(mark(4)));
        file.file.write_all_at(&[0xff; 8], SLOTS[0] + 40).unwrap();
        assert_eq!(MarkFile::read(&path).unwrap(), None);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(MarkFile::read(&path).unwrap(), None);
    }
}
