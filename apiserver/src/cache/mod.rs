//! What is read and watched is served from memory: one [`WatchCache`] per resource.
//!
//! Where to find what:
//! - [`watch_cache`]: the door: reads at a revision, subscriptions, limits; `direct`: reads before the cache is there;
//! - [`feed`]: the one task that applies what happens in the store;
//! - [`tree`], [`object`], [`snapshot`], [`past`]: objects, their index, states of now and before;
//! - [`selection`]: scopes and selectors; [`continue_token`]: where the next page starts;
//! - [`history`], [`class`]: what happened lately, and whom it concerns;
//! - [`watcher`], [`bookmark`], [`encode_once`]: one watch, its promises, its frames.
//!
//! Invariants: readers hold no lock while they read; the writer waits for nobody; events are in the logs before
//! the root that contains them is published; positions are the one coordinate of all logs.

pub mod bookmark;
pub mod class;
pub mod continue_token;
mod direct;
pub mod encode_once;
pub mod error;
pub mod feed;
pub mod freshness;
pub mod history;
pub mod metrics;
pub mod object;
pub mod past;
pub mod selection;
pub mod snapshot;
pub mod tree;
pub mod watch_cache;
pub mod watcher;

pub use continue_token::{ContinueToken, EXPIRED_WITH_TOKEN, EXPIRED_WITHOUT_TOKEN, PageOf, TokenError};
pub use encode_once::{EncodeError, EncoderId, EventEncoder, WatchKind};
pub use error::{ReadError, WatchEnd};
pub use feed::Feeder;
pub use freshness::{Freshness, ListState, WatchStart};
pub use metrics::CacheMetrics;
pub use object::{Attributes, CachedObject, Extract};
pub use selection::{Predicate, Scope, Selection};
pub use snapshot::{IndexedLabels, Objects, Page, Query};
pub use watch_cache::{CacheConfig, CacheLimits, WatchCache};
pub use watcher::{WatchRequest, Watcher};

#[cfg(test)]
mod tests;
