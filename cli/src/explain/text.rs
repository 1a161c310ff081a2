//! Explanations as text.

use jiff::Timestamp;

use super::{Explanation, State, Turn, TurnState};
use crate::terminal::{Colour, Meaning, printable, wrap};
use crate::times::{ago, until};

/// Where the second column begins.
const INDENT: usize = 13;

/// The explanation as lines of at most `columns`, except for commands, which are never broken.
#[must_use]
pub fn render(explanation: &Explanation, now: Timestamp, columns: usize, colour: Colour) -> String {
    let mut text = Text {
        lines: Vec::new(),
        columns,
        colour,
    };
    text.heading(explanation);
    let blocked = explanation.blocked.as_ref();
    if let Some(blocked) = blocked {
        let since = blocked
            .since
            .map(|since| format!(", for {}", ago(Some(since), now)));
        let reason = format!("{}{}", blocked.reason, since.unwrap_or_default());
        if explanation.state == State::LeftAlone {
            text.field("Why", &reason);
        } else {
            text.field("Blocked", &colour.paint(Meaning::Bad, &printable(&reason)));
        }
        text.paragraph(&blocked.message);
    }
    for sentence in &explanation.budgets {
        if blocked.is_none_or(|blocked| blocked.message != *sentence) {
            text.wrapped("Budget", sentence);
        }
    }
    if let Some(outcome) = &explanation.outcome {
        text.wrapped("Outcome", outcome);
    }
    for (index, asker) in explanation.asked_by.iter().enumerate() {
        let mut line = asker.name.clone();
        if !asker.maintenances.is_empty() {
            line = format!("{line} ({})", asker.maintenances.join("; "));
        }
        if let Some(user) = &asker.user {
            line = format!("{line} (evictions by {user})");
        }
        if index == 0 && explanation.requested_at.is_some() {
            line = format!("{line}, {} ago", ago(explanation.requested_at, now));
        }
        text.wrapped(if index == 0 { "Asked by" } else { "" }, &line);
    }
    let names = explanation.turns.iter().map(|turn| turn.name.chars().count());
    let widest = names.max().unwrap_or_default();
    for (index, turn) in explanation.turns.iter().enumerate() {
        let label = if index == 0 { "Turns" } else { "" };
        let is_final = matches!(explanation.state, State::Evicted | State::Canceled);
        let state = describe_turn(turn, is_final, now);
        text.wrapped(label, &format!("{}. {:widest$}  {state}", index + 1, turn.name));
        if let Some(details) = details(turn, now).filter(|_| !is_final) {
            text.wrapped("", &format!("   {details}"));
        }
        if !turn.message.is_empty() && turn.state == TurnState::Active && blocked.is_none() {
            text.paragraph(&format!("   \"{}\"", turn.message.trim()));
        }
    }
    if explanation.failed_attempts > 0 && !matches!(explanation.state, State::Evicted | State::Canceled) {
        let next = explanation.next_attempt.map(|next| match until(next, now) {
            Some(until) => format!(", the next one in {until}"),
            None => ", the next one now".to_owned(),
        });
        let failed = explanation.failed_attempts;
        text.field(
            "Attempts",
            &format!("{failed} refused{}", next.unwrap_or_default()),
        );
    }
    for habit in &explanation.habits {
        text.wrapped(
            "Note",
            &format!("It carries {habit}. Drydock shows this and does not act on it."),
        );
    }
    for (index, advice) in explanation.advice.iter().enumerate() {
        text.wrapped(if index == 0 { "To do" } else { "" }, &advice.text);
        if let Some(command) = &advice.command {
            text.command(command);
        }
    }
    text.lines.join("\n") + "\n"
}

fn describe_turn(turn: &Turn, is_final: bool, now: Timestamp) -> String {
    match turn.state {
        TurnState::Waiting if is_final => "was not needed".to_owned(),
        TurnState::Waiting => "later".to_owned(),
        TurnState::Done => format!("done {} ago", ago(turn.ended, now)),
        TurnState::PassedOver => "passed over: no heartbeat in time".to_owned(),
        TurnState::Active if is_final => "had the last turn".to_owned(),
        TurnState::Active => format!("its turn for {}", ago(turn.since, now)),
    }
}

/// What the active interceptor has reported.
fn details(turn: &Turn, now: Timestamp) -> Option<String> {
    let heartbeat = turn
        .heartbeat
        .map(|at| format!("heartbeat {} ago", ago(Some(at), now)));
    let finish = turn.expected_finish.map(|finish| match until(finish, now) {
        Some(until) => format!("expects to be done in {until}"),
        None => "expected to be done by now".to_owned(),
    });
    let parts: Vec<String> = heartbeat.into_iter().chain(finish).collect();
    (turn.state == TurnState::Active && !parts.is_empty()).then(|| parts.join(", "))
}

struct Text {
    lines: Vec<String>,
    columns: usize,
    colour: Colour,
}

impl Text {
    fn heading(&mut self, explanation: &Explanation) {
        let mut line = format!("pod {}/{}", explanation.namespace, explanation.pod);
        if !explanation.node.is_empty() {
            line = format!("{line} on node {}", explanation.node);
        }
        if let Some(workload) = &explanation.workload {
            line = format!("{line}, of {workload}");
        }
        let (meaning, state) = match (explanation.state, &explanation.blocked) {
            (State::LeftAlone, _) => (Meaning::Faint, "left alone"),
            (_, Some(_)) => (Meaning::Bad, "blocked"),
            (State::NotRequested, _) => (Meaning::Faint, "not requested to leave"),
            (State::Pending, _) => (Meaning::Faint, "requested to leave"),
            (State::Intercepted, _) => (Meaning::Warning, "an interceptor has its turn"),
            (State::Evicting, _) => (Meaning::Warning, "being evicted"),
            (State::Terminating, _) => (Meaning::Warning, "stopping"),
            (State::Evicted, _) => (Meaning::Good, "gone"),
            (State::Canceled, _) => (Meaning::Warning, "its request was canceled"),
        };
        let heading = self.colour.paint(Meaning::Heading, &printable(&line));
        let state = self.colour.paint(meaning, state);
        self.lines.push(format!("{heading}: {state}"));
    }

    fn field(&mut self, label: &str, value: &str) {
        let label = if label.is_empty() {
            String::new()
        } else {
            format!("{label}:")
        };
        self.lines
            .push(format!("  {label:width$}{value}", width = INDENT - 2));
    }

    fn wrapped(&mut self, label: &str, value: &str) {
        let columns = self.columns.saturating_sub(INDENT);
        let clean = printable(value);
        if clean.chars().count() <= columns && !clean.contains('\n') {
            // As it is, with its spaces.
            self.field(label, &clean);
            return;
        }
        let mut label = label;
        for line in wrap(value, columns) {
            self.field(label, &line);
            label = "";
        }
    }

    fn paragraph(&mut self, value: &str) {
        self.wrapped("", value);
    }

    fn command(&mut self, command: &str) {
        self.field("", &format!("  {}", printable(command)));
    }
}
