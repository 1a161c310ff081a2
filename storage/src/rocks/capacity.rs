//! Capacity: free disk space, and the limit for the bytes of all values.
//!
//! Below 15 % or 2 GiB of free space the history window shrinks to its minimum. Below 1 GiB writes that make the store
//! larger are refused; deletes, updates that do not grow a value, and updates that lead to a removal are accepted. The same
//! holds when the values have reached their limit, since all of them are kept in memory. Updates that lead to a removal may
//! use a reserve, a quarter of the limit; when it is used up, only deletion timestamps may make a value longer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{fmt, io};

use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::{Metrics, gauge_value};
use crate::options::MeasureDisk;
use crate::{FreeSpace, Options};

const GIB: u64 = 1 << 30;
/// Below this many bytes, or this part of the whole, space is short.
const SHORT_BYTES: u64 = 2 * GIB;
const SHORT_PERCENT: u64 = 15;
/// Below this many bytes nothing may grow.
const CRITICAL_BYTES: u64 = GIB;

/// The reserve for reports and deletions is this part of the limit for values.
const RESERVE_PART: u64 = 4;

/// A store that starts with less than this is read-only until there is more: the log could not grow.
pub(crate) const NO_ROOM_BYTES: u64 = 64 << 20;

/// How much space is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    Plenty,
    Short,
    Critical,
}

/// Why writes that grow are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cramped {
    /// The disk is nearly full.
    Disk,
    /// All values together have reached their limit.
    Objects {
        /// Their bytes.
        found: u64,
        /// The limit.
        limit: u64,
        /// How far reports and deletions may exceed it.
        reserve: u64,
    },
}

impl Cramped {
    /// Whether updates that lead to a removal may still grow.
    pub(crate) const fn has_reserve(self) -> bool {
        match self {
            Self::Disk => true,
            Self::Objects {
                found,
                limit,
                reserve,
            } => found <= limit + reserve,
        }
    }
}

impl fmt::Display for Cramped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk => f.write_str("the disk is nearly full")?,
            Self::Objects { found, limit, .. } => {
                write!(f, "the objects have {found} bytes, the limit is {limit}")?;
            }
        }
        f.write_str(if self.has_reserve() {
            ": deletes, small status and changes that do not grow an object are accepted"
        } else {
            " and its reserve is used up: deletes and changes that do not grow an object are accepted"
        })
    }
}

/// How much the store may grow.
pub(crate) struct Capacity {
    folder: PathBuf,
    measure: Arc<MeasureDisk>,
    /// Limit for the bytes of all values; 0: none.
    object_bytes: u64,
    /// The last measured [`Room`].
    room: AtomicU8,
    free_gauge: Gauge,
}

impl Capacity {
    /// Begins with the free space that a start measured.
    pub(crate) fn new(options: &Options, space: FreeSpace, metrics: &Metrics) -> Self {
        metrics.object_bytes_limit.set(gauge_value(options.object_bytes));
        metrics.disk_free_bytes.set(gauge_value(space.free));
        Self {
            folder: options.path.clone(),
            measure: Arc::clone(&options.measure_disk),
            object_bytes: options.object_bytes,
            room: AtomicU8::new(judge(space) as u8),
            free_gauge: metrics.disk_free_bytes.clone(),
        }
    }

    /// Measures the free space; returns it, and whether there is less room than before.
    pub(crate) fn measure(&self) -> io::Result<(FreeSpace, bool)> {
        let space = (self.measure)(&self.folder)?;
        self.free_gauge.set(gauge_value(space.free));
        let room = judge(space);
        let has_shrunk = room > self.room();
        self.set_room(room);
        if has_shrunk {
            tracing::warn!(?room, free = space.free, "free disk space is getting short");
        }
        Ok((space, has_shrunk))
    }

    fn room(&self) -> Room {
        match self.room.load(Ordering::Relaxed) {
            0 => Room::Plenty,
            1 => Room::Short,
            _ => Room::Critical,
        }
    }

    pub(crate) fn set_room(&self, room: Room) {
        self.room.store(room as u8, Ordering::Relaxed);
    }

    /// Whether the window should shrink, and nothing should keep files longer than needed.
    pub(crate) fn is_short(&self) -> bool {
        self.room() > Room::Plenty
    }

    /// Why writes that grow are refused, if they are; the values have `object_bytes` bytes now.
    pub(crate) fn cramped(&self, object_bytes: u64) -> Option<Cramped> {
        cramped(self.room(), object_bytes, self.object_bytes)
    }
}

fn cramped(room: Room, object_bytes: u64, limit: u64) -> Option<Cramped> {
    if room == Room::Critical {
        Some(Cramped::Disk)
    } else if limit != 0 && object_bytes >= limit {
        Some(Cramped::Objects {
            found: object_bytes,
            limit,
            reserve: limit / RESERVE_PART,
        })
    } else {
        None
    }
}

/// Classifies the free space.
fn judge(FreeSpace { free, total }: FreeSpace) -> Room {
    if free < CRITICAL_BYTES {
        Room::Critical
    } else if free < SHORT_BYTES || free < total / 100 * SHORT_PERCENT {
        Room::Short
    } else {
        Room::Plenty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_depends_on_bytes_and_on_share() {
        for (free, total, expected) in [
            (100 * GIB, 200 * GIB, Room::Plenty),
            (20 * GIB, 200 * GIB, Room::Short),
            (3 * GIB, 10 * GIB, Room::Plenty),
            (2 * GIB - 1, 10 * GIB, Room::Short),
            (GIB - 1, 2 * GIB, Room::Critical),
        ] {
            assert_eq!(judge(FreeSpace { free, total }), expected, "{free} of {total}");
        }
    }

    #[test]
    fn objects_have_a_limit() {
        let objects = |found| {
            Some(Cramped::Objects {
                found,
                limit: 10,
                reserve: 2,
            })
        };
        for (room, found, limit, expected) in [
            (Room::Plenty, 9, 10, None),
            (Room::Plenty, 10, 10, objects(10)),
            (Room::Short, 11, 10, objects(11)),
            (Room::Critical, 9, 10, Some(Cramped::Disk)),
            (Room::Plenty, u64::MAX, 0, None),
        ] {
            assert_eq!(
                cramped(room, found, limit),
                expected,
                "{found} of {limit}, {room:?}"
            );
        }
    }
}
