//! The configuration file: a YAML mapping with a member per flag, in camelCase. Unknown members are rejected.

use std::{fmt, path::Path};

use clap::{Arg, Command, parser::ValueSource};
use serde::{
    Deserializer as _,
    de::{Error as _, MapAccess, Visitor},
};

use super::error::ConfigError;

/// A flag and its value, as on a command line.
pub(super) type Setting = (String, String);

/// The settings in a file for the flags of `program`.
pub(super) fn read(path: &Path, program: &Command) -> Result<Vec<Setting>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    serde_saphyr::with_deserializer_from_str(&text, |file| file.deserialize_map(Members(program)))
        .map_err(|error| invalid(path, &error))
}

/// An error in the file, cut to its first line.
pub(super) fn invalid(path: &Path, error: &impl ToString) -> ConfigError {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    ConfigError::File {
        path: path.to_owned(),
        text: line.strip_prefix("error: ").unwrap_or(line).to_owned(),
    }
}

/// Reads each member as the type of its flag. Null counts as absent.
struct Members<'a>(&'a Command);

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Vec<Setting>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Vec<Setting>, A::Error> {
        let mut settings = Vec::new();
        while let Some(member) = members.next_key::<String>()? {
            let Some((flag, argument)) = flag_of(self.0, &member) else {
                return Err(A::Error::custom(format!("unknown member {member:?}")));
            };
            let value = if argument.get_value_delimiter().is_some() {
                let values: Option<Vec<String>> = members.next_value()?;
                values.map(|values| values.join(","))
            } else if is_boolean(argument) {
                let value: Option<bool> = members.next_value()?;
                value.map(|value| value.to_string())
            } else {
                members.next_value::<Option<String>>()?
            };
            settings.extend(value.map(|value| (flag.to_owned(), value)));
        }
        Ok(settings)
    }
}

/// The flag of any command that a member stands for. Only flags with an environment variable are settings.
fn flag_of<'a>(program: &'a Command, member: &str) -> Option<(&'a str, &'a Arg)> {
    program
        .get_subcommands()
        .flat_map(Command::get_arguments)
        .filter(|argument| argument.get_env().is_some())
        .filter_map(|argument| Some((argument.get_long()?, argument)))
        .find(|(flag, _)| *flag != "config" && member_of(flag) == member)
}

/// `secure-port` → `securePort`.
fn member_of(flag: &str) -> String {
    let mut member = String::with_capacity(flag.len());
    for (index, word) in flag.split('-').enumerate() {
        let mut characters = word.chars();
        match characters.next() {
            Some(first) if index > 0 => member.push(first.to_ascii_uppercase()),
            Some(first) => member.push(first),
            None => {}
        }
        member.push_str(characters.as_str());
    }
    member
}

fn is_boolean(argument: &Arg) -> bool {
    let values = argument.get_possible_values();
    !values.is_empty()
        && values
            .iter()
            .all(|value| matches!(value.get_name(), "true" | "false"))
}

/// Whether the flag has its default value. A flag that the command does not know counts as set, since one file may be used
/// for both commands.
pub(super) fn is_default(matches: &clap::ArgMatches, flag: &str) -> bool {
    let id = flag.replace('-', "_");
    match matches.try_contains_id(&id) {
        Ok(_) => matches!(matches.value_source(&id), None | Some(ValueSource::DefaultValue)),
        Err(_) => false,
    }
}
