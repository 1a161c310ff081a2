//! evictionrequest
pub mod decide;
pub mod interceptors;
pub mod status;
