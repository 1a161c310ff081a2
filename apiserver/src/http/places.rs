//! Decides who may have a connection when there are many.
//!
//! A client address has a share of the connections, and some are kept for front proxies and for clients with a trusted
//! certificate. When there is no room, a connection of somebody who has not authenticated makes way: first one without a
//! request, of the address that has the most, and the oldest of those. So probes always find room.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

use super::streams::PeerKind;

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceLimits {
    /// In all.
    pub(super) connections: usize,
    /// Of one address, other than those of front proxies.
    pub(super) per_address: usize,
    /// Above `connections`, for peers with a trusted certificate.
    pub(super) kept: usize,
}

/// What decides whether a connection makes way for others.
#[derive(Debug, Default)]
pub(super) struct Presence {
    standing: AtomicUsize,
    requests: AtomicUsize,
    evicted: CancellationToken,
}

/// Values of [`Presence::standing`]. Whoever has not authenticated makes way at any time, a known client only without a
/// request, and a front proxy never.
const UNKNOWN: usize = 0;
const KNOWN: usize = 1;
const FRONT_PROXY: usize = 2;

impl Presence {
    /// The client has authenticated.
    pub(super) fn set_known(&self) {
        self.standing.fetch_max(KNOWN, Ordering::Relaxed);
    }

    pub(super) fn begin_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_request(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// How readily the connection makes way, 0 first. None if it does not.
    fn rank(&self) -> Option<usize> {
        let is_busy = self.requests.load(Ordering::Relaxed) > 0;
        match self.standing.load(Ordering::Relaxed) {
            UNKNOWN => Some(usize::from(is_busy)),
            KNOWN if !is_busy => Some(2),
            _ => None,
        }
    }
}

/// The connections of a listener.
#[derive(Debug)]
pub(super) struct Places {
    limits: PlaceLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of their arrival.
    connections: BTreeMap<u64, (IpAddr, Arc<Presence>)>,
    by_address: HashMap<IpAddr, usize>,
    next: u64,
}

/// A connection, until dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    presence: Arc<Presence>,
}

impl Places {
    pub(super) fn new(limits: PlaceLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection, if need be that of another one, which ends. None if nobody makes way.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut state = self.lock();
        let own = state.by_address.get(&address).copied().unwrap_or_default();
        if own >= self.limits.per_address {
            state.make_way(Some(address))?;
        } else if state.connections.len() >= self.limits.connections {
            let has_way = state.make_way(None).is_some();
            if !has_way && state.connections.len() >= self.limits.connections + self.limits.kept {
                return None;
            }
        }
        let (number, presence) = (state.next, Arc::<Presence>::default());
        state.next += 1;
        state.connections.insert(number, (address, Arc::clone(&presence)));
        *state.by_address.entry(address).or_default() += 1;
        Some(Place {
            places: Arc::clone(self),
            number,
            presence,
        })
    }
}

impl State {
    /// Ends one connection, of `only` this address or of the one with the most.
    fn make_way(&mut self, only: Option<IpAddr>) -> Option<()> {
        let candidates = self
            .connections
            .iter()
            .filter_map(|(number, (address, presence))| {
                let is_candidate = only.is_none_or(|only| only == *address);
                let count = self.by_address.get(address).copied().unwrap_or_default();
                let rank = presence.rank().filter(|_| is_candidate)?;
                Some((rank, std::cmp::Reverse(count), *number))
            });
        let (_, _, number) = candidates.min()?;
        let presence = self.remove(number)?;
        presence.evicted.cancel();
        Some(())
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Presence>> {
        let (address, presence) = self.connections.remove(&number)?;
        if presence.standing.load(Ordering::Relaxed) != FRONT_PROXY {
            self.release_share(address);
        }
        Some(presence)
    }

    /// One connection less counts for this address.
    fn release_share(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

impl Place {
    /// Cancelled when the connection has to make way.
    pub(super) fn evicted(&self) -> &CancellationToken {
        &self.presence.evicted
    }

    pub(super) fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    /// The peer is known by its certificate, or not. False if the place is kept for others.
    pub(super) fn settle(&self, peer: PeerKind) -> bool {
        match peer {
            PeerKind::FrontProxy => {
                let mut state = self.places.lock();
                let before = self.presence.standing.swap(FRONT_PROXY, Ordering::Relaxed);
                if before != FRONT_PROXY
                    && let Some((address, _)) = state.connections.get(&self.number)
                {
                    let address = *address;
                    state.release_share(address);
                }
            }
            PeerKind::Client => self.presence.set_known(),
            PeerKind::Stranger => {
                let limit = self.places.limits.connections;
                return self.places.lock().connections.len() <= limit;
            }
        }
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PlaceLimits = PlaceLimits {
        connections: 6,
        per_address: 4,
        kept: 1,
    };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn ended(places: &[Place]) -> Vec<usize> {
        let ended = |(at, place): (usize, &Place)| place.evicted().is_cancelled().then_some(at);
        places.iter().enumerate().filter_map(ended).collect()
    }

    #[test]
    fn front_proxies_have_no_share() {
        let places = Places::new(LIMITS);
        let admit = || {
            let place = places.admit(address(1)).unwrap();
            assert!(place.settle(PeerKind::FrontProxy));
            place
        };
        let proxies: Vec<Place> = (0..5).map(|_| admit()).collect();
        assert_eq!(ended(&proxies), Vec::<usize>::new());
        drop(proxies);
        // Their places count once.
        let held: Vec<Place> = (0..4).map(|_| places.admit(address(1)).unwrap()).collect();
        assert_eq!(ended(&held), Vec::<usize>::new());
    }

    #[test]
    fn an_address_has_a_share() {
        let places = Places::new(LIMITS);
        let held: Vec<Place> = (0..4).map(|_| places.admit(address(1)).unwrap()).collect();
        held[0].presence().begin_request();
        // Its own connections make way: idle ones first, and then the oldest.
        let fifth = places.admit(address(1)).unwrap();
        assert_eq!(ended(&held), [1]);
        for place in [&held[2], &held[3], &fifth] {
            place.settle(PeerKind::Client);
        }
        let sixth = places.admit(address(1)).unwrap();
        assert_eq!(ended(&held), [0, 1]);
        sixth.settle(PeerKind::Client);
        for place in [&held[2], &held[3], &fifth, &sixth] {
            place.presence().begin_request();
        }
        assert!(places.admit(address(1)).is_none());
        assert!(places.admit(address(2)).is_some());
    }

    #[test]
    fn strangers_make_way_first_those_of_the_address_with_the_most() {
        let places = Places::new(LIMITS);
        let probe = places.admit(address(1)).unwrap();
        let proxy = places.admit(address(9)).unwrap();
        assert!(proxy.settle(PeerKind::FrontProxy));
        let user = places.admit(address(2)).unwrap();
        user.presence().set_known();
        let held: Vec<Place> = (0..3).map(|_| places.admit(address(3)).unwrap()).collect();
        let new: Vec<Place> = (4..7).map(|last| places.admit(address(last)).unwrap()).collect();
        assert_eq!(ended(&held), [0, 1]);
        // All have one connection now, so the oldest ends.
        assert!(probe.evicted().is_cancelled());
        assert_eq!(ended(&new), [0; 0]);
        assert!(!user.evicted().is_cancelled() && !proxy.evicted().is_cancelled());
    }

    #[test]
    fn some_places_are_kept_for_trusted_certificates() {
        let places = Places::new(LIMITS);
        let busy: Vec<Place> = (0..6)
            .map(|last| {
                let place = places.admit(address(last)).unwrap();
                place.presence().set_known();
                place.presence().begin_request();
                place
            })
            .collect();
        let stranger = places.admit(address(7)).unwrap();
        assert!(!stranger.settle(PeerKind::Stranger));
        drop(stranger);
        let proxy = places.admit(address(7)).unwrap();
        assert!(proxy.settle(PeerKind::FrontProxy));
        assert!(places.admit(address(8)).is_none());
        drop(busy);
        assert!(places.admit(address(8)).unwrap().settle(PeerKind::Stranger));
        drop(proxy);
        assert!(places.lock().by_address.is_empty());
    }
}
