//! Methods of [`Context`] that select adapters; `adapt.rs` implements them.

use std::ops::RangeInclusive;

use crate::adapter::ControlVector;

use super::adapt::{Directions, ScaledAdapter, check_loras, check_vectors};
use super::{Context, ContextError, SetAdaptersError};

impl Context {
    /// Replaces the active adapters, each with its own scale; an empty list restores the plain model.
    /// Sequences with their own adapters are unaffected. Cached keys and values are not recomputed.
    ///
    /// # Errors
    /// Returns a [`SetAdaptersError`]; the previous adapters then stay active.
    pub fn set_adapters(&mut self, adapters: &[ScaledAdapter]) -> Result<(), SetAdaptersError> {
        check_loras(adapters, self.model())?;
        match self.adapter_config().with_loras(adapters) {
            Some(config) => self.adapt(config),
            None => Ok(()),
        }
    }

    /// Overrides the adapters of a sequence; `None` removes the override. Sequences with different adapters
    /// can share a batch; every adapter in use is computed for every token. Changing only scales takes effect
    /// without rebuilding graphs.
    ///
    /// # Errors
    /// Returns a [`SetAdaptersError`]; the previous adapters then stay active.
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

    /// Returns the default adapters of all sequences.
    pub fn adapters(&self) -> &[ScaledAdapter] {
        self.adapter_config().loras()
    }

    /// Returns the adapters of a sequence.
    pub fn seq_adapters(&self, seq: usize) -> &[ScaledAdapter] {
        self.adapter_config().loras_of(seq)
    }

    /// Replaces the active control vectors, each with its own scale; they are added to the outputs of
    /// `layers`. An empty list removes them.
    ///
    /// # Errors
    /// Returns a [`SetAdaptersError`] if the control vectors cannot be applied. The previous ones then stay active.
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
