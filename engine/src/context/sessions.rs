//! Saving and restoring the state of a [`Context`] as bytes or files; `state.rs` describes the content.

use std::io::Write;
use std::path::Path;

use crate::vocab::Token;

use super::state::Part;
use super::{Context, StateError};

impl Context {
    /// Writes the state of all sequences. Pending key rotations are applied first.
    ///
    /// # Errors
    /// Returns a [`StateError`] if a device fails or `out` returns an error.
    pub fn save_state(&mut self, out: &mut dyn Write) -> Result<(), StateError> {
        self.rotated_state_access()?.save(Part::All, &[], out)
    }

    /// Writes the state of a single sequence.
    ///
    /// # Errors
    /// Returns a [`StateError`] if `seq` is out of range, a device fails, or `out` returns an error.
    pub fn save_seq(&mut self, seq: usize, out: &mut dyn Write) -> Result<(), StateError> {
        self.rotated_state_access()?.save(Part::One(seq), &[], out)
    }

    /// Replaces all sequences with a state written by [`Context::save_state`].
    ///
    /// # Errors
    /// Returns a [`StateError`] if the state is invalid, belongs to another model or other settings, or does not fit.
    pub fn load_state(&mut self, state: &[u8]) -> Result<(), StateError> {
        self.state_access()?.load(Part::All, state).map(drop)
    }

    /// Replaces sequence `seq` with a state written by [`Context::save_seq`], regardless of its original id.
    /// Other sequences are unaffected.
    ///
    /// # Errors
    /// Returns a [`StateError`] under the conditions of [`Context::load_state`], or if `seq` is out of range.
    pub fn load_seq(&mut self, seq: usize, state: &[u8]) -> Result<(), StateError> {
        self.state_access()?.load(Part::One(seq), state).map(drop)
    }

    /// Writes a file with the state of all sequences and their tokens, for [`Context::load_session`]. An
    /// existing file is replaced atomically. Errors name the file.
    pub fn save_session(&mut self, path: impl AsRef<Path>, tokens: &[Token]) -> Result<(), StateError> {
        self.rotated_state_access()?.save_file(Part::All, tokens, path.as_ref())
    }

    /// Restores a file and returns the tokens saved with it.
    ///
    /// # Errors
    /// Returns a [`StateError`] if the file cannot be read, or under the conditions of [`Context::load_state`].
    pub fn load_session(&mut self, path: impl AsRef<Path>) -> Result<Vec<Token>, StateError> {
        self.state_access()?.load_file(Part::All, path.as_ref())
    }

    /// Like [`Context::save_session`], for a single sequence.
    ///
    /// # Errors
    /// Returns a [`StateError`] if `seq` is out of range, a device fails, or the file cannot be written.
    pub fn save_seq_session(&mut self, seq: usize, path: impl AsRef<Path>, tokens: &[Token]) -> Result<(), StateError> {
        self.rotated_state_access()?
            .save_file(Part::One(seq), tokens, path.as_ref())
    }

    /// Like [`Context::load_session`], for a single sequence.
    ///
    /// # Errors
    /// Returns a [`StateError`] if the file cannot be read, or under the conditions of [`Context::load_seq`].
    pub fn load_seq_session(&mut self, seq: usize, path: impl AsRef<Path>) -> Result<Vec<Token>, StateError> {
        self.state_access()?.load_file(Part::One(seq), path.as_ref())
    }
}
