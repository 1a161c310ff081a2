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

/// Fuzz target: no query string may panic, whatever the verb.
pub fn fuzz_parse(bytes: &[u8]) {
    let query = super::Query::parse(&String::from_utf8_lossy(bytes));
    let results = [
        ListOptions::parse(&query).is_ok(),
        WatchOptions::parse(&query).is_ok(),
        get_freshness(&query).is_ok(),
        WriteOptions::parse("CreateOptions", &query).is_ok(),
        WriteOptions::parse_apply(&query).is_ok(),
        DeleteOptions::parse(&query, None, "example.com/v1").is_ok(),
    ];
    // Errors are among the expected results.
    std::hint::black_box(results);
}

#[cfg(test)]
mod tests;
