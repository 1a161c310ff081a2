//! The service, behind a plugin on a socket.

use std::sync::atomic::AtomicU64;

use tempfile::TempDir;

use super::plugin::{Behaviour, Plugin};
use super::*;

const KEY: &str = "g/r/n/a";

/// A clock that tests advance, in milliseconds.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Clock for Hand {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Hand {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::Relaxed);
    }
}

struct Scene {
    folder: TempDir,
    clock: Hand,
    generation: Arc<AtomicU64>,
}

impl Scene {
    fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            clock: Hand::default(),
            generation: Arc::default(),
        }
    }

    fn plugin(&self, behaviour: Behaviour) -> Plugin {
        Plugin::start(&self.folder.path().join("kms.sock"), behaviour).unwrap()
    }

    /// Not asked yet. No thread asks, so that every test decides when.
    fn kms(&self, timeout: Duration) -> Kms {
        let options = KmsOptions {
            name: "main".to_owned(),
            endpoint: Endpoint::Path(self.folder.path().join("kms.sock")),
            timeout,
        };
        let metrics = SealMetrics::new("here");
        let client = Client::new(options, metrics.clone()).unwrap();
        let generation = Arc::clone(&self.generation);
        Kms::over(
            "main",
            Box::new(client),
            generation,
            Arc::new(self.clock.clone()),
            metrics,
        )
    }

    fn asked(&self) -> Kms {
        let kms = self.kms(LONG);
        kms.ask();
        assert_eq!(kms.trouble(), None);
        kms
    }
}

/// For plugins that answer.
const LONG: Duration = Duration::from_mins(1);
/// For those that do not.
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn one_call_seals_any_number_of_values_and_each_has_a_key_of_its_own() {
    let scene = Scene::new();
    let plugin = scene.plugin(Behaviour::default());
    let kms = scene.asked();
    let sealed: Vec<_> = (0..3).map(|_| kms.seal(KEY, b"plain").unwrap()).collect();
    assert_ne!(sealed[0], sealed[1]);
    for one in &sealed {
        assert_eq!(kms.open(KEY, one).unwrap(), b"plain");
        assert!(!kms.is_stale(one));
        assert!(kms.open("g/r/n/b", one).is_err(), "bound to the key");
    }
    assert_eq!(plugin.behaviour().calls, [1, 1, 1]);

    // Another process asks once for the seed.
    let other = scene.asked();
    for one in &sealed {
        assert_eq!(other.open(KEY, one).unwrap(), b"plain");
        assert!(!other.is_stale(one));
    }
    assert_eq!(plugin.behaviour().calls, [2, 2, 3]);
    // A day after its last use the seed is forgotten, when another one comes.
    scene.clock.advance(KEEP_AND_MORE);
    plugin.change(|it| it.key_id = "key-2".to_owned());
    other.ask();
    assert_eq!(other.seeds.count(), 1);
    assert_eq!(other.open(KEY, &sealed[0]).unwrap(), b"plain");
    assert_eq!(plugin.behaviour().calls[2], 5);
}

const KEEP_AND_MORE: Duration = Duration::from_hours(25);

#[test]
fn an_older_value_opens_and_is_stale() {
    let scene = Scene::new();
    let _plugin = scene.plugin(Behaviour::default());
    let kms = scene.asked();
    // Type 0: the source is the key itself.
    let key = vec![5; 32];
    let source = kms.service.encrypt(&key).unwrap();
    let cipher = Cipher::new(CipherKind::AesGcm, &key).unwrap();
    let object = EncryptedObject {
        encrypted_data: cipher.seal(KEY.as_bytes(), b"old".to_vec()).unwrap(),
        key_id: source.key_id,
        encrypted_dek_source: source.ciphertext,
        annotations: source.annotations,
        encrypted_dek_source_type: EncryptedDekSourceType::AesGcmKey.into(),
    };
    let sealed = envelope::encode(&object);
    assert_eq!(kms.open(KEY, &sealed).unwrap(), b"old");
    assert!(kms.is_stale(&sealed));
}

#[test]
fn another_key_makes_values_stale_and_what_it_seals_is_fresh() {
    let scene = Scene::new();
    let plugin = scene.plugin(Behaviour::default());
    let kms = scene.asked();
    let generation = scene.generation.load(Ordering::Relaxed);
    let old = kms.seal(KEY, b"old").unwrap();
    plugin.change(|it| it.key_id = "key-2".to_owned());
    kms.ask();
    assert!(kms.is_stale(&old));
    assert_eq!(kms.open(KEY, &old).unwrap(), b"old");
    let new = kms.seal(KEY, b"new").unwrap();
    assert!(!kms.is_stale(&new));
    assert!(scene.generation.load(Ordering::Relaxed) > generation);
    assert_eq!(plugin.behaviour().calls, [2, 2, 2]);

    // It names a key that it does not seal with, or fails: the seed stays, and is not extended.
    for change in [
        (|it| (it.key_id, it.encrypt_key_id) = ("key-3".to_owned(), Some("key-2".to_owned())))
            as fn(&mut Behaviour),
        |it| (it.encrypt_key_id, it.fails_to_encrypt) = (None, true),
        |it| (it.fails_to_encrypt, it.padding) = (false, 1024),
        |it| {
            it.padding = 0;
            it.annotations = [("nodots".to_owned(), Vec::new())].into();
        },
        |it| it.annotations = [("a.example.com".to_owned(), vec![0; 33 << 10])].into(),
    ] {
        plugin.change(change);
        kms.ask();
        let trouble = kms.trouble().unwrap();
        assert!(
            trouble.starts_with("kmsv2 Provider main is not healthy, error: failed to rotate DEK: "),
            "{trouble}"
        );
        assert!(!kms.is_stale(&new), "{:?}", plugin.behaviour());
        kms.seal(KEY, b"").unwrap();
    }
    scene.clock.advance(SEAL_FOR + Duration::from_secs(1));
    kms.ask();
    let error = kms.seal(KEY, b"").unwrap_err();
    assert!(
        error.starts_with("encryptedDEKSource with keyID hash \"sha256:")
            && error.ends_with("expired at 1970-01-01T00:03:00Z (current time is 1970-01-01T00:03:01Z)"),
        "{error}"
    );
    plugin.change(|it| it.annotations.clear());
    kms.ask();
    kms.seal(KEY, b"").unwrap();
    assert!(kms.is_stale(&new));
}

#[test]
fn without_the_plugin_known_seeds_open_and_values_are_sealed_for_three_minutes() {
    let scene = Scene::new();
    let plugin = scene.plugin(Behaviour::default());
    let kms = scene.kms(SHORT);
    // Its first answer may take longer than the deadline of the others.
    while kms.trouble().is_some() {
        kms.ask();
    }
    let sealed = kms.seal(KEY, b"plain").unwrap();
    drop(plugin);
    kms.ask();
    let trouble = kms.trouble().unwrap();
    assert!(
        trouble.starts_with("failed to perform status section of the healthz check for KMS Provider main, error: rpc error: code = Unavailable"),
        "{trouble}"
    );
    scene.clock.advance(SEAL_FOR);
    kms.seal(KEY, b"").unwrap();
    scene.clock.advance(Duration::from_millis(1));
    assert!(kms.seal(KEY, b"").unwrap_err().contains("expired at"));
    assert_eq!(kms.open(KEY, &sealed).unwrap(), b"plain");

    let generation = scene.generation.load(Ordering::Relaxed);
    let _plugin = scene.plugin(Behaviour::default());
    while kms.trouble().is_some() {
        kms.ask();
    }
    kms.seal(KEY, b"").unwrap();
    assert!(scene.generation.load(Ordering::Relaxed) > generation);
}

#[test]
fn before_the_first_good_status_nothing_is_sealed_or_opened_and_nothing_waits() {
    let scene = Scene::new();
    let sealed = {
        let _plugin = scene.plugin(Behaviour::default());
        scene.asked().seal(KEY, b"plain").unwrap()
    };
    let kms = scene.kms(LONG);
    assert!(kms.trouble().is_some());
    let error = "got unexpected nil transformer".to_owned();
    assert_eq!(kms.seal(KEY, b""), Err(error.clone()));
    assert_eq!(kms.open(KEY, &sealed), Err(error));
    let _plugin = scene.plugin(Behaviour::default());
    kms.ask();
    assert_eq!(kms.open(KEY, &sealed).unwrap(), b"plain");
}

#[test]
fn a_service_that_does_not_seal_or_open_is_not_well() {
    let right = Behaviour::default;
    for (behaviour, why) in [
        (
            Behaviour {
                fails_to_encrypt: true,
                ..right()
            },
            "failed to encrypt DEK, error: rpc error: code = Internal desc = told to fail",
        ),
        (
            Behaviour {
                fails_to_decrypt: true,
                ..right()
            },
            "failed to decrypt DEK, error: rpc error: code = Internal desc = told to fail",
        ),
        (
            Behaviour {
                decrypts_to: Some(vec![1; 32]),
                ..right()
            },
            "the service returned another DEK than it was given",
        ),
    ] {
        let scene = Scene::new();
        let plugin = scene.plugin(behaviour);
        let kms = scene.kms(LONG);
        kms.ask();
        let trouble = kms.trouble().unwrap_or_default();
        assert!(
            trouble.starts_with(&format!(
                "kmsv2 Provider main is not healthy, error: failed to rotate DEK: {why}, statusKeyIDHash=\"sha256:"
            )),
            "{trouble}"
        );
        kms.seal(KEY, b"").unwrap_err();
        plugin.change(|it| *it = right());
        kms.ask();
        assert_eq!(kms.trouble(), None);
        kms.seal(KEY, b"").unwrap();
    }
}

#[test]
fn a_seed_that_the_plugin_does_not_open_is_asked_for_ever_more_rarely() {
    let scene = Scene::new();
    let plugin = scene.plugin(Behaviour::default());
    let sealed = scene.asked().seal(KEY, b"plain").unwrap();
    let kms = scene.asked();
    plugin.change(|it| it.fails_to_decrypt = true);
    let refused = || {
        for _ in 0..10 {
            assert_eq!(
                kms.open(KEY, &sealed).unwrap_err(),
                "failed to decrypt DEK, error: rpc error: code = Internal desc = told to fail"
            );
        }
        // Two of them belong to the starts.
        plugin.behaviour().calls[2] - 2
    };
    for (after, calls) in [(0, 1), (1, 2), (1, 2), (1, 3), (3, 3), (1, 4), (7, 4), (1, 5)] {
        scene.clock.advance(Duration::from_secs(after));
        assert_eq!(refused(), calls, "after {after} s");
    }
    plugin.change(|it| it.fails_to_decrypt = false);
    // At most after a minute.
    scene.clock.advance(Duration::from_mins(1));
    assert_eq!(kms.open(KEY, &sealed).unwrap(), b"plain");
    assert_eq!(plugin.behaviour().calls[2], 8);
}

#[test]
fn a_wrong_seed_is_not_kept() {
    for wrong in [vec![], vec![1; 31], vec![1; 32]] {
        let scene = Scene::new();
        let plugin = scene.plugin(Behaviour::default());
        let sealed = scene.asked().seal(KEY, b"plain").unwrap();
        let kms = scene.asked();
        plugin.change(|it| it.decrypts_to = Some(wrong.clone()));
        for _ in 0..10 {
            kms.open(KEY, &sealed).unwrap_err();
        }
        assert_eq!(plugin.behaviour().calls[2], 3, "asked for once");
        plugin.change(|it| it.decrypts_to = None);
        scene.clock.advance(Duration::from_secs(1));
        assert_eq!(kms.open(KEY, &sealed).unwrap(), b"plain", "{wrong:?}");
        // From now on it is known.
        drop(plugin);
        scene.clock.advance(Duration::from_hours(1));
        assert_eq!(kms.open(KEY, &sealed).unwrap(), b"plain");
    }
}

/// A wrong seed of the right length was asked for once a second, without end.
#[test]
fn a_wrong_seed_is_asked_for_ever_more_rarely() {
    let scene = Scene::new();
    let plugin = scene.plugin(Behaviour::default());
    let sealed = scene.asked().seal(KEY, b"plain").unwrap();
    let kms = scene.asked();
    plugin.change(|it| it.decrypts_to = Some(vec![1; 32]));
    for (after, calls) in [(0, 1), (1, 2), (1, 2), (1, 3), (3, 3), (1, 4), (7, 4), (1, 5)] {
        scene.clock.advance(Duration::from_secs(after));
        for _ in 0..10 {
            kms.open(KEY, &sealed).unwrap_err();
        }
        // Two of them belong to the starts.
        assert_eq!(plugin.behaviour().calls[2] - 2, calls, "after {after} s");
    }
    plugin.change(|it| it.decrypts_to = None);
    scene.clock.advance(Duration::from_mins(1));
    assert_eq!(kms.open(KEY, &sealed).unwrap(), b"plain");
}

#[test]
fn a_value_that_was_changed_does_not_spoil_its_seed() {
    let scene = Scene::new();
    let plugin = scene.plugin(Behaviour::default());
    let writer = scene.asked();
    let good = writer.seal(KEY, b"plain").unwrap();
    let moved = writer.seal("g/r/n/other", b"plain").unwrap();
    let kms = scene.asked();
    kms.open(KEY, &moved).unwrap_err();
    assert_eq!(kms.open(KEY, &good).unwrap(), b"plain");
    kms.open(KEY, &moved).unwrap_err();
    assert_eq!(
        plugin.behaviour().calls[2],
        3,
        "one for each start, one for the seed"
    );
}

/// A service without a process: seals by turning bits over.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    /// How calls of Status, Encrypt and Decrypt fail.
    fails: [Option<CallError>; 3],
    calls: [u32; 3],
    /// What Status says, if not "ok", and the key it names, if not "key".
    healthz: Option<String>,
    key_id: Option<String>,
}

impl Scripted {
    fn call(&self, method: usize) -> Result<(), CallError> {
        let mut script = lock(&self.0);
        script.calls[method] += 1;
        script.fails[method].clone().map_or(Ok(()), Err)
    }

    fn decrypt_calls(&self) -> u32 {
        lock(&self.0).calls[2]
    }

    /// No call gets an answer.
    fn cut_off(&self, methods: &[usize]) {
        for method in methods {
            lock(&self.0).fails[*method] = Some(CallError {
                text: "no answer".to_owned(),
                is_outage: true,
            });
        }
    }

    /// A call is refused at once.
    fn refuse(&self, method: usize) {
        lock(&self.0).fails[method] = Some(CallError::wrong("refused"));
    }

    fn repair(&self) {
        lock(&self.0).fails = [None, None, None];
    }
}

impl KeyService for Scripted {
    fn status(&self) -> Result<StatusResponse, CallError> {
        self.call(0)?;
        let script = lock(&self.0);
        Ok(StatusResponse {
            version: "v2".to_owned(),
            healthz: script.healthz.clone().unwrap_or_else(|| "ok".to_owned()),
            key_id: script.key_id.clone().unwrap_or_else(|| "key".to_owned()),
        })
    }

    fn encrypt(&self, plaintext: &[u8]) -> Result<EncryptResponse, CallError> {
        self.call(1)?;
        Ok(EncryptResponse {
            ciphertext: plaintext.iter().map(|byte| !byte).collect(),
            key_id: "key".to_owned(),
            annotations: BTreeMap::new(),
        })
    }

    fn decrypt(
        &self,
        ciphertext: &[u8],
        _: &str,
        _: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Zeroizing<Vec<u8>>, CallError> {
        self.call(2)?;
        Ok(Zeroizing::new(ciphertext.iter().map(|byte| !byte).collect()))
    }
}

impl Scene {
    fn asked_of(&self, service: &Scripted) -> Kms {
        let kms = Kms::over(
            "main",
            Box::new(service.clone()),
            Arc::clone(&self.generation),
            Arc::new(self.clock.clone()),
            SealMetrics::new("here"),
        );
        kms.ask();
        assert_eq!(kms.trouble(), None);
        kms
    }
}

/// A service that answers again and is not well kept every seed closed that was not known.
#[test]
fn an_outage_ends_with_the_answers_of_a_service_that_is_not_well() {
    for (what, spoil) in [
        (
            "not healthy",
            (|it| lock(&it.0).healthz = Some("sealed".to_owned())) as fn(&Scripted),
        ),
        ("a key that Encrypt refuses", |it| {
            lock(&it.0).key_id = Some("key-2".to_owned());
            it.refuse(1);
        }),
        ("Status is refused", |it| it.refuse(0)),
    ] {
        let scene = Scene::new();
        let service = Scripted::default();
        let others = [(); 2].map(|()| scene.asked_of(&service).seal(KEY, b"plain").unwrap());
        let kms = scene.asked_of(&service);
        service.cut_off(&[2]);
        kms.open(KEY, &others[0]).unwrap_err();
        spoil(&service);
        // Decrypt still gets no answer.
        kms.ask();
        let before = service.decrypt_calls();
        kms.open(KEY, &others[1]).unwrap_err();
        assert_eq!(service.decrypt_calls(), before, "{what}: the outage goes on");
        lock(&service.0).fails[2] = None;
        let generation = scene.generation.load(Ordering::Relaxed);
        kms.ask();
        assert!(kms.trouble().is_some(), "{what}");
        assert!(scene.generation.load(Ordering::Relaxed) > generation, "{what}");
        assert_eq!(kms.open(KEY, &others[1]).unwrap(), b"plain", "{what}");
    }

    // The current seed alone is refused.
    let scene = Scene::new();
    let service = Scripted::default();
    let kms = scene.asked_of(&service);
    service.cut_off(&[0]);
    kms.ask();
    service.repair();
    service.refuse(2);
    kms.ask();
    assert!(kms.trouble().unwrap().ends_with("error: refused"));
    let other = {
        service.repair();
        let sealed = scene.asked_of(&service).seal(KEY, b"plain").unwrap();
        service.refuse(2);
        sealed
    };
    let before = service.decrypt_calls();
    kms.open(KEY, &other).unwrap_err();
    assert_eq!(service.decrypt_calls(), before + 1, "it is asked");
}

/// Values stayed closed for up to a minute after the service was repaired.
#[test]
fn seeds_are_asked_for_at_once_when_the_service_becomes_well() {
    let scene = Scene::new();
    let service = Scripted::default();
    let sealed = scene.asked_of(&service).seal(KEY, b"plain").unwrap();
    let kms = scene.asked_of(&service);
    service.refuse(2);
    for _ in 0..10 {
        kms.open(KEY, &sealed).unwrap_err();
        scene.clock.advance(Duration::from_mins(1));
    }
    kms.open(KEY, &sealed).unwrap_err();
    service.refuse(0);
    kms.ask();
    assert!(kms.trouble().is_some());
    service.repair();
    let before = service.decrypt_calls();
    kms.open(KEY, &sealed).unwrap_err();
    assert_eq!(service.decrypt_calls(), before, "not known to be well");
    kms.ask();
    assert_eq!(kms.trouble(), None);
    assert_eq!(kms.open(KEY, &sealed).unwrap(), b"plain");
}

#[test]
fn an_outage_is_waited_for_once_whatever_the_number_of_seeds() {
    let scene = Scene::new();
    let service = Scripted::default();
    let asked = || scene.asked_of(&service);
    let values: Vec<_> = (0..100).map(|_| asked().seal(KEY, b"plain").unwrap()).collect();
    let opened = |kms: &Kms| values.iter().filter(|value| kms.open(KEY, value).is_ok()).count();

    // Decrypt gets no answer, Status does.
    let kms = asked();
    kms.open(KEY, &values[0]).unwrap();
    service.cut_off(&[2]);
    let before = service.decrypt_calls();
    assert_eq!(opened(&kms), 1, "what is known opens");
    assert_eq!(service.decrypt_calls() - before, 1);
    assert_eq!(
        kms.open(KEY, &values[7]).unwrap_err(),
        "failed to decrypt DEK, error: no answer"
    );
    // A good status alone does not end it.
    for _ in 0..3 {
        kms.ask();
        assert_eq!(
            kms.trouble().as_deref(),
            Some(
                "failed to perform decrypt section of the healthz check for KMS Provider main, error: no answer"
            )
        );
        assert_eq!(opened(&kms), 1);
    }
    assert_eq!(service.decrypt_calls() - before, 4, "one for each question");
    kms.seal(KEY, b"").unwrap();
    service.repair();
    let generation = scene.generation.load(Ordering::Relaxed);
    kms.ask();
    assert_eq!(kms.trouble(), None);
    assert!(scene.generation.load(Ordering::Relaxed) > generation);
    scene.clock.advance(Duration::from_secs(1));
    assert_eq!(opened(&kms), 100);

    // Nothing gets an answer: the question for the status finds out.
    let kms = asked();
    service.cut_off(&[0, 1, 2]);
    kms.ask();
    let before = service.decrypt_calls();
    assert_eq!(opened(&kms), 0);
    assert_eq!(service.decrypt_calls(), before);
    service.repair();
    kms.ask();
    assert_eq!(opened(&kms), 100);
}

#[test]
fn many_readers_ask_once() {
    let scene = Scene::new();
    let plugin = scene.plugin(Behaviour::default());
    let sealed = scene.asked().seal(KEY, b"plain").unwrap();
    let kms = scene.asked();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(kms.open(KEY, &sealed).unwrap(), b"plain"));
        }
    });
    assert_eq!(plugin.behaviour().calls[2], 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tasks_of_a_runtime_may_open_values() {
    let scene = Scene::new();
    let _plugin = scene.plugin(Behaviour::default());
    let sealed = tokio::task::block_in_place(|| scene.asked().seal(KEY, b"plain").unwrap());
    let kms = Arc::new(tokio::task::block_in_place(|| scene.asked()));
    let opened = tokio::spawn(async move { kms.open(KEY, &sealed) }).await.unwrap();
    assert_eq!(opened.unwrap(), b"plain");
}

#[test]
fn a_service_that_is_not_well_says_why() {
    let scene = Scene::new();
    let plugin = scene.plugin(Behaviour::default());
    let kms = scene.asked();
    for (change, text) in [
        (
            (|it| it.healthz = "sealed".to_owned()) as fn(&mut Behaviour),
            "kmsv2 Provider main is not healthy, error: got unexpected healthz status: sealed",
        ),
        (
            |it| (it.healthz, it.version) = ("ok".to_owned(), "v3".to_owned()),
            "kmsv2 Provider main is not healthy, error: expected KMSv2 API version v2, got v3",
        ),
        (
            |it| it.version = "v2beta1".to_owned(),
            "kmsv2 Provider main is not healthy, error: KMSv2 API version should not change after the initial status response version v2, got v2beta1",
        ),
        (
            |it| (it.version, it.key_id) = ("v2".to_owned(), String::new()),
            "kmsv2 Provider main is not healthy, error: got invalid KMSv2 KeyID hash \"\": keyID is empty",
        ),
        (
            |it| it.key_id = "k".repeat(1025),
            "kmsv2 Provider main is not healthy, error: got invalid KMSv2 KeyID hash \"sha256:011cc8dcade24f43d2d7f95605d8481da1d0b86475def49be02bfc20cee86e65\": keyID is 1025 bytes, which exceeds the max size of 1024",
        ),
    ] {
        plugin.change(change);
        kms.ask();
        assert_eq!(kms.trouble().as_deref(), Some(text));
    }
}

#[test]
fn an_abstract_socket_is_reached() {
    // Nobody listens: the call fails at its deadline, with the error of the connection.
    let options = KmsOptions {
        name: "main".to_owned(),
        endpoint: Endpoint::Abstract(format!("drydock-{}", uuid::Uuid::new_v4())),
        timeout: SHORT,
    };
    let client = Client::new(options, SealMetrics::new("here")).unwrap();
    assert!(client.status().unwrap_err().text.contains("code = Unavailable"));
}

#[test]
fn the_thread_ends_with_the_service() {
    let scene = Scene::new();
    let _plugin = scene.plugin(Behaviour::default());
    let options = KmsOptions {
        name: "main".to_owned(),
        endpoint: Endpoint::Path(scene.folder.path().join("kms.sock")),
        timeout: LONG,
    };
    let generation = Arc::clone(&scene.generation);
    let clock = Arc::new(scene.clock.clone());
    let kms = Kms::start(options, generation, clock, SealMetrics::new("here")).unwrap();
    assert_eq!(kms.trouble(), None);
    let weak = Arc::downgrade(&kms);
    drop(kms);
    assert!(weak.upgrade().is_none());
}
