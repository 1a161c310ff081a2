//! Numbers from environment variables.

use std::str::FromStr;

use anyhow::{Context as _, Result};

/// The number in an environment variable, or `default` where it is not set.
///
/// # Errors
/// It holds something else.
pub fn number<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    variable: &str,
    default: T,
) -> Result<T> {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{variable}={text} is not a number")),
        Err(_) => Ok(default),
    }
}
