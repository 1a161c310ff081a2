//! What a start does with the disk: times syncs, and keeps ballast.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::capacity::NO_ROOM_BYTES;
use super::error::{OpenError, is_full};
use super::format::sync_folder;
use crate::clock::Stopwatch;
use crate::options::{FreeSpace, Options};

/// A warning is logged if a sync takes longer.
const SLOW_SYNC: Duration = Duration::from_millis(10);

/// The result of probing the disk.
pub(crate) struct Probed {
    /// Median time of a sync, in microseconds; none if it was not measured.
    pub(crate) sync_micros: Option<u64>,
    /// Whether the log can grow.
    pub(crate) has_room: bool,
}

/// Times syncs and creates the ballast, unless the disk is full: that must not keep the store from being read.
pub(crate) fn probe_disk(options: &Options, space: FreeSpace) -> Result<Probed, OpenError> {
    let folder = &options.path;
    let mut probed = Probed {
        sync_micros: None,
        has_room: space.free >= NO_ROOM_BYTES,
    };
    let failed = |error| OpenError::io(folder, error);
    if probed.has_room {
        match time_syncs(folder, options.probe_syncs) {
            Ok(micros) => probed.sync_micros = micros,
            Err(error) if is_full(&error) => probed.has_room = false,
            Err(error) => return Err(failed(error)),
        }
    }
    match create_ballast(folder, options.ballast_bytes, space.free) {
        Ok(()) => {}
        Err(error) if is_full(&error) => probed.has_room = false,
        Err(error) => return Err(failed(error)),
    }
    Ok(probed)
}

/// Times syncs of 4 KiB; returns the median in microseconds.
fn time_syncs(folder: &Path, syncs: u32) -> io::Result<Option<u64>> {
    if syncs == 0 {
        return Ok(None);
    }
    let path = folder.join("probe");
    let timed = sync_micros(&path, syncs);
    let removed = std::fs::remove_file(&path);
    let mut micros = timed?;
    removed?;
    micros.sort_unstable();
    let median = micros.get(micros.len() / 2).copied();
    if median.is_some_and(|median| Duration::from_micros(median) > SLOW_SYNC) {
        tracing::warn!(sync_micros = median, "the disk is slow to sync");
    }
    Ok(median)
}

fn sync_micros(path: &Path, syncs: u32) -> io::Result<Vec<u64>> {
    let file = File::create(path)?;
    let block = [0x5a; 4096];
    let mut micros = Vec::new();
    for position in 0..u64::from(syncs) {
        let since = Stopwatch::start();
        file.write_all_at(&block, position * 4096)?;
        file.sync_data()?;
        micros.push(u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    Ok(micros)
}

/// The path of the ballast: a file to be removed by hand when the disk is full.
pub(crate) fn ballast_path(folder: &Path) -> PathBuf {
    folder.join("ballast")
}

/// Creates the ballast if it is missing and the disk has room for it. One that was not written completely is removed.
fn create_ballast(folder: &Path, bytes: u64, free: u64) -> io::Result<()> {
    let path = ballast_path(folder);
    if bytes == 0 || path.exists() {
        return Ok(());
    }
    if free < bytes.saturating_mul(20) {
        tracing::warn!(free, "no ballast is created: the disk has too little free space");
        return Ok(());
    }
    let unfinished = path.with_extension("new");
    let written = write_zeros(&unfinished, bytes);
    if written.is_err() {
        // It may not exist.
        drop(std::fs::remove_file(&unfinished));
        return written;
    }
    std::fs::rename(&unfinished, &path)?;
    sync_folder(folder)
}

/// Writes as many bytes as the log must be able to grow by, and removes them.
///
/// # Errors
/// There is no such room, whatever the file system reports.
pub(crate) fn try_room(folder: &Path) -> io::Result<()> {
    let path = folder.join("probe");
    let written = write_zeros(&path, NO_ROOM_BYTES);
    let removed = std::fs::remove_file(&path);
    written.and(removed)
}

fn write_zeros(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let block = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let part = block
            .get(..usize::try_from(left).unwrap_or(usize::MAX).min(block.len()))
            .unwrap_or(&block);
        file.write_all(part)?;
        left = left.saturating_sub(part.len() as u64);
    }
    file.sync_all()
}
