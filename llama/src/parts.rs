//! Building blocks of [`Chat`](crate::Chat), for programs that need more control. Unstable: this module may
//! change in any release.
//!
//! The command line and the server of this project are built from these parts:
//!
//! - [`ARCHITECTURES`]: the built-in architectures
//! - [`sampler_chain`]: samplers with the banned tokens of a model
//! - [`PromptTemplate`]: chat template with reasoning tags; [`Rendered`], [`Prompt`]: its results
//! - [`PendingConstraint`]: grammar that is compiled on another thread
//! - [`Generator`]: tokens to text, with stop strings and reasoning budget
//! - [`Session`]: context with cached prefix, context shift, and speculative decoding
//! - [`reserve_drafts`]: memory for the drafts of speculative decoding
//! - [`MediaProjector`], [`MediaLayout`]: rows of images and audio, and their positions in prompts
//! - [`image_parts`]: image preprocessing
//! - [`image_spans`], [`image_batch_end`], [`push_with_images`]: batches of prompts with images
//! - [`save_messages`], [`load_messages`]: saved conversations
//! - [`default_pooling`], [`decode_texts`]: embeddings
//! - [`Transcriber`]: speech recognition
//! - [`usable_gpus`], [`load_model`], [`load_or_use_cpu`]: loading on the devices of the machine

/// All built-in architectures, for `engine::model::Model::load`.
pub use archs::ALL as ARCHITECTURES;

/// All built-in media encoders.
pub use archs::ENCODERS;

pub use crate::constraint::PendingConstraint;
pub use crate::drafts::reserve_drafts;
pub use crate::embed::{MAX_TEXTS, MediaPrompt, decode_texts, default_pooling, n_fitting, normalized};
pub use crate::generator::{Generator, OutputEnd, Sampled, ShownTokens};
pub use crate::image_parts::image_parts;
pub use crate::images::{
    IMAGE_MARK, ImageError, ImageLayout, ImageSpan, Projector, encode_image, image_batch_end, image_spans,
    push_with_images, without_marks,
};
pub use crate::load::{load_model, load_or_use_cpu, usable_gpus};
pub use crate::projectors::{MediaLayout, MediaProjector, encode_medium};
pub use crate::sampling::sampler_chain;
pub use crate::saved::{load_messages, save_messages};
pub use crate::session::{Generation, GenerationParams, Session, fitting_context};
pub use crate::sounds::{AudioLayout, AudioProjector, SoundError, encode_audio};
pub use crate::template::{Prompt, PromptTemplate, Rendered};
pub use crate::transcribe::{Phrase, SPEECH_RATE, TranscribeError, TranscribeOptions, Transcriber, Transcription};
