//! Options for opening a model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::adapter::{ControlVector, LoraAdapter};
use engine::context::ContextParams;
use engine::model::{DeviceLayers, LoadParams};
use kernels::GgmlType;

use crate::model::{Adapters, Model};
use crate::projectors::MediaProjector;
use crate::{Result, load};

/// Default size of a context in tokens.
pub(crate) const DEFAULT_CONTEXT: usize = 4096;

/// Number of layers on GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// The maximum number of layers that fit into free GPU memory.
    #[default]
    Auto,
    /// All layers.
    All,
    /// The last layers; the output counts as a layer.
    Count(usize),
}

/// Accuracy of matmuls with quantized weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32 activations.
    Exact,
    /// 16-bit integer activations, which match f32 up to rounding.
    High,
    /// Like [`Precision::High`], with cheaper activations in large batches of low-bit weights.
    #[default]
    Fast,
    /// Like [`Precision::Fast`], with 8-bit activations in batches of 9 or more tokens. Answers can then depend on
    /// other sequences in the batch.
    Fastest,
}

/// Data type of cached keys or values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    #[default]
    F16,
    /// bfloat16.
    Bf16,
    /// Quantized to 8 bits: 8.5 bits per value.
    Q8_0,
    /// Quantized to 5 bits: 5.5 bits per value.
    Q5_0,
    /// Quantized to 4 bits: 4.5 bits per value.
    Q4_0,
}

impl CacheType {
    fn ggml_type(self) -> GgmlType {
        match self {
            CacheType::F32 => GgmlType::F32,
            CacheType::F16 => GgmlType::F16,
            CacheType::Bf16 => GgmlType::BF16,
            CacheType::Q8_0 => GgmlType::Q8_0,
            CacheType::Q5_0 => GgmlType::Q5_0,
            CacheType::Q4_0 => GgmlType::Q4_0,
        }
    }
}

impl Precision {
    fn of_kernels(self) -> kernels::Precision {
        match self {
            Precision::Exact => kernels::Precision::Exact,
            Precision::High => kernels::Precision::High,
            Precision::Fast => kernels::Precision::Fast,
            Precision::Fastest => kernels::Precision::Fastest,
        }
    }
}

/// Callback for the progress of loading: receives the loaded fraction from 0 to 1 and returns false to
/// cancel.
type LoadProgress = Arc<dyn Fn(f32) -> bool + Send + Sync>;

/// Function of the caller that changes parameters of the engine.
type Configure<P> = Box<dyn FnOnce(&mut P)>;

/// Options for opening a model, created by [`Model::options`].
#[must_use]
#[derive(Default)]
pub struct ModelOptions {
    context_size: Option<usize>,
    gpu_layers: GpuLayers,
    threads: Option<usize>,
    precision: Precision,
    cache_types: (CacheType, CacheType),
    mtp: bool,
    projector: Option<PathBuf>,
    loras: Vec<(PathBuf, f32)>,
    control_vectors: Vec<(PathBuf, f32)>,
    progress: Option<LoadProgress>,
    load_params: Option<Configure<LoadParams>>,
    context_params: Option<Configure<ContextParams>>,
    #[cfg(feature = "hub")]
    hub: crate::hub::HubOptions,
}

impl Model {
    /// Opens a model with default options.
    ///
    /// `model` is the path of a GGUF file, or of the first file of a split model. With the feature `hub`, `model` can
    /// also be a short name such as `qwen3:0.6b`. It can also be a Hugging Face repository with an optional
    /// quantization, such as `Qwen/Qwen3-0.6B-GGUF:Q8_0`. Such a model is downloaded unless the Hugging Face cache
    /// contains it.
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if the download fails, or if a file is invalid or does not fit in memory.
    pub fn open(model: impl AsRef<Path>) -> Result<Model> {
        Model::options().open(model)
    }

    /// Returns options for opening a model.
    pub fn options() -> ModelOptions {
        ModelOptions::default()
    }
}

impl ModelOptions {
    /// Sets the size of contexts in tokens; 0 selects the size that the model was trained with. The default
    /// is 4096, or less if memory is insufficient.
    pub fn context_size(mut self, n_tokens: usize) -> ModelOptions {
        self.context_size = Some(n_tokens);
        self
    }

    /// Sets the number of layers on GPUs. The default is [`GpuLayers::Auto`].
    pub fn gpu_layers(mut self, layers: GpuLayers) -> ModelOptions {
        self.gpu_layers = layers;
        self
    }

    /// Sets the number of CPU threads. The default is one per core.
    pub fn threads(mut self, n_threads: usize) -> ModelOptions {
        self.threads = Some(n_threads);
        self
    }

    /// Sets the accuracy of matmuls. The default is [`Precision::Fast`].
    pub fn precision(mut self, precision: Precision) -> ModelOptions {
        self.precision = precision;
        self
    }

    /// Sets the data types of cached keys and values. The default is [`CacheType::F16`] for both.
    pub fn cache_types(mut self, keys: CacheType, values: CacheType) -> ModelOptions {
        self.cache_types = (keys, values);
        self
    }

    /// Sets whether the multi-token prediction layers of the file are loaded, for [`Drafts::Mtp`](crate::Drafts::Mtp).
    /// The default is false.
    pub fn mtp(mut self, load: bool) -> ModelOptions {
        self.mtp = load;
        self
    }

    /// Sets the projector file (`mmproj`) of a model that reads images or audio, for
    /// [`Chat::ask_with`](crate::Chat::ask_with).
    pub fn projector(mut self, file: impl Into<PathBuf>) -> ModelOptions {
        self.projector = Some(file.into());
        self
    }

    /// Adds a LoRA adapter file. `scale` multiplies its effect; 1.0 is the adapter as trained.
    pub fn lora(mut self, file: impl Into<PathBuf>, scale: f32) -> ModelOptions {
        self.loras.push((file.into(), scale));
        self
    }

    /// Adds a control vector file that applies to all layers. `scale` multiplies its effect.
    pub fn control_vector(mut self, file: impl Into<PathBuf>, scale: f32) -> ModelOptions {
        self.control_vectors.push((file.into(), scale));
        self
    }

    /// Calls `progress` with the loaded fraction, from 0 to 1. Loading is cancelled if it returns false.
    pub fn on_load(mut self, progress: impl Fn(f32) -> bool + Send + Sync + 'static) -> ModelOptions {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Calls `observer` with the events of a download.
    #[cfg(feature = "hub")]
    pub fn on_download(mut self, observer: impl Fn(crate::hub::Event<'_>) + Send + Sync + 'static) -> ModelOptions {
        self.hub = self.hub.observer(observer);
        self
    }

    /// Sets the Hugging Face token for gated models. The default is `HF_TOKEN`, or the stored login.
    #[cfg(feature = "hub")]
    pub fn hub_token(mut self, token: impl Into<String>) -> ModelOptions {
        self.hub = self.hub.token(token);
        self
    }

    /// Uses only files and cached models, and never accesses the network.
    #[cfg(feature = "hub")]
    pub fn offline(mut self, offline: bool) -> ModelOptions {
        self.hub = self.hub.offline(offline);
        self
    }

    /// Changes any parameter of loading. The parameters are types of the engine and may change.
    pub fn load_params(mut self, change: impl FnOnce(&mut LoadParams) + 'static) -> ModelOptions {
        self.load_params = Some(Box::new(change));
        self
    }

    /// Changes any parameter of contexts. The parameters are types of the engine and may change.
    pub fn context_params(mut self, change: impl FnOnce(&mut ContextParams) + 'static) -> ModelOptions {
        self.context_params = Some(Box::new(change));
        self
    }

    /// Opens a model: a file, or with the feature `hub` a name; see [`Model::open`].
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if the download fails, or if a file is invalid or does not fit in memory.
    pub fn open(self, model: impl AsRef<Path>) -> Result<Model> {
        #[cfg(feature = "hub")]
        let path = crate::hub::resolve(model.as_ref(), &self.hub)?;
        #[cfg(not(feature = "hub"))]
        let path = model.as_ref().to_owned();
        self.open_file(&path)
    }

    fn open_file(self, path: &Path) -> Result<Model> {
        let defaults = ContextParams::default();
        let n_threads = self.threads.unwrap_or(defaults.n_threads);
        let mut context = ContextParams {
            n_ctx: self.context_size.unwrap_or(DEFAULT_CONTEXT),
            n_threads,
            n_threads_batch: n_threads,
            precision: self.precision.of_kernels(),
            type_k: self.cache_types.0.ggml_type(),
            type_v: self.cache_types.1.ggml_type(),
            ..defaults
        };
        if let Some(change) = self.context_params {
            change(&mut context);
        }
        let mut params = LoadParams {
            progress: self.progress,
            mtp: self.mtp,
            ..LoadParams::default()
        };
        let placement = &mut params.placement;
        placement.devices = load::usable_gpus(|_, _| {});
        placement.memory = context.memory(context.n_ctx);
        // Matmuls with f32 activations are faster with the file's weight layout.
        placement.repack = context.precision != kernels::Precision::Exact;
        placement.n_layers = match self.gpu_layers {
            GpuLayers::Auto => DeviceLayers::Auto,
            GpuLayers::All => DeviceLayers::Count(usize::MAX),
            GpuLayers::Count(n) => DeviceLayers::Count(n),
        };
        if let Some(change) = self.load_params {
            change(&mut params);
        }
        let (model, fallback) = load::load_or_use_cpu(path, &mut params);
        let model = Arc::new(model?);
        let projector = self.projector.as_deref();
        let projector = projector.map(|file| MediaProjector::open(file, &params, &context, &model));
        let projector = projector.transpose()?;
        context.media_rows = projector.as_ref().map_or(0, MediaProjector::n_rows);
        let adapters = Adapters {
            loras: (self.loras.iter())
                .map(|(file, scale)| Ok((Arc::new(LoraAdapter::load(file, &model)?), *scale)))
                .collect::<Result<_>>()?,
            control_vectors: (self.control_vectors.iter())
                .map(|(file, scale)| Ok((ControlVector::load(file, &model)?, *scale)))
                .collect::<Result<_>>()?,
        };
        // A size that the caller chose is never reduced.
        let can_shrink = self.context_size.is_none() && context.n_ctx == DEFAULT_CONTEXT;
        Ok(Model::new(model, context, can_shrink, adapters, fallback).with_projector(projector))
    }
}
