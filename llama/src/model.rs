//! A loaded model.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::adapter::{ControlVector, LoraAdapter};
use engine::context::{Context, ContextParams};
use engine::sample::Recommended;
use engine::vocab::Vocab;

use crate::projectors::MediaProjector;
use crate::session::fitting_context;
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
pub struct Model(Arc<Inner>, Option<Arc<Mutex<MediaProjector>>>);

struct Inner {
    model: Arc<engine::model::Model>,
    context: ContextParams,
    /// The context size may be reduced if memory is insufficient.
    can_shrink: bool,
    adapters: Adapters,
    warnings: Vec<String>,
    /// Context for embeddings; created when the first text is embedded.
    embedding_context: Mutex<Option<Context>>,
}

/// Access to the vocabulary of a model, for threads.
pub(crate) struct SharedVocab(Arc<engine::model::Model>);

impl AsRef<Vocab> for SharedVocab {
    fn as_ref(&self) -> &Vocab {
        self.0.vocab()
    }
}

impl Model {
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
        let inner = Arc::new(Inner {
            warnings: warnings.collect(),
            model,
            context,
            can_shrink,
            adapters,
            embedding_context: Mutex::default(),
        });
        Model(inner, None)
    }

    /// Sets the image or audio encoder.
    pub(crate) fn with_projector(self, projector: Option<MediaProjector>) -> Model {
        Model(self.0, projector.map(|projector| Arc::new(Mutex::new(projector))))
    }

    /// Returns the image or audio encoder.
    pub(crate) fn projector(&self) -> Result<MutexGuard<'_, MediaProjector>> {
        let projector = self.1.as_ref().ok_or(Error::NoProjector)?;
        Ok(projector.lock().unwrap_or_else(PoisonError::into_inner))
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

    pub(crate) fn embedding_context(&self) -> &Mutex<Option<Context>> {
        &self.0.embedding_context
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

    /// Creates a separate context for a session. `change` changes its parameters.
    pub(crate) fn context(&self, change: impl FnOnce(&mut ContextParams)) -> Result<Context> {
        let model = &self.0.model;
        if model.bidirectional() {
            let arch = model.arch().name;
            return Err(Error::Encoder { arch });
        }
        if model.frame_width().is_some() {
            let arch = model.arch().name;
            return Err(Error::Speech { arch });
        }
        let mut params = self.0.context.clone();
        change(&mut params);
        let n_ctx_min = if self.0.can_shrink { MIN_CONTEXT } else { usize::MAX };
        let mut context = fitting_context(model, &mut params, n_ctx_min)?;
        self.adapt(&mut context)?;
        Ok(context)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.model.fmt(f)
    }
}
