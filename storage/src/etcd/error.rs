//! Why a store in etcd cannot be used. Nothing has been written when a start ends with one of these.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// The oldest supported version of etcd: the first whose progress notifications never overtake events and whose watches
/// never skip a deletion at the compacted revision.
const OLDEST: (u64, u64) = (3, 6);

/// How far the clocks of two members may be apart: five times what etcd warns at, and half of what the server grants the
/// times of its clients.
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(5);

/// Major and minor number of the version of a member.
///
/// # Errors
/// [`EtcdOpenError::TooOld`], also for what is no version.
pub(super) fn supported_version(endpoint: &str, version: &str) -> Result<(u64, u64), EtcdOpenError> {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or_default());
    let found = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if found < OLDEST {
        return Err(EtcdOpenError::TooOld {
            endpoint: endpoint.to_owned(),
            found: version.to_owned(),
        });
    }
    Ok(found)
}

/// Why a store in etcd cannot be used.
#[derive(Debug, Error)]
pub enum EtcdOpenError {
    /// No endpoint is given.
    #[error("no endpoint of etcd is given")]
    NoEndpoint,
    /// An endpoint is not a client URL, or plain and TLS endpoints are mixed.
    #[error("{endpoint:?} is not http://HOST:PORT, or not https://HOST:PORT like the others")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
    },
    /// The prefix is not a path.
    #[error("the prefix {prefix:?} is not a path such as /registry/drydock")]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// A file of TLS cannot be read.
    #[error("a file for TLS to etcd cannot be read")]
    Files(#[source] io::Error),
    /// A client certificate without its key, or the reverse.
    #[error("a client certificate for etcd needs its key, and the reverse")]
    HalfIdentity,
    /// A connection cannot be set up.
    #[error("a connection to {endpoint} cannot be set up: {reason}")]
    Connection {
        /// The endpoint.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// No member answered in time.
    #[error("no member of etcd answers: {reason}")]
    Unreachable {
        /// What each said.
        reason: String,
    },
    /// A member is too old.
    #[error("etcd at {endpoint} has version {found}, {}.{} or newer is needed", OLDEST.0, OLDEST.1)]
    TooOld {
        /// The endpoint.
        endpoint: String,
        /// Its version.
        found: String,
    },
    /// Two endpoints belong to different clusters.
    #[error("{first} and {second} are members of different etcd clusters")]
    TwoClusters {
        /// One endpoint.
        first: String,
        /// Another endpoint.
        second: String,
    },
    /// The prefix holds keys and no marker: somebody else's.
    #[error("the prefix {prefix} holds keys of another product, such as {key}: choose another one")]
    Foreign {
        /// The prefix.
        prefix: String,
        /// One of the keys.
        key: String,
    },
    /// The prefix is inside of that of another store.
    #[error("the prefix {prefix} is below {outer}, which is the prefix of another store: choose another one")]
    Nested {
        /// The prefix.
        prefix: String,
        /// The prefix of the other store.
        outer: String,
    },
    /// The marker is not ours.
    #[error("the key {prefix} was not written by this product: choose another prefix")]
    OtherProduct {
        /// The prefix.
        prefix: String,
    },
    /// The prefix was written by a newer version.
    #[error("the prefix {prefix} has format {found}, this version reads formats up to {supported}")]
    NewerFormat {
        /// The prefix.
        prefix: String,
        /// Its format.
        found: u32,
        /// The newest supported one.
        supported: u32,
    },
    /// etcd accepts only smaller requests than objects may need.
    #[error(
        "etcd refuses requests of 1.5 MiB, which the largest objects need: start it with --max-request-bytes=1572864 or more"
    )]
    RequestLimit,
    /// etcd accepts fewer operations in a transaction than this needs.
    #[error(
        "etcd refuses transactions of {needed} operations: start it with --max-txn-ops={needed} or more, which its default is"
    )]
    OperationLimit {
        /// How many are needed.
        needed: usize,
    },
    /// An import into the prefix has not ended, or failed.
    #[error(
        "the prefix {prefix} holds an import that is not finished: repeat the import, which replaces what it wrote, or remove \
         it with etcdctl del {prefix} and etcdctl del --prefix {prefix}/"
    )]
    ImportUnfinished {
        /// The prefix.
        prefix: String,
    },
    /// The clocks of two members are apart.
    #[error(
        "the clocks of {first} and {second} are at least {} s apart, at most {} s are accepted: synchronise the clocks of the \
         members of etcd",
        .apart.as_secs(), CLOCKS_APART.as_secs()
    )]
    ClocksApart {
        /// The endpoint whose clock is ahead.
        first: String,
        /// The endpoint whose clock is behind.
        second: String,
        /// The least difference that explains their answers.
        apart: Duration,
    },
    /// An import needs a prefix without a store.
    #[error("the prefix {prefix} already holds a store: import into another one, or remove it first")]
    NotEmpty {
        /// The prefix.
        prefix: String,
    },
    /// etcd refuses a request.
    #[error("etcd refuses a request: {reason}")]
    Refused {
        /// What it says.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_below_3_6_are_refused_by_name() {
        for (version, found) in [
            ("3.6.0", (3, 6)),
            ("3.7.3", (3, 7)),
            ("3.10.0-rc.1", (3, 10)),
            ("4.0.1", (4, 0)),
        ] {
            assert_eq!(supported_version("http://a", version).unwrap(), found);
        }
        for version in ["3.5.29", "3.4.25", "2.3.8", "", "x"] {
            let refused = supported_version("http://a", version).unwrap_err().to_string();
            let expected = format!("etcd at http://a has version {version}, 3.6 or newer is needed");
            assert_eq!(refused, expected);
        }
    }
}
