//! Projectors, images, and audio on the command line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::context::{ContextParams, MediaRows};
use engine::model::{MediaUse, Medium, Model};
use llama::parts::{MediaProjector, SoundError};
use tracing::warn;

use crate::args::{HubArgs, LoadArgs, PrecisionArg, ProjectorArgs};
use crate::failure::{Failure, Outcome};
use crate::{checkpoints, declared, input};

/// Refuses a directory as the file of `--mmproj`.
pub fn expect_projector(path: &Path) -> Outcome {
    let remedy = "pass the file mmproj*.gguf of the model";
    checkpoints::expect_file("--mmproj", path, "a projector", remedy)
}

/// Loads the projector of a language model, by default on the devices of the model. The file is that of `--mmproj`, or
/// `mmproj*.gguf` in the directory of the model. Returns `None` if neither exists, or if the file in the directory
/// cannot be used with the model.
pub fn projector(
    args: &ProjectorArgs,
    hub: &HubArgs,
    load: &LoadArgs,
    precision: PrecisionArg,
    params: &ContextParams,
    language: &Model,
) -> Outcome<Option<MediaProjector>> {
    let open = |path: &Path| -> Outcome<Result<MediaProjector, SoundError>> {
        let mut load = load.clone();
        if args.mmproj_device.is_some() {
            load.placement.device.clone_from(&args.mmproj_device);
        }
        let mut load = load.params(precision, None)?;
        if let Some(file) = &args.mmproj_arch {
            load.archs.insert(0, declared::load_encoder(file)?);
        }
        let mut projector = match MediaProjector::open(path, &load, params, language) {
            Ok(projector) => projector,
            Err(error) => return Ok(Err(error)),
        };
        let [min, max] = [args.image_min_tokens, args.image_max_tokens].map(|n| n.map(|n| n as usize));
        projector
            .limit_rows(min, max)
            .map_err(|e| Failure::new(format_args!("--image-min-tokens, --image-max-tokens: {e}")))?;
        Ok(Ok(projector))
    };
    if let Some(given) = &args.mmproj {
        let path = hub.projector_of(given)?;
        expect_projector(&path)?;
        let opened = open(&path)?.map_err(|e| Failure::new(format_args!("--mmproj: {e}")))?;
        return Ok(Some(opened));
    }
    let path = if args.no_mmproj || language.arch().media_use == MediaUse::None {
        None
    } else {
        projector_next_to(language.path())
    };
    let Some(path) = path else {
        if args.limits_rows() {
            return Err(Failure::new(
                "--image-min-tokens and --image-max-tokens need a projector: pass it with --mmproj",
            ));
        }
        return Ok(None);
    };
    match open(&path)? {
        Ok(projector) => Ok(Some(projector)),
        Err(error) => {
            warn!("the projector next to the model is not used: {error}; use --no-mmproj to ignore the file");
            Ok(None)
        }
    }
}

/// Returns the projector next to a model. A model of the hub in a subdirectory can have its projector in a parent
/// directory of the snapshot.
pub fn projector_next_to(model: &Path) -> Option<PathBuf> {
    let directory = match model.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    let is_in_snapshot = |directory: &&Path| {
        let mut parents = directory.ancestors().skip(1);
        parents.any(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))
    };
    let parents = directory.ancestors().skip(1).take_while(is_in_snapshot);
    let mut directories = std::iter::once(directory).chain(parents);
    directories.find_map(projector_in)
}

/// Returns true for names of projector files.
fn is_projector(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("mmproj") && name.ends_with(".gguf")
}

/// Returns the only projector in a directory. Returns `None` and warns if there are several.
fn projector_in(directory: &Path) -> Option<PathBuf> {
    let is_projector = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        is_projector(name) && path.is_file()
    };
    let entries = std::fs::read_dir(directory).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = paths.filter(is_projector).collect();
    if found.len() > 1 {
        warn!(
            "{}: {} projectors (mmproj*.gguf) are ignored; choose one with --mmproj",
            directory.display(),
            found.len()
        );
        return None;
    }
    found.pop()
}

/// Reads and encodes an image or audio file.
pub fn rows(projector: &mut MediaProjector, medium: Medium, path: &Path) -> Outcome<Arc<MediaRows>> {
    let bytes = input::bytes(path)?;
    let rows = projector.rows(medium, &bytes);
    rows.map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))
}
