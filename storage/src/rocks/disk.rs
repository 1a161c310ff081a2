//! Is there room?
//!
//! Below 15 % or 2 GiB of free bytes the history window shrinks to its minimum; below 1 GiB nothing that makes the store
//! larger is taken, while deletes, writes that do not grow and those that lead to less pass. The same holds when all
//! values together have reached their limit, since every one of them is kept in memory.

use std::fmt;

use crate::FreeSpace;

const GIB: u64 = 1 << 30;
/// Below so much, or so large a part of the whole, room is short.
const SHORT_BYTES: u64 = 2 * GIB;
const SHORT_PERCENT: u64 = 15;
/// Below so much nothing may grow.
const CRITICAL_BYTES: u64 = GIB;

/// A store that comes up with less than this takes no writes until there is more: the log could not grow.
pub(crate) const NO_ROOM_BYTES: u64 = 64 << 20;

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    Plenty,
    Short,
    Critical,
}

/// Why nothing may grow.
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
    },
}

impl fmt::Display for Cramped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk => f.write_str("the disk is nearly full")?,
            Self::Objects { found, limit } => {
                write!(f, "its objects have {found} bytes and the limit is {limit}")?;
            }
        }
        f.write_str(": deletes, status and changes that do not grow an object are taken")
    }
}

/// Why nothing may grow, if so. A limit of 0 is none.
pub(crate) fn cramped(room: Room, object_bytes: u64, limit: u64) -> Option<Cramped> {
    if room == Room::Critical {
        Some(Cramped::Disk)
    } else if limit != 0 && object_bytes >= limit {
        Some(Cramped::Objects {
            found: object_bytes,
            limit,
        })
    } else {
        None
    }
}

/// Judges what is free.
pub(crate) fn judge(FreeSpace { free, total }: FreeSpace) -> Room {
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
    fn room_is_judged_by_bytes_and_by_share() {
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
        let objects = |found| Some(Cramped::Objects { found, limit: 10 });
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
