//! Timestamps and durations. Time zones are UTC and fixed offsets: the names of zones would need their database.

use jiff::civil::Weekday;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, Zoned};

use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("getDate", Style::Member, 0, 1),
    ("getDayOfMonth", Style::Member, 0, 1),
    ("getDayOfWeek", Style::Member, 0, 1),
    ("getDayOfYear", Style::Member, 0, 1),
    ("getFullYear", Style::Member, 0, 1),
    ("getHours", Style::Member, 0, 1),
    ("getMilliseconds", Style::Member, 0, 1),
    ("getMinutes", Style::Member, 0, 1),
    ("getMonth", Style::Member, 0, 1),
    ("getSeconds", Style::Member, 0, 1),
];

pub(super) fn call(name: &str, arguments: &[Value], _: &mut Meter<'_>) -> Outcome {
    let (time, zone) = match arguments {
        [Value::Duration(duration)] => return of_duration(name, *duration, arguments),
        [Value::Timestamp(time)] => (time, "UTC"),
        [Value::Timestamp(time), Value::String(zone)] => (time, zone.as_ref()),
        _ => return Err(no_overload(name, arguments)),
    };
    let time = time.to_zoned(time_zone(zone)?);
    Ok(Value::Int(
        part(name, &time).ok_or_else(|| no_overload(name, arguments))?,
    ))
}

fn part(name: &str, time: &Zoned) -> Option<i64> {
    Some(match name {
        "getDate" => i64::from(time.day()),
        "getDayOfMonth" => i64::from(time.day()) - 1,
        "getDayOfWeek" => i64::from(Weekday::to_sunday_zero_offset(time.weekday())),
        "getDayOfYear" => i64::from(time.day_of_year()) - 1,
        "getFullYear" => i64::from(time.year()),
        "getHours" => i64::from(time.hour()),
        "getMilliseconds" => i64::from(time.millisecond()),
        "getMinutes" => i64::from(time.minute()),
        "getMonth" => i64::from(time.month()) - 1,
        "getSeconds" => i64::from(time.second()),
        _ => return None,
    })
}

fn of_duration(name: &str, duration: SignedDuration, arguments: &[Value]) -> Outcome {
    Ok(Value::Int(match name {
        "getHours" => duration.as_hours(),
        "getMinutes" => duration.as_mins(),
        "getSeconds" => duration.as_secs(),
        "getMilliseconds" => i64::from(duration.subsec_millis()),
        _ => return Err(no_overload(name, arguments)),
    }))
}

/// `UTC`, or an offset such as `+02:00`.
fn time_zone(name: &str) -> Result<TimeZone, Failure> {
    if name == "UTC" || name.is_empty() {
        return Ok(TimeZone::UTC);
    }
    let unknown = || Failure::Error(format!("unknown time zone {name}"));
    let (hours, minutes) = name.split_once(':').ok_or_else(unknown)?;
    let negative = hours.starts_with('-');
    let hours: i32 = hours
        .trim_start_matches(['+', '-'])
        .parse()
        .map_err(|_| unknown())?;
    let minutes: i32 = minutes.parse().map_err(|_| unknown())?;
    if !(0..60).contains(&minutes) || hours > 24 {
        return Err(Failure::Error(format!(
            "timezone offset minutes out of range [0, 59]: {name}"
        )));
    }
    let seconds = (hours * 60 + minutes) * 60;
    let offset = Offset::from_seconds(if negative { -seconds } else { seconds }).map_err(|_| unknown())?;
    Ok(TimeZone::fixed(offset))
}

/// A timestamp of RFC 3339.
pub(super) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    // The library takes more forms than RFC 3339 has.
    let shaped =
        text.get(10..11) == Some("T") && text.get(13..14) == Some(":") && text.get(16..17) == Some(":");
    let zoned = text.ends_with('Z') || text.get(text.len().checked_sub(6)?..)?.starts_with(['+', '-']);
    (shaped && zoned).then(|| text.parse().ok()).flatten()
}

/// A duration as Go writes it, such as `1h30m`.
pub(super) fn parse_duration(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut nanos = 0_i128;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at_checked(end)?;
        let end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end)?;
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || whole.len() > 20 || fraction.len() > 15 {
            return None;
        }
        if !whole.is_empty() {
            nanos = nanos.checked_add(whole.parse::<i128>().ok()?.checked_mul(unit)?)?;
        }
        if !fraction.is_empty() {
            let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            nanos = nanos.checked_add(fraction.parse::<i128>().ok()?.checked_mul(unit)? / scale)?;
        }
        rest = after;
    }
    let nanos = i64::try_from(if negative { -nanos } else { nanos }).ok()?;
    Some(SignedDuration::from_nanos(nanos))
}

/// A duration as CEL writes it: seconds.
pub(in crate::policy_expression) fn duration_text(duration: SignedDuration) -> String {
    let sign = if duration.is_negative() { "-" } else { "" };
    let (seconds, nanos) = (
        duration.as_secs().unsigned_abs(),
        duration.subsec_nanos().unsigned_abs(),
    );
    if nanos == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{nanos:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}
