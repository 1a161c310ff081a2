//! The part of an object that a write may change.

/// Which part of an object a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything but status.
    Main,
    /// Only status.
    Status,
}
