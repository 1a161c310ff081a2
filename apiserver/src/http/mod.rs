//! How do bytes from a socket become a request for the filters, and a response become bytes again?
//!
//! `hyper` is named here and nowhere else.

pub mod body;
