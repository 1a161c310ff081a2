//! Normalization of times: RFC 3339 to whole seconds in UTC. Parses as Go's `time.Parse(time.RFC3339, …)`.

use crate::codec::DecodeError;

/// Go's zero time, which is treated as absent.
pub(super) const ZERO: &str = "0001-01-01T00:00:00Z";

/// The time in whole seconds and UTC, or `None` if `text` already has that form.
///
/// # Errors
///
/// [`DecodeError::TimeSyntax`], [`DecodeError::TimeRange`] or [`DecodeError::TimeTrailing`].
pub(crate) fn normalized(text: &str) -> Result<Option<String>, DecodeError> {
    let mut reader = Reader { text, at: 0 };
    let year = reader.digits(4, "2006")?;
    reader.literal(b'-', "-")?;
    let month = reader.digits(2, "01")?;
    reader.in_range((1..=12).contains(&month), "month")?;
    reader.literal(b'-', "-")?;
    let day = reader.digits(2, "02")?;
    reader.literal(b'T', "T")?;
    let hour = reader.digits(2, "15")?;
    reader.in_range(hour < 24, "hour")?;
    reader.literal(b':', ":")?;
    let minute = reader.digits(2, "04")?;
    reader.in_range(minute < 60, "minute")?;
    reader.literal(b':', ":")?;
    let second = reader.digits(2, "05")?;
    reader.in_range(second < 60, "second")?;
    reader.fraction();
    if reader.peek() == Some(b'Z') && reader.at + 1 == text.len() {
        reader.in_range((1..=days_in_month(year, month)).contains(&day), "day")?;
        // A text of this length has no fraction, so it is already canonical.
        return Ok((text.len() != ZERO.len()).then(|| written(year, month, day, hour, minute, second)));
    }
    let offset = reader.zone()?;
    reader.in_range((1..=days_in_month(year, month)).contains(&day), "day")?;
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
    reader.in_range((0..=9_999).contains(&year), "year")?;
    let rest = seconds.rem_euclid(86_400);
    Ok(Some(written(
        year,
        month,
        day,
        rest / 3_600,
        rest / 60 % 60,
        rest % 60,
    )))
}

fn written(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> String {
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn mismatch(&self, part: &'static str) -> DecodeError {
        let rest = self.text.get(self.at..).unwrap_or_default();
        DecodeError::TimeSyntax {
            text: self.text.to_owned(),
            rest: rest.to_owned(),
            part,
        }
    }

    fn in_range(&self, is_in_range: bool, what: &'static str) -> Result<(), DecodeError> {
        if is_in_range {
            Ok(())
        } else {
            Err(DecodeError::TimeRange {
                text: self.text.to_owned(),
                what,
            })
        }
    }

    fn literal(&mut self, byte: u8, part: &'static str) -> Result<(), DecodeError> {
        if self.peek() != Some(byte) {
            return Err(self.mismatch(part));
        }
        self.at += 1;
        Ok(())
    }

    fn digits(&mut self, count: usize, part: &'static str) -> Result<i64, DecodeError> {
        let digits = self
            .text
            .as_bytes()
            .get(self.at..self.at + count)
            .ok_or_else(|| self.mismatch(part))?;
        let mut number = 0;
        for digit in digits {
            if !digit.is_ascii_digit() {
                return Err(self.mismatch(part));
            }
            number = number * 10 + i64::from(digit - b'0');
        }
        self.at += count;
        Ok(number)
    }

    /// Skips a fraction of a second, if there is one.
    fn fraction(&mut self) {
        let is_digit = |at: usize| self.text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        if matches!(self.peek(), Some(b'.' | b',')) && is_digit(self.at + 1) {
            let mut end = self.at + 1;
            while is_digit(end) {
                end += 1;
            }
            self.at = end;
        }
    }

    /// The offset from UTC in seconds.
    fn zone(&mut self) -> Result<i64, DecodeError> {
        const PART: &str = "Z07:00";
        let start = self.at;
        let sign = match self.peek() {
            Some(b'Z') => {
                self.at += 1;
                let rest = self.text.get(self.at..).unwrap_or_default().to_owned();
                return if rest.is_empty() {
                    Ok(0)
                } else {
                    Err(DecodeError::TimeTrailing {
                        text: self.text.to_owned(),
                        rest,
                    })
                };
            }
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return Err(self.mismatch(PART)),
        };
        self.at += 1;
        let parts = self.digits(2, PART).and_then(|hours| {
            self.literal(b':', PART)?;
            Ok((hours, self.digits(2, PART)?))
        });
        let Ok((hours, minutes)) = parts else {
            self.at = start;
            return Err(self.mismatch(PART));
        };
        self.in_range(hours <= 24, "time zone offset hour")?;
        self.in_range(minutes < 60, "time zone offset minute")?;
        if self.at < self.text.len() {
            let rest = self.text.get(self.at..).unwrap_or_default().to_owned();
            return Err(DecodeError::TimeTrailing {
                text: self.text.to_owned(),
                rest,
            });
        }
        Ok(sign * (hours * 3_600 + minutes * 60))
    }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar, computed with years that start in March and eras of 400 years.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_truncated_to_seconds_and_converted_to_utc() {
        for (text, expected) in [
            ("2026-01-02T03:04:05Z", None),
            ("2026-01-02T03:04:05.999Z", Some("2026-01-02T03:04:05Z")),
            ("2026-01-02T03:04:05,5Z", Some("2026-01-02T03:04:05Z")),
            ("2026-01-02T03:04:05+02:00", Some("2026-01-02T01:04:05Z")),
            ("2026-01-01T00:30:00.1+01:00", Some("2025-12-31T23:30:00Z")),
            ("2024-02-29T23:30:00-00:45", Some("2024-03-01T00:15:00Z")),
            ("1969-12-31T23:59:59-00:00", Some("1969-12-31T23:59:59Z")),
            ("2000-03-01T00:00:00+00:01", Some("2000-02-29T23:59:00Z")),
            ("0001-01-01T00:00:00Z", None),
        ] {
            assert_eq!(normalized(text).expect(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn invalid_times_are_rejected_with_the_text_of_go() {
        let layout = "2006-01-02T15:04:05Z07:00";
        for (text, expected) in [
            (
                "yesterday",
                format!("parsing time \"yesterday\" as \"{layout}\": cannot parse \"yesterday\" as \"2006\""),
            ),
            (
                "",
                format!("parsing time \"\" as \"{layout}\": cannot parse \"\" as \"2006\""),
            ),
            (
                "2026-01-02",
                format!("parsing time \"2026-01-02\" as \"{layout}\": cannot parse \"\" as \"T\""),
            ),
            (
                "2026-01-02 03:04:05Z",
                format!(
                    "parsing time \"2026-01-02 03:04:05Z\" as \"{layout}\": cannot parse \" 03:04:05Z\" as \"T\""
                ),
            ),
            (
                "2026-01-02T03:04:05",
                format!(
                    "parsing time \"2026-01-02T03:04:05\" as \"{layout}\": cannot parse \"\" as \"Z07:00\""
                ),
            ),
            (
                "2026-01-02T03:04:05+0200",
                format!(
                    "parsing time \"2026-01-02T03:04:05+0200\" as \"{layout}\": cannot parse \"+0200\" as \"Z07:00\""
                ),
            ),
            (
                "2026-13-02T03:04:05Z",
                "parsing time \"2026-13-02T03:04:05Z\": month out of range".to_owned(),
            ),
            (
                "2026-02-29T03:04:05Z",
                "parsing time \"2026-02-29T03:04:05Z\": day out of range".to_owned(),
            ),
            (
                "2026-01-02T24:04:05Z",
                "parsing time \"2026-01-02T24:04:05Z\": hour out of range".to_owned(),
            ),
            (
                "2026-01-02T03:04:05ZZ",
                "parsing time \"2026-01-02T03:04:05ZZ\": extra text: \"Z\"".to_owned(),
            ),
        ] {
            assert_eq!(normalized(text).expect_err(text).to_string(), expected);
        }
        assert!(normalized("2026-01-02T03:04:05\u{e9}").is_err());
        assert!(normalized("\u{e9}026-01-02T03:04:05Z").is_err());
    }
}
