//! See `drydock_machinery::apply::field_set::fuzz_decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_machinery::apply::field_set::fuzz_decode(bytes));
