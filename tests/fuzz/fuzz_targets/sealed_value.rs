//! See `drydock_apiserver::encryption::fuzz_sealed_value`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_apiserver::encryption::fuzz_sealed_value(bytes));
