//! Is there room?
//!
//! Below 15 % or 2 GiB the history window shrinks to its minimum; below 1 GiB nothing that makes the store larger is
//! taken, while deletes and writes that do not grow pass.

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
}
