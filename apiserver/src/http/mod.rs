//! How do bytes from a socket become a request for the filters, and a response become bytes again?
//!
//! `listener → tls → connection → Service`. `hyper` is named here and nowhere else. Start at [`listener`].

pub mod body;
pub mod certificate;
pub mod connection;
pub mod listener;
pub mod shutdown;
pub mod tls;

#[cfg(test)]
mod tests;
