//! The options of each verb, parsed from query parameters and body into one type and checked once.

mod causes;
mod delete;
mod read;
mod write;

pub use self::{
    delete::{DeleteOptions, Preconditions, Propagation, UNSAFE_DELETE},
    read::{ListOptions, ListStart, WatchOptions, get_freshness, parse_revision},
    write::WriteOptions,
};

#[cfg(test)]
mod tests;
