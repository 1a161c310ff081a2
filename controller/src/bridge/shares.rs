//! Places that are shared between client addresses: an address gets another one as long as it has fewer than are free. So a
//! single address never has more than half of all, two never more than three quarters, and each further one at most half of what
//! is left. As many addresses as the number of places has binary digits can take all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;

use tokio::sync::Notify;

use crate::sync::lock;

/// The places.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

/// Who has places. An address that has none is not listed, so the map is as bounded as the places are.
#[derive(Debug, Default)]
struct Taken {
    by_address: HashMap<IpAddr, usize>,
    total: usize,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Share<'a> {
    shares: &'a Shares,
    address: IpAddr,
}

impl Shares {
    /// So many places.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            taken: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// A place for a client of this address; waits until there is one. Cancel safe.
    pub async fn take(&self, address: IpAddr) -> Share<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // From here on no wake-up is missed.
            freed.as_mut().enable();
            if let Some(share) = self.try_take(address) {
                return share;
            }
            freed.await;
        }
    }

    fn try_take(&self, address: IpAddr) -> Option<Share<'_>> {
        let mut taken = lock(&self.taken);
        let free = self.most.saturating_sub(taken.total);
        let own = taken.by_address.get(&address).copied().unwrap_or_default();
        if own >= free {
            return None;
        }
        taken.by_address.insert(address, own + 1);
        taken.total += 1;
        Some(Share {
            shares: self,
            address,
        })
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut taken = lock(&self.shares.taken);
        taken.total = taken.total.saturating_sub(1);
        let left = taken.by_address.get(&self.address).map_or(0, |own| own - 1);
        if left == 0 {
            taken.by_address.remove(&self.address);
        } else {
            taken.by_address.insert(self.address, left);
        }
        drop(taken);
        self.shares.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn an_address_has_no_more_places_than_are_left_for_others() {
        let shares = Shares::new(8);
        let of = |last| std::iter::from_fn(move || Some(address(last)));
        let greedy: Vec<_> = of(1).map_while(|one| shares.try_take(one)).collect();
        assert_eq!(greedy.len(), 4);
        let second: Vec<_> = of(2).map_while(|one| shares.try_take(one)).collect();
        let third: Vec<_> = of(3).map_while(|one| shares.try_take(one)).collect();
        assert_eq!((second.len(), third.len()), (2, 1));
        drop(greedy);
        assert!(shares.try_take(address(2)).is_some());
        drop((second, third));
        assert!(lock(&shares.taken).by_address.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_gets_the_next_one() {
        let shares = Shares::new(2);
        let first = shares.take(address(1)).await;
        let second = shares.take(address(1));
        tokio::pin!(second);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), second.as_mut()).await;
        assert!(waited.is_err(), "half of the places are taken");
        drop(first);
        second.await;
    }
}
