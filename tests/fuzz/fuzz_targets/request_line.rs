//! See `drydock_apiserver::request::info::fuzz_parse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_apiserver::request::info::fuzz_parse(bytes));
