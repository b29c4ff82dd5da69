//! Projectors, which encode images, audio, or both for a language model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::context::{AudioEncoder, ContextParams, MediaEncoder, MediaRows};
use engine::gguf::Gguf;
use engine::model::{LoadParams, Medium, Model, ModelError, encoder_media};
use engine::vocab::Vocab;
use media::{Format, Limits};
use tracing::warn;

use crate::images::{ImageError, ImageLayout, Projector, encode_image, model_and_texts, tokenize};
use crate::sounds::{AudioLayout, AudioProjector, SoundError, encode_audio};
use crate::template::{Prompt, PromptTemplate, Rendered};

/// Sizes of images and lengths of audio, and their positions in prompts. Usable while the encoder is busy.
#[derive(Clone, Debug)]
pub struct MediaLayout {
    image: Option<ImageLayout>,
    audio: Option<AudioLayout>,
}

impl MediaLayout {
    /// Returns true if the projector encodes a medium.
    pub fn reads(&self, medium: Medium) -> bool {
        match medium {
            Medium::Image => self.image.is_some(),
            Medium::Audio => self.audio.is_some(),
        }
    }

    /// Returns the medium of a file in memory. Damaged files count as images if the projector encodes images.
    pub fn medium_of(&self, file: &[u8]) -> Medium {
        medium_of_file(file, self.reads(Medium::Image), self.reads(Medium::Audio))
    }

    /// Returns the media that the projector encodes, for messages.
    pub fn media(&self) -> &'static str {
        names(self.image.is_some(), self.audio.is_some())
    }

    /// Returns the number of rows of a file in memory, from its headers.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the projector does not encode the medium, or if the encoder does not accept images
    /// of this size. The same applies if the file exceeds a limit or its header is invalid.
    pub fn n_rows(&self, medium: Medium, file: &[u8], limits: &Limits) -> Result<usize, SoundError> {
        match (medium, &self.image, &self.audio) {
            (Medium::Image, Some(layout), _) => Ok(layout.n_rows(file, limits)?),
            (Medium::Audio, _, Some(layout)) => layout.n_rows(file, limits),
            _ => Err(other_medium(self.media(), medium)),
        }
    }

    /// Returns the texts between the rows of a file in memory, each with the number of rows before it.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the file exceeds a limit, its header is invalid, or the encoder does not accept
    /// images of its size.
    pub fn texts(&self, medium: Medium, file: &[u8], limits: &Limits) -> Result<Vec<(usize, String)>, SoundError> {
        match (medium, &self.image) {
            (Medium::Image, Some(layout)) => Ok(layout.texts(file, limits)?),
            _ => Ok(Vec::new()),
        }
    }

    /// Tokenizes a prompt like [`ImageLayout::tokenized`].
    pub fn tokenized(
        &self,
        vocab: &Vocab,
        template: Option<&PromptTemplate>,
        rendered: Rendered,
        media: &[Arc<MediaRows>],
    ) -> Prompt {
        let around = |rows: &MediaRows| match rows.medium() {
            Medium::Image => self.image.as_ref().map(ImageLayout::texts_around),
            Medium::Audio => self.audio.as_ref().map(AudioLayout::texts_around),
        };
        tokenize(&around, vocab, template, rendered, media)
    }
}

/// Image and audio encoders for a language model.
pub struct MediaProjector {
    image: Option<Projector>,
    audio: Option<AudioProjector>,
}

impl MediaProjector {
    /// Loads the encoders of a projector file like [`Projector::open`]. If a file has two encoders and one of them is
    /// not supported, only the other one is loaded.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the file is invalid or belongs to another model.
    pub fn open(
        path: &Path,
        load: &LoadParams,
        context: &ContextParams,
        language: &Model,
    ) -> Result<MediaProjector, SoundError> {
        let header = Gguf::open_header(path).map_err(|e| ImageError::from(ModelError::from(e)))?;
        let media = encoder_media(&header.metadata);
        let mut projector = MediaProjector {
            image: None,
            audio: None,
        };
        let mut unsupported = None;
        for medium in &media {
            match projector.add(path, load, context, language, *medium) {
                Err(SoundError::Projector(ImageError::Model(error @ ModelError::UnknownEncoder { .. })))
                    if media.len() > 1 =>
                {
                    unsupported = Some(error);
                }
                added => added?,
            }
        }
        match unsupported {
            None => Ok(projector),
            Some(error) if projector.image.is_none() && projector.audio.is_none() => {
                Err(ImageError::from(error).into())
            }
            Some(error) => {
                warn!("{error}; the projector encodes {} only", projector.media());
                Ok(projector)
            }
        }
    }

    /// Adds the encoder of a medium, or the only encoder of a file.
    fn add(
        &mut self,
        path: &Path,
        load: &LoadParams,
        context: &ContextParams,
        language: &Model,
        medium: Option<Medium>,
    ) -> Result<(), SoundError> {
        let (model, around) = model_and_texts(path, load, language, medium)?;
        match medium_of(&model) {
            Medium::Image => {
                let encoder = MediaEncoder::new(model, context).map_err(ImageError::from)?;
                self.image = Some(Projector::new(encoder, around));
            }
            Medium::Audio => self.audio = Some(AudioProjector::new(model, context, around)?),
        }
        Ok(())
    }

    /// Returns the sizes of images and lengths of audio, and their positions in prompts.
    pub fn layout(&self) -> MediaLayout {
        MediaLayout {
            image: self.image.as_ref().map(|projector| projector.layout().clone()),
            audio: self.audio.as_ref().map(|projector| projector.layout().clone()),
        }
    }

    /// Encodes a file in memory, bypassing the cache of recent media.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the projector does not encode the medium, the file exceeds a limit or cannot be
    /// decoded, or the encoder fails.
    pub fn encode(&mut self, medium: Medium, file: &[u8], limits: &Limits) -> Result<Arc<MediaRows>, SoundError> {
        match (medium, &mut self.image, &mut self.audio) {
            (Medium::Image, Some(projector), _) => Ok(projector.encode(file, limits)?),
            (Medium::Audio, _, Some(projector)) => projector.encode(file, limits),
            _ => Err(other_medium(self.media(), medium)),
        }
    }

    /// Returns the rows of a file in memory. A recent file is not encoded again.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the projector does not encode the medium, the file cannot be decoded, or the encoder
    /// fails.
    pub fn rows(&mut self, medium: Medium, file: &[u8]) -> Result<Arc<MediaRows>, SoundError> {
        match (medium, &mut self.image, &mut self.audio) {
            (Medium::Image, Some(projector), _) => Ok(projector.rows(file)?),
            (Medium::Audio, _, Some(projector)) => projector.rows(file),
            _ => Err(other_medium(self.media(), medium)),
        }
    }

    /// Returns the medium of a file in memory, like [`MediaLayout::medium_of`].
    pub fn medium_of(&self, file: &[u8]) -> Medium {
        medium_of_file(file, self.image.is_some(), self.audio.is_some())
    }

    /// Sets a flag that cancels encoding.
    pub fn set_cancel(&mut self, flag: Option<&Arc<AtomicBool>>) {
        if let Some(projector) = &mut self.image {
            projector.set_cancel(flag.cloned());
        }
        if let Some(projector) = &mut self.audio {
            projector.set_cancel(flag.cloned());
        }
    }

    /// Limits the number of rows of an image like [`Projector::limit_rows`]. Does nothing without limits.
    ///
    /// # Errors
    /// Returns a [`SoundError`] if the projector encodes no images, or the limits are invalid.
    pub fn limit_rows(&mut self, min: Option<usize>, max: Option<usize>) -> Result<(), SoundError> {
        match &mut self.image {
            Some(projector) => Ok(projector.limit_rows(min, max)?),
            None if min.is_none() && max.is_none() => Ok(()),
            None => Err(other_medium(self.media(), Medium::Image)),
        }
    }

    /// Returns the number of rows that a context reserves for a medium: the rows of an image, or of a chunk of audio.
    pub fn n_rows(&self) -> usize {
        let of_image = self
            .image
            .as_ref()
            .map(|projector| projector.encoder().sizes().max_rows());
        let of_audio = self.audio.as_ref().map(AudioProjector::chunk_rows);
        of_image.max(of_audio).unwrap_or(0)
    }

    /// Tokenizes a prompt like [`Projector::tokenized`].
    pub fn tokenized(
        &self,
        vocab: &Vocab,
        template: Option<&PromptTemplate>,
        rendered: Rendered,
        media: &[Arc<MediaRows>],
    ) -> Prompt {
        self.layout().tokenized(vocab, template, rendered, media)
    }

    fn media(&self) -> &'static str {
        names(self.image.is_some(), self.audio.is_some())
    }
}

/// Returns the medium of a file in memory for a projector that encodes images, audio, or both.
fn medium_of_file(file: &[u8], images: bool, audio: bool) -> Medium {
    let is_image = Format::detect(file).is_none_or(Format::is_image);
    if images && (is_image || !audio) {
        Medium::Image
    } else {
        Medium::Audio
    }
}

/// Returns the names of the media that a projector encodes.
fn names(images: bool, audio: bool) -> &'static str {
    match (images, audio) {
        (true, true) => "images and audio",
        (true, false) => "images",
        (false, _) => "audio",
    }
}

fn other_medium(found: &'static str, wanted: Medium) -> SoundError {
    let wanted = names(wanted == Medium::Image, wanted == Medium::Audio);
    SoundError::Medium { found, wanted }
}

/// Returns the medium that an encoder reads.
fn medium_of(model: &Model) -> Medium {
    model.arch().media.map_or(Medium::Image, |media| media.medium)
}

/// Loads the encoder of a projector file and computes the rows of an image or audio file.
///
/// # Errors
/// Returns a [`SoundError`] if the file cannot be decoded, or the encoder fails.
pub fn encode_medium(model: Arc<Model>, context: &ContextParams, file: &[u8]) -> Result<Arc<MediaRows>, SoundError> {
    match medium_of(&model) {
        Medium::Image => {
            let mut encoder = MediaEncoder::new(model, context).map_err(ImageError::from)?;
            Ok(encode_image(&mut encoder, file)?)
        }
        Medium::Audio => encode_audio(&mut AudioEncoder::new(model, context)?, file, &Limits::default()),
    }
}
