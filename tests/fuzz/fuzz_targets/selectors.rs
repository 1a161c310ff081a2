//! See `drydock_machinery::selector::fuzz_parse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_machinery::selector::fuzz_parse(bytes));
