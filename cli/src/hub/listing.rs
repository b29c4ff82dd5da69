//! What the hub says that a repository has.

use std::path::{Component, Path};

use serde::Deserialize;

use super::client::Client;
use super::name::Name;
use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// The files of a commit that can be verified.
pub struct Listing {
    /// The commit.
    pub commit: String,
    /// Its files.
    pub files: Vec<RemoteFile>,
}

/// A file, as the hub describes it.
pub struct RemoteFile {
    /// Its path in the repository, with slashes; leads nowhere else.
    pub path: String,
    /// Bytes.
    pub len: u64,
    /// In small hexadecimal digits.
    pub sha256: String,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    sha256: String,
    size: u64,
}

/// Asks for the files of a repository's latest commit.
pub fn of(client: &Client, name: &Name, stop: &interrupt::Guard) -> Outcome<Listing> {
    let url = client.url(&format!("/api/models/{}/revision/main?blobs=true", name.repository()));
    let text = client.text(&url, stop)?;
    read(&text).map_err(|e| Failure::new(format_args!("{url}: {e}")))
}

fn read(text: &str) -> Result<Listing, String> {
    let answer: Answer =
        serde_json::from_str(text).map_err(|e| format!("the answer is not what a hub says of a model: {e}"))?;
    if !is_hexadecimal(&answer.sha, 7..=64) {
        return Err(format!("the commit is {:?}, expected hexadecimal digits", answer.sha));
    }
    let mut files = Vec::new();
    for sibling in answer.siblings {
        if !sibling.rfilename.to_ascii_lowercase().ends_with(".gguf") {
            continue;
        }
        if !is_inside(&sibling.rfilename) {
            return Err(format!(
                "there is a file {:?}, which would lie outside of the model's folder",
                sibling.rfilename
            ));
        }
        // Without a SHA-256 nobody could tell whether it is the right file.
        let Some(large) = sibling.lfs.filter(|l| is_hexadecimal(&l.sha256, 64..=64) && l.size > 0) else {
            continue;
        };
        files.push(RemoteFile {
            path: sibling.rfilename,
            len: large.size,
            sha256: large.sha256.to_ascii_lowercase(),
        });
    }
    Ok(Listing {
        commit: answer.sha,
        files,
    })
}

impl Listing {
    /// Where a file of the commit lies.
    pub fn url(&self, client: &Client, name: &Name, path: &str) -> String {
        let path: Vec<String> = path.split('/').map(encoded).collect();
        client.url(&format!(
            "/{}/resolve/{}/{}",
            name.repository(),
            self.commit,
            path.join("/")
        ))
    }
}

/// A part of a path, as addresses have it.
fn encoded(part: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-~".contains(&b);
    part.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

/// True if the path names something below the folder that it starts from, on any system.
pub fn is_inside(path: &str) -> bool {
    let parts_are_plain = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    let is_odd = |c: char| c.is_control() || "\\:*?\"<>|".contains(c);
    parts_are_plain
        && !path.is_empty()
        && !path.contains("//")
        && !path.ends_with('/')
        && !path.contains(is_odd)
        && path.len() <= 1024
}

fn is_hexadecimal(text: &str, len: std::ops::RangeInclusive<usize>) -> bool {
    len.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_nowhere_else() {
        for path in ["a.gguf", "a/b.gguf", "a b/ü.gguf", "..a.gguf"] {
            assert!(is_inside(path), "{path}");
        }
        for path in [
            "", "/a", "../a", "a/../b", "a/..", "./a", "a//b", "C:\\a", "a\\..\\b", "a\0b", "a\nb", "con:", "a/",
        ] {
            assert!(!is_inside(path), "{path:?}");
        }
    }

    #[test]
    fn answers_that_mean_no_model_are_errors() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"sha": "abcdef0", "siblings": 7}"#,
            r#"{"sha": "../../x", "siblings": []}"#,
            r#"{"sha": "abcdef0", "siblings": [{"rfilename": "../x.gguf"}]}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        let hash = "a".repeat(64);
        let text = format!(
            r#"{{"sha": "abcdef0", "siblings": [{{"rfilename": "x.gguf", "lfs": {{"sha256": "{hash}", "size": 5}}}}, {{"rfilename": "y.gguf"}}]}}"#
        );
        let listing = read(&text).unwrap();
        assert_eq!(
            listing.files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(),
            ["x.gguf"]
        );
    }
}
