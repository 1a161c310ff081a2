//! Where do log lines go, and in which form? To standard error, as text or JSON.

use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::{LogConfig, LogFormat};

/// Why the log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level is no directive.
    #[error("the log level is wrong")]
    Level(#[source] tracing_subscriber::filter::ParseError),
    /// The process has a log already.
    #[error("the log was set up before")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Sends this process's log where `config` says. Once per process.
///
/// # Errors
/// [`TelemetryError`].
pub fn init(config: &LogConfig) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(&config.level).map_err(TelemetryError::Level)?;
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match config.format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }
    .map_err(TelemetryError::Twice)
}
