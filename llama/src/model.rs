//! A loaded model.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use engine::adapter::{ControlVector, LoraAdapter};
use engine::context::{Context, ContextParams};
use engine::sample::Recommended;
use engine::vocab::Vocab;

use crate::builder::{Builder, ChatBuilder, CompletionBuilder};
use crate::embed::{self, Embedder};
use crate::options::ModelOptions;
use crate::session::{Session, fitting_context};
use crate::{Error, Result};

/// Minimum size to which the default context is reduced if memory is insufficient.
const MIN_CONTEXT: usize = 512;

/// Adapters that every context of a model applies.
pub(crate) struct Adapters {
    pub loras: Vec<(Arc<LoraAdapter>, f32)>,
    pub control_vectors: Vec<(ControlVector, f32)>,
}

/// A loaded model. Clones share the weights and can be used from several threads.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    model: Arc<engine::model::Model>,
    context: ContextParams,
    /// The context size may be reduced if memory is insufficient.
    can_shrink: bool,
    adapters: Adapters,
    warnings: Vec<String>,
    /// Embedder; created when the first text is embedded.
    embedder: Mutex<Option<Embedder>>,
}

/// Access to the vocabulary of a model, for threads.
pub(crate) struct SharedVocab(Arc<engine::model::Model>);

impl AsRef<Vocab> for SharedVocab {
    fn as_ref(&self) -> &Vocab {
        self.0.vocab()
    }
}

impl Model {
    /// Opens a model with default options.
    ///
    /// `model` is the path of a GGUF file, for a model of several files the first one. With the feature
    /// `hub`, `model` can also be the name of a Hugging Face repository with an optional quantization, such
    /// as `Qwen/Qwen3-0.6B-GGUF:Q8_0`, or a short name such as `qwen3:0.6b`. Such a model is downloaded
    /// unless the Hugging Face cache contains it.
    ///
    /// # Errors
    /// [`Error`] if the download fails, or if a file is invalid or does not fit in memory.
    pub fn open(model: impl AsRef<Path>) -> Result<Model> {
        Model::options().open(model)
    }

    /// Returns options for opening a model.
    pub fn options() -> ModelOptions {
        ModelOptions::default()
    }

    pub(crate) fn new(
        model: Arc<engine::model::Model>,
        context: ContextParams,
        can_shrink: bool,
        adapters: Adapters,
        fallback: Option<String>,
    ) -> Model {
        let refused = Recommended::of(model.metadata(), false).refused;
        let refused = refused
            .iter()
            .map(|key| format!("ignoring {key} of the file: invalid value for this setting"));
        let fallback = fallback.map(|error| format!("{error}; using host memory instead"));
        let warnings = fallback
            .into_iter()
            .chain(model.warnings().iter().cloned())
            .chain(refused);
        Model(Arc::new(Inner {
            warnings: warnings.collect(),
            model,
            context,
            can_shrink,
            adapters,
            embedder: Mutex::default(),
        }))
    }

    /// Starts to configure a conversation.
    pub fn chat(&self) -> ChatBuilder {
        Builder::new(self)
    }

    /// Starts to configure the completion of plain text, without a chat template.
    pub fn completion(&self) -> CompletionBuilder {
        Builder::new(self)
    }

    /// Computes an embedding for each text: a vector of length 1, whose dot product with another embedding is
    /// the similarity of the texts.
    ///
    /// The vectors are pooled as the model file specifies. Otherwise, an encoder uses the mean of the tokens,
    /// and a causal model the last token, which is the only token that attends to the whole text.
    ///
    /// # Errors
    /// [`Error`] if a text is empty or too long, or if the model does not support embeddings.
    pub fn embed<S: AsRef<str>>(&self, texts: &[S]) -> Result<Vec<Vec<f32>>> {
        embed::embed(self, texts)
    }

    /// Returns the number of tokens of a text, without tokens that start or end a sequence.
    pub fn count_tokens(&self, text: &str) -> usize {
        self.0.model.vocab().tokenize(text, false, false).len()
    }

    /// Returns the path of the first file.
    pub fn path(&self) -> &Path {
        self.0.model.path()
    }

    /// Returns the name of the architecture, such as `qwen3`.
    pub fn architecture(&self) -> &'static str {
        self.0.model.arch().name
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        self.0.model.n_params()
    }

    /// Returns warnings about possible quality or speed problems.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Returns the model of the engine. Its interface may change.
    pub fn engine(&self) -> &Arc<engine::model::Model> {
        &self.0.model
    }

    pub(crate) fn shared_vocab(&self) -> SharedVocab {
        SharedVocab(self.0.model.clone())
    }

    pub(crate) fn context_params(&self) -> &ContextParams {
        &self.0.context
    }

    pub(crate) fn embedder(&self) -> &Mutex<Option<Embedder>> {
        &self.0.embedder
    }

    /// Applies the model's adapters to a context.
    pub(crate) fn adapt(&self, context: &mut Context) -> Result<()> {
        let Adapters { loras, control_vectors } = &self.0.adapters;
        if !loras.is_empty() {
            context.set_adapters(loras)?;
        }
        if !control_vectors.is_empty() {
            let vectors: Vec<_> = control_vectors.iter().map(|(vector, scale)| (vector, *scale)).collect();
            context.set_control_vectors(&vectors, 0..=self.0.model.base().n_layer())?;
        }
        Ok(())
    }

    /// Creates a session with a context of its own.
    pub(crate) fn session(&self) -> Result<Session> {
        let model = &self.0.model;
        if model.bidirectional() {
            let arch = model.arch().name;
            return Err(Error::Encoder { arch });
        }
        let mut params = self.0.context.clone();
        let n_ctx_min = if self.0.can_shrink { MIN_CONTEXT } else { usize::MAX };
        let mut context = fitting_context(model, &mut params, n_ctx_min)?;
        self.adapt(&mut context)?;
        Ok(Session::new(context))
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.model.fmt(f)
    }
}
