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
