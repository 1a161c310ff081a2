//! How does a process of the cluster start, become ready, and end with the one that started it?
//!
//! Each process leads a process group of its own and writes to a log file. Beside each one that must
//! not outlive its parent stands a guard: a shell that waits on a pipe which the parent holds open. The
//! parent may end in any way, even killed; then the pipe closes and the guard kills the group. (The
//! kernel's parent-death signal follows the *thread* that forked, and a test's thread ends long before
//! the cluster it started.)

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::clients::{POLL_INTERVAL, eventually};

/// The guard: ends without a deed when told that the process has ended, kills its group when the pipe
/// closes instead.
const GUARD: &str = "read -r line && exit 0; kill -s KILL -- \"-$1\"";

/// Who ends a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// It ends with the program that started it.
    #[default]
    WithParent,
    /// It stays until [`end_detached`](super::end_detached) is called on its folder.
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
    /// what an earlier process of that name wrote there.
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
        // Loopback never goes through a proxy, and not every client knows that.
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

    /// The process's id, which is also its group's.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits until the condition answers true. Failures of the condition count as "not yet"; the end of
    /// the process ends the wait at once.
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
            Ok(Err(status)) => bail!("{} ended with {status}; {}", self.name, self.last_words()),
            Err(late) => Err(late.context(self.last_words())),
        }
    }

    /// Asks the process to end (SIGTERM) and waits for it.
    ///
    /// # Errors
    /// It did not end within the grace period; it is killed then.
    pub async fn terminate(self, grace: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended(grace).await
    }

    /// Waits until the process ends by itself.
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
                bail!(
                    "{} did not end within {grace:?}; {}",
                    self.name,
                    self.last_words()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends a signal to the process's group: `STOP` and `CONT` make a process that hangs.
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

    /// The end of its log, in words for an error message.
    fn last_words(&self) -> String {
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
        // Without a reaped child its id cannot be another's: the signal hits the right group or nobody.
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

/// Starts the guard of a process group, in a group of its own so that the terminal's interrupt does not
/// reach it before its work is done.
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
        // A zombie has no command line.
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
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
    async fn a_process_ends_when_its_starter_dies_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let mut process =
            Process::spawn(shell("sleep 600"), "p", folder.path(), Lifetime::WithParent).unwrap();
        let pid = process.id();
        // What the kernel does to a killed starter: the pipe closes, and nothing was written.
        drop(process.guard.as_mut().unwrap().stdin.take());
        let reaped = async || Ok(process.child.try_wait()?);
        let status = eventually("the guard to kill", Duration::from_secs(20), reaped)
            .await
            .unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        assert!(!is_alive(pid));
    }

    #[tokio::test]
    async fn waiting_for_a_process_that_ended_tells_its_last_words() {
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
    async fn a_process_that_ignores_the_request_to_end_is_killed() {
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
