//! Works with programs that move pods to better places.
//!
//! - [`annotations`]: tells the descheduler of Kubernetes which evictions are in progress.
//! - [`nominations`]: requests pods that other programs nominate, within the limits of [`plan`].

pub mod annotations;
pub mod nominations;
pub mod plan;
