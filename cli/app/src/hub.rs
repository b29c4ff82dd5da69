//! Downloads of models, with messages and progress bars of downloads.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use engine::model::nearest_names;
use indicatif::{ProgressBar, ProgressStyle};
use llama::CancelHandle;
pub use llama::hub::{Cache, Entry, HubError, Name, SHORT_NAMES};
use llama::hub::{Event, HubOptions, Step};
use tracing::info;

use crate::args::HubArgs;
use crate::failure::{Failure, Outcome};
use crate::{format, interrupt};

/// Default hub, unless `HF_ENDPOINT` names a mirror.
pub const ENDPOINT: &str = "https://huggingface.co";

impl HubArgs {
    /// Returns the model file given by the options or by `given`, a file or model name. Downloads the model
    /// if necessary.
    pub fn file(&self, given: Option<&Path>) -> Outcome<Option<PathBuf>> {
        match (given, self.name()?, &self.model_url) {
            (Some(given), None, None) => self.file_of(given).map(Some),
            (None, Some(name), _) => Hub::new(self)?.model(&name).map(Some),
            (None, None, Some(url)) => Hub::new(self)?.address(url).map(Some),
            (None, None, None) => Ok(None),
            (Some(given), ..) => Err(Failure::new(format_args!(
                "cannot use {} together with -hf or -mu: only one model can be loaded",
                given.display()
            ))),
        }
    }

    /// Returns the file at this path, or the file of the model with this name.
    pub fn file_of(&self, given: &Path) -> Outcome<PathBuf> {
        // If the file system reports an error, opening the file reports the same error.
        if given.try_exists().unwrap_or(true) {
            return Ok(given.to_owned());
        }
        match given.to_str().and_then(Name::meant) {
            Some(name) => Hub::new(self)?.model(&name),
            None => Err(no_file(given)),
        }
    }

    /// Returns the projector file at this path, or the projector of the model with this name.
    pub fn projector_of(&self, given: &Path) -> Outcome<PathBuf> {
        if given.try_exists().unwrap_or(true) {
            return Ok(given.to_owned());
        }
        match given.to_str().and_then(Name::meant) {
            Some(name) => Hub::new(self)?.projector(&name),
            None => Err(no_file(given)),
        }
    }
}

/// Maximum number of files of a directory that are compared with a mistyped name.
const MAX_COMPARED: usize = 10_000;

/// Creates the error for a file that does not exist, with similar files and models.
fn no_file(given: &Path) -> Failure {
    let typed = given.file_name().unwrap_or_default().to_string_lossy();
    let directory = match given.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries
        .take(MAX_COMPARED)
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut known: Vec<String> = names
        .filter(|name| name.to_ascii_lowercase().ends_with(".gguf"))
        .collect();
    known.extend(SHORT_NAMES.iter().map(|short| short.name.to_owned()));
    let failure = Failure::new(format_args!(
        "{}: no such file; expected a GGUF file or a model name, such as qwen3:0.6b or user/repo:Q4_K_M",
        given.display()
    ));
    match &nearest_names(&typed, known.iter().map(String::as_str))[..] {
        [] => failure,
        similar => failure.with_remedy(format_args!("similar names: {}", similar.join(", "))),
    }
}

/// A model hub with its local cache. Ctrl-C cancels its operations.
pub struct Hub(llama::hub::Hub);

impl Hub {
    /// Creates a hub from the options and the environment.
    pub fn new(args: &HubArgs) -> Outcome<Hub> {
        let bar = Mutex::new(None::<ProgressBar>);
        let options = HubOptions::default()
            .offline(args.offline)
            .cancel(CancelHandle::from(interrupt::flag()))
            .observer(move |event| show(event, &mut bar.lock().unwrap_or_else(PoisonError::into_inner)));
        let options = match &args.hf_token {
            Some(token) => options.token(token),
            None => options,
        };
        Ok(Hub(llama::hub::Hub::new(options)?))
    }

    /// Returns the model's first file, downloading the model unless it is cached.
    pub fn model(&self, name: &Name) -> Outcome<PathBuf> {
        let _stop = interrupt::listen();
        Ok(self.0.model(name)?)
    }

    /// Returns the projector of the model, downloading it unless it is cached.
    pub fn projector(&self, name: &Name) -> Outcome<PathBuf> {
        let _stop = interrupt::listen();
        Ok(self.0.projector(name)?)
    }

    /// Downloads the latest version of the model, reusing cached files.
    pub fn pull(&self, name: &Name) -> Outcome<PathBuf> {
        let _stop = interrupt::listen();
        Ok(self.0.pull(name)?)
    }

    /// Returns the file of a URL, downloading it unless it is cached.
    pub fn address(&self, url: &str) -> Outcome<PathBuf> {
        let _stop = interrupt::listen();
        Ok(self.0.address(url)?)
    }

    /// Checks with a single attempt that the hub has the model.
    pub fn has(&self, name: &Name) -> Result<(), String> {
        let _stop = interrupt::listen();
        self.0.has(name).map_err(|error| match Failure::from(error) {
            Failure::Message(message) => message,
            _ => "interrupted".to_owned(),
        })
    }

    /// Returns the model's first file if it is cached.
    pub fn cached(&self, name: &Name) -> Outcome<Option<PathBuf>> {
        let _stop = interrupt::listen();
        Ok(self.0.cached(name)?)
    }
}

/// Prints the message of an event, or updates the progress bar.
fn show(event: Event<'_>, bar: &mut Option<ProgressBar>) {
    match event {
        Event::Download { name, n_bytes } => {
            info!("downloading {name} ({})", format::bytes(n_bytes as usize))
        }
        Event::Corrupt { name } => info!("{name}: cached file fails its checksum; downloading it again"),
        Event::Waiting => info!("waiting for another process that is downloading the same file"),
        Event::Start { step, n_bytes } => *bar = Some(progress_bar(step, n_bytes)),
        Event::Advance { n_bytes } => {
            if let Some(bar) = bar {
                match n_bytes {
                    0.. => bar.inc(n_bytes.unsigned_abs()),
                    _ => bar.dec(n_bytes.unsigned_abs()),
                }
            }
        }
        Event::End => {
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
        }
        _ => {}
    }
}

/// Creates a progress bar on stderr, visible only on terminals.
fn progress_bar(step: Step, n_bytes: u64) -> ProgressBar {
    let message = match step {
        Step::Verify => "checking",
        _ => "",
    };
    let bar = ProgressBar::no_length().with_message(message);
    let style = ProgressStyle::with_template("  {msg}[{bar:40}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_length(n_bytes);
    bar
}
