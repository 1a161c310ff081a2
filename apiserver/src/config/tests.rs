use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{CommandFactory as _, Subcommand};

use super::*;
use crate::{
    filters::InFlightLimits,
    host::{kube::AuthenticationOverrides, reviews::ReviewTtls},
};

/// A program with the commands of this crate.
#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<ServeFlags>),
    Other {
        #[arg(long, env)]
        of_other: Option<String>,
    },
    #[command(subcommand)]
    Storage(StorageCommand),
}

impl CommandLine for Line {
    fn config_file(&self) -> Option<&Path> {
        match &self.command {
            Command::Serve(flags) => flags.config_file(),
            Command::Other { .. } | Command::Storage(_) => None,
        }
    }
}

fn parse(arguments: &[&str]) -> Result<Command, ConfigError> {
    let line: Line = super::parse(
        std::iter::once("drydock-apiserver")
            .chain(arguments.iter().copied())
            .map(OsString::from)
            .collect(),
    )?;
    Ok(line.command)
}

const PAIR: [&str; 3] = ["serve", "--tls-cert-file=c", "--tls-private-key-file=k"];

fn serve(flags: &[&str]) -> Result<ServeConfig, ConfigError> {
    serve_with(&[&PAIR, flags].concat())
}

fn serve_with(arguments: &[&str]) -> Result<ServeConfig, ConfigError> {
    match parse(arguments)? {
        Command::Serve(flags) => flags.validated(),
        other => panic!("{other:?}"),
    }
}

fn error_text(flags: &[&str]) -> String {
    serve(flags).unwrap_err().to_string()
}

fn clap_exit(error: ConfigError) -> i32 {
    match error {
        ConfigError::Flags(error) => error.exit_code(),
        other => panic!("{other}"),
    }
}

#[test]
fn defaults_are_those_of_the_go_servers() {
    let config = serve(&[]).unwrap();
    assert_eq!(config.server.address, SocketAddr::from(([0, 0, 0, 0], 443)));
    assert_eq!(
        config.server.limits,
        InFlightLimits {
            reading: 400,
            mutating: 200
        }
    );
    assert_eq!(config.server.request_timeout, Duration::from_mins(1));
    assert_eq!(config.server.review_ttls, ReviewTtls::default());
    assert_eq!(
        config.server.always_allow_paths,
        ["/healthz", "/readyz", "/livez"]
    );
    assert_eq!(config.server.storage.durability, Durability::Strict);
    assert_eq!(config.server.storage.object_bytes_limit, 3 << 29);
    assert_eq!(config.authentication, AuthenticationOverrides::default());
    assert!(!config.host.skip_lookup);
}

#[test]
fn flags_are_parsed_into_settings() {
    let config = serve(&[
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--requestheader-client-ca-file=ca",
        "--requestheader-allowed-names=a,b",
        "--storage-durability=relaxed=50ms",
        "--shutdown-delay-duration=1m10s",
        "--authentication-skip-lookup",
        "--log-format=json",
    ])
    .unwrap();
    assert_eq!(config.server.address, SocketAddr::from(([127, 0, 0, 1], 0)));
    let front_proxy = config.authentication.request_header.unwrap();
    assert_eq!(front_proxy.allowed_names, ["a", "b"]);
    assert_eq!(front_proxy.username_headers, ["x-remote-user"]);
    assert_eq!(front_proxy.uid_headers, [""; 0]);
    assert_eq!(
        config.server.storage.durability,
        Durability::Relaxed(Duration::from_millis(50))
    );
    assert_eq!(config.server.shutdown_delay, Duration::from_secs(70));
    assert!(config.host.skip_lookup);
    assert_eq!(config.server.log.format, crate::telemetry::LogFormat::Json);
}

#[test]
fn byte_counts_may_have_suffixes() {
    for (text, expected) in [
        ("0", 0),
        ("1500", 1500),
        ("2Ki", 2 << 10),
        ("3Mi", 3 << 20),
        ("4Gi", 4 << 30),
    ] {
        let flag = format!("--storage-object-bytes-limit={text}");
        let config = serve(&[&flag]).unwrap();
        assert_eq!(config.server.storage.object_bytes_limit, expected, "{text}");
    }
    let config = with_file("storageObjectBytesLimit: 5Mi\n", &[]).unwrap();
    assert_eq!(config.server.storage.object_bytes_limit, 5 << 20);
}

#[test]
fn etcd_is_chosen_with_the_flags_of_kube_apiserver() {
    assert_eq!(storage(&[]).etcd, None);
    let flags = [
        "--storage-backend=etcd",
        "--etcd-servers=https://a:2379,https://b:2379",
        "--etcd-cafile=ca",
        "--etcd-certfile=c",
        "--etcd-keyfile=k",
        "--etcd-prefix=/mine",
        "--etcd-compaction-interval=0",
    ];
    let expected = EtcdConfig {
        servers: vec!["https://a:2379".to_owned(), "https://b:2379".to_owned()],
        files: EtcdFiles {
            ca: Some("ca".into()),
            certificate: Some("c".into()),
            key: Some("k".into()),
        },
        prefix: "/mine".to_owned(),
        compaction_interval: Duration::ZERO,
    };
    assert_eq!(storage(&flags).etcd, Some(expected));
    let file = "storageBackend: etcd\netcdServers: [http://a:2379]\n";
    let etcd = with_file(file, &[]).unwrap().server.storage.etcd.unwrap();
    assert_eq!(etcd.servers, ["http://a:2379"]);
    assert_eq!(etcd.prefix, "/registry/drydock");
    assert_eq!(etcd.compaction_interval, Duration::from_mins(5));
}

#[test]
fn invalid_values_are_reported_in_one_line() {
    for (flags, text) in [
        (
            &["--storage-backend=etcd"][..],
            "--etcd-servers: is needed with --storage-backend=etcd",
        ),
        (
            &["--etcd-servers=http://a:2379"],
            "--etcd-servers: needs --storage-backend=etcd",
        ),
        (
            &[
                "--storage-backend=etcd",
                "--etcd-servers=https://a",
                "--etcd-keyfile=k",
            ],
            "--etcd-certfile: needs --etcd-keyfile, and the reverse",
        ),
        (
            &["--request-timeout=0s"],
            "--request-timeout: must be at least 1s",
        ),
        (
            &["--authorization-always-allow-paths=x"],
            "--authorization-always-allow-paths: \"x\" does not start with /",
        ),
        (
            &["--requestheader-uid-headers=a b"],
            "--requestheader-uid-headers: \"a b\" is not a header name",
        ),
    ] {
        assert_eq!(error_text(flags), text);
    }
    for flags in [
        "--secure-port=70000",
        "--shutdown-delay-duration=soon",
        "--storage-durability=lax",
        "--storage-object-bytes-limit=1G",
        "--storage-object-bytes-limit=-1",
        "--storage-object-bytes-limit=Mi",
        "--storage-object-bytes-limit=18446744073709551615Ki",
        "--nope",
    ] {
        assert_eq!(clap_exit(serve(&[flags]).unwrap_err()), 2, "{flags}");
    }
    let lonely = serve_with(&["serve", "--tls-cert-file=c"])
        .unwrap_err()
        .to_string();
    assert_eq!(lonely, "--tls-private-key-file: is needed with --tls-cert-file");
    assert!(
        serve_with(&["serve"])
            .unwrap_err()
            .to_string()
            .contains("are needed to serve")
    );
    assert_eq!(clap_exit(parse(&["--help"]).unwrap_err()), 0);
}

fn file_with(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn with_file(text: &str, flags: &[&str]) -> Result<ServeConfig, ConfigError> {
    let (_folder, path) = file_with(text);
    serve(&[&[format!("--config={}", path.display()).as_str()], flags].concat())
}

#[test]
fn flags_override_the_file_and_the_file_overrides_defaults() {
    let text = "securePort: 6443\nrequestTimeout: 30s\nallowedReservedNames: [a.k8s.io, b.k8s.io]\nauthenticationSkipLookup: true\nofOther: ignored-by-serve\n";
    let config = with_file(text, &["--request-timeout=20s"]).unwrap();
    assert_eq!(config.server.address.port(), 6443);
    assert_eq!(config.server.request_timeout, Duration::from_secs(20));
    assert_eq!(config.server.allowed_reserved_names, ["a.k8s.io", "b.k8s.io"]);
    assert!(config.host.skip_lookup);
}

#[test]
fn unknown_members_of_the_file_are_rejected() {
    let error = with_file("securPort: 1\n", &[]).unwrap_err();
    assert!(matches!(error, ConfigError::File { .. }));
    assert!(error.to_string().contains("securPort"), "{error}");
    assert!(matches!(
        with_file("securePort: many\n", &[]),
        Err(ConfigError::File { .. })
    ));
    let absent = serve(&["--config=/nowhere/at/all"]).unwrap_err();
    assert!(matches!(absent, ConfigError::Read { .. }));
}

#[test]
fn storage_commands_take_the_storage_flags_of_the_server() {
    let backup = |flags: &[&str]| match parse(&[&["storage", "backup", "--data-dir=/d"], flags].concat()) {
        Ok(Command::Storage(StorageCommand::Backup { store, target, keep })) => {
            Ok((store.validated().unwrap(), target, keep))
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(clap_exit(error)),
    };
    let (store, target, keep) = backup(&["--to=/b"]).unwrap();
    // The storage commands never run periodic checks.
    assert_eq!(store, storage(&["--data-dir=/d", "--storage-check-interval=0s"]));
    assert_eq!(
        (target.to, target.incremental_to, keep),
        (Some("/b".into()), None, 0)
    );
    let flags = [
        "--storage-any-file-system",
        "--history-window=1m",
        "--storage-durability=relaxed=1s",
    ];
    let (store, target, _) = backup(&[&["--incremental-to=/c"], &flags[..]].concat()).unwrap();
    assert!(store.any_file_system);
    let never = ["--data-dir=/d", "--storage-check-interval=0s"];
    assert_eq!(store, storage(&[&never, &flags[..]].concat()));
    assert_eq!(storage(&[]).check_interval, Duration::from_hours(24 * 7));
    assert_eq!((target.to, target.incremental_to), (None, Some("/c".into())));
    assert_eq!(backup(&[]).unwrap_err(), 2);
    assert_eq!(backup(&["--to=/b", "--incremental-to=/c"]).unwrap_err(), 2);
    let removal = parse(&["storage", "remove-damaged", "--data-dir=/d", "g/r/n/name"]).unwrap();
    let Command::Storage(StorageCommand::RemoveDamaged { store, key }) = removal else {
        panic!("{removal:?}");
    };
    let never = ["--data-dir=/d", "--storage-check-interval=0s"];
    assert_eq!(store.validated().unwrap(), storage(&never));
    assert_eq!(key, "g/r/n/name");
    assert!(parse(&["storage"]).is_err());
}

/// The storage settings of a server with these flags.
fn storage(flags: &[&str]) -> StorageConfig {
    serve(flags).unwrap().server.storage
}

#[test]
fn every_flag_has_an_environment_variable_and_a_member_in_the_file() {
    let command = Line::command();
    let serve = command.find_subcommand("serve").unwrap();
    for argument in serve
        .get_arguments()
        .filter(|argument| argument.get_long() != Some("help"))
    {
        let flag = argument.get_long().unwrap();
        let variable = format!("DRYDOCK_{}", flag.replace('-', "_").to_uppercase());
        assert_eq!(argument.get_env().unwrap().to_str(), Some(variable.as_str()));
        if flag == "config" {
            continue;
        }
        let mut member = String::new();
        for (index, word) in flag.split('-').enumerate() {
            let (first, rest) = word.split_at(1);
            member.push_str(&if index == 0 {
                first.to_owned()
            } else {
                first.to_uppercase()
            });
            member.push_str(rest);
        }
        let (_folder, path) = file_with(&format!("{member}:\n"));
        assert_eq!(file::read(&path, &command).unwrap(), [], "{member}");
    }
}

#[test]
fn members_are_read_as_the_type_of_their_flag() {
    let config = with_file("# nothing\n", &[]).unwrap();
    assert_eq!(config, serve(&[]).unwrap());
    let config = with_file(
        "logLevel: off\nauthenticationSkipLookup: yes\nlogFormat: json\n",
        &[],
    )
    .unwrap();
    assert_eq!(config.server.log.level, "off");
    assert_eq!(config.server.log.format, crate::telemetry::LogFormat::Json);
    assert!(config.host.skip_lookup);
    for text in [
        "securePort: 70000\n",
        "historyWindow: soon\n",
        "logFormat: xml\n",
        "allowedReservedNames: a.k8s.io\n",
        "kubeconfig: [a]\n",
        "config: other.yaml\n",
        "help: true\n",
        "secure-port: 1\n",
        "securePort: 1\nsecurePort: 2\n",
    ] {
        let error = with_file(text, &[]).unwrap_err();
        assert!(matches!(error, ConfigError::File { .. }), "{text}: {error}");
    }
}
