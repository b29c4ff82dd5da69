//! Repository listings from the hub's API.

use std::path::{Component, Path};

use serde::Deserialize;

use super::client::Client;
use super::name::Name;
use super::{HubError, HubResult};
use crate::CancelHandle;

/// Files of a commit that can be verified.
pub struct Listing {
    pub commit: String,
    /// Files whose SHA-256 is known.
    pub files: Vec<RemoteFile>,
}

/// A file in a repository.
pub struct RemoteFile {
    /// Path in the repository, with slashes; validated not to leave the directory.
    pub path: String,
    pub len: u64,
    /// SHA-256 of the file in lowercase hexadecimal.
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

/// Requests the files of a repository's latest commit.
pub fn of(client: &Client, name: &Name, stop: &CancelHandle) -> HubResult<Listing> {
    let url = client.url(&format!("/api/models/{}/revision/main?blobs=true", name.repository()));
    let text = client.text(&url, stop)?;
    read(&text).map_err(|e| HubError::new(format_args!("{url}: {e}")))
}

fn read(text: &str) -> Result<Listing, String> {
    let answer: Answer = serde_json::from_str(text).map_err(|e| format!("unexpected response from the hub: {e}"))?;
    if !is_hexadecimal(&answer.sha, 7..=64) {
        return Err(format!("expected a hexadecimal commit hash, found {:?}", answer.sha));
    }
    let mut files = Vec::new();
    for sibling in answer.siblings {
        if !sibling.rfilename.to_ascii_lowercase().ends_with(".gguf") {
            continue;
        }
        if !is_inside(&sibling.rfilename) {
            return Err(format!(
                "invalid file name {:?}: the path leaves the model directory",
                sibling.rfilename
            ));
        }
        // Files without a SHA-256 cannot be verified and are skipped.
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
    /// Returns the download URL of a file.
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

/// Percent-encodes a path component.
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

/// Returns true if the path stays inside its base directory on every platform.
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
    fn paths_outside_of_directory_are_rejected() {
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
    fn invalid_listings_are_rejected() {
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
