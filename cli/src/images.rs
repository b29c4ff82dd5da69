//! Projectors and images on the command line.

use std::path::Path;
use std::sync::Arc;

use engine::context::{ContextParams, MediaRows};
use engine::model::Model;
use llama::parts::Projector;

use crate::args::{LoadArgs, PrecisionArg};
use crate::failure::{Failure, Outcome};
use crate::input;

/// Loads a projector on the devices of a language model.
pub fn open(
    path: &Path,
    load: &LoadArgs,
    precision: PrecisionArg,
    params: &ContextParams,
    language: &Model,
) -> Outcome<Projector> {
    let load = load.params(precision, None)?;
    Projector::open(path, &load, params, language).map_err(|e| Failure::new(format_args!("--mmproj: {e}")))
}

/// Reads and encodes an image.
pub fn rows(projector: &mut Projector, path: &Path) -> Outcome<Arc<MediaRows>> {
    let bytes = input::bytes(path)?;
    let rows = projector.rows(&bytes);
    rows.map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))
}
