//! The `process_*` metrics of every Prometheus client, read from `/proc` at each scrape.

use std::{fs, path::Path};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Clock ticks per second in `/proc`: `USER_HZ`, which Linux always reports as 100.
const TICKS_PER_SECOND: f64 = 100.0;
/// Fields of `/proc/self/stat` behind the command's name, counted from 0.
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const START_TICKS: usize = 19;

/// The `process_*` metrics. Values that cannot be read are omitted.
#[derive(Debug)]
pub(super) struct Process;

/// The values in `/proc`.
#[derive(Debug, Default, PartialEq)]
struct Usage {
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    open_files: Option<f64>,
    max_files: Option<f64>,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let usage = Usage::read();
        if let Some(seconds) = usage.cpu_seconds {
            let counter = ConstCounter::new(seconds);
            let help = "User and system time in seconds";
            counter.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Memory in RAM",
                usage.resident_bytes,
            ),
            (
                "process_virtual_memory_bytes",
                "Address space",
                usage.virtual_bytes,
            ),
            ("process_open_fds", "Open file descriptors", usage.open_files),
            (
                "process_max_fds",
                "Limit of open file descriptors",
                usage.max_files,
            ),
            (
                "process_start_time_seconds",
                "Start in seconds since 1970",
                usage.start_seconds,
            ),
        ] {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        Ok(())
    }
}

impl Usage {
    fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut usage = Self::parse(
            &text("/proc/self/stat"),
            &text("/proc/self/status"),
            &text("/proc/self/limits"),
            &text("/proc/stat"),
        );
        usage.open_files = count_entries(Path::new("/proc/self/fd"));
        usage
    }

    fn parse(stat: &str, status: &str, limits: &str, system: &str) -> Self {
        // The command's name may hold spaces and parentheses: fields count from the last one.
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest)
            .split_whitespace()
            .collect();
        let ticks = |index: usize| number(fields.get(index).copied());
        let boot = number(line_value(system, "btime "));
        let kibibytes = |name: &str| number(line_value(status, name)).map(|size| size * 1024.0);
        Self {
            cpu_seconds: ticks(USER_TICKS)
                .zip(ticks(SYSTEM_TICKS))
                .map(|(user, system)| (user + system) / TICKS_PER_SECOND),
            start_seconds: boot
                .zip(ticks(START_TICKS))
                .map(|(boot, ticks)| boot + ticks / TICKS_PER_SECOND),
            resident_bytes: kibibytes("VmRSS:"),
            virtual_bytes: kibibytes("VmSize:"),
            open_files: None,
            max_files: number(line_value(limits, "Max open files")),
        }
    }
}

/// The first word after `name` at the start of a line.
fn line_value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_whitespace()
        .next()
}

fn number(text: Option<&str>) -> Option<f64> {
    text?.parse().ok()
}

fn count_entries(folder: &Path) -> Option<f64> {
    let count = u32::try_from(fs::read_dir(folder).ok()?.count()).ok()?;
    Some(f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_proc_are_parsed() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 1000 1000000 256 18446744073709551615";
        let status = "Name:\ta\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\n";
        let limits = "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 4096                 files\n";
        assert_eq!(
            Usage::parse(stat, status, limits, "cpu  1 2\nbtime 1700000000\n"),
            Usage {
                cpu_seconds: Some(3.0),
                start_seconds: Some(1_700_000_010.0),
                resident_bytes: Some(512.0 * 1024.0),
                virtual_bytes: Some(2048.0 * 1024.0),
                open_files: None,
                max_files: Some(1024.0),
            }
        );
        assert_eq!(Usage::parse("", "", "", ""), Usage::default());
    }
}
