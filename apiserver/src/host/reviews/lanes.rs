//! Limits on the reviews that the host is asked for: together at most 200 a second, after a burst of 400.
//!
//! Token reviews, reviews of known users and reviews of anonymous ones have lanes of their own, so that nobody without a
//! valid credential delays those who have one. Within a lane no user may have more than a part in flight.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};

use crate::host::HostError;

/// How long a review may wait before it is sent.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The limits of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneLimits {
    /// Reviews that the host works on at a time.
    in_flight: usize,
    /// Reviews that one user may have in the lane, waiting ones included.
    per_user: usize,
    per_second: u32,
    burst: u32,
}

/// Reviews of tokens. Their users are not known yet; the addresses of clients have limits elsewhere.
pub(super) const TOKENS: LaneLimits = LaneLimits {
    in_flight: 32,
    per_user: 512,
    per_second: 40,
    burst: 80,
};
/// Access reviews of users with a name.
pub(super) const USERS: LaneLimits = LaneLimits {
    in_flight: 64,
    per_user: 64,
    per_second: 140,
    burst: 280,
};
/// Access reviews of anonymous users.
pub(super) const ANONYMOUS: LaneLimits = LaneLimits {
    in_flight: 8,
    per_user: 32,
    per_second: 20,
    burst: 40,
};

/// A lane of reviews.
#[derive(Debug)]
pub(super) struct Lane {
    limits: LaneLimits,
    calls: Arc<Semaphore>,
    /// When the lane has caught up with its rate.
    paid_until: Mutex<Instant>,
    users: Mutex<HashMap<String, usize>>,
}

/// A review that is asked for, until dropped.
#[derive(Debug)]
pub(super) struct Call {
    lane: Arc<Lane>,
    user: String,
    permit: Option<OwnedSemaphorePermit>,
}

impl Lane {
    pub(super) fn new(limits: LaneLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            calls: Arc::new(Semaphore::new(limits.in_flight)),
            paid_until: Mutex::new(Instant::now()),
            users: Mutex::default(),
        })
    }

    /// Waits until a review of `user` may be sent.
    ///
    /// # Errors
    /// [`HostError::Overloaded`] when it would wait too long.
    pub(super) async fn enter(self: &Arc<Self>, user: &str) -> Result<Call, HostError> {
        let mut call = self.begin(user).ok_or(HostError::Overloaded)?;
        let permit = timeout(MAX_WAIT, Arc::clone(&self.calls).acquire_owned()).await;
        call.permit = Some(permit.ok().and_then(Result::ok).ok_or(HostError::Overloaded)?);
        let pause = self.pay().ok_or(HostError::Overloaded)?;
        sleep(pause).await;
        Ok(call)
    }

    fn begin(self: &Arc<Self>, user: &str) -> Option<Call> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let count = users.entry(user.to_owned()).or_default();
        if *count >= self.limits.per_user {
            return None;
        }
        *count += 1;
        Some(Call {
            lane: Arc::clone(self),
            user: user.to_owned(),
            permit: None,
        })
    }

    /// How long to wait for the rate; none, and nothing is paid, if that is too long.
    fn pay(&self) -> Option<Duration> {
        let price = Duration::from_secs(1) / self.limits.per_second;
        let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let ahead = paid_until.saturating_duration_since(now);
        let pause = (ahead + price).saturating_sub(price * self.limits.burst);
        (pause <= MAX_WAIT).then(|| {
            *paid_until = now + ahead + price;
            pause
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut users = self.lane.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    #[test]
    fn all_lanes_together_have_the_rate_of_the_reference() {
        let lanes = [TOKENS, USERS, ANONYMOUS];
        assert_eq!(lanes.iter().map(|lane| lane.per_second).sum::<u32>(), 200);
        assert_eq!(lanes.iter().map(|lane| lane.burst).sum::<u32>(), 400);
    }

    /// Sends reviews of different users at once; how many were sent after each second.
    async fn sent(lane: &Arc<Lane>, count: usize) -> Vec<usize> {
        let begun = Instant::now();
        let calls = (0..count).map(async |number| {
            let call = lane.enter(&format!("u{number}")).await.ok()?;
            let second = begun.elapsed().as_millis().div_ceil(1000);
            drop(call);
            Some(second)
        });
        let mut seconds = vec![0; 10];
        for second in join_all(calls).await.into_iter().flatten() {
            seconds[usize::try_from(second).unwrap()] += 1;
        }
        seconds
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_sent_at_once_and_the_rest_at_the_rate() {
        let lane = Lane::new(ANONYMOUS);
        assert_eq!(sent(&lane, 100).await, [40, 20, 20, 20, 0, 0, 0, 0, 0, 0]);
        // What would wait longer than five seconds is not sent.
        tokio::time::advance(Duration::from_mins(1)).await;
        let seconds = sent(&lane, 1000).await;
        assert!(seconds.iter().sum::<usize>() <= 40 + 20 * 11, "{seconds:?}");
        assert!(lane.users.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_user_has_a_part_of_the_lane() {
        let lane = Lane::new(USERS);
        let mut calls = Vec::new();
        for _ in 0..USERS.per_user {
            calls.push(lane.begin("greedy").unwrap());
        }
        assert!(matches!(lane.enter("greedy").await, Err(HostError::Overloaded)));
        lane.enter("modest").await.unwrap();
        calls.pop();
        lane.enter("greedy").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_that_the_host_does_not_answer_do_not_hold_others_for_long() {
        let lane = Lane::new(ANONYMOUS);
        let mut held = Vec::new();
        for number in 0..ANONYMOUS.in_flight {
            held.push(lane.enter(&format!("u{number}")).await.unwrap());
        }
        let begun = Instant::now();
        assert!(matches!(lane.enter("late").await, Err(HostError::Overloaded)));
        assert_eq!(begun.elapsed(), MAX_WAIT);
    }
}
