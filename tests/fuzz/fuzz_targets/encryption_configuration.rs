//! See `drydock_apiserver::encryption::fuzz_configuration`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_apiserver::encryption::fuzz_configuration(bytes));
