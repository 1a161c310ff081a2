//! See `drydock_machinery::patch::strategic::fuzz_apply`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_machinery::patch::strategic::fuzz_apply(bytes));
