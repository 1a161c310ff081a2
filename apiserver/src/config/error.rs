//! Why the command line, the environment or the configuration file is rejected.

use std::path::PathBuf;

/// An error in the configuration. Its text is what the process prints.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An error of the command line, or a request for help or the version.
    #[error("{0}")]
    Flags(#[source] clap::Error),
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The configuration file has an unknown member or a value of the wrong type.
    #[error("the configuration file {path} is invalid: {text}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, on one line.
        text: String,
    },
    /// A value that is not allowed.
    #[error("{setting}: {text}")]
    Value {
        /// The flag.
        setting: &'static str,
        /// What is wrong.
        text: String,
    },
}

impl ConfigError {
    /// The error about the value of a flag.
    #[must_use]
    pub fn value(setting: &'static str, text: impl Into<String>) -> Self {
        Self::Value {
            setting,
            text: text.into(),
        }
    }
}
