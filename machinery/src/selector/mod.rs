//! Which objects does a request speak of?
//!
//! - [`label`] reads `?labelSelector=` and `metav1.LabelSelector`;
//! - [`field`] reads `?fieldSelector=`;
//! - [`node`] reads the node selector of core/v1, over a node's labels and name.

pub mod field;
pub mod label;
pub mod node;

pub use field::FieldSelector;
pub use label::Selector;
pub use node::NodeMatcher;
