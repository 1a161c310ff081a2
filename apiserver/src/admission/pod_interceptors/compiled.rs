//! The rules of EvictionInterceptors that were compiled last, so that a create compiles only those that have changed since an
//! earlier one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use drydock_machinery::interceptors::rule::{InvalidRule, Rule};
use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;

/// Compiled rules by the UID of their object, up to a number.
pub(super) struct CompiledRules {
    most: usize,
    entries: Mutex<Entries>,
}

struct Entries {
    by_uid: BTreeMap<String, Entry>,
    /// How many rules were asked for.
    asked: u64,
}

struct Entry {
    /// The generation of the object that was compiled.
    generation: i64,
    rule: Arc<Rule>,
    /// The number of the question that it was given to last.
    used: u64,
}

impl CompiledRules {
    /// None yet, and later this many at most: the one that has not been asked for the longest goes first.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            most,
            entries: Mutex::new(Entries {
                by_uid: BTreeMap::new(),
                asked: 0,
            }),
        }
    }

    /// The rule of an object. Blocks for milliseconds where it has to be compiled. Objects without an identity, which are not
    /// stored, are compiled each time.
    ///
    /// # Errors
    /// The first part of the rule that is not valid.
    pub(super) fn of(&self, object: &EvictionInterceptor) -> Result<Arc<Rule>, InvalidRule> {
        let metadata = &object.metadata;
        let (Some(uid), Some(generation)) = (&metadata.uid, metadata.generation) else {
            return Rule::compile(object).map(Arc::new);
        };
        if let Some(rule) = self.known(uid, generation) {
            return Ok(rule);
        }
        // Without the lock: others go on meanwhile, and at worst compile the same.
        let rule = Arc::new(Rule::compile(object)?);
        self.keep(uid, generation, &rule);
        Ok(rule)
    }

    fn known(&self, uid: &str, generation: i64) -> Option<Arc<Rule>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.asked += 1;
        let asked = entries.asked;
        let entry = entries.by_uid.get_mut(uid)?;
        if entry.generation != generation {
            return None;
        }
        entry.used = asked;
        Some(Arc::clone(&entry.rule))
    }

    fn keep(&self, uid: &str, generation: i64, rule: &Arc<Rule>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Entry {
            generation,
            rule: Arc::clone(rule),
            used: entries.asked,
        };
        entries.by_uid.insert(uid.to_owned(), entry);
        if entries.by_uid.len() > self.most {
            let oldest = entries.by_uid.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(uid) = oldest.map(|(uid, _)| uid.clone()) {
                entries.by_uid.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(uid: &str, generation: i64) -> EvictionInterceptor {
        let conditions = json!([{ "name": "c", "expression": "pod.metadata.name == 'a'" }]);
        serde_json::from_value(json!({
            "metadata": { "name": "r.example.com", "uid": uid, "generation": generation },
            "spec": { "interceptorName": "r.example.com", "matchConditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn a_rule_is_compiled_once_for_each_generation() {
        let rules = CompiledRules::new(2);
        let first = rules.of(&object("one", 1)).unwrap();
        assert!(Arc::ptr_eq(&first, &rules.of(&object("one", 1)).unwrap()));
        let changed = rules.of(&object("one", 2)).unwrap();
        assert!(!Arc::ptr_eq(&first, &changed));
        assert!(Arc::ptr_eq(&changed, &rules.of(&object("one", 2)).unwrap()));
        let mut invalid = object("one", 3);
        invalid.spec.match_conditions[0].expression = "pod.".to_owned();
        assert!(rules.of(&invalid).is_err());
        let mut unstored = object("one", 2);
        unstored.metadata.uid = None;
        assert!(!Arc::ptr_eq(&changed, &rules.of(&unstored).unwrap()));
    }

    #[test]
    fn the_rule_that_was_not_asked_for_the_longest_makes_room() {
        let rules = CompiledRules::new(2);
        let first = rules.of(&object("one", 1)).unwrap();
        let second = rules.of(&object("two", 1)).unwrap();
        assert!(Arc::ptr_eq(&first, &rules.of(&object("one", 1)).unwrap()));
        rules.of(&object("three", 1)).unwrap();
        assert_eq!(rules.entries.lock().unwrap().by_uid.len(), 2);
        assert!(Arc::ptr_eq(&first, &rules.of(&object("one", 1)).unwrap()));
        assert!(!Arc::ptr_eq(&second, &rules.of(&object("two", 1)).unwrap()));
    }
}
