//! Choosing the adapters of a [`Context`]; how they are applied is described in `adapt.rs`.

use std::ops::RangeInclusive;

use crate::adapter::ControlVector;

use super::adapt::{Directions, ScaledAdapter, check_loras, check_vectors};
use super::{Context, ContextError, SetAdaptersError};

impl Context {
    /// Applies these adapters, each with its own factor, in place of those before; an empty list restores the model. Sequences with
    /// adapters of their own keep those. Keys and values in the memory stay as they were computed. On an error the old adapters stay.
    pub fn set_adapters(&mut self, adapters: &[ScaledAdapter]) -> Result<(), SetAdaptersError> {
        check_loras(adapters, self.model())?;
        match self.adapter_config().with_loras(adapters) {
            Some(config) => self.adapt(config),
            None => Ok(()),
        }
    }

    /// Gives a sequence adapters of its own in place of those of [`Context::set_adapters`]; `None` ends that. Sequences with different
    /// adapters can be decoded in one batch. As long as the sequences together use the same adapters in the same order, a change takes
    /// effect at once, without a new graph. Every adapter that some sequence uses is computed for every token of a batch.
    pub fn set_seq_adapters(&mut self, seq: usize, adapters: Option<&[ScaledAdapter]>) -> Result<(), SetAdaptersError> {
        let n_seq_max = self.params().n_seq_max;
        if seq >= n_seq_max {
            return Err(SetAdaptersError::Sequence { seq, n_seq_max });
        }
        check_loras(adapters.unwrap_or(&[]), self.model())?;
        match self.adapter_config().with_seq_loras(seq, adapters) {
            Some(config) => self.adapt(config),
            None => Ok(()),
        }
    }

    /// The adapters of all sequences that have none of their own.
    pub fn adapters(&self) -> &[ScaledAdapter] {
        self.adapter_config().loras()
    }

    /// The adapters of a sequence.
    pub fn seq_adapters(&self, seq: usize) -> &[ScaledAdapter] {
        self.adapter_config().loras_of(seq)
    }

    /// Adds these control vectors, each with its own factor, to the results of `layers`, in place of those before; an empty
    /// list removes them. On an error the old ones stay.
    pub fn set_control_vectors(
        &mut self,
        vectors: &[(&ControlVector, f32)],
        layers: RangeInclusive<usize>,
    ) -> Result<(), SetAdaptersError> {
        check_vectors(vectors, self.model())?;
        let directions = Directions::of(vectors, layers, self.model()).map_err(ContextError::from)?;
        match self.adapter_config().with_directions(directions) {
            Some(config) => self.adapt(config),
            None => Ok(()),
        }
    }
}
