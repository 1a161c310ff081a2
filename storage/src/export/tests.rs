//! What a writer keeps.

use std::sync::Weak;

use tempfile::TempDir;

use super::*;
use crate::seal::Unsealed;

/// Bytes whose last copy is gone when the weak pointer is.
struct Owned(Arc<Vec<u8>>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn object(number: u64) -> (Key, Entry, Weak<Vec<u8>>) {
    let bytes = Arc::new(vec![b'x'; 10_000]);
    let kept = Arc::downgrade(&bytes);
    let key = Key::new("example.com", "things", "a", &format!("n{number}")).unwrap();
    let entry = Entry {
        value: Value {
            bytes: Bytes::from_owner(Owned(bytes)),
            form: "".into(),
            splice_offset: 0,
        },
        created: Revision(number + 1),
        modified: Revision(number + 1),
    };
    (key, entry, kept)
}

fn writer<'a>(path: &'a Path, records: &'a Records, count: u64) -> ExportWriter<'a> {
    let from = Exported {
        store: Uuid::nil(),
        revision: Revision(9),
        count,
        now_ms: 0,
        records,
    };
    ExportWriter::begin(path, from).unwrap()
}

#[test]
fn no_value_is_kept_once_it_was_written() {
    let (folder, records) = (TempDir::new().unwrap(), Records::new(Arc::new(Unsealed)));
    let path = folder.path().join("all.export");
    let mut writer = writer(&path, &records, 9);
    for number in 0..9 {
        let (key, entry, kept) = object(number);
        writer.put(&key, &entry).unwrap();
        drop(entry);
        assert_eq!(kept.strong_count(), 0, "{number}");
    }
    let report = writer.finish().unwrap();
    assert_eq!(report.objects, 9);
    assert_eq!(report.bytes, std::fs::metadata(&path).unwrap().len());
    let seal: Arc<dyn Seal> = Arc::new(Unsealed);
    let mut reader = ExportReader::open(&path, &seal).unwrap();
    for number in 0..9 {
        let (key, entry, _) = object(number);
        assert_eq!(reader.next().unwrap(), Some((key, entry.value)));
    }
    assert_eq!(reader.next().unwrap(), None);
}

#[test]
fn an_export_with_another_number_of_objects_is_not_finished() {
    let (folder, records) = (TempDir::new().unwrap(), Records::new(Arc::new(Unsealed)));
    let path = folder.path().join("all.export");
    let mut writer = writer(&path, &records, 2);
    let (key, entry, _) = object(0);
    writer.put(&key, &entry).unwrap();
    let refused = writer.finish();
    assert!(
        matches!(
            refused,
            Err(ExportError::Miscounted {
                expected: 2,
                found: 1,
                ..
            })
        ),
        "{refused:?}"
    );
    assert!(!path.exists());
}
