//! Progress as a screen: a bar for each node, the oldest blockers, and how long it may take.

use drydock_proto::kinds::nodemaintenance::Stage;
use jiff::Timestamp;

use super::history::{History, Pace};
use super::{Held, NodeProgress, Snapshot};
use crate::terminal::{Colour, Meaning, cut};
use crate::times::{ago, seconds};

/// The widest a bar gets.
const WIDEST_BAR: usize = 30;
/// The widest name of a node before it is cut.
const WIDEST_NAME: usize = 40;
/// The most blockers that are shown.
const MOST_BLOCKERS: usize = 5;

/// The lines of a screen, each at most `columns` wide, at most `rows` of them.
#[must_use]
pub fn render(
    snapshot: &Snapshot,
    history: &History,
    now: Timestamp,
    (columns, rows): (usize, usize),
    colour: Colour,
) -> Vec<String> {
    let mut lines = vec![heading(snapshot, now, columns, colour)];
    lines.push(cut(&summary(snapshot, history, now), columns));
    let blockers = snapshot.blockers.len().min(MOST_BLOCKERS);
    // Headings, a line between the parts, two lines for each blocker, and one for what is not shown.
    let for_blockers = if blockers == 0 { 0 } else { 2 * blockers + 3 };
    let room = rows.saturating_sub(lines.len() + for_blockers + 2).max(1);
    lines.extend(nodes(snapshot, history, room, columns, colour));
    if blockers > 0 {
        lines.push(String::new());
        lines.push(colour.paint(Meaning::Heading, "Held, the oldest first"));
        for held in snapshot.blockers.iter().take(blockers) {
            lines.extend(held_lines(held, now, columns, colour));
        }
        let more = snapshot.blockers.len() - blockers;
        if more > 0 {
            lines.push(cut(
                &format!(
                    "  and {more} more: kubectl drydock explain {}",
                    snapshot.maintenance
                ),
                columns,
            ));
        }
    }
    lines.truncate(rows);
    lines
}

fn heading(snapshot: &Snapshot, now: Timestamp, columns: usize, colour: Colour) -> String {
    let age = ago(snapshot.since, now);
    let mut text = format!("{} ({}, created {age} ago)", snapshot.maintenance, snapshot.stage);
    if !snapshot.reason.is_empty() {
        text = format!("{text}: {}", snapshot.reason);
    }
    colour.paint(Meaning::Heading, &cut(&text, columns))
}

fn summary(snapshot: &Snapshot, history: &History, now: Timestamp) -> String {
    let left = snapshot.left();
    let nodes = snapshot.selected_nodes;
    let mut text = format!(
        "{} of {nodes} {} drained, {left} {} left",
        snapshot.drained_nodes,
        if nodes == 1 { "node" } else { "nodes" },
        if left == 1 { "pod" } else { "pods" },
    );
    if snapshot.stage == Stage::Drain && !snapshot.is_drained {
        let pace = match history.pace(now) {
            Pace::SecondsLeft(0) | Pace::Unknown => String::new(),
            Pace::SecondsLeft(left) => format!(", about {} to go", seconds(left)),
            Pace::Standstill(stands) => format!(", no pod has left for {}", seconds(stands)),
        };
        text.push_str(&pace);
    }
    text
}

fn nodes(snapshot: &Snapshot, history: &History, room: usize, columns: usize, colour: Colour) -> Vec<String> {
    let shown = if snapshot.nodes.len() > room {
        room.saturating_sub(1)
    } else {
        snapshot.nodes.len()
    };
    let names = snapshot
        .nodes
        .iter()
        .take(shown)
        .map(|node| node.name.chars().count());
    let widest_name = names.max().unwrap_or_default().min(WIDEST_NAME).min(columns / 2);
    let bar_width = columns.saturating_sub(widest_name + 34).clamp(8, WIDEST_BAR);
    let mut lines: Vec<String> = snapshot
        .nodes
        .iter()
        .take(shown)
        .map(|node| node_line(node, history, (widest_name, bar_width), columns, colour))
        .collect();
    let hidden = snapshot.nodes.len() - shown;
    if hidden > 0 {
        let left: usize = snapshot.nodes.iter().skip(shown).map(|node| node.left).sum();
        lines.push(cut(
            &format!("and {hidden} more nodes, {left} pods left"),
            columns,
        ));
    }
    lines
}

fn node_line(
    node: &NodeProgress,
    history: &History,
    (widest_name, bar_width): (usize, usize),
    columns: usize,
    colour: Colour,
) -> String {
    let name = cut(&node.name, widest_name);
    let mut state = node.message.clone();
    if state.is_empty() {
        (if node.is_cordoned { "cordoned" } else { "" }).clone_into(&mut state);
    }
    let peak = history.peak(&node.name).max(node.left);
    if !history.shows_progress() {
        let line = cut(
            &format!("{name:widest_name$}  {:>4} left  {state}", node.left),
            columns,
        );
        return line.trim_end().to_owned();
    }
    let gone = peak - node.left;
    let filled = (gone * bar_width).checked_div(peak).unwrap_or(bar_width);
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(bar_width - filled));
    let counts = format!("{gone}/{peak}");
    let line = cut(
        &format!("{name:widest_name$}  [{bar}] {counts:>7}  {state}"),
        columns,
    );
    if node.left > 0 || peak == 0 {
        return line.trim_end().to_owned();
    }
    colour.paint(Meaning::Good, line.trim_end())
}

fn held_lines(held: &Held, now: Timestamp, columns: usize, colour: Colour) -> [String; 2] {
    let what = match (held.pod.is_empty(), held.node.is_empty()) {
        (true, true) => String::new(),
        (true, false) => format!(" on {}", held.node),
        (false, true) => format!(" {}", held.pod),
        (false, false) => format!(" {} on {}", held.pod, held.node),
    };
    let first = cut(
        &format!("  {:>5} {}{what}", ago(held.since, now), held.reason),
        columns,
    );
    [
        colour.paint(Meaning::Bad, &first),
        cut(&format!("        {}", held.message.replace('\n', " ")), columns),
    ]
}
