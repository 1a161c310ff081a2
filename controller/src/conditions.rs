//! Conditions and times in the form in which objects store them. Pure functions.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Sets a condition, replacing the one of the same type. While its status stays the same it keeps its
/// `lastTransitionTime`. Returns whether the status changed.
pub fn set_condition(conditions: &mut Vec<Condition>, mut condition: Condition) -> bool {
    let Some(known) = conditions.iter_mut().find(|known| known.type_ == condition.type_) else {
        conditions.push(condition);
        return true;
    };
    let is_transition = known.status != condition.status;
    if !is_transition {
        condition.last_transition_time = known.last_transition_time.clone();
    }
    *known = condition;
    is_transition
}

/// The time in whole seconds, the precision of `metav1.Time`.
#[must_use]
pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_keeps_its_transition_time_while_its_status_stays() {
        let condition = |status: &str, second| Condition {
            type_: "Drained".to_owned(),
            status: status.to_owned(),
            reason: format!("At{second}"),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::from_second(second).unwrap()),
        };
        let mut conditions = Vec::new();
        for (status, second, is_transition, since) in [
            ("False", 1, true, 1),
            ("False", 2, false, 1),
            ("True", 3, true, 3),
        ] {
            assert_eq!(
                set_condition(&mut conditions, condition(status, second)),
                is_transition
            );
            assert_eq!(conditions.len(), 1);
            assert_eq!(conditions[0].reason, format!("At{second}"));
            assert_eq!(conditions[0].last_transition_time.0.as_second(), since);
        }
    }
}
