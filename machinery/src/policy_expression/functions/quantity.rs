//! Amounts of resources, such as `500m` and `1.5Gi`.

use std::fmt;

use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("add", Style::Member, 1, 1),
    ("asApproximateFloat", Style::Member, 0, 0),
    ("asInteger", Style::Member, 0, 0),
    ("compareTo", Style::Member, 1, 1),
    ("isGreaterThan", Style::Member, 1, 1),
    ("isInteger", Style::Member, 0, 0),
    ("isLessThan", Style::Member, 1, 1),
    ("isQuantity", Style::Global, 1, 1),
    ("quantity", Style::Global, 1, 1),
    ("sign", Style::Either, 0, 1),
    ("sub", Style::Member, 1, 1),
];

/// Parts of a unit: quantities are at most that precise.
const NANOS: i128 = 1_000_000_000;

/// The largest amount: 2^63 - 1. Larger ones count as this one, as in Kubernetes.
const MAX_NANOS: i128 = i64::MAX as i128 * NANOS;

/// An amount, in billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

pub(super) fn call(name: &str, arguments: &[Value], _: &mut Meter<'_>) -> Outcome {
    match (name, arguments) {
        ("isQuantity", [Value::String(text)]) => return Ok(Quantity::parse(text).is_ok().into()),
        ("quantity", [Value::String(text)]) => {
            return Quantity::parse(text).map(Value::Quantity).map_err(Failure::error);
        }
        _ => {}
    }
    let [Value::Quantity(quantity), rest @ ..] = arguments else {
        return Err(no_overload(name, arguments));
    };
    let sum = |other: Option<i128>| {
        let nanos = other.and_then(|other| quantity.nanos.checked_add(other));
        nanos
            .map(|nanos| Value::Quantity(Quantity { nanos }))
            .ok_or_else(|| Failure::error("quantity overflow"))
    };
    match (name, rest) {
        ("sign", []) => Ok(Value::Int(quantity.nanos.signum() as i64)),
        ("isInteger", []) => Ok(quantity.integer().is_some().into()),
        ("asInteger", []) => quantity
            .integer()
            .map(Value::Int)
            .ok_or_else(|| Failure::error("cannot convert value to integer")),
        ("asApproximateFloat", []) => Ok(Value::Double(quantity.approximate())),
        ("isGreaterThan", [Value::Quantity(other)]) => Ok((quantity > other).into()),
        ("isLessThan", [Value::Quantity(other)]) => Ok((quantity < other).into()),
        ("compareTo", [Value::Quantity(other)]) => Ok(Value::Int(quantity.cmp(other) as i64)),
        ("add", [Value::Quantity(other)]) => sum(Some(other.nanos)),
        ("add", [Value::Int(other)]) => sum(i128::from(*other).checked_mul(NANOS)),
        ("sub", [Value::Quantity(other)]) => sum(other.nanos.checked_neg()),
        ("sub", [Value::Int(other)]) => sum((-i128::from(*other)).checked_mul(NANOS)),
        _ => Err(no_overload(name, arguments)),
    }
}

impl Quantity {
    /// # Errors
    /// The message of Kubernetes for a text that is not a quantity.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        const FORMAT: &str =
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        const SUFFIX: &str = "unable to parse quantity's suffix";
        if text.is_empty() {
            return Err("quantities must match the regular expression");
        }
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = digits
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(digits.len());
        let (number, suffix) = digits.split_at_checked(end).ok_or(FORMAT)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(FORMAT);
        }
        let factor = Factor::of(suffix).ok_or(SUFFIX)?;
        let nanos = factor
            .nanos(whole, fraction)
            .map_or(MAX_NANOS, |nanos| nanos.min(MAX_NANOS));
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
        })
    }

    fn integer(self) -> Option<i64> {
        (self.nanos % NANOS == 0)
            .then(|| i64::try_from(self.nanos / NANOS).ok())
            .flatten()
    }

    #[expect(clippy::cast_precision_loss, reason = "the result is approximate by name")]
    fn approximate(self) -> f64 {
        self.nanos as f64 / NANOS as f64
    }
}

/// What a suffix multiplies a number by.
#[derive(Clone, Copy)]
enum Factor {
    /// A power of ten.
    Ten(i32),
    /// A power of two.
    Two(u32),
}

impl Factor {
    fn of(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "" => Self::Ten(0),
            "n" => Self::Ten(-9),
            "u" => Self::Ten(-6),
            "m" => Self::Ten(-3),
            "k" => Self::Ten(3),
            "M" => Self::Ten(6),
            "G" => Self::Ten(9),
            "T" => Self::Ten(12),
            "P" => Self::Ten(15),
            "E" => Self::Ten(18),
            "Ki" => Self::Two(10),
            "Mi" => Self::Two(20),
            "Gi" => Self::Two(30),
            "Ti" => Self::Two(40),
            "Pi" => Self::Two(50),
            "Ei" => Self::Two(60),
            other => {
                let exponent: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
                (-100..=100).contains(&exponent).then_some(Self::Ten(exponent))?
            }
        })
    }

    /// The number in billionths, rounded up. `None` if it is too large.
    fn nanos(self, whole: &str, fraction: &str) -> Option<i128> {
        // Digits beyond these are less than a billionth of the smallest unit that can be represented.
        let fraction = fraction.trim_end_matches('0');
        let kept = fraction.get(..27).unwrap_or(fraction);
        let rest = fraction.len() > kept.len();
        let digits = format!("{whole}{kept}");
        let digits = digits.trim_start_matches('0');
        let number: i128 = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
        let scale = i32::try_from(kept.len()).ok()?;
        let (multiplier, power) = match self {
            Self::Ten(power) => (1_i128, power),
            Self::Two(power) => (1_i128.checked_shl(power)?, 0),
        };
        let number = number.checked_mul(multiplier)?;
        let power = power.checked_add(9)?.checked_sub(scale)?;
        let ten = 10_i128.checked_pow(power.unsigned_abs());
        if power >= 0 {
            return number.checked_mul(ten?)?.checked_add(i128::from(rest));
        }
        let Some(ten) = ten else {
            return Some(i128::from(number > 0));
        };
        Some(number / ten + i128::from(rest || number % ten > 0))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut exponent) = (self.nanos, -9);
        while value != 0 && value % 1_000 == 0 && exponent < 18 {
            value /= 1_000;
            exponent += 3;
        }
        let suffix = match exponent {
            -9 if value != 0 => "n",
            -6 => "u",
            -3 => "m",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            18 => "E",
            _ => "",
        };
        write!(out, "{value}{suffix}")
    }
}
