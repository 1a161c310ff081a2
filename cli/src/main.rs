//! `kubectl-drydock`: parses the command line and runs the command it names.

use std::process::ExitCode;

fn main() -> ExitCode {
    drydock_cli::run(std::env::args_os().collect())
}
