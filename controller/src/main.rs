//! The `drydock-controller` binary.

use std::process::ExitCode;

use drydock_controller::config::{Config, ConfigError};
use drydock_controller::{server, wakeups};
use tokio::runtime::Builder;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("a crypto provider is already installed");
    }
    let config = match Config::from_process() {
        Ok(config) => config,
        Err(ConfigError::Arguments(error)) => error.exit(),
        Err(error) => return report(&error.into()),
    };
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn start(config: Config) -> anyhow::Result<()> {
    server::init_logging(&config.log)?;
    let controllers = wakeups::runtime()?;
    let secure_port = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("secure-port")
        .enable_all()
        .build()?;
    controllers.block_on(server::run(config, secure_port.handle().clone()))?;
    Ok(())
}

#[expect(clippy::print_stderr, reason = "logging may not be initialized yet")]
fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("drydock-controller: {error:#}");
    ExitCode::FAILURE
}
