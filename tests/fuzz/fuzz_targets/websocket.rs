//! See `drydock_machinery::websocket::fuzz_receive`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_machinery::websocket::fuzz_receive(bytes));
