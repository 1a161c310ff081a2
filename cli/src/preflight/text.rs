//! Findings as text.

use super::{Facts, Finding, Severity};
use crate::pods;
use crate::terminal::{Colour, Meaning, printable, wrap};

/// How many pods a finding names.
const MOST_NAMES: usize = 5;
/// Where the text of a finding begins.
const INDENT: usize = 10;

/// The findings, node by node, and a summary.
#[must_use]
pub fn render(facts: &Facts, findings: &[Finding], columns: usize, colour: Colour) -> String {
    let mut lines = Vec::new();
    for node in &facts.nodes {
        let leaving = facts
            .on_node(node)
            .filter(|found| pods::has_to_leave(&found.pod))
            .count();
        let staying = facts.on_node(node).count() - leaving;
        let heading = colour.paint(Meaning::Heading, &printable(node));
        lines.push(format!("{heading}: {leaving} pods have to leave, {staying} stay"));
        for finding in findings.iter().filter(|finding| finding.node == *node) {
            lines.extend(finding_lines(finding, columns, colour));
        }
    }
    for unread in &facts.unread {
        lines.push(format!("not checked: {}", printable(unread)));
    }
    lines.push(summary(findings));
    lines.join("\n") + "\n"
}

/// One line: what was found in all.
fn summary(findings: &[Finding]) -> String {
    let count = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let warnings = match count(Severity::Warns) {
        0 => String::new(),
        1 => "; 1 warning".to_owned(),
        warns => format!("; {warns} warnings"),
    };
    match count(Severity::Blocks) {
        0 => format!("Nothing blocks a drain{warnings}."),
        1 => format!("1 finding blocks a drain{warnings}."),
        blocks => format!("{blocks} findings block a drain{warnings}."),
    }
}

fn finding_lines(finding: &Finding, columns: usize, colour: Colour) -> Vec<String> {
    let (label, meaning) = match finding.severity {
        Severity::Blocks => ("BLOCKS", Meaning::Bad),
        Severity::Warns => ("WARNS", Meaning::Warning),
        Severity::Notes => ("NOTES", Meaning::Faint),
    };
    let mut names: Vec<String> = finding.pods.iter().take(MOST_NAMES).cloned().collect();
    if finding.pods.len() > names.len() {
        names.push(format!("{} more", finding.pods.len() - names.len()));
    }
    let text = format!("{}: {} ({})", finding.check, finding.message, names.join(", "));
    let mut lines = Vec::new();
    for (index, line) in wrap(&text, columns.saturating_sub(INDENT))
        .into_iter()
        .enumerate()
    {
        let label = if index == 0 {
            format!("{label:8}")
        } else {
            " ".repeat(8)
        };
        lines.push(format!("  {}{line}", colour.paint(meaning, &label)));
    }
    if let Some(command) = &finding.command {
        lines.push(format!("{}  {}", " ".repeat(INDENT), printable(command)));
    }
    lines
}
