//! Models by name: `user/repo:QUANT` on a model hub, or a short name of the table here.
//!
//! What is fetched lies in the cache that other programs have, too: `blobs` by SHA-256, `snapshots` with the names of files, `refs` with
//! commits. A blob has its name only when its length and its SHA-256 are right; until then it is `.incomplete`, and the next attempt goes on where it ends.
//!
//! - [`name`], [`short_names`]: what a name says
//! - [`choose`]: which files of a repository a name means
//! - [`client`]: requests, redirections, tokens, second attempts
//! - [`listing`]: what the hub says that a repository has
//! - [`transfer`], [`blob`]: one file, from the first byte to its SHA-256
//! - [`cache`]: folders of the cache, what lies in them, how it is removed
//! - [`address`]: a file at any address

mod address;
mod blob;
pub mod cache;
pub mod choose;
mod client;
mod listing;
pub mod name;
mod short_names;
#[cfg(test)]
mod tests;
mod transfer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::{Failure, Outcome};
use crate::{dirs, human, interrupt, say};
use blob::Blob;
use cache::{Cache, Entry};
use client::{Client, Patience};
use name::Name;
pub use short_names::SHORT_NAMES;

/// Where models are looked for unless `HF_ENDPOINT` names a mirror.
pub const ENDPOINT: &str = "https://huggingface.co";

/// Files of a model that are fetched at once.
const AT_ONCE: usize = 4;

/// Where a model comes from that is not given as a file.
#[derive(Clone, Debug, Default, Args)]
pub struct HubArgs {
    /// Model (-hf) by the name of its repository on the hub, with the quantization that is meant: user/repo:Q4_K_M
    #[arg(long, value_name = "REPO[:QUANT]", hide_short_help = true, help_heading = HEADING)]
    pub hf_repo: Option<String>,
    /// File (-hff) of that repository
    #[arg(long, value_name = "PATH", requires = "hf_repo", hide_short_help = true, help_heading = HEADING)]
    pub hf_file: Option<String>,
    /// Token (-hft) that the hub asks for [default: HF_TOKEN, or what other programs have stored]
    #[arg(long, value_name = "TOKEN", hide_short_help = true, help_heading = HEADING)]
    pub hf_token: Option<String>,
    /// Model (-mu) by the address of its file
    #[arg(long, value_name = "URL", conflicts_with = "hf_repo", hide_short_help = true, help_heading = HEADING)]
    pub model_url: Option<String>,
    /// Use only what has been fetched before
    #[arg(long, hide_short_help = true, help_heading = HEADING)]
    pub offline: bool,
}

const HEADING: &str = "Models by name";

impl HubArgs {
    /// True if they name a model.
    pub fn names_a_model(&self) -> bool {
        self.hf_repo.is_some() || self.model_url.is_some()
    }

    /// The model of the hub that they name.
    pub fn name(&self) -> Outcome<Option<Name>> {
        let Some(repo) = &self.hf_repo else { return Ok(None) };
        let name = Name::parse(repo).ok_or_else(|| Failure::new(no_name(repo)))?;
        Ok(Some(match &self.hf_file {
            Some(file) => name.with_file(file),
            None => name,
        }))
    }

    /// The file that they name, or that `given` names: a file, or a model of the hub, which is fetched if it is not there.
    pub fn file(&self, given: Option<&Path>) -> Outcome<Option<PathBuf>> {
        match (given, self.name()?, &self.model_url) {
            (Some(given), None, None) => self.file_of(given).map(Some),
            (None, Some(name), _) => Hub::new(self)?.model(&name).map(Some),
            (None, None, Some(url)) => Hub::new(self)?.address(url).map(Some),
            (None, None, None) => Ok(None),
            (Some(given), ..) => Err(Failure::new(format_args!(
                "the model is given twice: {}, and by -hf or -mu",
                given.display()
            ))),
        }
    }

    /// The file of this path, or the model of this name.
    pub fn file_of(&self, given: &Path) -> Outcome<PathBuf> {
        match given.to_str().and_then(Name::meant) {
            Some(name) if !given.exists() => Hub::new(self)?.model(&name),
            _ => Ok(given.to_owned()),
        }
    }
}

/// Says what a name looks like, and which were meant perhaps.
pub fn no_name(text: &str) -> String {
    let near = engine::model::nearest_names(text, SHORT_NAMES.iter().map(|short| short.name));
    let near = match near.is_empty() {
        true => String::new(),
        false => format!("; the nearest are {}", near.join(", ")),
    };
    format!(
        "{text:?} is neither a file nor the name of a model: expected user/repo, user/repo:QUANT, or a short name that `llama pull --help` lists{near}"
    )
}

/// A model hub, and the cache of what came from it.
pub struct Hub {
    client: Client,
    cache: Cache,
    offline: bool,
}

impl Hub {
    /// As the flags and the environment say.
    pub fn new(args: &HubArgs) -> Outcome<Hub> {
        let is_set =
            |name: &str| std::env::var(name).is_ok_and(|v| matches!(v.as_str(), "1" | "true" | "TRUE" | "yes" | "on"));
        let endpoint = dirs::variable("HF_ENDPOINT").and_then(|v| v.into_os_string().into_string().ok());
        let token = args.hf_token.clone().or_else(cache::stored_token);
        Ok(Hub {
            client: Client::new(endpoint.as_deref().unwrap_or(ENDPOINT), token, Patience::default())?,
            cache: Cache::of_user()?,
            offline: args.offline || is_set("HF_HUB_OFFLINE"),
        })
    }

    /// The model's first file: as it lies in the cache, else fetched.
    pub fn model(&self, name: &Name) -> Outcome<PathBuf> {
        let stop = interrupt::listen();
        match self.cache.find(name) {
            Some(entry) if self.is_right(&entry, &stop)? => Ok(entry.path),
            _ if self.offline => Err(Failure::new(format_args!(
                "{name} has not been fetched, and --offline asks the hub for nothing; `llama list` shows what is there"
            ))),
            _ => self.fetch(name, &stop),
        }
    }

    /// The model as the hub has it now: what the cache lacks of it is fetched.
    pub fn pull(&self, name: &Name) -> Outcome<PathBuf> {
        if self.offline {
            return Err(Failure::new(
                "--offline asks the hub for nothing: there is nothing to pull",
            ));
        }
        self.fetch(name, &interrupt::listen())
    }

    /// The file at any address.
    pub fn address(&self, url: &str) -> Outcome<PathBuf> {
        let stop = interrupt::listen();
        if let Some(name) = address::of_hub(&self.client, url) {
            drop(stop);
            return self.model(&name);
        }
        address::fetch(&self.client, url, self.offline, &stop)
    }

    /// Whether every file of a cached model is the one that its name in the cache says. Read through once; later looks are at its date only.
    fn is_right(&self, entry: &Entry, stop: &interrupt::Guard) -> Outcome<bool> {
        for blob in &entry.blobs {
            if !blob.is_known() && !blob.is_right(&progress_bar("checking"), stop)? {
                say::line(format_args!(
                    "{}: the file in the cache is not what its name says, and is fetched again",
                    entry.name
                ));
                blob.discard();
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the hub answers at once when it is asked for the model.
    pub fn has(&self, name: &Name) -> Result<(), String> {
        let mut asked = self.client.clone();
        asked.patience.attempts = 1;
        match listing::of(&asked, name, &interrupt::listen()) {
            Ok(_) => Ok(()),
            Err(Failure::Message(why)) => Err(why),
            Err(_) => Err("interrupted".to_owned()),
        }
    }

    /// The model if it is in the cache.
    pub fn cached(&self, name: &Name) -> Outcome<Option<PathBuf>> {
        match self.cache.find(name) {
            Some(entry) if self.is_right(&entry, &interrupt::listen())? => Ok(Some(entry.path)),
            _ => Ok(None),
        }
    }

    fn fetch(&self, name: &Name, stop: &interrupt::Guard) -> Outcome<PathBuf> {
        let listing = listing::of(&self.client, name, stop)?;
        let paths: Vec<&str> = listing.files.iter().map(|f| f.path.as_str()).collect();
        let chosen = choose::files(name, &paths).map_err(Failure::new)?;
        let files: Vec<_> = listing
            .files
            .iter()
            .filter(|f| chosen.contains(&f.path.as_str()))
            .collect();
        let blobs: Vec<Blob> = files.iter().map(|f| self.cache.blob(name, &f.sha256, f.len)).collect();
        let missing: Vec<usize> = (0..blobs.len()).filter(|&i| !blobs[i].is_known()).collect();
        let mut rest = Vec::new();
        for i in missing {
            let there = blobs[i].is_there() && blobs[i].is_right(&progress_bar("checking"), stop)?;
            if !there {
                rest.push((&blobs[i], listing.url(&self.client, name, &files[i].path)));
            }
        }
        if !rest.is_empty() {
            let n: u64 = rest.iter().map(|(blob, _)| blob.len()).sum();
            say::line(format_args!("fetching {name} ({})", human::bytes(n as usize)));
            fetch_all(&self.client, &rest, stop)?;
        }
        let mut first = None;
        for (file, blob) in files.iter().zip(&blobs) {
            let path = self.cache.link(name, &listing.commit, &file.path, blob)?;
            if file.path == chosen[0] {
                first = Some(path);
            }
        }
        self.cache.set_main(name, &listing.commit)?;
        first.ok_or_else(|| Failure::new(format_args!("{name}: there is no file to load")))
    }
}

/// Fetches blobs, some at once, with one bar for all. The first failure ends all.
fn fetch_all(client: &Client, blobs: &[(&Blob, String)], stop: &interrupt::Guard) -> Outcome {
    let bar = progress_bar("");
    bar.set_length(blobs.iter().map(|(blob, _)| blob.len()).sum());
    let next = AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(None);
    let work = || {
        loop {
            let has_failed = failed.lock().is_ok_and(|f| f.is_some());
            let Some((blob, url)) = blobs.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !has_failed) else {
                return;
            };
            if let Err(failure) = blob.fetch(client, url, &bar, stop)
                && let Ok(mut failed) = failed.lock()
            {
                failed.get_or_insert(failure);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..blobs.len().min(AT_ONCE) {
            scope.spawn(work);
        }
        work();
    });
    bar.finish_and_clear();
    match failed.into_inner() {
        Ok(Some(failure)) => Err(failure),
        _ => Ok(()),
    }
}

/// A bar on stderr, drawn only where that is a terminal.
pub fn progress_bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::no_length().with_message(what);
    let style = ProgressStyle::with_template("  {msg}[{bar:40}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
