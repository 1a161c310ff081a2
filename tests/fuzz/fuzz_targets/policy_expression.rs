//! See `drydock_machinery::policy_expression::fuzz_evaluate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drydock_machinery::policy_expression::fuzz_evaluate(bytes));
