//! A file at any address of the web. Nobody says what its SHA-256 should be: it counts as there when it has its length, and is a GGUF file whose tensors
//! lie within that.

use std::fs;
use std::path::{Path, PathBuf};

use engine::gguf::GgufFile;
use sha2::{Digest, Sha256};

use super::blob::{admit, hexadecimal};
use super::client::{Attempts, Client};
use super::listing::is_inside;
use super::name::Name;
use super::progress_bar;
use super::transfer::{Share, Transfer, content_length, content_range};
use crate::failure::{Failure, Outcome};
use crate::{dirs, human, interrupt, say};

/// The name of a file that an address on the hub means.
pub fn of_hub(client: &Client, url: &str) -> Option<Name> {
    let path = client.path_of(url)?.strip_prefix('/')?;
    let (user, rest) = path.split_once('/')?;
    let (repo, rest) = rest.split_once('/')?;
    let file = rest.strip_prefix("resolve/main/")?;
    let file = file.split(['?', '#']).next().unwrap_or(file);
    let name = Name::parse(&format!("{user}/{repo}"))?;
    (is_inside(file) && !file.contains('%')).then(|| name.with_file(file))
}

/// The file at an address, as it was fetched before or now.
pub fn fetch(client: &Client, url: &str, offline: bool, stop: &interrupt::Guard) -> Outcome<PathBuf> {
    let folder = dirs::cache().ok_or_else(|| {
        Failure::new("there is no folder for models: neither LLAMA_CACHE, XDG_CACHE_HOME nor HOME is set")
    })?;
    let folder = folder.join("urls").join(&hash(url)[..16]);
    let path = folder.join(file_name(url)?);
    if path.is_file() {
        return Ok(path);
    }
    if offline {
        return Err(Failure::new(format_args!(
            "{url} has not been fetched, and --offline asks nobody for it"
        )));
    }
    fs::create_dir_all(&folder)
        .map_err(|e| Failure::new(format_args!("cannot use the folder {}: {e}", folder.display())))?;
    let about = ask(client, url, stop)?;
    // A beginning of another file at this address has another name; without anything to tell them apart there is none to go on from.
    let validator = about
        .validator
        .clone()
        .unwrap_or_else(|| format!("{}", std::process::id()));
    let part = folder.join(format!(
        "{}.incomplete",
        &hash(&format!("{} {validator}", about.len))[..16]
    ));
    say::line(format_args!("fetching {url} ({})", human::bytes(about.len as usize)));
    let bar = progress_bar("");
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
    check(url, &part).inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })?;
    admit(&part, &path)?;
    Ok(path)
}

/// What a host says of a file.
struct About {
    len: u64,
    validator: Option<String>,
}

/// Asks for the first byte, which tells the length and whether parts can be had.
fn ask(client: &Client, url: &str, stop: &interrupt::Guard) -> Outcome<About> {
    let mut attempts = Attempts::new(&client.patience);
    let answer = loop {
        match client.get(url, &[("range", "bytes=0-0"), ("accept-encoding", "identity")]) {
            Ok(answer) => break answer,
            Err(trouble) => attempts.after(trouble, stop)?,
        }
    };
    let len = match answer.status {
        206 => content_range(&answer.headers).map(|(_, len)| len),
        _ => content_length(&answer.headers),
    };
    let len = len.filter(|&len| len > 0);
    let len = len.ok_or_else(|| {
        Failure::new(format_args!(
            "{url}: the host does not say how long the file is, so that half of it could be taken for all"
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

fn check(url: &str, file: &Path) -> Outcome {
    match GgufFile::open(file) {
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::new(format_args!("{url}: what came is no whole model: {e}"))),
    }
}

/// The last part of the path, which has to be a name for a model's file.
fn file_name(url: &str) -> Outcome<String> {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.to_ascii_lowercase().ends_with(".gguf") && is_inside(name) && !name.contains('%') {
        Ok(name.to_owned())
    } else {
        Err(Failure::new(format_args!(
            "{url}: the address does not end in the name of a GGUF file"
        )))
    }
}

fn hash(text: &str) -> String {
    hexadecimal(&Sha256::digest(text.as_bytes()))
}
