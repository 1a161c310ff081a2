//! The watch cache: gets, lists and watches are served from memory, by one [`WatchCache`] per resource.
//!
//! Start at [`watch_cache`]. Each module below imports only those before it:
//!
//! ```text
//! bookmark →
//! continue_token →
//! lock →
//! packer →
//! tree →
//! object → tree
//! repairs → lock
//! termination → lock
//! encode_once → object
//! selection → object
//! error → encode_once
//! history → encode_once, object, selection
//! metrics → encode_once
//! root → error, object, selection, tree
//! class → encode_once, history, object, selection
//! config → metrics, object
//! past → root
//! progress → encode_once, error, history, metrics
//! replays → error, lock
//! event_logs → class, history, lock, selection
//! live → class, encode_once, error, history, metrics, packer, progress
//! open_watches → class, history, lock
//! snapshot → error, lock, object, past, root, selection, tree
//! source → config, object, root, tree
//! published → lock, past, root, snapshot
//! parts → config, error, event_logs, metrics, open_watches, published, repairs, replays, source, termination
//! consistency → metrics, parts, root, source
//! direct → error, object, parts, snapshot
//! reads → error, parts, root, snapshot
//! replay → encode_once, error, history, packer, parts, progress, selection
//! feed → class, consistency, history, object, parts, root
//! watcher → bookmark, class, encode_once, error, history, live, open_watches, packer, parts, progress, reads, replay, selection, snapshot
//! watch_cache → config, direct, error, feed, object, parts, reads, snapshot, watcher
//! ```
//!
//! Invariants:
//! - readers hold no lock while they read, and the feeder waits for no reader;
//! - an event is in all logs before the root that contains it is published;
//! - positions in the event history are the common coordinate of all logs;
//! - a revision is one event, so a watch that has sent an event has sent its whole revision.

mod bookmark;
mod class;
mod config;
mod consistency;
mod continue_token;
mod direct;
mod encode_once;
mod error;
mod event_logs;
mod feed;
mod history;
mod live;
mod lock;
mod metrics;
mod object;
mod open_watches;
mod packer;
mod parts;
mod past;
mod progress;
mod published;
mod reads;
mod repairs;
mod replay;
mod replays;
mod root;
mod selection;
mod snapshot;
mod source;
mod termination;
mod tree;
mod watch_cache;
mod watcher;

pub use crate::request::freshness::{Freshness, ListState, WatchStart};
pub use config::{CacheConfig, CacheLimits};
pub use continue_token::{ContinueToken, EXPIRED_WITH_TOKEN, PageOf, TokenError, fuzz_continue_token};
pub use encode_once::{EncodeError, EncoderId, EventEncoder, WatchKind};
pub use error::{ReadError, WatchEnd};
pub use feed::Feeder;
pub use metrics::CacheMetrics;
pub use object::{Attributes, CachedObject, Extract};
pub use selection::{Predicate, Scope, Selection};
pub use snapshot::{Objects, Page, Query};
pub use watch_cache::WatchCache;
pub use watcher::{WatchRequest, Watcher};

#[cfg(test)]
mod tests;
