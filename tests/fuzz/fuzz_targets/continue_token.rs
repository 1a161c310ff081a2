//! See `drydock_apiserver::cache::fuzz_continue_token`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_apiserver::cache::fuzz_continue_token(bytes));
