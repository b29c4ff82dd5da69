//! Errors of declarations that are read at run time have the messages and locations of a build.

use std::path::Path;

use arch_runtime::DeclarationError;
use tests::root;

/// Message, line, and column of an error.
type Found = (String, usize, usize);

/// Returns the errors that rustc printed.
fn expected(stderr: &str) -> Vec<Found> {
    let lines: Vec<&str> = stderr.lines().collect();
    let error = |pair: &[&str]| {
        let message = pair[0].strip_prefix("error: ")?;
        let place = pair[1].trim_start().strip_prefix("--> ")?;
        let mut numbers = place.rsplit(':').map(|n| n.parse().expect("a number"));
        let (column, line) = (numbers.next()?, numbers.next()?);
        Some((message.to_owned(), line, column))
    };
    lines.windows(2).filter_map(error).collect()
}

fn found(path: &Path) -> Vec<Found> {
    match arch_runtime::load(path) {
        Err(DeclarationError::Invalid(faults)) => faults
            .into_iter()
            .map(|fault| (fault.message, fault.place.line, fault.place.column))
            .collect(),
        other => panic!("{}: {:?}", path.display(), other.map(|r| r.arch.name)),
    }
}

#[test]
fn errors_equal_those_of_a_build() {
    let directory = root().join("arch-macros/tests/ui");
    let mut n_cases = 0;
    for entry in std::fs::read_dir(&directory).expect("the directory is readable") {
        let path = entry.expect("an entry").path();
        // This case has two declarations, in modules.
        if path.extension().is_none_or(|e| e != "rs") || path.ends_with("fragment_misspelt.rs") {
            continue;
        }
        let stderr = std::fs::read_to_string(path.with_extension("stderr")).expect("recorded errors");
        assert_eq!(found(&path), expected(&stderr), "{}", path.display());
        n_cases += 1;
    }
    assert!(n_cases > 15, "{n_cases}");
}
