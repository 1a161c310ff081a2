//! Completion of command lines for kubectl, which asks `kubectl_complete-drydock` for words (cobra's protocol): one
//! word a line, with a description after a tab, then a directive. The shells are kubectl's: bash, zsh, fish.

use std::time::Duration;

use clap::{Command, CommandFactory as _, Parser as _};
use serde_json::Value;

use crate::api::{Resource, Session};
use crate::args::Program;
use crate::error::Error;
use crate::terminal::print;

/// The first word of a command line that asks for completion.
pub(crate) const COMMAND: &str = "__complete";
/// The directive that no file names are completed.
const NO_FILES: &str = ":4";
/// The directive that the shell completes file names.
const FILES: &str = ":0";
/// The longest that a completion may take.
const DEADLINE: Duration = Duration::from_secs(3);

/// What the last word may be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// One of these, each with a description.
    Words(Vec<(String, String)>),
    /// Names of objects of these resources.
    Names(Vec<Resource>),
    /// A file.
    File,
}

/// Prints the words that the last of `words` may be completed to. Errors complete nothing.
pub(crate) async fn run(words: &[String]) -> Result<(), Error> {
    let (last, before) = words
        .split_last()
        .map_or(("", &[] as &[String]), |(last, before)| (last.as_str(), before));
    let words = match wanted(before, last) {
        Wanted::File => return print(&format!("{FILES}\n")),
        Wanted::Words(words) => words,
        Wanted::Names(resources) => tokio::time::timeout(DEADLINE, names(before, &resources))
            .await
            .ok()
            .and_then(Result::ok)
            .unwrap_or_default(),
    };
    let mut text = String::new();
    for (word, description) in words.iter().filter(|(word, _)| word.starts_with(last)) {
        text.push_str(word);
        if !description.is_empty() {
            text.push('\t');
            text.push_str(description);
        }
        text.push('\n');
    }
    print(&format!("{text}{NO_FILES}\n"))
}

/// What may follow the words.
fn wanted(before: &[String], last: &str) -> Wanted {
    let program = Program::command();
    let command = before.iter().find_map(|word| {
        program
            .get_subcommands()
            .find(|command| command.get_name() == word)
    });
    if let Some(flag) = before.last().and_then(|word| flag_of(&program, command, word)) {
        return value_of(flag);
    }
    if last.starts_with('-') {
        return Wanted::Words(flags(&program, command));
    }
    match command {
        None => Wanted::Words(
            program
                .get_subcommands()
                .filter(|command| !command.is_hide_set())
                .map(|command| (command.get_name().to_owned(), about(command)))
                .collect(),
        ),
        Some(command) => arguments(command.get_name()),
    }
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// The flag that a word names, when it takes a value in the next word.
fn flag_of<'a>(program: &'a Command, command: Option<&'a Command>, word: &str) -> Option<&'a clap::Arg> {
    let all = program
        .get_arguments()
        .chain(command.into_iter().flat_map(Command::get_arguments));
    let mut named = all.filter(|flag| is_named(flag, word));
    named.find(|flag| flag.get_action().takes_values())
}

fn is_named(flag: &clap::Arg, word: &str) -> bool {
    let long = flag
        .get_long()
        .is_some_and(|long| word.strip_prefix("--") == Some(long));
    let short = flag.get_short();
    long || short.is_some_and(|short| word.strip_prefix('-') == Some(short.to_string().as_str()))
}

fn value_of(flag: &clap::Arg) -> Wanted {
    match flag.get_id().as_str() {
        "plan" | "kubeconfig" | "certificate_authority" | "client_certificate" | "client_key" => Wanted::File,
        "namespace" => Wanted::Names(vec![Resource::Namespaces]),
        _ => Wanted::Words(
            flag.get_possible_values()
                .iter()
                .map(|value| (value.get_name().to_owned(), String::new()))
                .collect(),
        ),
    }
}

fn flags(program: &Command, command: Option<&Command>) -> Vec<(String, String)> {
    let all = command
        .into_iter()
        .flat_map(Command::get_arguments)
        .chain(program.get_arguments());
    all.filter_map(|flag| {
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        Some((
            format!("--{}", flag.get_long()?),
            help.lines().next().unwrap_or_default().to_owned(),
        ))
    })
    .collect()
}

fn arguments(command: &str) -> Wanted {
    Wanted::Names(match command {
        "drain" | "preflight" | "release" => vec![Resource::Nodes],
        "status" | "complete" | "cancel" => vec![Resource::NodeMaintenances],
        "explain" => vec![Resource::NodeMaintenances, Resource::Nodes, Resource::Pods],
        "evict" | "interceptors" => vec![Resource::Pods],
        _ => Vec::new(),
    })
}

/// The names of objects, read with the connection flags among the words.
async fn names(before: &[String], resources: &[Resource]) -> Result<Vec<(String, String)>, Error> {
    let session = session(before).await?;
    let mut names = Vec::new();
    for resource in resources {
        let namespace = (*resource == Resource::Pods).then(|| session.namespace());
        let found: Vec<Value> = session.list(*resource, namespace, &[]).await?;
        names.extend(found.iter().filter_map(|object| {
            let name = object.pointer("/metadata/name")?.as_str()?;
            Some((name.to_owned(), String::new()))
        }));
    }
    Ok(names)
}

async fn session(before: &[String]) -> Result<Session, Error> {
    let program =
        Program::try_parse_from(connection_line(before)).map_err(|error| Error::Usage(error.to_string()))?;
    program.connection.connect().await
}

/// A command line with the connection flags among the words: the rest of an unfinished line may not parse.
fn connection_line(before: &[String]) -> Vec<String> {
    let program = Program::command();
    let mut line = vec!["kubectl-drydock".to_owned(), "status".to_owned()];
    let mut words = before.iter();
    while let Some(word) = words.next() {
        let (name, has_value) = word
            .split_once('=')
            .map_or((word.as_str(), false), |(name, _)| (name, true));
        if has_value && program.get_arguments().any(|flag| is_named(flag, name)) {
            line.push(word.clone());
        } else if flag_of(&program, None, name).is_some()
            && let Some(value) = words.next()
        {
            line.extend([word.clone(), value.clone()]);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(line: &str) -> Wanted {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (last, before) = words.split_last().unwrap();
        super::wanted(before, last)
    }

    fn words(line: &str) -> Vec<String> {
        match wanted(line) {
            Wanted::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_complete_connection_flags_are_used() {
        let line = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            connection_line(&words).join(" ")
        };
        let expected = "kubectl-drydock status --context=c -n shop";
        assert_eq!(line("--context=c drain a -o json -n shop --kubeconfig"), expected);
        assert_eq!(line("-n"), "kubectl-drydock status");
    }

    #[test]
    fn commands_flags_values_and_names_are_completed() {
        assert!(words("").contains(&"drain".to_owned()));
        assert!(!words("").contains(&"__complete".to_owned()));
        assert!(words("drain --").contains(&"--reason".to_owned()));
        assert!(words("drain --").contains(&"--context".to_owned()));
        assert_eq!(words("drain node-a -o "), ["json", "yaml", "wide"]);
        assert_eq!(wanted("drain "), Wanted::Names(vec![Resource::Nodes]));
        assert_eq!(wanted("drain a "), Wanted::Names(vec![Resource::Nodes]));
        assert_eq!(wanted("-n "), Wanted::Names(vec![Resource::Namespaces]));
        assert_eq!(wanted("drain --plan "), Wanted::File);
        assert_eq!(wanted("evict -n shop "), Wanted::Names(vec![Resource::Pods]));
    }
}
