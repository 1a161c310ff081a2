//! The running build: `/version`, with the members that Kubernetes clients parse.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde::Serialize;

/// The Kubernetes release whose behaviour this server follows, then its own version; clients parse `vX.Y.Z`.
pub const GIT_VERSION: &str = concat!("v1.37.0-drydock.", env!("CARGO_PKG_VERSION"));

/// Operating system and architecture, as Go names them: `linux/amd64`.
#[must_use]
pub fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the names clients parse")]
#[serde(rename_all = "camelCase")]
struct Version {
    major: &'static str,
    minor: &'static str,
    git_version: &'static str,
    git_commit: &'static str,
    git_tree_state: &'static str,
    build_date: &'static str,
    go_version: &'static str,
    compiler: &'static str,
    platform: String,
}

/// The response to `GET /version`.
#[must_use]
pub fn respond() -> Response<Bytes> {
    let version = Version {
        major: "1",
        minor: "37",
        git_version: GIT_VERSION,
        git_commit: option_env!("DRYDOCK_GIT_COMMIT").unwrap_or("unknown"),
        git_tree_state: option_env!("DRYDOCK_GIT_TREE_STATE").unwrap_or("unknown"),
        build_date: option_env!("DRYDOCK_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z"),
        go_version: concat!("rust", env!("CARGO_PKG_RUST_VERSION")),
        compiler: "rustc",
        platform: platform(),
    };
    // Encoding a struct of strings cannot fail.
    let body = serde_json::to_vec_pretty(&version).unwrap_or_default();
    let mut response = Response::new(Bytes::from(body));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_can_parse_the_version() {
        let body = respond().into_body();
        let version: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert!(
            version["gitVersion"]
                .as_str()
                .unwrap()
                .starts_with("v1.37.0-drydock.")
        );
        assert_eq!(version["major"], "1");
        assert!(body.starts_with(b"{\n  \"major\""));
    }
}
