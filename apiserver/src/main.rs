//! `drydock-apiserver`: see [`drydock_apiserver::server`].

use std::process::ExitCode;

use drydock_apiserver::config::{Config, ConfigError};
use drydock_apiserver::{server, threads};

/// Serves the engine's C++ too, since its symbols are the process's `malloc` and `free`.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        return fail("a second crypto provider was installed");
    }
    let config = match Config::from_process() {
        Ok(config) => config,
        Err(ConfigError::Flags(error)) => error.exit(),
        Err(error) => return fail(&error.to_string()),
    };
    let runtime = match threads::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("the runtime cannot be built: {error}")),
    };
    match runtime.block_on(server::run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&chain(&error)),
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[expect(
    clippy::print_stderr,
    reason = "the last word of a process that could not do its work"
)]
fn fail(text: &str) -> ExitCode {
    eprintln!("drydock-apiserver: {text}");
    ExitCode::FAILURE
}
