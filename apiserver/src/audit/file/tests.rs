use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;

use drydock_machinery::clock::ManualClock;
use flate2::read::GzDecoder;

use super::*;

const HOUR: Duration = Duration::from_hours(1);

struct Fixture {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    settings: LogSettings,
}

impl Fixture {
    fn new(settings: LogSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/audit.log");
        Self {
            folder,
            clock: Arc::new(ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap())),
            settings: LogSettings { path, ..settings },
        }
    }

    fn file(&self) -> LogFile {
        LogFile::new(self.settings.clone(), Arc::clone(&self.clock) as _)
    }

    fn tidy(&self) {
        tidy(&self.settings, self.clock.now()).unwrap();
    }

    /// Names and contents of all files, sorted by name.
    fn files(&self) -> Vec<(String, String)> {
        let mut files: Vec<_> = fs::read_dir(self.folder.path().join("logs"))
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                let mut text = String::new();
                if name.ends_with(".gz") {
                    GzDecoder::new(File::open(path).unwrap())
                        .read_to_string(&mut text)
                        .unwrap();
                } else {
                    text = fs::read_to_string(path).unwrap();
                }
                (name, text)
            })
            .collect();
        files.sort();
        files
    }

    fn names(&self) -> Vec<String> {
        self.files().into_iter().map(|(name, _)| name).collect()
    }
}

fn limited(max_bytes: u64) -> LogSettings {
    LogSettings {
        max_bytes,
        ..LogSettings::default()
    }
}

#[test]
fn a_file_is_replaced_before_it_becomes_too_large() {
    let fixture = Fixture::new(limited(10));
    let mut file = fixture.file();
    for line in [
        "one\n",
        "two\n",
        "three\n",
        "a line that is longer than the limit\n",
        "x\n",
    ] {
        file.write(line.as_bytes()).unwrap();
        fixture.clock.advance(HOUR);
    }
    let expected = [
        ("audit-2026-06-01T14-00-00.000.log", "one\ntwo\n"),
        ("audit-2026-06-01T15-00-00.000.log", "three\n"),
        (
            "audit-2026-06-01T16-00-00.000.log",
            "a line that is longer than the limit\n",
        ),
        ("audit.log", "x\n"),
    ];
    assert_eq!(
        fixture.files(),
        expected.map(|(name, text)| (name.to_owned(), text.to_owned()))
    );
}

#[test]
fn without_a_limit_a_file_is_never_replaced() {
    let fixture = Fixture::new(limited(0));
    let mut file = fixture.file();
    (0..100).for_each(|_| file.write(b"line\n").unwrap());
    assert_eq!(fixture.names(), ["audit.log"]);
}

#[test]
fn a_restarted_server_appends_and_counts_what_is_there() {
    let fixture = Fixture::new(limited(10));
    fixture.file().write(b"before\n").unwrap();
    fixture.file().write(b"a\n").unwrap();
    assert_eq!(
        fixture.files(),
        [("audit.log".to_owned(), "before\na\n".to_owned())]
    );
    fixture.file().write(b"after\n").unwrap();
    assert_eq!(
        fixture.names(),
        ["audit-2026-06-01T12-00-00.000.log", "audit.log"]
    );
}

#[test]
fn files_of_one_millisecond_do_not_replace_each_other() {
    let fixture = Fixture::new(limited(4));
    let mut file = fixture.file();
    (0..4).for_each(|n| file.write(format!("{n}..\n").as_bytes()).unwrap());
    let texts: Vec<_> = fixture.files().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["0..\n", "1..\n", "2..\n", "3..\n"]);
}

#[test]
fn old_files_are_removed_by_number_and_by_age() {
    let fixture = Fixture::new(LogSettings {
        max_backups: 3,
        max_age: 2 * HOUR,
        ..limited(4)
    });
    let mut file = fixture.file();
    for n in 0..6 {
        file.write(format!("{n}..\n").as_bytes()).unwrap();
        fixture.clock.advance(HOUR / 2);
    }
    // What is not a replaced file of this log stays.
    let other = fixture.settings.path.with_file_name("audit-notes.log");
    fs::write(&other, "").unwrap();
    fixture.tidy();
    let texts = || -> String { fixture.files().into_iter().map(|(_, text)| text).collect() };
    assert_eq!(
        texts(),
        "2..\n3..\n4..\n5..\n",
        "the three newest and the log itself"
    );
    fixture.clock.advance(HOUR);
    fixture.tidy();
    assert_eq!(texts(), "3..\n4..\n5..\n", "replaced two hours ago or later");
    assert!(other.exists());
}

#[test]
fn replaced_files_are_compressed() {
    let fixture = Fixture::new(LogSettings {
        compress: true,
        ..limited(4)
    });
    let mut file = fixture.file();
    (0..3).for_each(|n| file.write(format!("{n}..\n").as_bytes()).unwrap());
    fixture.tidy();
    fixture.tidy();
    let names = [
        "audit-2026-06-01T12-00-00.000.log.gz",
        "audit-2026-06-01T12-00-00.001.log.gz",
        "audit.log",
    ];
    let expected: Vec<_> = names.into_iter().zip(["0..\n", "1..\n", "2..\n"]).collect();
    let files = fixture.files();
    let found: Vec<_> = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    assert_eq!(found, expected);
    // Neither does a later file take the name of a compressed one.
    file.write(b"3..\n").unwrap();
    assert!(
        fixture
            .names()
            .contains(&"audit-2026-06-01T12-00-00.002.log".to_owned())
    );
}

#[test]
fn nobody_else_can_read_the_log() {
    let fixture = Fixture::new(limited(4));
    let mut file = fixture.file();
    (0..2).for_each(|_| file.write(b"line\n").unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&fixture.settings.path), 0o600);
    assert_eq!(mode(fixture.settings.path.parent().unwrap()), 0o700);
}

#[test]
fn a_write_that_fails_is_reported_and_the_next_one_tries_again() {
    let mut fixture = Fixture::new(limited(0));
    fixture.settings.path = "/dev/full".into();
    let mut file = fixture.file();
    assert!(file.write(b"line\n").is_err());
    file.settings.path = fixture.folder.path().join("logs/audit.log");
    file.write(b"line\n").unwrap();
    assert_eq!(fixture.names(), ["audit.log"]);
}
