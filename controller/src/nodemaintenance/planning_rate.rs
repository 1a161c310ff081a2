//! How soon a planning follows the one before.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::index::ClusterIndex;

/// How long changes are collected before a planning: they come in bursts.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// How many times its duration the pause after a planning lasts while requests of maintenances are unfinished: planning takes at
/// most about 1.6 percent of a core, however large the cluster is. Most changes are progress that only counts show.
const PAUSE_FACTOR: u32 = 60;
/// Which part of the pause is waited when none is: drains go on, or end.
const PROMPT_PART: u32 = 4;
/// How much of these pauses may be made up for later. So the first plannings of a maintenance, each of which waits for what the
/// one before has written, follow each other closely, also in a large cluster.
const MAX_OWED: Duration = Duration::from_secs(8);
/// The longest delay before a planning.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Limits the CPU time of planning.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlanningRate {
    /// When the pauses after all plannings so far are over, one after the other.
    paused_until: Option<Instant>,
}

impl PlanningRate {
    /// Waits until the next planning is due.
    pub async fn pause(self, index: &ClusterIndex) {
        let now = Instant::now();
        let delay = self.delay(now);
        let prompt = async {
            index.requests_finished().await;
            sleep_until(now + (delay / PROMPT_PART).max(BATCH_DELAY)).await;
        };
        tokio::select! {
            () = sleep_until(now + delay) => {}
            () = prompt => {}
        }
    }

    /// The longest time to wait before the next planning.
    fn delay(self, now: Instant) -> Duration {
        self.owed(now)
            .saturating_sub(MAX_OWED)
            .clamp(BATCH_DELAY, MAX_DELAY)
    }

    /// A planning has ended that took this long.
    pub fn planned(&mut self, took: Duration, now: Instant) {
        let owed = self.owed(now) + took.saturating_mul(PAUSE_FACTOR);
        self.paused_until = Some(now + owed.min(MAX_OWED + MAX_DELAY));
    }

    /// What is left of the pauses.
    fn owed(self, now: Instant) -> Duration {
        self.paused_until
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::typed;
    use crate::informer::Change;
    use drydock_proto::kinds::evictionrequest::EvictionRequest;
    use serde_json::json;
    use std::sync::Arc;

    /// The delays before plannings of this duration, each of which begins after its delay.
    fn delays(rate: &mut PlanningRate, now: &mut Instant, took: Duration, count: usize) -> Vec<Duration> {
        let mut delays = Vec::new();
        for _ in 0..count {
            let delay = rate.delay(*now);
            *now += delay + took;
            rate.planned(took, *now);
            delays.push(delay);
        }
        delays
    }

    #[test]
    fn first_plannings_follow_each_other_and_later_ones_take_a_small_share_of_a_core() {
        let took = Duration::from_millis(40);
        let (mut rate, mut now) = (PlanningRate::default(), Instant::now());
        let first = delays(&mut rate, &mut now, took, 4);
        assert_eq!(first, [BATCH_DELAY; 4]);
        delays(&mut rate, &mut now, took, 4);
        let begun = now;
        let later = delays(&mut rate, &mut now, took, 100);
        assert!(later.iter().all(|delay| *delay > BATCH_DELAY), "{later:?}");
        let share = (took * 100).as_secs_f64() / (now - begun).as_secs_f64();
        assert!((0.016..=0.018).contains(&share), "{share}");
        now += MAX_OWED + MAX_DELAY;
        assert_eq!(delays(&mut rate, &mut now, took, 4), first);
    }

    #[test]
    fn delays_are_bounded_and_one_long_planning_does_not_hold_up_short_ones_for_long() {
        let (mut rate, mut now) = (PlanningRate::default(), Instant::now());
        let long = delays(&mut rate, &mut now, Duration::from_secs(10), 20);
        assert!(long.iter().all(|delay| *delay <= MAX_DELAY), "{long:?}");
        assert_eq!(long.last(), Some(&MAX_DELAY));
        let short = delays(&mut rate, &mut now, Duration::ZERO, 2);
        assert_eq!(short, [MAX_DELAY, BATCH_DELAY]);
    }

    /// A request for a maintenance.
    fn request(evicted: &str) -> Arc<EvictionRequest> {
        Arc::new(typed(json!({
            "metadata": {"name": "uid-1", "namespace": "shop", "creationTimestamp": "1970-01-01T00:00:05Z"},
            "spec": {"requesters": [{"name": "nodemaintenance.k8s.io"}]},
            "status": {"conditions": [{
                "type": "Evicted", "status": evicted, "reason": "r", "message": "",
                "lastTransitionTime": "1970-01-01T00:00:09Z",
            }]},
        })))
    }

    /// How long the pause after a long planning lasts.
    async fn pause(index: Arc<ClusterIndex>) -> Duration {
        let mut rate = PlanningRate::default();
        let begun = Instant::now();
        rate.planned(Duration::from_secs(10), begun);
        rate.pause(&index).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn pause_is_short_when_no_request_is_unfinished() {
        let index = Arc::<ClusterIndex>::default();
        let change = |old: Option<&str>, new: &str| {
            let (old, new) = (old.map(request), Some(request(new)));
            index.request_changed(&Change { old, new });
        };
        assert_eq!(pause(Arc::clone(&index)).await, MAX_DELAY / PROMPT_PART);
        change(None, "False");
        assert_eq!(pause(Arc::clone(&index)).await, MAX_DELAY);
        let pausing = tokio::spawn(pause(Arc::clone(&index)));
        tokio::time::sleep(MAX_DELAY / 2).await;
        change(Some("False"), "True");
        assert_eq!(pausing.await.unwrap(), MAX_DELAY / 2);
    }
}
