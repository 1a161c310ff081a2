//! See `drydock_apiserver::audit::fuzz_parse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_apiserver::audit::fuzz_parse(bytes));
