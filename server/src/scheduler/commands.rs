//! What is asked of the thread that computes besides texts: to save, restore and forget what sequences hold, to change adapters, and to end what is
//! thought. It is done between two steps.

use std::path::PathBuf;

use engine::context::StateError;
use tokio::sync::oneshot;

use super::batcher::Batcher;
use super::work::Work;

/// Something for the thread to do between two steps.
pub type Command = Box<dyn FnOnce(&mut Batcher) + Send>;

/// A sequence as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// A request works on it.
    pub is_busy: bool,
    /// Tokens that it holds.
    pub n_held: usize,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There are fewer sequences.
    #[error("there is no slot {id}: they have the numbers 0 to {}", .n - 1)]
    NoSlot {
        /// The number.
        id: usize,
        /// How many there are.
        n: usize,
    },
    /// A request works on it.
    #[error("slot {id} is worked on")]
    Busy {
        /// The number.
        id: usize,
    },
    /// It holds nothing.
    #[error("slot {id} holds nothing")]
    Empty {
        /// The number.
        id: usize,
    },
    /// There are fewer adapters.
    #[error("there is no adapter {id}: there are {n}")]
    NoAdapter {
        /// The number.
        id: usize,
        /// How many there are.
        n: usize,
    },
    /// The file, or the state in it.
    #[error(transparent)]
    State(#[from] StateError),
    /// Nobody computes any more.
    #[error("the model is not computed any more")]
    Over,
}

/// The answer to a command.
pub type Reply<T> = Result<T, CommandError>;

/// A change of adapters that waits until texts under way are done, which keep those that they began with.
pub struct Rescaling {
    scales: Vec<(usize, f32)>,
    done: oneshot::Sender<Reply<()>>,
}

impl Batcher {
    /// The sequences.
    pub fn slots(&self) -> Vec<Slot> {
        let slot = |id: usize| Slot {
            is_busy: self.sequences.is_busy(id),
            n_held: self.sequences.held(id).len(),
        };
        (0..self.sequences.len()).map(slot).collect()
    }

    /// Writes what a sequence holds to a file; how many tokens that is.
    pub fn save_slot(&mut self, id: usize, path: &PathBuf) -> Reply<usize> {
        self.check_slot(id)?;
        let tokens = self.sequences.held(id).to_vec();
        if tokens.is_empty() {
            return Err(CommandError::Empty { id });
        }
        self.context.save_seq_session(id, path, &tokens)?;
        Ok(tokens.len())
    }

    /// Fills a sequence with what a file holds; how many tokens that is.
    pub fn restore_slot(&mut self, id: usize, path: &PathBuf) -> Reply<usize> {
        self.check_idle(id)?;
        self.empty(id);
        let tokens = match self.context.load_seq_session(id, path) {
            Err(error) => match needed(&error) {
                Some(n) if self.free_cells(n) => self.context.load_seq_session(id, path)?,
                _ => return Err(error.into()),
            },
            Ok(tokens) => tokens,
        };
        // A file of another program's making may say what it likes.
        if tokens.len() != self.context.n_past(id) {
            self.empty(id);
            return Err(CommandError::Empty { id });
        }
        self.sequences.take(id);
        self.sequences.extend(id, &tokens);
        self.sequences.leave(id);
        Ok(tokens.len())
    }

    /// Forgets what a sequence holds; how many tokens that was.
    pub fn erase_slot(&mut self, id: usize) -> Reply<usize> {
        self.check_idle(id)?;
        let n = self.sequences.held(id).len();
        self.empty(id);
        Ok(n)
    }

    /// Ends what is being thought in answers to a client's request: whether anything was. `None` if no such request is under way.
    pub fn end_reasoning(&mut self, client: u64, id: &str) -> Option<bool> {
        let is_it = |work: &&mut Work| work.client == client && work.id.as_deref() == Some(id);
        let works = self.running.iter_mut().map(|running| &mut running.work);
        let found = works.chain(&mut self.waiting).filter(is_it);
        let ended = found.map(|work| {
            work.generations
                .iter_mut()
                .fold(false, |any, g| g.end_reasoning() | any)
        });
        ended.reduce(|a, b| a | b)
    }

    /// The factors of adapters, by number.
    pub fn adapters(&self) -> Vec<f32> {
        self.context.adapters().iter().map(|(_, scale)| *scale).collect()
    }

    /// Changes factors of adapters, those that are not named to zero, once texts under way are done.
    pub fn rescale(&mut self, scales: Vec<(usize, f32)>, done: oneshot::Sender<Reply<()>>) {
        let n = self.context.adapters().len();
        if let Some(&(id, _)) = scales.iter().find(|(id, _)| *id >= n) {
            // Whoever asked may have gone.
            let _ = done.send(Err(CommandError::NoAdapter { id, n }));
            return;
        }
        self.rescalings.push(Rescaling { scales, done });
    }

    /// Changes adapters, if that was asked for and nothing is under way. What was computed with others is forgotten.
    pub fn apply_rescalings(&mut self) {
        if !self.running.is_empty() {
            return;
        }
        for Rescaling { scales, done } in std::mem::take(&mut self.rescalings) {
            let mut adapters = self.context.adapters().to_vec();
            adapters.iter_mut().for_each(|(_, scale)| *scale = 0.0);
            for (id, scale) in scales {
                adapters[id].1 = scale;
            }
            for id in 0..self.sequences.len() {
                self.empty(id);
            }
            let set = self.context.set_adapters(&adapters);
            let _ = done.send(set.map_err(|_| CommandError::Over));
        }
    }

    fn check_slot(&self, id: usize) -> Reply<()> {
        let n = self.sequences.len();
        if id < n {
            Ok(())
        } else {
            Err(CommandError::NoSlot { id, n })
        }
    }

    fn check_idle(&self, id: usize) -> Reply<()> {
        self.check_slot(id)?;
        if self.sequences.is_busy(id) {
            Err(CommandError::Busy { id })
        } else {
            Ok(())
        }
    }
}

/// Cells that a state takes for which there is no room.
fn needed(error: &StateError) -> Option<usize> {
    match error {
        StateError::NoRoom { needed, .. } => Some(*needed),
        StateError::InFile { error, .. } => needed(error),
        _ => None,
    }
}
