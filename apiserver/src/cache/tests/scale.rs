//! Memory and speed, printed. Ignored by default: `cargo test --release -- --ignored --nocapture`.
