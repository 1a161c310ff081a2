//! The report of a benchmark: a table of rows with goals.
#![expect(clippy::print_stdout, reason = "a benchmark prints its report")]

use std::fmt;
use std::time::Duration;

/// One table.
#[derive(Debug, Default)]
pub struct Report {
    notes: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    what: String,
    goal: String,
    measured: String,
    verdict: &'static str,
    beside: String,
}

impl Report {
    /// Adds a line above the table, and prints it at once.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        println!("{note}");
        self.notes.push(note);
    }

    /// Adds a row, and prints it at once, since a run takes minutes.
    pub fn row(&mut self, what: &str, goal: Goal, measured: f64, beside: &[String]) {
        let row = Row {
            what: what.to_owned(),
            goal: goal.to_string(),
            measured: goal.unit().show(measured),
            verdict: goal.verdict(measured),
            beside: beside.join("; "),
        };
        println!("{row}");
        self.rows.push(row);
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "| {} | {} | {} | {} | {} |",
            self.what, self.goal, self.measured, self.verdict, self.beside
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        writeln!(f, "\n| row | goal | measured | met | comparison |")?;
        writeln!(f, "| --- | --- | --- | --- | --- |")?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        Ok(())
    }
}

/// The goal of a row.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// At least.
    AtLeast(f64, Unit),
    /// At most.
    AtMost(f64, Unit),
    /// No goal.
    None(Unit),
}

impl Goal {
    /// The unit.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Self::AtLeast(_, unit) | Self::AtMost(_, unit) | Self::None(unit) => unit,
        }
    }

    fn verdict(self, measured: f64) -> &'static str {
        let met = match self {
            Self::AtLeast(goal, _) => measured >= goal,
            Self::AtMost(goal, _) => measured <= goal,
            Self::None(_) => return "",
        };
        if met { "yes" } else { "no" }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(goal, unit) => write!(f, "≥ {}", unit.show(*goal)),
            Self::AtMost(goal, unit) => write!(f, "≤ {}", unit.show(*goal)),
            Self::None(_) => Ok(()),
        }
    }
}

/// The unit of a number.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// Per second.
    Rate,
    /// Seconds, printed with a suitable prefix.
    Seconds,
    /// Bytes, printed with a suitable prefix.
    Bytes,
    /// A plain number.
    Count,
    /// A number of which the fraction matters: a ratio, or an average of counts.
    Ratio,
    /// A share of one core.
    Percent,
}

impl Unit {
    /// A number with its unit.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        match self {
            Self::Ratio => format!("{number:.2}"),
            Self::Percent => format!("{:.2} %", number * 100.0),
            Self::Rate => format!("{number:.0}/s"),
            Self::Count => format!("{number:.0}"),
            Self::Seconds if number >= 1.0 => format!("{number:.2} s"),
            Self::Seconds if number >= 1e-3 => format!("{:.2} ms", number * 1e3),
            Self::Seconds => format!("{:.1} µs", number * 1e6),
            Self::Bytes if number >= 1e9 => format!("{:.2} GiB", number / f64::from(1 << 30)),
            Self::Bytes if number >= 1e6 => format!("{:.1} MiB", number / f64::from(1 << 20)),
            Self::Bytes => format!("{:.2} KiB", number / 1024.0),
        }
    }
}

/// A duration with its unit.
#[must_use]
pub fn show(duration: Duration) -> String {
    Unit::Seconds.show(duration.as_secs_f64())
}
