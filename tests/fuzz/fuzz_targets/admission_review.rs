//! See `drydock_apiserver::admission::webhook::review::fuzz_read`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_apiserver::admission::webhook::review::fuzz_read(bytes));
