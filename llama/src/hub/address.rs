//! Downloads of GGUF files from arbitrary URLs. The expected SHA-256 is unknown. A download therefore counts as
//! complete if it has the announced length and parses as a GGUF file with all tensor data.

use std::fs;
use std::path::{Path, PathBuf};

use engine::gguf::GgufFile;
use sha2::{Digest, Sha256};

use super::blob::{admit, hexadecimal, hold};
use super::client::{Attempts, Client};
use super::dirs;
use super::listing::is_inside;
use super::name::Name;
use super::progress::{Bar, Event, Observer, Step};
use super::transfer::{Share, Transfer, content_length, content_range};
use super::{HubError, HubResult};
use crate::CancelHandle;

/// Parses a hub URL as a model name.
pub fn of_hub(client: &Client, url: &str) -> Option<Name> {
    let path = client.path_of(url)?.strip_prefix('/')?;
    let (user, rest) = path.split_once('/')?;
    let (repo, rest) = rest.split_once('/')?;
    let file = rest.strip_prefix("resolve/main/")?;
    let file = file.split(['?', '#']).next().unwrap_or(file);
    let name = Name::parse(&format!("{user}/{repo}"))?;
    (is_inside(file) && !file.contains('%')).then(|| name.with_file(file))
}

/// Returns the cached file of a URL, downloading it if necessary.
pub fn fetch(
    client: &Client,
    url: &str,
    offline: bool,
    observer: &Observer,
    stop: &CancelHandle,
) -> HubResult<PathBuf> {
    let directory = dirs::cache().ok_or_else(|| {
        HubError::new("cannot locate the cache directory for models: set LLAMA_CACHE, XDG_CACHE_HOME, or HOME")
    })?;
    let directory = directory.join("urls").join(&hash(url)[..16]);
    let path = directory.join(file_name(url)?);
    if path.is_file() {
        return Ok(path);
    }
    if offline {
        return Err(HubError::Offline { name: url.to_owned() });
    }
    fs::create_dir_all(&directory)
        .map_err(|e| HubError::new(format_args!("cannot use the directory {}: {e}", directory.display())))?;
    // Two processes that write one partial file would mix their data.
    let _held = hold(&directory.join(".lock"), observer, stop)?;
    if path.is_file() {
        return Ok(path);
    }
    let about = ask(client, url, stop)?;
    // Partial downloads are named after the validator, so that a changed file is not mixed with its
    // predecessor. Without a validator, no partial download is resumed.
    let validator = about
        .validator
        .clone()
        .unwrap_or_else(|| format!("{}", std::process::id()));
    let part = directory.join(format!(
        "{}.incomplete",
        &hash(&format!("{} {validator}", about.len))[..16]
    ));
    observer.send(Event::Download {
        name: url,
        n_bytes: about.len,
    });
    let bar = Bar::new(observer, Step::Download);
    bar.set_length(about.len);
    let transfer = Transfer {
        client,
        url,
        part: &part,
        len: about.len,
        validator: about.validator.as_deref(),
    };
    let fetched = transfer.run(&mut Share::of(&bar), stop);
    bar.finish_and_clear();
    fetched?;
    check(url, &part, about.len).inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })?;
    admit(&part, &path)?;
    Ok(path)
}

/// Metadata of a remote file.
struct About {
    len: u64,
    validator: Option<String>,
}

/// Requests the first byte, to learn the file's length and whether ranges are supported.
fn ask(client: &Client, url: &str, stop: &CancelHandle) -> HubResult<About> {
    let mut attempts = Attempts::new(&client.retry);
    let answer = loop {
        match client.get(url, &[("range", "bytes=0-0"), ("accept-encoding", "identity")]) {
            Ok(answer) => break answer,
            Err(error) => attempts.after(error, stop)?,
        }
    };
    let len = match answer.status {
        206 => content_range(&answer.headers).map(|(_, len)| len),
        _ => content_length(&answer.headers),
    };
    let len = len.filter(|&len| len > 0);
    let len = len.ok_or_else(|| {
        HubError::new(format_args!(
            "cannot download {url}: the server does not announce the file length, so truncation could not be detected"
        ))
    })?;
    let strong = answer
        .headers
        .get("etag")
        .and_then(|v| v.to_str().ok())
        .filter(|tag| tag.starts_with('"'));
    Ok(About {
        len,
        validator: strong.map(str::to_owned),
    })
}

fn check(url: &str, file: &Path, len: u64) -> HubResult {
    let reason = match (GgufFile::open(file), fs::metadata(file)) {
        (Err(e), _) => e.to_string(),
        (_, Err(e)) => e.to_string(),
        (_, Ok(metadata)) if metadata.len() != len => format!("expected {len} bytes, found {}", metadata.len()),
        _ => return Ok(()),
    };
    Err(HubError::new(format_args!(
        "{url}: the download is not a complete model: {reason}"
    )))
}

/// Returns the last path component, which must be a GGUF file name.
fn file_name(url: &str) -> HubResult<String> {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.to_ascii_lowercase().ends_with(".gguf") && is_inside(name) && !name.contains('%') {
        Ok(name.to_owned())
    } else {
        Err(HubError::new(format_args!(
            "{url}: expected a URL that ends in the name of a GGUF file"
        )))
    }
}

fn hash(text: &str) -> String {
    hexadecimal(&Sha256::digest(text.as_bytes()))
}
