//! CPU time and memory of processes, from `/proc`.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// The unit of times in `/proc/PID/stat`: `USER_HZ` is 100 on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of some processes since they started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and kernel mode, all threads.
    pub cpu: Duration,
}

impl Usage {
    /// The CPU time of processes so far.
    ///
    /// # Errors
    /// One of them has ended.
    pub fn of(processes: &[u32]) -> Result<Self> {
        let mut cpu = Duration::ZERO;
        for process in processes {
            let path = format!("/proc/{process}/stat");
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
            let ticks = ticks(&text).with_context(|| format!("parse {path}"))?;
            cpu += TICK * u32::try_from(ticks).context("a time that fits a benchmark")?;
        }
        Ok(Self { cpu })
    }

    /// The CPU time since an earlier measurement.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.cpu.saturating_sub(earlier.cpu)
    }
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// It has ended.
pub fn resident_bytes(process: u32) -> Result<u64> {
    status_bytes(process, "VmRSS:")
}

/// The peak of resident memory since [`forget_peak`], in bytes.
///
/// # Errors
/// The process has ended.
pub fn peak_bytes(process: u32) -> Result<u64> {
    status_bytes(process, "VmHWM:")
}

/// Resets the peak that [`peak_bytes`] returns.
///
/// # Errors
/// The process has ended or belongs to another user.
pub fn forget_peak(process: u32) -> Result<()> {
    let path = format!("/proc/{process}/clear_refs");
    // proc(5): 5 resets the peak.
    std::fs::write(&path, "5").with_context(|| format!("write {path}"))
}

fn status_bytes(process: u32, line: &str) -> Result<u64> {
    let path = format!("/proc/{process}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    kibibytes(&text, line).with_context(|| format!("parse {path}"))
}

/// `utime` and `stime`, fields 14 and 15; field 2, the command's name, may contain spaces and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_after_any_command_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 1 2 3";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn memory_is_read_in_kibibytes() {
        let status = "Name:\ta\nVmHWM:\t 4096 kB\nVmRSS:\t  2048 kB\nX: 1";
        assert_eq!(kibibytes(status, "VmRSS:"), Some(2 << 20));
        assert_eq!(kibibytes(status, "VmHWM:"), Some(4 << 20));
        assert_eq!(kibibytes("Name:\ta", "VmRSS:"), None);
    }

    #[test]
    fn the_own_process_can_be_measured() {
        let own = std::process::id();
        assert!(resident_bytes(own).unwrap() > 1 << 16);
        Usage::of(&[own]).unwrap();
        assert!(Usage::of(&[u32::MAX]).is_err());
    }
}
