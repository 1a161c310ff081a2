//! The values of flags that are more than text or a number: durations, byte counts, durability, TLS versions.

use std::{fmt, str::FromStr, time::Duration};

use crate::{http::tls::MinTlsVersion, request::duration::parse_go_duration};

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After it is synced to disk.
    Strict,
    /// Before it is synced. Syncs run at this interval, and a crash of the machine loses at most that much.
    Relaxed(Duration),
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "strict" => Ok(Self::Strict),
            Some(("relaxed", every)) => {
                let GoDuration(every) = every.parse()?;
                if every.is_zero() {
                    return Err("relaxed needs a duration above 0".to_owned());
                }
                Ok(Self::Relaxed(every))
            }
            _ => Err(format!("{text:?} is neither `strict` nor `relaxed=DURATION`")),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strict => f.write_str("strict"),
            Self::Relaxed(every) => write!(f, "relaxed={}ms", every.as_millis()),
        }
    }
}

/// A Go duration (`1h30m`) that is not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoDuration(pub(super) Duration);

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let nanoseconds = parse_go_duration(text).map_err(|error| error.to_string())?;
        let nanoseconds = u64::try_from(nanoseconds).map_err(|_| format!("{text} is negative"))?;
        Ok(Self(Duration::from_nanos(nanoseconds)))
    }
}

/// A number of bytes, whole or with a suffix of two letters: `1536Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|last: char| !last.is_ascii_digit());
        let shift = match text.get(digits.len()..) {
            Some("") => 0,
            Some("Ki") => 10,
            Some("Mi") => 20,
            Some("Gi") => 30,
            _ => return Err(format!("{text} must end with a digit, Ki, Mi or Gi")),
        };
        let count: u64 = digits
            .parse()
            .map_err(|_| format!("{text} is not a number of bytes"))?;
        let bytes = count.checked_mul(1 << shift);
        bytes.map(Self).ok_or_else(|| format!("{text} is too large"))
    }
}

pub(super) fn parse_tls_version(text: &str) -> Result<MinTlsVersion, String> {
    match text {
        "VersionTLS12" => Ok(MinTlsVersion::Tls12),
        "VersionTLS13" => Ok(MinTlsVersion::Tls13),
        _ => Err("must be VersionTLS12 or VersionTLS13".to_owned()),
    }
}
