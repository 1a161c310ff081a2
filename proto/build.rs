//! Generates Rust types for the storage records from `record.proto`, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let file = "proto/storage/v1/record.proto";
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
