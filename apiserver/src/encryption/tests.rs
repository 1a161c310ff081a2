//! The file, the health checks and the reload.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use drydock_storage::seal::kms::plugin::{Behaviour, Plugin};
use proptest::prelude::*;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;

const KEY: &str = "coordination.k8s.io/evictionrequests/shop/a";

/// A configuration with these elements of `resources`.
fn configuration(resources: &str) -> String {
    format!("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: {resources}\n")
}

/// One element for all resources, with these providers.
fn providers(providers: &str) -> String {
    configuration(&format!("[{{resources: ['*.*'], providers: [{providers}]}}]"))
}

fn key(provider: &str, name: &str, byte: u8, length: usize) -> String {
    use base64::Engine as _;
    let secret = base64::engine::general_purpose::STANDARD.encode(vec![byte; length]);
    format!("{{{provider}: {{keys: [{{name: {name}, secret: {secret}}}]}}}}")
}

fn refused(text: &str) -> String {
    check(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_configuration_of_the_reference_is_accepted() {
    check(
        br#"
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
  - resources: [evictionrequests.coordination.k8s.io, "*.apps"]
    providers:
      - kms: {apiVersion: v2, name: main, endpoint: "unix:///run/kms.sock", timeout: 5s}
      - aesgcm:
          keys:
            - name: key1
              secret: c2VjcmV0IGlzIHNlY3VyZQ==
            - name: key2
              secret: dGhpcyBpcyBwYXNzd29yZA==
      - identity: {}
  - resources: ["*."]
    providers:
      - aescbc: {keys: [{name: a, secret: dGhpcyBpcyBwYXNzd29yZA==}]}
  - resources: ["*.*"]
    providers:
      - secretbox:
          keys: [{name: a, secret: YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXoxMjM0NTY=}]
"#,
    )
    .unwrap();
}

#[test]
fn the_example_is_accepted() {
    check(include_bytes!("../../../deploy/encryption/encryption.yaml")).unwrap();
}

#[test]
fn what_the_reference_refuses_is_refused_in_its_words() {
    let aes = |length| key("aesgcm", "k", 1, length);
    for (text, expected) in [
        (String::new(), "the file is empty"),
        (
            "apiVersion: v1\nkind: Secret\n".to_owned(),
            "no kind \"Secret\" is registered for version \"v1\"",
        ),
        (
            configuration("[]"),
            "resources: Required value: at least one resources is required",
        ),
        (
            configuration("null"),
            "resources: Required value: at least one resources is required",
        ),
        (
            configuration("[{resources: null, providers: null}]"),
            "[resources[0].resources: Required value: at least one resources[0].resources is required, resources[0].providers: Required value: at least one resources[0].providers is required]",
        ),
        (
            configuration("[{resources: [], providers: [{identity: {}}]}]"),
            "resources[0].resources: Required value: at least one resources[0].resources is required",
        ),
        (
            configuration("[{resources: [a.b]}]"),
            "resources[0].providers: Required value: at least one resources[0].providers is required",
        ),
        (
            providers("{}"),
            "resources[0].providers[0]: Invalid value: {\"AESGCM\":null,\"AESCBC\":null,\"Secretbox\":null,\"Identity\":null,\"KMS\":null}: provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
        ),
        (
            providers("{identity: {}, aesgcm: {keys: []}}"),
            "[resources[0].providers[0]: Invalid value: \"REDACTED\": more than one provider specified in a single element, should split into different list elements, resources[0].providers[0].aesgcm.keys: Required value: at least one keys is required]",
        ),
        (
            providers("{aesgcm: {keys: []}}"),
            "resources[0].providers[0].aesgcm.keys: Required value: at least one keys is required",
        ),
        (
            providers("{secretbox: {keys: [{secret: ''}]}}"),
            "[resources[0].providers[0].secretbox.keys[0].name: Required value: name is a mandatory field for a key, resources[0].providers[0].secretbox.keys[0].secret: Required value: secret is a mandatory field for a key]",
        ),
        (
            providers("{aescbc: {keys: [{name: k, secret: '!'}]}}"),
            "resources[0].providers[0].aescbc.keys[0].secret: Invalid value: \"REDACTED\": secrets must be base64 encoded",
        ),
        (
            providers(&aes(17)),
            "resources[0].providers[0].aesgcm.keys[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 17, expected one of [16 24 32]",
        ),
        (
            providers(&key("secretbox", "k", 1, 16)),
            "resources[0].providers[0].secretbox.keys[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 16, expected one of [32]",
        ),
    ] {
        let found = refused(&text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

#[test]
fn resources_that_overlap_or_do_not_exist_are_refused() {
    for (text, expected) in [
        (
            configuration("[{resources: [a.b, a.b], providers: [{identity: {}}]}]"),
            "resources[0].resources: Invalid value: [\"a.b\",\"a.b\"]: the same resource cannot be specified multiple times",
        ),
        (
            configuration("[{resources: [a.b, '*.b'], providers: [{identity: {}}]}]"),
            "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked",
        ),
        (
            configuration("[{resources: [pods, 'pods.'], providers: [{identity: {}}]}]"),
            "resources[0].resources: Invalid value: [\"pods\",\"pods.\"]: the same resource cannot be specified multiple times",
        ),
        // A wildcard that is named twice is both, and so is '*' with anything in the core group.
        (
            configuration("[{resources: ['*.b', '*.b'], providers: [{identity: {}}]}]"),
            "[resources[0].resources: Invalid value: [\"*.b\",\"*.b\"]: the same resource cannot be specified multiple times, resources[0].resources: Invalid value: [\"*.b\",\"*.b\"]: using overlapping",
        ),
        (
            configuration("[{resources: ['*', pods], providers: [{identity: {}}]}]"),
            "[resources[0].resources: Invalid value: [\"*\",\"pods\"]: using overlapping",
        ),
        (
            configuration("[{resources: [A.b], providers: [{identity: {}}]}]"),
            "resources[0].resources[0]: Invalid value: \"A.b\": resource name should not contain capital letters",
        ),
        (
            configuration("[{resources: ['*'], providers: [{identity: {}}]}]"),
            "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
        ),
        (
            configuration("[{resources: ['a.*'], providers: [{identity: {}}]}]"),
            "encrypting the same resource across groups is not supported",
        ),
        (
            configuration(
                "[{resources: ['*.b'], providers: [{identity: {}}]}, {resources: [a.b], providers: [{identity: {}}]}]",
            ),
            "resource \"a.b\" is masked by earlier rule \"*.b\"",
        ),
        (
            configuration(
                "[{resources: ['*.*'], providers: [{identity: {}}]}, {resources: [a], providers: [{identity: {}}]}]",
            ),
            "resource \"a\" is masked by earlier rule \"*.*\"",
        ),
        (
            configuration(
                "[{resources: ['*.b'], providers: [{identity: {}}]}, {resources: ['*.b'], providers: [{identity: {}}]}]",
            ),
            "resource \"*.b\" is masked by earlier rule \"*.b\"",
        ),
        (
            configuration(
                "[{resources: ['*.*'], providers: [{identity: {}}]}, {resources: ['*.*'], providers: [{identity: {}}]}]",
            ),
            "resource \"*.*\" is masked by earlier rule \"*.*\"",
        ),
        (
            configuration(
                "[{resources: ['*.'], providers: [{identity: {}}]}, {resources: [pods], providers: [{identity: {}}]}]",
            ),
            "resource \"pods\" is masked by earlier rule \"*.\"",
        ),
    ] {
        let found = refused(&text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

#[test]
fn a_key_service_needs_a_name_and_a_socket() {
    for (members, expected) in [
        (
            "apiVersion: v2, endpoint: 'unix:///a'",
            "kms.name: Required value: name is a mandatory field for a provider",
        ),
        (
            "apiVersion: v2, name: 'a:b', endpoint: 'unix:///a'",
            "kms.name: Invalid value: \"a:b\": invalid KMS provider name a:b, must not contain ':'",
        ),
        (
            "apiVersion: v2, name: a",
            "kms.endpoint: Invalid value: \"\": endpoint is a mandatory field for a kms",
        ),
        (
            "apiVersion: v2, name: a, endpoint: 'tcp://a'",
            "unsupported scheme \"tcp\" for KMS provider, only unix is supported",
        ),
        (
            "apiVersion: v2, name: a, endpoint: 'unix:///a', timeout: 0s",
            "kms.timeout: Invalid value: \"0s\": timeout should be a positive value",
        ),
        (
            "apiVersion: v2, name: a, endpoint: 'unix:///a', cachesize: 5",
            "kms.cachesize: Invalid value: 5: cachesize is not supported in v2",
        ),
        (
            "apiVersion: v2, name: a, endpoint: 'unix:///a', timeout: soon",
            "kms.timeout: time: invalid duration \"soon\"",
        ),
        (
            "apiVersion: v3, name: 'a:b', endpoint: 'tcp://a', timeout: -1s, cachesize: 0",
            "[resources[0].providers[0].kms.name: Invalid value: \"a:b\": invalid KMS provider name a:b, must not contain ':', \
             resources[0].providers[0].kms.timeout: Invalid value: \"-1s\": timeout should be a positive value, \
             resources[0].providers[0].kms.endpoint: Invalid value: \"tcp://a\": unsupported scheme \"tcp\" for KMS provider, only unix is supported, \
             resources[0].providers[0].kms.cachesize: Invalid value: 0: cachesize is not supported in v2, \
             resources[0].providers[0].kms.apiVersion: Invalid value: \"v3\": unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported]",
        ),
        ("name: a, endpoint: 'unix:///a'", "KMSv1 is deprecated"),
        (
            "apiVersion: v3, name: a, endpoint: 'unix:///a'",
            "only v1 and v2 are supported",
        ),
    ] {
        let found = refused(&providers(&format!("{{kms: {{{members}}}}}")));
        assert!(found.contains(expected), "{members}: {found}");
    }
    let same = "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///a'}}";
    let found = refused(&providers(&format!("{same}, {same}")));
    assert!(
        found.contains("duplicate KMS provider name a, names must be unique"),
        "{found}"
    );
}

#[test]
fn secrets_are_decoded_as_go_does() {
    for secret in [
        "\"MTIzNDU2Nzg5MDEyMzQ1Ng==\"",
        "\"MTIzNDU2Nzg5MDEy\\nMzQ1Ng==\\n\"",
        "\"MTIzNDU2Nzg5MDEyMzQ1Nh==\"",
    ] {
        check(providers(&format!("{{aesgcm: {{keys: [{{name: k, secret: {secret}}}]}}}}")).as_bytes())
            .unwrap();
    }
}

#[test]
fn no_error_shows_a_key() {
    for text in [
        providers("{aesgcm: {keys: [{name: k, secret: [c2VjcmV0]}]}}"),
        providers("{aesgcm: {keys: [{name: k, secret: 'c2VjcmV0'}]}}"),
        providers("{aesgcm: {keys: [{name: k, secret: c2VjcmV0, unknown: 1}]}}"),
        providers("{aesgcm: {keys: [{name: k, secret:c2VjcmV0}]}}"),
        providers("{aesgcm: {keys: [{name: k, c2VjcmV0}]}}"),
        providers("{aesgcm: {keys: c2VjcmV0}}"),
        providers("{aesgcm: {keys: [c2VjcmV0]}}"),
        providers("{aesgcm: {keys: [{name: k, secret: c2VjcmV0}"),
    ] {
        let found = refused(&text);
        assert!(!found.contains("c2VjcmV0"), "{found}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[\\PC\n]{0,200}") {
        let _outcome = check(text.as_bytes());
        let _outcome = check(configuration(&text).as_bytes());
    }
}

async fn load(path: &Path) -> Result<Encryption, EncryptionError> {
    Encryption::load(Some(path.to_owned())).await
}

#[tokio::test]
async fn a_file_that_everybody_may_write_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("encryption.yaml");
    assert!(matches!(load(&path).await, Err(EncryptionError::Read { .. })));
    std::fs::write(&path, providers(&key("aesgcm", "k", 1, 32))).unwrap();
    for (mode, accepted) in [
        (0o600, true),
        (0o640, true),
        (0o644, true),
        (0o646, false),
        (0o666, false),
    ] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(load(&path).await.is_ok(), accepted, "{mode:o}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&path, vec![b'#'; 2 << 20]).unwrap();
    assert!(matches!(load(&path).await, Err(EncryptionError::TooLarge { .. })));
}

#[tokio::test]
async fn without_a_configuration_nothing_is_sealed_or_checked() {
    let none = Encryption::load(None).await.unwrap();
    assert!(none.check(true).is_none());
    assert!(none.seal().seal(KEY, Vec::new()).unwrap().key_id.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_key_services_are_asked_at_once() {
    use tokio::net::UnixListener;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("encryption.yaml");
    let socket = |name: &str| folder.path().join(name);
    // Longer than the test waits for the last one.
    let service = |name: &str| {
        let socket = socket(name);
        let endpoint = socket.display();
        format!("{{kms: {{apiVersion: v2, name: {name}, endpoint: 'unix://{endpoint}', timeout: 1h}}}}")
    };
    std::fs::write(&path, providers(&["a", "b", "c"].map(service).join(", "))).unwrap();
    let listeners = ["a", "b", "c"].map(|name| UnixListener::bind(socket(name)).unwrap());
    let loading = tokio::spawn(async move { load(&path).await });
    let all = async {
        let mut connections = Vec::new();
        for listener in &listeners {
            connections.push(listener.accept().await.unwrap());
        }
        connections
    };
    let connections = tokio::time::timeout(Duration::from_mins(1), all).await;
    assert_eq!(connections.map(|all| all.len()), Ok(3));
    // Now there are services that answer, so that the start ends.
    drop(listeners);
    let plugins = ["a", "b", "c"].map(|name| {
        std::fs::remove_file(socket(name)).unwrap();
        Plugin::start(&socket(name), Behaviour::default()).unwrap()
    });
    let encryption = loading.await.unwrap().unwrap();
    let (_, check) = encryption.check(false).unwrap();
    assert_eq!(check(), Ok(()));
    drop(plugins);
}

/// Advances time until the condition holds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it did not happen within a minute");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_file_is_put_into_force_and_a_bad_one_is_not() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("encryption.yaml");
    let write = |text: &str| {
        // As a Secret is mounted: the file changes at once.
        let next = folder.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, &path).unwrap();
    };
    let (old, new) = (key("aesgcm", "old", 1, 32), key("secretbox", "new", 2, 32));
    write(&providers(&old));
    let encryption = Arc::new(load(&path).await.unwrap());
    let seal = encryption.seal();
    let sealed = seal.seal(KEY, b"x".to_vec()).unwrap();
    let stopped = CancellationToken::new();
    let following = tokio::spawn(Arc::clone(&encryption).follow_file(stopped.clone()));
    let mut registry = Registry::default();
    encryption.register_metrics(&mut registry);
    let shows = |text: &str| {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        page.contains(text)
    };
    let prefix = || seal.seal(KEY, Vec::new()).unwrap().key_id;

    write(&providers("{identity: {}, secretbox: {keys: []}}"));
    until(|| shows("apiserver_encryption_config_controller_automatic_reloads_total{status=\"failure\""))
        .await;
    assert_eq!(prefix(), "k8s:enc:aesgcm:v1:old:");

    write(&providers(&format!("{new}, {old}")));
    until(|| prefix() == "k8s:enc:secretbox:v1:new:").await;
    until(|| shows("apiserver_encryption_config_controller_automatic_reloads_total{status=\"success\""))
        .await;
    assert!(seal.is_stale(KEY, &sealed.key_id, &sealed.bytes));
    seal.open(KEY, &sealed.key_id, sealed.bytes).unwrap();
    stopped.cancel();
    following.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn key_services_have_health_checks() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("encryption.yaml");
    let socket = folder.path().join("kms.sock");
    let plugin = Plugin::start(&socket, Behaviour::default()).unwrap();
    let kms = |name: &str| {
        let endpoint = plugin.endpoint();
        format!("{{kms: {{apiVersion: v2, name: {name}, endpoint: '{endpoint}', timeout: 30s}}}}")
    };
    std::fs::write(&path, providers(&format!("{}, {}", kms("one"), kms("two")))).unwrap();
    let encryption = load(&path).await.unwrap();
    for is_reloaded in [true, false] {
        let (name, probe) = encryption.check(is_reloaded).unwrap();
        assert_eq!((name, probe()), ("kms-providers", Ok(())));
    }
    plugin.change(|it| it.healthz = "broken".to_owned());
    for kms in encryption.configured.as_ref().unwrap().sealer.key_services() {
        tokio::task::spawn_blocking(move || kms.ask()).await.unwrap();
    }
    let text = |number: usize, name: &str| {
        format!(
            "kms-provider-{number}: kmsv2 Provider {name} is not healthy, error: got unexpected healthz status: broken"
        )
    };
    let (_, probe) = encryption.check(false).unwrap();
    assert_eq!(probe(), Err(format!("[{}, {}]", text(0, "one"), text(1, "two"))));
    // Without a service there is a check only where a reload may bring one.
    std::fs::write(&path, providers("{identity: {}}")).unwrap();
    let encryption = load(&path).await.unwrap();
    assert!(encryption.check(false).is_none());
    assert_eq!(encryption.check(true).unwrap().1(), Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_service_is_one_whatever_the_number_of_resources() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("encryption.yaml");
    let plugin = Plugin::start(&folder.path().join("kms.sock"), Behaviour::default()).unwrap();
    let endpoint = plugin.endpoint();
    let text = configuration(&format!(
        "[{{resources: [a.b, c.d, '*.e'], providers: [{{kms: {{apiVersion: v2, name: one, endpoint: '{endpoint}', timeout: 30s}}}}]}}]"
    ));
    std::fs::write(&path, text).unwrap();
    let encryption = load(&path).await.unwrap();
    assert_eq!(
        encryption
            .configured
            .as_ref()
            .unwrap()
            .sealer
            .key_services()
            .len(),
        1
    );
    assert_eq!(plugin.behaviour().calls, [1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_service_that_does_not_seal_is_not_put_into_force() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("encryption.yaml");
    let behaviour = Behaviour {
        fails_to_encrypt: true,
        ..Behaviour::default()
    };
    let plugin = Plugin::start(&folder.path().join("kms.sock"), behaviour).unwrap();
    std::fs::write(&path, providers(&key("aesgcm", "old", 1, 32))).unwrap();
    let encryption = load(&path).await.unwrap();
    let endpoint = plugin.endpoint();
    let kms = format!("{{kms: {{apiVersion: v2, name: one, endpoint: '{endpoint}', timeout: 30s}}}}");
    std::fs::write(&path, providers(&kms)).unwrap();
    let configured = encryption.configured.as_ref().unwrap();
    let refused = configured
        .reload(&configured.digest, &CancellationToken::new())
        .await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("failed to encrypt DEK"), "{refused}");
    let prefix = || encryption.seal().seal(KEY, Vec::new()).unwrap().key_id;
    assert_eq!(prefix(), "k8s:enc:aesgcm:v1:old:");
    plugin.change(|it| it.fails_to_encrypt = false);
    let reloaded = configured
        .reload(&configured.digest, &CancellationToken::new())
        .await;
    assert!(reloaded.unwrap().is_some());
    assert_eq!(prefix(), "k8s:enc:kms:v2:one:");
}
