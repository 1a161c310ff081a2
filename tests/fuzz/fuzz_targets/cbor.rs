//! See `drydock_machinery::codec::cbor::fuzz_decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_machinery::codec::cbor::fuzz_decode(bytes));
