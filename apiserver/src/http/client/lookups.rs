//! Look-ups of host names, of which there is a limited number at a time.
//!
//! The system offers no way to end a look-up: one of a name whose servers do not respond holds a thread for many seconds. So
//! concurrent calls of a host share a look-up, only a few run at a time, and nobody waits for one longer than
//! [`LOOKUP_TIME`].

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::net::lookup_host;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long a call waits for a look-up.
const LOOKUP_TIME: Duration = Duration::from_secs(5);
/// How many look-ups run at a time. One that nobody waits for any more counts until the system gives up.
const LOOKUPS: usize = 16;

/// Finds the addresses of a host.
pub trait Resolver: Send + Sync {
    /// The addresses of a host name.
    fn resolve(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;
}

/// The resolver of the system: in a cluster, its DNS, which knows Services.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        let host = host.to_owned();
        async move { Ok(lookup_host((host, port)).await?.collect()) }.boxed()
    }
}

/// Why a name was not found, in the words of the Go client.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LookupError {
    /// It has no address.
    #[error("no such host")]
    NotFound,
    /// The look-up failed.
    #[error("no such host")]
    Failed(#[source] Arc<io::Error>),
    /// The look-up takes too long, or too many do.
    #[error("i/o timeout")]
    Timeout,
}

type Addresses = Result<Arc<[SocketAddr]>, LookupError>;
type LookUp = BoxFuture<'static, Addresses>;

/// The look-ups of a client.
pub(super) struct Lookups {
    resolver: Arc<dyn Resolver>,
    places: Arc<Semaphore>,
    /// Those that have not ended, by host and port.
    under_way: Mutex<HashMap<(String, u16), WeakShared<LookUp>>>,
}

impl Lookups {
    pub(super) fn new(resolver: impl Resolver + 'static) -> Self {
        Self {
            resolver: Arc::new(resolver),
            places: Arc::new(Semaphore::new(LOOKUPS)),
            under_way: Mutex::default(),
        }
    }

    /// The addresses of a host name or an IP address.
    ///
    /// # Errors
    /// [`LookupError`], after [`LOOKUP_TIME`] at the latest.
    pub(super) async fn find(&self, host: &str, port: u16) -> Addresses {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok([(address, port).into()].into());
        }
        let look_up = self.join(host, port);
        timeout(LOOKUP_TIME, look_up)
            .await
            .unwrap_or(Err(LookupError::Timeout))
    }

    /// The look-up of a host that is under way, or a new one.
    fn join(&self, host: &str, port: u16) -> Shared<LookUp> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|_, look_up| {
            let look_up = look_up.upgrade();
            look_up.is_some_and(|look_up| look_up.peek().is_none())
        });
        let key = (host.to_owned(), port);
        if let Some(known) = under_way.get(&key).and_then(WeakShared::upgrade) {
            return known;
        }
        let look_up = self.look_up(host.to_owned(), port).shared();
        under_way.extend(look_up.downgrade().map(|look_up| (key, look_up)));
        // It goes on to its end if all callers give up, and holds its place until then.
        tokio::spawn(look_up.clone().map(drop));
        look_up
    }

    fn look_up(&self, host: String, port: u16) -> LookUp {
        let (places, resolver) = (Arc::clone(&self.places), Arc::clone(&self.resolver));
        async move {
            let place = timeout(LOOKUP_TIME, places.acquire_owned()).await;
            let Ok(Ok(_place)) = place else {
                return Err(LookupError::Timeout);
            };
            match resolver.resolve(&host, port).await {
                Ok(addresses) => Ok(addresses.into()),
                Err(error) => Err(LookupError::Failed(Arc::new(error))),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    /// Knows all names except those that begin with `slow`, whose look-ups do not end. Counts the latter.
    #[derive(Default)]
    struct Counting(Arc<AtomicUsize>);

    impl Resolver for Counting {
        fn resolve(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            if host.starts_with("slow") {
                self.0.fetch_add(1, Ordering::Relaxed);
                return std::future::pending().boxed();
            }
            std::future::ready(Ok(vec![([10, 0, 0, 1], port).into()])).boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_not_resolved_costs_one_look_up_and_delays_no_other() {
        let resolver = Counting::default();
        let count = Arc::clone(&resolver.0);
        let lookups = Lookups::new(resolver);
        let started = Instant::now();
        let slow = join_all((0..1000).map(|_| lookups.find("slow.test", 443)));
        let others = join_all((0..1000).map(|_| lookups.find("other.test", 443)));
        let (slow, others) = tokio::join!(slow, async {
            let found = others.await;
            assert_eq!(started.elapsed(), Duration::ZERO);
            found
        });
        assert!(
            slow.iter()
                .all(|found| matches!(found, Err(LookupError::Timeout)))
        );
        assert!(others.iter().all(|found| found.as_ref().unwrap().len() == 1));
        assert_eq!(
            (count.load(Ordering::Relaxed), started.elapsed()),
            (1, LOOKUP_TIME)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn few_look_ups_run_at_a_time_and_addresses_need_none() {
        let resolver = Counting::default();
        let count = Arc::clone(&resolver.0);
        let lookups = Lookups::new(resolver);
        let names: Vec<String> = (0..100).map(|number| format!("slow-{number}.test")).collect();
        let found = join_all(names.iter().map(|name| lookups.find(name, 443))).await;
        assert!(
            found
                .iter()
                .all(|found| matches!(found, Err(LookupError::Timeout)))
        );
        assert_eq!(count.load(Ordering::Relaxed), LOOKUPS);
        let address = lookups.find("::1", 443).await.unwrap();
        assert_eq!(*address, [SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 443))]);
    }
}
