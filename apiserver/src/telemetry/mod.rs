//! The log, text or JSON on standard error, and [the spans of requests](spans), which go to a collector if there is one.

mod settings;
pub mod spans;

use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};

pub use self::settings::{LogConfig, LogFormat, TracingFileError, TracingSettings};

/// Why logging or tracing cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The tracing configuration cannot be used.
    #[error(transparent)]
    Tracing(#[from] TracingFileError),
    /// The export of spans cannot be prepared.
    #[error("the collector of spans cannot be used")]
    Collector(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The level does not parse.
    #[error("invalid log level")]
    Level(#[source] tracing_subscriber::filter::ParseError),
    /// Logging is already set up.
    #[error("logging is already set up")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Sets up the log of the process. May be called once.
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
