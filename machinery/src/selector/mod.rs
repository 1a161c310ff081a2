//! Selectors: which objects a request or a rule selects.
//!
//! - [`label`] parses `?labelSelector=` and converts `metav1.LabelSelector`;
//! - [`field`] parses `?fieldSelector=`;
//! - [`node`] compiles the node selector of core/v1, over the labels and the name of a node.

pub mod field;
pub mod label;
pub mod node;

pub use field::FieldSelector;
pub use label::Selector;
pub use node::NodeMatcher;

/// Fuzz target: parsing must not panic, and what a selector prints must be that selector.
///
/// # Panics
/// If a printed selector does not parse to one that prints the same, which is a bug.
pub fn fuzz_parse(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(selector) = Selector::parse(&text) {
        let shown = selector.to_string();
        let again = Selector::parse(&shown).map(|selector| selector.to_string());
        assert_eq!(again.as_ref(), Ok(&shown));
        let _matches = selector.matches(&|_: &str| Some("1"));
    }
    if let Ok(selector) = FieldSelector::parse(&text) {
        let shown = selector.to_string();
        let again = FieldSelector::parse(&shown).map(|selector| selector.to_string());
        assert_eq!(again.as_ref(), Ok(&shown));
        let _matches = selector.matches(&|_: &str| Some("1"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_a_selector_prints_is_that_selector(text in r"[a-z/!=<>,() \\1\.]{0,20}") {
            super::fuzz_parse(text.as_bytes());
        }
    }
}
