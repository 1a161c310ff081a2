//! The log of events on disk: one line per event, in a file that is replaced when it is large.
//!
//! A replaced file is called like the log with the time in its name, `audit-2026-06-01T12-00-00.000.log`, as the reference
//! calls it. Old files are compressed, and removed by number and age, on a thread of their own, so that no request waits for
//! it. The folder is created with mode 0700 and files with 0600: events name users and objects.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use drydock_machinery::clock::Clock;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tokio::sync::{mpsc, oneshot};

use super::AuditError;
use super::settings::{LogFormat, LogSettings};
use super::sink::{Encoded, Output};

/// The path that stands for standard output.
const STDOUT: &str = "-";
/// How the time is written in the name of a replaced file.
const TIME_IN_NAME: &str = "%Y-%m-%dT%H-%M-%S.%3f";
const COMPRESSED: &str = ".gz";
/// How many batches of lines wait for the disk.
const WAITING: usize = 1024;

/// Lines for the log, and where to say whether they are written.
struct Job {
    lines: Vec<Bytes>,
    done: oneshot::Sender<io::Result<()>>,
}

/// The log as an output of events. Lines are written by one thread, in order.
pub(super) struct LogOutput {
    format: LogFormat,
    jobs: mpsc::Sender<Job>,
}

impl LogOutput {
    /// Opens the log, which shows at the start whether it can be written.
    pub(super) fn start(settings: &LogSettings, clock: Arc<dyn Clock>) -> Result<Self, AuditError> {
        let unusable = |source| AuditError::LogFile {
            path: settings.path.clone(),
            source,
        };
        let mut target = if settings.path == Path::new(STDOUT) {
            Target::Stdout
        } else {
            let mut file = LogFile::new(settings.clone(), clock);
            file.open().map_err(unusable)?;
            file.start_housekeeping().map_err(unusable)?;
            Target::File(file)
        };
        let (jobs, mut queue) = mpsc::channel::<Job>(WAITING);
        let write_all = move || {
            while let Some(Job { lines, done }) = queue.blocking_recv() {
                let written = lines.iter().try_for_each(|line| target.write(line));
                // Nobody may wait for it any more.
                done.send(written).ok();
            }
        };
        std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(write_all)
            .map_err(unusable)?;
        Ok(Self {
            format: settings.format,
            jobs,
        })
    }
}

impl Output for LogOutput {
    fn deliver(&self, events: &[Arc<Encoded>]) -> BoxFuture<'_, Result<(), String>> {
        let lines = events.iter().map(|event| event.line(self.format)).collect();
        async move {
            let (done, written) = oneshot::channel();
            let ended = "the thread that writes the log has ended";
            let sent = self.jobs.send(Job { lines, done }).await;
            sent.map_err(|_| ended.to_owned())?;
            let written = written.await.map_err(|_| ended.to_owned())?;
            written.map_err(|error| error.to_string())
        }
        .boxed()
    }
}

enum Target {
    Stdout,
    File(LogFile),
}

impl Target {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(line)?;
                out.flush()
            }
            Self::File(file) => file.write(line),
        }
    }
}

/// A file that is replaced when it would become larger than allowed.
struct LogFile {
    settings: LogSettings,
    clock: Arc<dyn Clock>,
    open: Option<(File, u64)>,
    replaced: Option<SyncSender<()>>,
}

impl LogFile {
    fn new(settings: LogSettings, clock: Arc<dyn Clock>) -> Self {
        Self {
            settings,
            clock,
            open: None,
            replaced: None,
        }
    }

    /// Starts the thread that compresses and removes old files, now and whenever one is added.
    fn start_housekeeping(&mut self) -> io::Result<()> {
        let (replaced, additions) = sync_channel(1);
        let (settings, clock) = (self.settings.clone(), Arc::clone(&self.clock));
        std::thread::Builder::new()
            .name("audit-files".to_owned())
            .spawn(move || {
                tidy_or_log(&settings, clock.now());
                while additions.recv().is_ok() {
                    tidy_or_log(&settings, clock.now());
                }
            })?;
        self.replaced = Some(replaced);
        Ok(())
    }

    /// Opens the file to append to it, creating it and its folder if necessary.
    fn open(&mut self) -> io::Result<&mut (File, u64)> {
        let path = &self.settings.path;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        let size = file.metadata()?.len();
        Ok(self.open.insert((file, size)))
    }

    /// Appends a line. After a failure the file is opened again, so that a disk with room again suffices.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.open.is_none() {
            self.open()?;
        }
        let limit = self.settings.max_bytes;
        let size = self.open.as_ref().map_or(0, |(_, size)| *size);
        if limit > 0 && size > 0 && size + line.len() as u64 > limit {
            // A log that cannot be replaced still takes events.
            if let Err(error) = self.replace() {
                tracing::error!(%error, "the audit log cannot be replaced");
            }
        }
        let (file, size) = match &mut self.open {
            Some(open) => open,
            None => self.open()?,
        };
        match file.write_all(line) {
            Ok(()) => {
                *size += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.open = None;
                Err(error)
            }
        }
    }

    fn replace(&mut self) -> io::Result<()> {
        self.open = None;
        let mut time = self.clock.now();
        let mut old = backup_path(&self.settings.path, time);
        while old.exists() || compressed(&old).exists() {
            // Two files of one millisecond.
            time += Duration::from_millis(1);
            old = backup_path(&self.settings.path, time);
        }
        fs::rename(&self.settings.path, old)?;
        if let Some(replaced) = &self.replaced {
            // If it is full, the thread has not yet started on what was added before.
            replaced.try_send(()).ok();
        }
        Ok(())
    }
}

/// `audit.log` → `audit-TIME.log`.
fn backup_path(path: &Path, time: Timestamp) -> PathBuf {
    let (stem, extension) = name_parts(path);
    path.with_file_name(format!("{stem}-{}{extension}", time.strftime(TIME_IN_NAME)))
}

fn compressed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    name.into()
}

/// The name of a file up to its extension, and the extension with its dot.
fn name_parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = match text(path.extension()) {
        empty if empty.is_empty() => empty,
        extension => format!(".{extension}"),
    };
    (text(path.file_stem()), extension)
}

/// A replaced file, from its name.
struct Backup {
    path: PathBuf,
    time: Timestamp,
    is_compressed: bool,
}

/// The replaced files of a log, the newest first.
fn backups(log: &Path) -> io::Result<Vec<Backup>> {
    let (stem, extension) = name_parts(log);
    let folder = match log.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let plain = name.strip_suffix(COMPRESSED);
        let time = plain
            .unwrap_or(&name)
            .strip_prefix(&format!("{stem}-"))
            .and_then(|rest| rest.strip_suffix(&extension))
            .and_then(|time| DateTime::strptime(TIME_IN_NAME, time).ok())
            .and_then(|time| time.to_zoned(TimeZone::UTC).ok());
        if let Some(time) = time {
            found.push(Backup {
                time: time.timestamp(),
                is_compressed: plain.is_some(),
                path,
            });
        }
    }
    found.sort_by(|a, b| b.time.cmp(&a.time));
    Ok(found)
}

fn tidy_or_log(settings: &LogSettings, now: Timestamp) {
    if let Err(error) = tidy(settings, now) {
        tracing::warn!(%error, "old audit logs cannot be removed or compressed");
    }
}

/// Removes replaced files that are too many or too old, and compresses the others.
fn tidy(settings: &LogSettings, now: Timestamp) -> io::Result<()> {
    let oldest =
        (!settings.max_age.is_zero()).then(|| now.checked_sub(settings.max_age).unwrap_or(Timestamp::MIN));
    for (index, backup) in backups(&settings.path)?.into_iter().enumerate() {
        let is_surplus = settings.max_backups > 0 && index >= settings.max_backups;
        if is_surplus || oldest.is_some_and(|oldest| backup.time < oldest) {
            fs::remove_file(&backup.path)?;
        } else if settings.compress && !backup.is_compressed {
            compress(&backup.path)?;
        }
    }
    Ok(())
}

fn compress(path: &Path) -> io::Result<()> {
    let (target, mut unfinished) = (compressed(path), path.as_os_str().to_owned());
    unfinished.push(".partial");
    let unfinished = PathBuf::from(unfinished);
    let out = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)?;
    let mut encoder = GzEncoder::new(out, Compression::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::rename(&unfinished, target)?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests;
