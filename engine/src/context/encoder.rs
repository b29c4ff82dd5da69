//! [`MediaEncoder`]: computes the rows of images.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::backend::PendingRead;
use crate::builder::{Adaptation, CacheView, ImageRules};
use crate::gguf::{Array, Value};
use crate::model::Model;

use super::adapt::Adapters;
use super::batch::BatchToken;
use super::encoded::Encoded;
use super::graphs::GraphSource;
use super::inputs::Ubatch;
use super::media::MediaRows;
use super::outputs::Outputs;
use super::patches::{ChannelScale, patch_columns, patch_places};
use super::runner::GraphRunner;
use super::settings::Settings;
use super::{ContextError, ContextParams, DecodeError, SeqSet};

/// Metadata keys with the mean and the deviation of each color channel.
const COLOR_KEYS: [&str; 2] = ["clip.vision.image_mean", "clip.vision.image_std"];

/// An error that can occur when creating or using an encoder of media.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MediaError {
    /// The model is not an encoder of images.
    #[error("{model} is not an encoder of images")]
    NotAnEncoder { model: String },
    /// A color key has an invalid value.
    #[error("{model}: key `{key}`: expected three finite numbers{}, found {found}", if *.nonzero { " other than 0" } else { "" })]
    Color {
        model: String,
        key: &'static str,
        nonzero: bool,
        found: String,
    },
    /// The image was not resized to the size that the encoder takes.
    #[error("the encoder takes images of {expected} x {expected} pixels, found {width} x {height}")]
    Size {
        width: usize,
        height: usize,
        expected: usize,
    },
    /// The number of color values does not match the size.
    #[error("expected {expected} color values for {width} x {height} pixels, found {found}")]
    Pixels {
        width: usize,
        height: usize,
        expected: usize,
        found: usize,
    },
    /// The graph cannot be reserved.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The graph cannot be computed.
    #[error(transparent)]
    Compute(#[from] DecodeError),
}

/// Encoder of images with its graph and compute buffers.
pub struct MediaEncoder {
    model: Arc<Model>,
    settings: Settings,
    runner: GraphRunner,
    rules: ImageRules,
    colors: [ChannelScale; 3],
    /// Width and number of the rows of an image.
    shape: [usize; 2],
}

impl MediaEncoder {
    /// Creates an encoder and reserves the memory for an image. Of the parameters, only those of threads, precision,
    /// and profile apply.
    ///
    /// # Errors
    /// [`MediaError`] if the model is not an encoder of images, or memory is insufficient.
    pub fn new(model: Arc<Model>, params: &ContextParams) -> Result<MediaEncoder, MediaError> {
        let Some(rules) = model.image_rules() else {
            let model = model.path().display().to_string();
            return Err(MediaError::NotAnEncoder { model });
        };
        let colors = colors(&model)?;
        let n = rules.n_patches();
        let params = ContextParams {
            n_ctx: n,
            n_batch: n,
            n_ubatch: n,
            n_threads: params.n_threads,
            n_threads_batch: params.n_threads_batch,
            thread_pool: params.thread_pool.clone(),
            precision: params.precision,
            profile: params.profile.clone(),
            ..ContextParams::default()
        };
        let settings = Settings::new(&params, &model)?;
        let mut runner = GraphRunner::new(&model, &settings.params)?;
        let view = CacheView::default();
        let source = GraphSource {
            model: &model,
            view: &view,
            adaptation: Adaptation::NONE,
        };
        runner.reserve(source, &[settings.build_params(&model)])?;
        runner.reserve_inputs(n, 1, n);
        Ok(MediaEncoder {
            shape: model.result_shape(),
            model,
            settings,
            runner,
            rules,
            colors,
        })
    }

    /// Returns the encoder's weights and declaration.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns the preprocessing of images.
    pub fn rules(&self) -> ImageRules {
        self.rules
    }

    /// Returns the number of rows of an image.
    pub fn n_rows(&self) -> usize {
        self.shape[1]
    }

    /// Returns the number of values in a row.
    pub fn width(&self) -> usize {
        self.shape[0]
    }

    /// Returns the size of the compute buffers in bytes.
    pub fn n_bytes(&self) -> usize {
        self.runner.n_bytes()
    }

    /// Returns a digest of an image and of the encoder, the [`MediaRows::id`] of its rows.
    pub fn id_of(&self, width: usize, height: usize, rgb: &[u8]) -> u128 {
        let encoder = self.model.fingerprint();
        let mut hash = Sha256::new();
        hash.update(encoder.arch);
        let numbers = [encoder.hparams, encoder.tensors, encoder.weights];
        for number in numbers.into_iter().chain([width as u64, height as u64]) {
            hash.update(number.to_le_bytes());
        }
        hash.update(rgb);
        let digest: [u8; 32] = hash.finalize().into();
        let (half, _) = digest.as_chunks::<16>();
        u128::from_le_bytes(half[0])
    }

    /// Computes the rows of an image: 8-bit red, green, and blue values by pixel, in reading order. The image has the
    /// size that [`MediaEncoder::rules`] requires.
    ///
    /// # Errors
    /// [`MediaError`] if the size is wrong or a device fails.
    pub fn encode(&mut self, width: usize, height: usize, rgb: &[u8]) -> Result<Arc<MediaRows>, MediaError> {
        let expected = self.rules.side;
        if [width, height] != [expected; 2] {
            return Err(MediaError::Size {
                width,
                height,
                expected,
            });
        }
        let n_values = 3 * expected * expected;
        if rgb.len() != n_values {
            return Err(MediaError::Pixels {
                width,
                height,
                expected: n_values,
                found: rgb.len(),
            });
        }
        let rows = self.compute(rgb)?;
        let id = self.id_of(width, height, rgb);
        Ok(Arc::new(MediaRows::new(id, self.width(), rows)))
    }

    fn compute(&mut self, rgb: &[u8]) -> Result<Vec<f32>, DecodeError> {
        let mut buffers = self.model.buffers().iter();
        buffers.try_for_each(|buffer| buffer.check())?;
        let patches = patch_columns(&self.rules, &self.colors, rgb);
        let token = |pos: i32| BatchToken {
            token: 0,
            pos,
            seqs: SeqSet::one(0),
            output: true,
            media: None,
        };
        let tokens: Vec<BatchToken> = patch_places(&self.rules).map(|place| token(place as i32)).collect();
        let view = CacheView::default();
        let source = GraphSource {
            model: &self.model,
            view: &view,
            adaptation: Adaptation::NONE,
        };
        let graph = self.runner.prepare(source, self.settings.build_params(&self.model))?;
        let ubatch = Ubatch {
            tokens: &tokens,
            memory: None,
            outputs: &Outputs::new(&self.model, &self.settings),
            adapters: &Adapters::default(),
            encoded: &Encoded::default(),
            hidden: &[],
            media: &[],
            frames: &[],
            patches: &patches,
        };
        let mut computed = graph.run(ubatch, self.settings.params.n_threads_batch)?;
        let mut rows = vec![0.0; self.shape[0] * self.shape[1]];
        let pending: Option<Box<dyn PendingRead>> = computed.read_result(&mut rows)?;
        if let Some(read) = pending {
            read.wait(bytemuck::cast_slice_mut(&mut rows))?;
        }
        Ok(rows)
    }
}

/// Reads the mean and the deviation of each color channel.
fn colors(model: &Model) -> Result<[ChannelScale; 3], MediaError> {
    let read = |key: &'static str, nonzero: bool| {
        let value = model.metadata().get(key);
        let values = value.and_then(Value::as_array).and_then(|array| match array {
            Array::F32(values) => <[f32; 3]>::try_from(values.as_slice()).ok(),
            _ => None,
        });
        let is_valid = |x: &f32| x.is_finite() && !x.is_subnormal() && !(nonzero && *x == 0.0);
        values
            .filter(|values| values.iter().all(is_valid))
            .ok_or_else(|| MediaError::Color {
                model: model.path().display().to_string(),
                key,
                nonzero,
                found: value.map_or_else(|| "no such key".to_owned(), Value::describe),
            })
    };
    let (means, deviations) = (read(COLOR_KEYS[0], false)?, read(COLOR_KEYS[1], true)?);
    Ok(std::array::from_fn(|c| ChannelScale {
        mean: means[c],
        deviation: deviations[c],
    }))
}
