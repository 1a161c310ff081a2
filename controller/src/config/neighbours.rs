//! Flags of what works with programs that know nothing of EvictionRequests.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{ConfigError, GoDuration, invalid};
use crate::descheduling::annotations::Annotated;
use crate::descheduling::nominations;
use crate::descheduling::plan::Limits;

/// The eviction bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeConfig {
    /// The common names of client certificates that may post reviews, empty for all that the client authority signed;
    /// `None` without a client authority.
    pub clients: Option<Vec<String>>,
    /// How long a request lives after somebody asked last.
    pub lifetime: Duration,
    /// How long a request lives after the descheduler asked.
    pub descheduler_lifetime: Duration,
}

/// The flags.
#[derive(Debug, Args)]
pub(super) struct NeighbourFlags {
    /// Serve the validating webhook /admit/evictions, which makes EvictionRequests of evictions by kubectl drain, the descheduler and autoscalers.
    #[arg(long, env = "DRYDOCK_EVICTION_BRIDGE", action = clap::ArgAction::Set, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    eviction_bridge: bool,
    /// The authority of client certificates that may post to the webhook; without it, anybody who reaches the port may.
    #[arg(long, env = "DRYDOCK_EVICTION_BRIDGE_CLIENT_CA_FILE", value_name = "FILE")]
    eviction_bridge_client_ca_file: Option<PathBuf>,
    /// Common names of those client certificates, separated by commas; any when empty.
    #[arg(
        long,
        env = "DRYDOCK_EVICTION_BRIDGE_CLIENT_NAMES",
        value_delimiter = ',',
        value_name = "NAMES"
    )]
    eviction_bridge_client_names: Vec<String>,
    /// How long a request of the bridge lives after somebody asked last for the eviction.
    #[arg(
        long,
        env = "DRYDOCK_EVICTION_BRIDGE_REQUEST_LIFETIME",
        default_value = "15m",
        value_name = "DURATION"
    )]
    eviction_bridge_request_lifetime: GoDuration,
    /// The same after the descheduler asked, which does not ask again while an eviction is in progress.
    #[arg(
        long,
        env = "DRYDOCK_EVICTION_BRIDGE_DESCHEDULER_LIFETIME",
        default_value = "2h",
        value_name = "DURATION"
    )]
    eviction_bridge_descheduler_lifetime: GoDuration,
    /// Which pods get the annotations by which the descheduler knows evictions in progress; by default those with requests if --eviction-bridge is on.
    #[arg(
        long,
        env = "DRYDOCK_DESCHEDULER_ANNOTATIONS",
        value_enum,
        value_name = "PODS"
    )]
    descheduler_annotations: Option<Annotated>,
    /// Serve /descheduling/nominations, where programs name pods that should leave; those that fit into the limits are requested to.
    #[arg(long, env = "DRYDOCK_DESCHEDULING", action = clap::ArgAction::Set, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    descheduling: bool,
    /// How many evictions may be in flight on a node, whoever requested them, when a nominated pod is requested.
    #[arg(
        long,
        env = "DRYDOCK_DESCHEDULING_MAX_PER_NODE",
        default_value_t = 2,
        value_name = "COUNT"
    )]
    descheduling_max_per_node: usize,
    /// The same in a namespace.
    #[arg(
        long,
        env = "DRYDOCK_DESCHEDULING_MAX_PER_NAMESPACE",
        default_value_t = 5,
        value_name = "COUNT"
    )]
    descheduling_max_per_namespace: usize,
    /// The same in all.
    #[arg(
        long,
        env = "DRYDOCK_DESCHEDULING_MAX_TOTAL",
        default_value_t = 20,
        value_name = "COUNT"
    )]
    descheduling_max_total: usize,
    /// How many nominated pods are requested within an hour, however fast they leave.
    #[arg(
        long,
        env = "DRYDOCK_DESCHEDULING_MAX_PER_HOUR",
        default_value_t = 200,
        value_name = "COUNT"
    )]
    descheduling_max_per_hour: usize,
    /// How long the request of a nominated pod lives; what takes longer is given up.
    #[arg(
        long,
        env = "DRYDOCK_DESCHEDULING_REQUEST_LIFETIME",
        default_value = "2h",
        value_name = "DURATION"
    )]
    descheduling_request_lifetime: GoDuration,
    /// How long a pod is left alone after it was created, and after a request for it ended.
    #[arg(
        long,
        env = "DRYDOCK_DESCHEDULING_PAUSE",
        default_value = "5m",
        value_name = "DURATION"
    )]
    descheduling_pause: GoDuration,
}

/// What the flags mean.
pub(super) struct Neighbours {
    pub(super) bridge: Option<BridgeConfig>,
    pub(super) client_authority: Option<PathBuf>,
    pub(super) descheduler_annotations: Annotated,
    pub(super) descheduling: Option<nominations::Options>,
}

/// The shortest lifetime of a request: longer than clients that ask again pause.
const SHORTEST_LIFETIME: Duration = Duration::from_mins(1);

impl NeighbourFlags {
    pub(super) fn validate(self) -> Result<Neighbours, ConfigError> {
        for (flag, lifetime) in [
            (
                "eviction-bridge-request-lifetime",
                self.eviction_bridge_request_lifetime.0,
            ),
            (
                "eviction-bridge-descheduler-lifetime",
                self.eviction_bridge_descheduler_lifetime.0,
            ),
            (
                "descheduling-request-lifetime",
                self.descheduling_request_lifetime.0,
            ),
        ] {
            if lifetime < SHORTEST_LIFETIME {
                return Err(invalid(flag, "must be at least 1m"));
            }
        }
        let client_authority = self.eviction_bridge_client_ca_file;
        if client_authority.is_none() && !self.eviction_bridge_client_names.is_empty() {
            return Err(invalid(
                "eviction-bridge-client-names",
                "needs --eviction-bridge-client-ca-file",
            ));
        }
        let bridge = self.eviction_bridge.then(|| BridgeConfig {
            clients: client_authority
                .is_some()
                .then_some(self.eviction_bridge_client_names),
            lifetime: self.eviction_bridge_request_lifetime.0,
            descheduler_lifetime: self.eviction_bridge_descheduler_lifetime.0,
        });
        if bridge.is_none() && client_authority.is_some() {
            return Err(invalid(
                "eviction-bridge-client-ca-file",
                "needs --eviction-bridge",
            ));
        }
        let by_default = match bridge {
            Some(_) => Annotated::Requested,
            None => Annotated::None,
        };
        let descheduling = self.descheduling.then_some(nominations::Options {
            limits: Limits {
                per_node: self.descheduling_max_per_node,
                per_namespace: self.descheduling_max_per_namespace,
                total: self.descheduling_max_total,
                per_hour: self.descheduling_max_per_hour,
                pause: self.descheduling_pause.0,
            },
            lifetime: self.descheduling_request_lifetime.0,
        });
        Ok(Neighbours {
            descheduling,
            descheduler_annotations: self.descheduler_annotations.unwrap_or(by_default),
            bridge,
            client_authority,
        })
    }
}
