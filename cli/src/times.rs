//! Durations and times, as people write and read them.

use std::time::Duration;

use drydock_machinery::table::time_since;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Parses a duration as Go writes it: `90s`, `10m`, `1h30m`, `0`.
///
/// # Errors
///
/// A sentence that names the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let parsed: SignedDuration = text
        .parse()
        .map_err(|_| format!("{text:?} is not a duration such as 90s or 10m"))?;
    Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())
}

/// How long ago a time was, as `kubectl` prints ages; `?` when there is none.
#[must_use]
pub fn ago(moment: Option<Timestamp>, now: Timestamp) -> String {
    match moment {
        Some(moment) => time_since(Some(moment.min(now)), now),
        None => "?".to_owned(),
    }
}

/// How long it takes until a time; `None` when it has passed.
#[must_use]
pub fn until(moment: Timestamp, now: Timestamp) -> Option<String> {
    (moment > now).then(|| time_since(Some(now), moment))
}

/// A number of seconds, as `kubectl` prints ages.
#[must_use]
pub fn seconds(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX / 4);
    let end = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    time_since(Some(Timestamp::UNIX_EPOCH), end)
}

/// The time in an object's field.
#[must_use]
pub fn timestamp(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, expected) in [("0", 0), ("90s", 90), ("10m", 600), ("1h30m", 5400)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(expected)), "{text}");
        }
        for text in ["", "10", "soon", "-5s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_told_from_now() {
        let now = Timestamp::from_second(1000).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(ago(Some(at(940)), now), "60s");
        assert_eq!(ago(Some(at(1500)), now), "0s", "clocks differ");
        assert_eq!(ago(None, now), "?");
        assert_eq!(until(at(1040), now).as_deref(), Some("40s"));
        assert_eq!(until(at(1000), now), None);
        assert_eq!(seconds(150), "2m30s");
    }
}
