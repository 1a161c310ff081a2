//! See `drydock_machinery::apply::merge::fuzz_apply`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_machinery::apply::merge::fuzz_apply(bytes));
