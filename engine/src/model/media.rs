//! Static description of media in architectures, and the encoders that a file names.

use crate::gguf::{Metadata, Value};

/// Part of a declaration that only encoders have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaDecl {
    /// Medium that the encoder reads.
    pub medium: Medium,
    /// Text around the rows of a medium; contains [`TextPart::Medium`] exactly once.
    pub text: &'static [TextPart],
}

/// Medium that an encoder reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An image.
    Image,
    /// Audio.
    Audio,
}

/// Piece of the text around a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPart {
    /// Text with special tokens.
    Text(&'static str),
    /// Rows of the medium.
    Medium,
}

/// Treatment of media rows by the graph of a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaUse {
    /// The graph takes no media rows.
    None,
    /// Rows attend to earlier positions only, like tokens.
    Causal,
    /// Rows of one medium attend to each other in some layers.
    Whole,
}

/// Value of `general.architecture` in the files of encoders.
pub const ENCODER_ARCH: &str = "clip";

impl Medium {
    /// Returns the prefix of the metadata keys of encoders.
    pub(crate) fn key_prefix(self) -> &'static str {
        match self {
            Medium::Image => "clip.vision",
            Medium::Audio => "clip.audio",
        }
    }

    /// Returns true for tensors of an encoder of this medium.
    pub(crate) fn has_tensor(self, name: &str) -> bool {
        let of_audio = name.starts_with("a.") || name.starts_with("mm.a.");
        match self {
            Medium::Image => !of_audio && (name.starts_with("v.") || name.starts_with("mm.")),
            Medium::Audio => of_audio,
        }
    }
}

/// Metadata key with the name of the only encoder.
const NAME_KEY: &str = "clip.projector_type";

/// Metadata keys with the name of the encoder of each medium.
const NAME_KEYS: [(Medium, &str); 2] = [
    (Medium::Image, "clip.vision.projector_type"),
    (Medium::Audio, "clip.audio.projector_type"),
];

/// Name of both encoders of Qwen2.5-Omni, and the name of the encoder of each medium.
const OMNI: &str = "qwen2.5o";
const OMNI_NAMES: [(Medium, &str, &str); 2] = [
    (Medium::Image, "qwen2.5vl_merger", "clip.vision.embedding_length"),
    (Medium::Audio, OMNI, "clip.audio.embedding_length"),
];

/// Returns the media and names of the encoders in a file, the image encoder first. The medium of a single encoder may
/// be unknown.
pub fn projector_types(metadata: &Metadata) -> Vec<(Option<Medium>, &str)> {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str);
    match text(NAME_KEY) {
        Some(OMNI) if OMNI_NAMES.iter().any(|(_, _, key)| metadata.get(key).is_some()) => {
            let found = OMNI_NAMES.iter().filter(|(_, _, key)| metadata.get(key).is_some());
            found.map(|&(medium, name, _)| (Some(medium), name)).collect()
        }
        Some(name) => vec![(None, name)],
        None => {
            let of_medium = |&(medium, key): &(Medium, &'static str)| Some((Some(medium), text(key)?));
            NAME_KEYS.iter().filter_map(of_medium).collect()
        }
    }
}

/// Returns the medium of each encoder in a file, for [`LoadParams::medium`](super::LoadParams). `None` selects the
/// only encoder.
pub fn encoder_media(metadata: &Metadata) -> Vec<Option<Medium>> {
    let types = projector_types(metadata);
    if types.len() < 2 {
        return vec![None];
    }
    types.into_iter().map(|(medium, _)| medium).collect()
}

/// Returns the name of the first encoder in a file, if any.
pub fn projector_type(metadata: &Metadata) -> Option<&str> {
    projector_types(metadata).first().map(|(_, name)| *name)
}

/// Returns the name of the encoder of a medium if a file has several, and of the first encoder otherwise.
pub(super) fn projector_of(metadata: &Metadata, medium: Option<Medium>) -> Option<&str> {
    let types = projector_types(metadata);
    let of_medium = types.iter().find(|(of, _)| of.is_some() && *of == medium);
    of_medium.or(types.first()).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_omni_stands_for_encoder_of_each_medium() {
        let mut metadata = Metadata::default();
        metadata.insert("clip.projector_type", OMNI);
        assert_eq!(projector_types(&metadata), [(None, OMNI)]);
        metadata.insert("clip.audio.embedding_length", 64u32);
        assert_eq!(projector_types(&metadata), [(Some(Medium::Audio), OMNI)]);
        metadata.insert("clip.vision.embedding_length", 64u32);
        assert_eq!(encoder_media(&metadata), [Some(Medium::Image), Some(Medium::Audio)]);
        assert_eq!(projector_of(&metadata, Some(Medium::Image)), Some("qwen2.5vl_merger"));
        assert_eq!(projector_of(&metadata, Some(Medium::Audio)), Some(OMNI));
    }
}
