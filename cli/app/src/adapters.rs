//! Loads adapters and applies them to a context.

use std::sync::Arc;

use engine::adapter::{ControlVector, LoraAdapter};
use engine::context::Context;
use tracing::warn;

use crate::args::{AdapterArgs, ScaledFile};
use crate::checkpoints;
use crate::failure::{Failure, Outcome};

impl AdapterArgs {
    /// Returns the adapter files, in the order of their ids in a context.
    pub fn names(&self) -> Vec<String> {
        let files = self.lora.iter().chain(&self.lora_scaled);
        files.map(|file| file.path.display().to_string()).collect()
    }

    /// Returns the options with all LoRA scales set to 0.
    pub fn without_effect(&self) -> AdapterArgs {
        let mut args = self.clone();
        let all = args.lora.iter_mut().chain(&mut args.lora_scaled);
        all.for_each(|file| file.scale = 0.0);
        args
    }

    /// Loads the adapters and applies them to a context.
    pub fn apply(&self, context: &mut Context) -> Outcome {
        let model = context.model().clone();
        let mut loras = Vec::new();
        for file in self.lora.iter().chain(&self.lora_scaled) {
            let remedy = "`llama convert-lora` converts the directory of a PEFT adapter";
            checkpoints::expect_file("--lora", &file.path, "an adapter", remedy)?;
            let adapter = LoraAdapter::load(&file.path, &model)?;
            if !adapter.ignored().is_empty() {
                let (path, names) = (file.path.display(), adapter.ignored().join(", "));
                warn!("{path}: adapted norms are not supported and ignored: {names}");
            }
            loras.push((Arc::new(adapter), file.scale));
        }
        context.set_adapters(&loras)?;

        let load = |file: &ScaledFile| {
            let remedy = "`llama cvector` computes one";
            checkpoints::expect_file("--control-vector", &file.path, "a control vector", remedy)?;
            Outcome::Ok(ControlVector::load(&file.path, &model)?)
        };
        let files = || self.control_vector.iter().chain(&self.control_vector_scaled);
        if self.control_vector_layer_range.is_some() && files().next().is_none() {
            return Err(Failure::new("--control-vector-layer-range requires --control-vector"));
        }
        let vectors = files().map(load).collect::<Result<Vec<_>, _>>()?;
        let scales = files().map(|file| file.scale);
        let vectors: Vec<_> = vectors.iter().zip(scales).collect();
        context.set_control_vectors(&vectors, self.layers(model.base().n_layer())?)?;
        Ok(())
    }

    fn layers(&self, n_layer: usize) -> Outcome<std::ops::RangeInclusive<usize>> {
        match self.control_vector_layer_range.as_deref() {
            Some(&[first, last]) if first <= last && first < n_layer => Ok(first..=last),
            Some(range) => Err(Failure::new(format_args!(
                "--control-vector-layer-range {range:?}: expected two ascending layers from 0 to {}",
                n_layer.saturating_sub(1)
            ))),
            None => Ok(0..=n_layer),
        }
    }
}
