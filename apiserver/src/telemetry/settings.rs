//! The settings of log and traces, and the file of the latter.

use std::path::{Path, PathBuf};

use serde::Deserialize;

const API_VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];
const KIND: &str = "TracingConfiguration";
const DEFAULT_ENDPOINT: &str = "localhost:4317";
const MILLION: u32 = 1_000_000;

/// Settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Form of a line.
    pub format: LogFormat,
    /// Filter directives, such as `info` or `drydock_apiserver=debug,info`.
    pub level: String,
}

/// Form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Where spans are sent, and of how many requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingSettings {
    /// `HOST:PORT` of a collector that speaks OTLP over gRPC without TLS.
    pub endpoint: String,
    /// Of a million requests without a sampled parent, how many have spans.
    pub per_million: u32,
}

/// Why a file with a tracing configuration is rejected.
#[derive(Debug, thiserror::Error)]
pub enum TracingFileError {
    /// It cannot be read.
    #[error("cannot read the tracing configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not valid.
    #[error("the tracing configuration {path} is invalid: {text}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, on one line.
        text: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TracingFile {
    api_version: String,
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i64>,
}

impl TracingSettings {
    /// Reads a `TracingConfiguration` of `apiserver.config.k8s.io/v1`.
    ///
    /// # Errors
    /// [`TracingFileError`].
    pub fn read(path: &Path) -> Result<Self, TracingFileError> {
        let text = std::fs::read_to_string(path).map_err(|source| TracingFileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|text| TracingFileError::Invalid {
            path: path.to_owned(),
            text,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: TracingFile = serde_saphyr::from_str(text)
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
        if !API_VERSIONS.contains(&file.api_version.as_str()) || file.kind != KIND {
            return Err(format!(
                "it must have apiVersion {} and kind {KIND}, not {:?} and {:?}",
                API_VERSIONS[0], file.api_version, file.kind
            ));
        }
        let rate = file.sampling_rate_per_million.unwrap_or(0);
        let per_million = u32::try_from(rate)
            .ok()
            .filter(|rate| *rate <= MILLION)
            .ok_or_else(|| {
                format!("samplingRatePerMillion: Invalid value: {rate}: must be between 0 and {MILLION}")
            })?;
        let endpoint = file.endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let address = endpoint.strip_prefix("dns:///").unwrap_or(&endpoint);
        let is_address = address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        });
        if !is_address {
            return Err(format!(
                "endpoint: Invalid value: {endpoint:?}: must be HOST:PORT"
            ));
        }
        Ok(Self {
            endpoint: address.to_owned(),
            per_million,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";

    #[test]
    fn the_file_has_the_format_of_the_reference() {
        for (rest, endpoint, per_million) in [
            ("", DEFAULT_ENDPOINT, 0),
            (
                "endpoint: otel.tracing.svc:4317\nsamplingRatePerMillion: 100",
                "otel.tracing.svc:4317",
                100,
            ),
            (
                "endpoint: dns:///otel:4317\nsamplingRatePerMillion: 1000000",
                "otel:4317",
                MILLION,
            ),
            ("endpoint: \"[::1]:4317\"", "[::1]:4317", 0),
        ] {
            let expected = TracingSettings {
                endpoint: endpoint.to_owned(),
                per_million,
            };
            assert_eq!(
                TracingSettings::parse(&format!("{HEAD}{rest}")),
                Ok(expected),
                "{rest}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_valid_is_rejected() {
        for (text, expected) in [
            ("", ""),
            ("kind: TracingConfiguration", "apiVersion"),
            (
                "apiVersion: v1\nkind: TracingConfiguration",
                "not \"v1\" and \"TracingConfiguration\"",
            ),
            (&format!("{HEAD}sampling: 1"), "sampling"),
            (
                &format!("{HEAD}samplingRatePerMillion: -1"),
                "must be between 0 and 1000000",
            ),
            (
                &format!("{HEAD}samplingRatePerMillion: 1000001"),
                "must be between 0 and 1000000",
            ),
            (&format!("{HEAD}endpoint: collector"), "must be HOST:PORT"),
            (
                &format!("{HEAD}endpoint: http://collector:4317"),
                "must be HOST:PORT",
            ),
        ] {
            let error = TracingSettings::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = TracingSettings::read(Path::new("/nowhere/tracing.yaml")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the tracing configuration /nowhere/tracing.yaml"
        );
    }
}
