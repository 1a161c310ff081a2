//! How do bytes from a socket become a request for the filters, and a response become bytes again?
//!
//! `listener → tls → connection (socket below it) → Service → body (outgoing)`. `hyper` is named here and nowhere else. Start at [`listener`].

pub mod body;
pub mod certificate;
pub mod connection;
pub mod failure;
pub mod listener;
mod outgoing;
pub mod shutdown;
mod socket;
pub mod tls;

#[cfg(test)]
mod tests;
