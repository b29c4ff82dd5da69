//! Saving and restoring a [`Context`]'s memory as bytes or files; what is written is described in `state.rs`.

use std::io::Write;
use std::path::Path;

use crate::vocab::Token;

use super::state::Part;
use super::{Context, StateError};

impl Context {
    /// Writes the state of all sequences. Keys that were moved are rotated first, as the next decode would do.
    pub fn save_state(&mut self, out: &mut dyn Write) -> Result<(), StateError> {
        self.rotated_state_access()?.save(Part::All, &[], out)
    }

    /// Writes the state of one sequence.
    pub fn save_seq(&mut self, seq: usize, out: &mut dyn Write) -> Result<(), StateError> {
        self.rotated_state_access()?.save(Part::One(seq), &[], out)
    }

    /// Replaces all sequences by those of a state that [`Context::save_state`] wrote.
    pub fn load_state(&mut self, state: &[u8]) -> Result<(), StateError> {
        self.state_access()?.load(Part::All, state).map(drop)
    }

    /// Replaces sequence `seq` by the one of a state that [`Context::save_seq`] wrote, whatever its number was.
    /// Other sequences are not touched.
    pub fn load_seq(&mut self, seq: usize, state: &[u8]) -> Result<(), StateError> {
        self.state_access()?.load(Part::One(seq), state).map(drop)
    }

    /// Writes a file with the state of all sequences and the tokens they came from, for [`Context::load_session`].
    /// An existing file is replaced when the new one is complete. Errors name the file.
    pub fn save_session(&mut self, path: impl AsRef<Path>, tokens: &[Token]) -> Result<(), StateError> {
        self.rotated_state_access()?.save_file(Part::All, tokens, path.as_ref())
    }

    /// Restores a file and returns the tokens that were saved with it.
    pub fn load_session(&mut self, path: impl AsRef<Path>) -> Result<Vec<Token>, StateError> {
        self.state_access()?.load_file(Part::All, path.as_ref())
    }

    /// As [`Context::save_session`], for one sequence.
    pub fn save_seq_session(&mut self, seq: usize, path: impl AsRef<Path>, tokens: &[Token]) -> Result<(), StateError> {
        self.rotated_state_access()?
            .save_file(Part::One(seq), tokens, path.as_ref())
    }

    /// As [`Context::load_session`], for one sequence.
    pub fn load_seq_session(&mut self, seq: usize, path: impl AsRef<Path>) -> Result<Vec<Token>, StateError> {
        self.state_access()?.load_file(Part::One(seq), path.as_ref())
    }
}
