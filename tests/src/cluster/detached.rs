//! The processes of a detached cluster, and how they are ended.
//!
//! A cluster writes the ID of every process that it starts to the file `pids` in its folder. All command lines contain
//! that folder, which distinguishes them from unrelated processes with a reused ID.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::clients::eventually;

const FILE: &str = "pids";

/// The time between SIGTERM and SIGKILL. The data is removed in either case.
const GRACE: Duration = Duration::from_secs(3);

/// Records a process of the cluster in `folder`.
pub(super) fn record(folder: &Path, pid: u32) -> Result<()> {
    let path = folder.join(FILE);
    std::fs::File::options()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| writeln!(file, "{pid}"))
        .with_context(|| format!("write {}", path.display()))
}

/// Ends the processes of a detached cluster, the last started first, and removes its folder. A folder
/// that does not exist has no processes.
///
/// # Errors
/// The folder is not a cluster's, or a process does not end.
pub async fn end_detached(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let folder = folder
        .canonicalize()
        .with_context(|| format!("find {}", folder.display()))?;
    let path = folder.join(FILE);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} is not the folder of a cluster", folder.display()))?;
    let pids: Vec<_> = text
        .lines()
        .rev()
        .filter_map(|line| Pid::from_raw(line.parse().ok()?))
        .collect();
    for signal in [Signal::TERM, Signal::KILL] {
        let alive: Vec<_> = pids
            .iter()
            .copied()
            .filter(|pid| belongs(*pid, &folder))
            .collect();
        for pid in &alive {
            // It may have ended by now.
            kill_process_group(*pid, signal).ok();
        }
        let deadline = if signal == Signal::TERM { GRACE } else { 10 * GRACE };
        let ended = eventually("the cluster's processes to end", deadline, async || {
            Ok((!alive.iter().any(|pid| belongs(*pid, &folder))).then_some(()))
        })
        .await;
        if signal == Signal::KILL {
            ended?;
        }
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))
}

/// Whether a process runs and was started for the cluster in `folder`.
fn belongs(pid: Pid, folder: &Path) -> bool {
    command_line(pid).is_some_and(|line| {
        let folder = folder.as_os_str().as_encoded_bytes();
        line.windows(folder.len()).any(|part| part == folder)
    })
}

fn command_line(pid: Pid) -> Option<Vec<u8>> {
    let pid = pid.as_raw_nonzero();
    let file = PathBuf::from(format!("/proc/{pid}/cmdline"));
    if Path::new("/proc/self").exists() {
        return std::fs::read(file).ok();
    }
    let output = std::process::Command::new("ps")
        .args(["-ww", "-o", "command=", "-p", &pid.to_string()])
        .output();
    output.ok().map(|output| output.stdout)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::process::{Lifetime, Process};
    use super::*;

    #[tokio::test]
    async fn only_processes_of_the_cluster_are_ended() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("cluster");
        std::fs::create_dir(&folder).unwrap();
        let mine = std::env::current_dir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 600; :"]).arg(&folder);
        let member = Process::spawn(command, "member", &folder, Lifetime::Detached).unwrap();
        let mut stranger = Command::new("sleep")
            .arg("600")
            .current_dir(mine)
            .spawn()
            .unwrap();
        record(&folder, member.id()).unwrap();
        record(&folder, stranger.id()).unwrap();
        let pid = Pid::from_raw(i32::try_from(member.id()).unwrap()).unwrap();
        // The kernel closes the pipe on which `spawn` waits shortly before the new command line can be read.
        let real_folder = folder.canonicalize().unwrap();
        eventually("the member's command line", GRACE, async || {
            Ok(belongs(pid, &real_folder).then_some(()))
        })
        .await
        .unwrap();

        end_detached(&folder).await.unwrap();

        assert!(!belongs(pid, &folder));
        assert!(!folder.exists());
        assert!(
            stranger.try_wait().unwrap().is_none(),
            "an unrelated process was ended"
        );
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        end_detached(&folder).await.unwrap();
    }

    #[tokio::test]
    async fn a_folder_without_a_cluster_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(end_detached(folder.path()).await.is_err());
        assert!(folder.path().exists());
    }
}
