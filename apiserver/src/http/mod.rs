//! The HTTP server: accepts connections, hands requests to the filters and sends their responses.
//!
//! `listener → tls → connection (over socket) → Service → body (through outgoing)`. No other module names `hyper`. Start at
//! [`listener`].

mod activity;
pub mod body;
pub mod certificate;
pub mod client;
pub mod connection;
mod discard;
pub mod failure;
pub mod listener;
mod observed;
mod outgoing;
mod places;
pub mod shutdown;
mod socket;
pub mod streams;
pub mod target;
pub mod tls;
pub mod websocket;

#[cfg(test)]
mod tests;
