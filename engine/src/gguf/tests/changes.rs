//! Files that change while they are mapped.

use std::fs::File;
use std::io::{Seek, Write};
use std::ops::Range;

use super::super::{ComputedBytes, GgufError, Mapping};
use crate::backend::HostMemory;

const LEN: usize = 1 << 20;

fn file_of(byte: u8) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![byte; LEN]).unwrap();
    file
}

#[test]
fn mapping_of_a_truncated_file_reads_zeros_and_fails_its_check() {
    let (file, other) = (file_of(7), file_of(9));
    let (map, intact) = (
        Mapping::open(file.path()).unwrap(),
        Mapping::open(other.path()).unwrap(),
    );
    assert!(map.check().is_ok());
    file.as_file().set_len(LEN as u64 / 4).unwrap();
    assert!(map.check().unwrap_err().to_string().contains("truncated"));
    // Threads that read at the same time all survive.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(map.bytes()[LEN / 2..].iter().max(), Some(&0)));
        }
    });
    assert_eq!(map.bytes()[..LEN / 4].iter().min(), Some(&7));
    // The file has its length again, but zeros have been read.
    file.as_file().set_len(LEN as u64).unwrap();
    assert!(map.check().unwrap_err().to_string().contains("could not be read"));
    assert!(intact.check().is_ok() && intact.bytes()[LEN - 1] == 9);
    drop(map);
    // The entry of the dropped map is free for another map.
    assert!(Mapping::open(other.path()).unwrap().check().is_ok());
}

#[test]
fn mapping_of_an_overwritten_file_fails_its_check() {
    let file = file_of(7);
    let map = Mapping::open(file.path()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut writer = File::options().write(true).open(file.path()).unwrap();
    writer.seek(std::io::SeekFrom::Start(100)).unwrap();
    writer.write_all(b"x").unwrap();
    assert!(map.check().unwrap_err().to_string().contains("changed while in use"));
    assert!(map.check_unchanged().is_err());
    assert!(Mapping::open(file.path()).unwrap().check().is_ok());
}

#[test]
fn file_that_is_replaced_by_a_new_one_stays_usable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, vec![7; LEN]).unwrap();
    let map = Mapping::open(&path).unwrap();
    let new = dir.path().join("new");
    std::fs::write(&new, b"other").unwrap();
    std::fs::rename(&new, &path).unwrap();
    assert!(map.check().is_ok() && map.bytes() == [7; LEN]);
}

/// Source of 100 bytes with an invalid last byte.
#[derive(Debug)]
struct LastInvalid;

impl ComputedBytes for LastInvalid {
    fn n_bytes(&self) -> usize {
        100
    }

    fn compute(&self, start: usize, out: &mut [u8]) -> Result<(), GgufError> {
        out.fill(7);
        match start + out.len() {
            100 => Err(GgufError::Computed {
                text: "the last byte is invalid".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn release(&self, _range: Range<usize>) {}
}

#[test]
fn failed_computation_of_all_bytes_fails_check() {
    let map = Mapping::computed(Box::new(LastInvalid));
    let mut scratch = Vec::new();
    assert_eq!(map.view(0..99, &mut scratch).unwrap(), [7; 99]);
    assert!(map.view(0..100, &mut scratch).is_err());
    assert!(map.check().is_ok() && map.check_unchanged().is_ok());
    assert_eq!(map.bytes().len(), 100);
    assert_eq!(map.check().unwrap_err().to_string(), "the last byte is invalid");
    let error = map.check_unchanged().unwrap_err();
    assert!(
        matches!(&error, GgufError::Computed { text } if text == "the last byte is invalid"),
        "{error}"
    );
}
