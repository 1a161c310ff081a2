//! The latency of the disk: an append with `fdatasync`, the minimum of a durable write.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use drydock_tests::load::Histogram;
use tokio::time::Instant;

/// The bytes that a create adds to the log.
const RECORD_BYTES: usize = 2100;
/// Enough for a median.
const TIME: Duration = Duration::from_secs(1);

/// Appends records to a file on the disk of the server's data, each with `fdatasync`, one after the other.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn sync_loop(folder: &Path) -> Result<Histogram> {
    let path = folder.join("fdatasync-loop");
    let mut file = std::fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let record = [b'x'; RECORD_BYTES];
    let mut latencies = Histogram::default();
    let started = Instant::now();
    while started.elapsed() < TIME {
        let asked = Instant::now();
        file.write_all(&record).context("append to a file")?;
        file.sync_data().context("sync a file")?;
        latencies.record(asked.elapsed());
    }
    std::fs::remove_file(&path).context("remove a file")?;
    Ok(latencies)
}
