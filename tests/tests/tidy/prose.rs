//! A ratchet on the prose: comments, messages, and documents must not fall back into phrases that readers stumble over.
//!
//! The phrases are in `prose_words.txt`, the counts per crate in `prose_counts.txt`. A count may only fall;
//! `LLAMA_UPDATE=1 cargo test -p llama-tests --test all tidy::prose` records a lower one.

use std::collections::BTreeMap;
use std::path::Path;

use regex_lite::Regex;

use super::{files, root};

const WORDS: &str = include_str!("prose_words.txt");

/// Extensions of the files that people read.
const EXTENSIONS: [&str; 9] = ["rs", "md", "cu", "cuh", "py", "js", "html", "toml", "sh"];

/// Parts of the tree whose prose is not ours, is generated, or is a closed record.
const EXCLUDED: [&str; 4] = ["tests/data/", "/vendor/", "/snapshots/", "docs/lab-notes/"];

/// First words that make a doc comment a fragment instead of a sentence about what the item does.
const OPENING: &str = r"^\s*//[/!]\s+(What|How|Where|Which|Those|That|As|Who|Whose|One|It|Its)\b";

/// A phrase to avoid.
struct Phrase {
    name: &'static str,
    regex: Regex,
    /// The match is harmless if one of these words follows.
    exceptions: Vec<&'static str>,
}

impl Phrase {
    fn count(&self, text: &str) -> usize {
        let is_harmless = |rest: &str| {
            let next: String = rest.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect();
            self.exceptions.iter().any(|e| next.eq_ignore_ascii_case(e))
        };
        self.regex
            .find_iter(text)
            .filter(|found| !is_harmless(&text[found.end()..]))
            .count()
    }
}

fn phrases() -> Vec<Phrase> {
    let rows = WORDS.lines().filter(|l| !l.starts_with('#'));
    let phrase = |row: &'static str| {
        let mut columns = row.split('\t');
        let (name, pattern) = (columns.next().unwrap(), columns.next().expect("a row has a pattern"));
        Phrase {
            name,
            regex: Regex::new(&format!("(?i){pattern}")).expect("the pattern is a regular expression"),
            exceptions: columns.next().unwrap_or_default().split_whitespace().collect(),
        }
    };
    rows.map(phrase).collect()
}

/// Returns the prose in a line of a file: the comment or the string literals of code, or the whole line of a
/// document.
fn prose(line: &str, is_code: bool) -> String {
    if !is_code {
        return line.to_owned();
    }
    match line.find("//") {
        Some(start) => line[start..].to_owned(),
        None => line
            .split('"')
            .skip(1)
            .step_by(2)
            .filter(|s| s.len() >= 12)
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// Returns `path:line: [phrase] text` for every phrase found in a file.
fn findings(path: &str, text: &str, phrases: &[Phrase], opening: &Regex) -> Vec<String> {
    let is_code = [".rs", ".cu", ".cuh", ".js"].iter().any(|e| path.ends_with(e));
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut report = |name: &str| found.push(format!("{path}:{}: [{name}] {}", i + 1, line.trim()));
        if opening.is_match(line) {
            report("opening");
        }
        let prose = prose(line, is_code);
        for phrase in phrases {
            (0..phrase.count(&prose)).for_each(|_| report(phrase.name));
        }
    }
    found
}

/// Returns the crate or top-level directory that a file counts for.
fn part(path: &Path) -> String {
    let first = path.components().next().expect("a file has a path");
    let name = first.as_os_str().to_string_lossy().into_owned();
    if path.components().count() == 1 {
        "top".to_owned()
    } else {
        name
    }
}

#[test]
fn phrases_to_avoid_become_fewer() {
    let (phrases, opening) = (phrases(), Regex::new(OPENING).unwrap());
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files(&EXTENSIONS) {
        let relative = path.strip_prefix(root()).expect("the file is in the workspace");
        let name = relative.to_string_lossy().into_owned();
        // The word list itself and its rows in the test below.
        if EXCLUDED.iter().any(|part| name.contains(part)) || name.ends_with("tidy/prose.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("the file is UTF-8");
        let rows = found.entry(part(relative)).or_default();
        rows.extend(findings(&name, &text, &phrases, &opening));
    }
    let counts: String = found
        .iter()
        .map(|(part, rows)| format!("{part} {}\n", rows.len()))
        .collect();
    let file = root().join("tests/tests/tidy/prose_counts.txt");
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    let recorded: BTreeMap<&str, usize> = recorded
        .lines()
        .filter_map(|l| l.split_once(' ').map(|(part, n)| (part, n.parse().expect("a count"))))
        .collect();
    for (part, rows) in &found {
        let allowed = recorded.get(part.as_str()).copied().unwrap_or(0);
        assert!(
            rows.len() <= allowed,
            "{part}: {} phrases to avoid, at most {allowed}: {rows:#?}",
            rows.len()
        );
    }
    if std::env::var_os("LLAMA_UPDATE").is_some() {
        std::fs::write(&file, counts).expect("the counts are writable");
    } else {
        let lower = found
            .iter()
            .find(|(part, rows)| recorded.get(part.as_str()) > Some(&rows.len()));
        assert!(
            lower.is_none(),
            "fewer phrases to avoid; record the counts with LLAMA_UPDATE=1:\n{counts}"
        );
    }
}

#[test]
fn phrases_are_found_in_comments_messages_and_documents() {
    let (phrases, opening) = (phrases(), Regex::new(OPENING).unwrap());
    let count = |path: &str, text: &str| findings(path, text, &phrases, &opening).len();
    assert_eq!(count("a.rs", "/// What the reader is told."), 2);
    assert_eq!(count("a.rs", "let x = told; // a folder"), 1);
    assert_eq!(count("a.rs", r#"panic!("the folder is not there");"#), 2);
    assert_eq!(count("a.rs", r#"panic!("there are files, so is there a reason");"#), 0);
    assert_eq!(count("a.md", "It runs so many that"), 0);
    assert_eq!(count("a.md", "It runs so many times on two cards."), 2);
    assert_eq!(count("a.rs", "/// Returns the number of tokens."), 0);
}
