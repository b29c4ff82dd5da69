//! Search for the architecture of a file.

use std::path::Path;

use crate::gguf::Metadata;

use super::media::projector_of;
use super::nearest::nearest_names;
use super::params::{FindArch, LoadParams, WantedArch};
use super::{Architecture, ENCODER_ARCH, ModelError, Registered};

/// Returns the architecture to load and the key prefix of the file.
pub(super) fn load_arch(
    metadata: &Metadata,
    path: &Path,
    archs: &[Registered],
    params: &LoadParams,
) -> Result<(&'static Architecture, String), ModelError> {
    let file_arch: String = metadata.require("general.architecture").map_err(|e| e.in_file(path))?;
    let encoder = if file_arch == ENCODER_ARCH {
        projector_of(metadata, params.medium)
    } else {
        None
    };
    let name = params.arch.as_deref().or(encoder).unwrap_or(&file_arch);
    let is_encoder = encoder.is_some();
    // An encoder may have the same name as an architecture.
    let of_kind = |r: &&Registered| r.arch.media.is_some() == is_encoder;
    let all = || params.archs.iter().chain(archs).filter(of_kind);
    let names = || all().map(|r| r.arch.name);
    let wanted = WantedArch {
        name,
        is_encoder,
        path,
        metadata,
    };
    let find = |find: &FindArch| {
        find(&wanted).map_err(|reason| ModelError::Declaration {
            path: path.to_owned(),
            arch: name.to_owned(),
            reason,
        })
    };
    let mut found = match &params.read_arch {
        Some(read) => find(read)?,
        None => all().find(|r| r.arch.name == name).copied(),
    };
    if let (None, Some(other)) = (found, &params.find_arch) {
        found = find(other)?;
    }
    let of_other_kind = || {
        params
            .archs
            .iter()
            .find(|r| r.arch.name == name && !of_kind(r))
            .copied()
    };
    match found.or_else(of_other_kind) {
        Some(r) if !of_kind(&&r) => Err(ModelError::OtherKind {
            path: path.to_owned(),
            arch: r.arch.name,
            is_encoder,
        }),
        Some(r) => Ok((r.arch, r.arch.key_prefix(&file_arch).to_owned())),
        None if is_encoder => Err(ModelError::UnknownEncoder {
            path: path.to_owned(),
            found: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        }),
        None => Err(ModelError::UnknownArchitecture {
            path: path.to_owned(),
            found: name.to_owned(),
            nearest: nearest_names(name, names()),
        }),
    }
}
