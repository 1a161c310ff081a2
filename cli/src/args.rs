//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::connection::ConnectionFlags;
use crate::times::parse_duration;

/// Drains nodes, shows progress, and explains what holds a pod.
///
/// A drain is a NodeMaintenance: the controller cordons its nodes and asks their pods to leave in the order of a plan.
/// It goes on when this program ends; status shows it, complete and cancel end it.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-drydock",
    bin_name = "kubectl drydock",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Exit codes: 0 success, 1 error, 2 wrong command line, 3 not found, 4 forbidden, 5 Drydock is not \
                  installed, 6 timed out, 7 refused by the server, 8 preflight found a blocker, 9 what was waited for \
                  will not happen, 10 cluster unreachable."
)]
pub struct Program {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// kubectl's flags.
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take nodes out of service: cordon them and ask their pods to leave.
    #[command(after_help = "Examples:
  # Drain a node, and watch until it is empty
  kubectl drydock drain node-a --reason 'replace a disk' --wait

  # Drain every node of a pool, for at most an hour
  kubectl drydock drain -l pool=old --wait --timeout 1h

  # Let the pods leave in the order of a plan, and print the object
  kubectl drydock drain node-a --plan plan.yaml -o yaml")]
    Drain(DrainFlags),
    /// Show drains: all of them, or one with its nodes and what holds it.
    #[command(after_help = "Examples:
  # All maintenances
  kubectl drydock status

  # One maintenance, until it is drained
  kubectl drydock status drain-node-a --watch")]
    Status(StatusFlags),
    /// Explain why pods are still there: whose turn it is, what blocks, who asked, and what you can do.
    #[command(after_help = "Examples:
  # A pod
  kubectl drydock explain database-0 -n shop

  # Every pod that is left on a node, or in a maintenance
  kubectl drydock explain node/node-a
  kubectl drydock explain drain-node-a

  # Until Ctrl-C
  kubectl drydock explain drain-node-a --watch")]
    Explain(ExplainFlags),
    /// Return the nodes of a maintenance to service, and keep the maintenance as a record.
    #[command(after_help = "Examples:
  # End the drain of node-a
  kubectl drydock complete drain-node-a --wait")]
    Complete(EndFlags),
    /// End a maintenance and delete it: requests are withdrawn and the nodes return to service.
    #[command(after_help = "Examples:
  # Stop the drain of node-a
  kubectl drydock cancel drain-node-a --wait")]
    Cancel(EndFlags),
    /// Give up the record of a maintenance that has vanished, and return its node to service.
    #[command(after_help = "Examples:
  # The maintenance of node-a was deleted by force, and the node is still cordoned
  kubectl drydock release node-a")]
    Release(ReleaseFlags),
    /// Ask that a pod be evicted.
    #[command(after_help = "Examples:
  # Ask, and wait until the pod is gone
  kubectl drydock evict database-0 -n shop --wait --timeout 10m

  # Withdraw
  kubectl drydock evict database-0 -n shop --withdraw")]
    Evict(EvictFlags),
    /// Show the interceptors of a pod, in the order of their turns.
    #[command(after_help = "Examples:
  # Who acts before a pod is evicted, and what registers them
  kubectl drydock interceptors database-0 -n shop")]
    Interceptors(PodFlags),
    /// Check what would block or hurt a drain, without draining.
    #[command(after_help = "Examples:
  # Check a node; the exit code is 8 when something would block
  kubectl drydock preflight node-a

  # Check a pool
  kubectl drydock preflight -l pool=old -o json

  # Until nothing blocks any more
  kubectl drydock preflight node-a --watch")]
    Preflight(PreflightFlags),
}

/// The format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Text with more columns.
    Wide,
}

/// Which nodes.
#[derive(Debug, Clone, Default, Args)]
pub struct NodesFlags {
    /// The nodes.
    #[arg(
        value_name = "NODE",
        required_unless_present = "selector",
        conflicts_with = "selector"
    )]
    pub nodes: Vec<String>,
    /// A label selector of nodes.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Print json, yaml, or more columns.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// Waiting.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct WaitFlags {
    /// Wait until it is done.
    #[arg(long)]
    pub wait: bool,
    /// The longest to wait, such as 90s or 1h; 0 waits for ever. What was asked for goes on.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0", requires = "wait")]
    pub timeout: Duration,
}

/// `drain`.
#[derive(Debug, Clone, Default, Args)]
pub struct DrainFlags {
    /// Which nodes.
    #[command(flatten)]
    pub nodes: NodesFlags,
    /// The name of the maintenance; made from the nodes when absent.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A file with the drain plan: a list of {podType, podPriority, podSelector}, or an object with a drainPlan; - is
    /// standard input.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Why, for people: shown in events and messages.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Waiting.
    #[command(flatten)]
    pub wait: WaitFlags,
}

/// `status`.
#[derive(Debug, Clone, Default, Args)]
pub struct StatusFlags {
    /// The maintenance.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Go on until it is drained; all maintenances: until Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
    /// Print json, yaml, or more columns.
    #[arg(short, long, value_enum, value_name = "FORMAT", conflicts_with = "watch")]
    pub output: Option<Format>,
}

/// `explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainFlags {
    /// A pod, a node or a maintenance; pod/NAME, node/NAME, nm/NAME or er/NAME where a name alone is not clear.
    #[arg(value_name = "POD|NODE|NAME")]
    pub what: String,
    /// How many pods are explained, those that are blocked first; 0 for all.
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    pub limit: usize,
    /// Go on: print again when it changes.
    #[arg(short, long)]
    pub watch: bool,
    /// Print json or yaml.
    #[arg(short, long, value_enum, value_name = "FORMAT", conflicts_with = "watch")]
    pub output: Option<Format>,
}

/// `complete` and `cancel`.
#[derive(Debug, Clone, Args)]
pub struct EndFlags {
    /// The maintenances.
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Waiting.
    #[command(flatten)]
    pub wait: WaitFlags,
}

/// `release`.
#[derive(Debug, Clone, Args)]
pub struct ReleaseFlags {
    /// The nodes.
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<String>,
}

/// `evict`.
#[derive(Debug, Clone, Args)]
pub struct EvictFlags {
    /// The pods.
    #[arg(value_name = "POD", required = true)]
    pub pods: Vec<String>,
    /// Withdraw instead: the eviction is canceled when nobody else asks for it.
    #[arg(long, conflicts_with = "wait")]
    pub withdraw: bool,
    /// Waiting.
    #[command(flatten)]
    pub wait: WaitFlags,
    /// Print json or yaml.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// `preflight`.
#[derive(Debug, Clone, Args)]
pub struct PreflightFlags {
    /// Which nodes.
    #[command(flatten)]
    pub nodes: NodesFlags,
    /// Go on until nothing blocks: print again when it changes.
    #[arg(short, long, conflicts_with = "output")]
    pub watch: bool,
}

/// `interceptors`.
#[derive(Debug, Clone, Args)]
pub struct PodFlags {
    /// The pod.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Go on: print again when it changes.
    #[arg(short, long)]
    pub watch: bool,
    /// Print json, yaml, or more columns.
    #[arg(short, long, value_enum, value_name = "FORMAT", conflicts_with = "watch")]
    pub output: Option<Format>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Program::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let examples = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let name = format!("kubectl drydock {}", command.get_name());
            assert!(examples.contains(&name), "{name}: {examples}");
        }
    }

    #[test]
    fn the_help_names_every_exit_code() {
        let help = Program::command()
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        for (status, _) in crate::error::ExitStatus::ALL {
            let code = status.code();
            assert!(
                code == 130 || help.contains(&format!(" {code} ")),
                "{code}: {help}"
            );
        }
    }

    #[test]
    fn flags_that_belong_together_are_checked() {
        let parse = |line: &str| Program::try_parse_from(line.split(' ')).map(|_| ());
        for good in [
            "kubectl-drydock drain a b --wait --timeout 5m",
            "kubectl-drydock drain -l pool=old -o yaml",
            "kubectl-drydock -n shop explain pod/web-1 --as ann --as-group ops",
            "kubectl-drydock status -w",
            "kubectl-drydock preflight -l pool=old --watch",
            "kubectl-drydock interceptors web-1 -w",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "kubectl-drydock drain",
            "kubectl-drydock drain a -l pool=old",
            "kubectl-drydock drain a --timeout 5m",
            "kubectl-drydock status -w -o json",
            "kubectl-drydock preflight node-a -w -o json",
            "kubectl-drydock interceptors web-1 -w -o json",
            "kubectl-drydock evict web-1 --withdraw --wait",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
