//! The processes of a cluster: how they start, become ready, and end with their parent.
//!
//! Each process leads a process group of its own and writes to a log file. A process that must not outlive its parent
//! has a guard: a shell that waits on a pipe which the parent holds open. When the parent ends, even by SIGKILL, the
//! pipe closes and the guard kills the group. (The kernel's parent-death signal follows the *thread* that forked, and
//! a test's thread ends long before the cluster that it started.)

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::clients::{POLL_INTERVAL, eventually};
use crate::lock;

/// The guard: exits when it reads a line, which says that the process has ended; kills the group when the pipe
/// closes.
const GUARD: &str = "read -r line && exit 0; kill -s KILL -- \"-$1\"";

/// When a process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// With the program that started it.
    #[default]
    WithParent,
    /// When [`end_detached`](super::end_detached) is called on its folder.
    Detached,
}

/// A process of the cluster, with its log. Dropping it kills it, unless it is detached.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    guard: Option<Child>,
    log: PathBuf,
    lifetime: Lifetime,
}

impl Process {
    /// Starts a command in a process group of its own; its output goes to `<folder>/<name>.log`, after
    /// the output of earlier processes of that name.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn spawn(mut command: Command, name: &str, folder: &Path, lifetime: Lifetime) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        // Not every client exempts loopback from proxies.
        for variable in [
            "http_proxy",
            "https_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(variable);
        }
        let child = command
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("share the log file")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        let mut process = Self {
            name: name.to_owned(),
            child,
            guard: None,
            log,
            lifetime,
        };
        if lifetime == Lifetime::WithParent {
            process.guard = Some(guard(process.id())?);
        }
        Ok(process)
    }

    /// The process ID, which is also that of its group.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits until the condition is true. Errors of the condition count as "not yet"; the wait ends when the process
    /// does.
    ///
    /// # Errors
    /// The process ended, or the deadline passed. The message has the end of its log.
    pub async fn ready(
        &mut self,
        deadline: Duration,
        mut condition: impl AsyncFnMut() -> Result<bool>,
    ) -> Result<()> {
        let what = format!("{} ready", self.name);
        let child = &mut self.child;
        let waited = eventually(&what, deadline, async || {
            if let Some(status) = child.try_wait().context("ask for the process's state")? {
                return Ok(Some(Err(status)));
            }
            Ok(condition().await?.then_some(Ok(())))
        })
        .await;
        match waited {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => bail!("{} ended with {status}; {}", self.name, self.log_tail()),
            Err(late) => Err(late.context(self.log_tail())),
        }
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// It did not end within the grace period; it is killed then.
    pub async fn terminate(self, grace: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended(grace).await
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn has_ended(&mut self) -> Result<bool> {
        let status = self.child.try_wait().context("ask for the process's state")?;
        Ok(status.is_some())
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// It did not end within the grace period; it is killed then.
    pub async fn ended(mut self, grace: Duration) -> Result<ExitStatus> {
        let started = tokio::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context("ask for the process's state")? {
                return Ok(status);
            }
            if started.elapsed() >= grace {
                bail!("{} did not end within {grace:?}; {}", self.name, self.log_tail());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends a signal to the process's group.
    ///
    /// # Errors
    /// The group is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let group = i32::try_from(self.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("a process id of this system")?;
        kill_process_group(group, signal).with_context(|| format!("signal {}", self.name))
    }

    /// The end of the log, for error messages.
    fn log_tail(&self) -> String {
        const LINES: usize = 20;
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
        format!("the end of {}:\n{}", self.log.display(), tail.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Detached {
            return;
        }
        // Until the child is reaped, its ID is not reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL).ok();
        }
        self.child.wait().ok();
        if let Some(mut guard) = self.guard.take() {
            if let Some(mut pipe) = guard.stdin.take() {
                pipe.write_all(b"ended\n").ok();
            }
            guard.wait().ok();
        }
    }
}

/// Running processes by key, which can be stopped, killed and started again. Dropping it kills them in the order of
/// keys.
#[derive(Debug)]
pub struct Processes<K>(Mutex<BTreeMap<K, Process>>);

impl<K> Default for Processes<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> Processes<K> {
    /// Adds a process; one under the same key is killed.
    pub fn insert(&self, key: K, process: Process) {
        let before = lock(&self.0).insert(key, process);
        drop(before);
    }

    fn remove(&self, key: &K) -> Option<Process> {
        lock(&self.0).remove(key)
    }

    /// Whether a process was started and neither stopped nor killed.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        lock(&self.0).contains_key(key)
    }

    /// The ID of a process, if it was started.
    #[must_use]
    pub fn id(&self, key: &K) -> Option<u32> {
        lock(&self.0).get(key).map(Process::id)
    }

    /// Sends SIGTERM and waits for the end. `None` if it was not started.
    ///
    /// # Errors
    /// It did not end within the grace period; it is killed then.
    pub async fn stop(&self, key: &K, grace: Duration) -> Result<Option<ExitStatus>> {
        match self.remove(key) {
            Some(process) => process.terminate(grace).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits until a process ends. `None` if it was not started.
    ///
    /// # Errors
    /// As for [`stop`](Self::stop).
    pub async fn ended(&self, key: &K, grace: Duration) -> Result<Option<ExitStatus>> {
        match self.remove(key) {
            Some(process) => process.ended(grace).await.map(Some),
            None => Ok(None),
        }
    }

    /// Sends a signal to the process's group.
    ///
    /// # Errors
    /// It was not started, or is gone.
    pub fn signal(&self, key: &K, signal: Signal) -> Result<()> {
        lock(&self.0).get(key).context("the process runs")?.signal(signal)
    }

    /// Sends SIGKILL, if it was started.
    pub fn kill(&self, key: &K) {
        drop(self.remove(key));
    }
}

/// Starts the guard of a process group, in a group of its own, so that the terminal's interrupt does not reach it.
fn guard(group: u32) -> Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", GUARD, "drydock-guard", &group.to_string()])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start the guard of a process")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    fn is_alive(pid: u32) -> bool {
        // The state follows the name, which is in parentheses. A command line is empty while the process calls exec.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        !state.is_empty() && !state.starts_with(['Z', 'X'])
    }

    async fn gone(pid: u32) {
        eventually("the process to end", Duration::from_secs(20), async || {
            Ok((!is_alive(pid)).then_some(()))
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn dropping_a_process_ends_its_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = Process::spawn(
            shell("sleep 600 & echo $!; wait"),
            "p",
            folder.path(),
            Lifetime::WithParent,
        )
        .unwrap();
        let log = process.log().to_owned();
        let read = || std::fs::read_to_string(&log).unwrap().trim().parse::<u32>().ok();
        process
            .ready(Duration::from_secs(20), async || Ok(read().is_some()))
            .await
            .unwrap();
        let (parent, child) = (process.id(), read().unwrap());
        assert!(is_alive(parent) && is_alive(child));
        drop(process);
        gone(parent).await;
        gone(child).await;
    }

    #[tokio::test]
    async fn a_process_ends_when_its_parent_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut process =
            Process::spawn(shell("sleep 600"), "p", folder.path(), Lifetime::WithParent).unwrap();
        let pid = process.id();
        // As after SIGKILL: the pipe closes, and nothing was written.
        drop(process.guard.as_mut().unwrap().stdin.take());
        let reaped = async || Ok(process.child.try_wait()?);
        let status = eventually("the guard to kill", Duration::from_secs(20), reaped)
            .await
            .unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        assert!(!is_alive(pid));
    }

    #[tokio::test]
    async fn waiting_for_a_process_that_ended_fails_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = Process::spawn(
            shell("echo no such flag; exit 3"),
            "p",
            folder.path(),
            Lifetime::WithParent,
        )
        .unwrap();
        let error = process
            .ready(Duration::from_mins(1), async || Ok(false))
            .await
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("exit status: 3") && text.contains("no such flag"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; echo up; while :; do sleep 1; done";
        let mut process = Process::spawn(shell(script), "p", folder.path(), Lifetime::WithParent).unwrap();
        let log = process.log().to_owned();
        let is_up = async || Ok(std::fs::read_to_string(&log)?.contains("up"));
        process.ready(Duration::from_secs(20), is_up).await.unwrap();
        let pid = process.id();
        assert!(process.terminate(Duration::from_millis(200)).await.is_err());
        gone(pid).await;
    }
}
