//! Runs commands between two steps.

use super::{Batcher, PendingScales};
use crate::scheduler::command::{Command, CommandError, CommandResult, Reply};

impl Batcher {
    /// Runs a command. Changes of adapter scales may wait for later steps.
    pub(super) fn execute(&mut self, command: Command) {
        match command {
            Command::Slots { owner, reply } => send(reply, Ok(self.memory.slots(owner))),
            Command::SaveSlot { id, owner, path, reply } => send(reply, self.memory.save_slot(id, owner, &path)),
            Command::RestoreSlot { id, owner, path, reply } => send(reply, self.memory.restore_slot(id, owner, &path)),
            Command::EraseSlot { id, owner, reply } => send(reply, self.memory.erase_slot(id, owner)),
            Command::EndReasoning { client, id, reply } => send(reply, Ok(self.end_reasoning(client, &id))),
            Command::AdapterScales { reply } => {
                let scales = self.memory.context.adapters().iter().map(|(_, scale)| *scale);
                send(reply, Ok(scales.collect()));
            }
            Command::SetAdapterScales { scales, reply } => self.set_adapter_scales(scales, reply),
        }
    }

    /// Ends the reasoning of a client's request. Returns whether it was reasoning; `None` if no such request
    /// is queued or running.
    fn end_reasoning(&mut self, client: u64, id: &str) -> Option<bool> {
        let running = self.running.iter_mut().map(|running| &mut running.job);
        let mut was_reasoning = None;
        for job in running.chain(&mut self.waiting) {
            if job.client == client && job.id.as_deref() == Some(id) {
                let was_reasoning = was_reasoning.get_or_insert(false);
                for generation in &mut job.generations {
                    *was_reasoning |= generation.end_reasoning();
                }
            }
        }
        was_reasoning
    }

    fn set_adapter_scales(&mut self, scales: Vec<(usize, f32)>, reply: Reply<()>) {
        let n = self.memory.context.adapters().len();
        match scales.iter().find(|(id, _)| *id >= n) {
            Some(&(id, _)) => send(reply, Err(CommandError::NoAdapter { id, n })),
            None => self.pending_scales.push(PendingScales { scales, reply }),
        }
    }

    /// Applies pending adapter changes if no sequence is running. Clears the cache, which was computed with
    /// the previous scales.
    pub(super) fn apply_pending_scales(&mut self) {
        if !self.running.is_empty() {
            return;
        }
        for PendingScales { scales, reply } in std::mem::take(&mut self.pending_scales) {
            let mut all = vec![0.0; self.memory.context.adapters().len()];
            for (id, scale) in scales {
                all[id] = scale;
            }
            let set = self.memory.set_scales(&all);
            send(reply, set.map_err(CommandError::from));
        }
    }
}

/// Sends the result of a command. The receiver may have been dropped.
fn send<T>(reply: Reply<T>, result: CommandResult<T>) {
    let _ = reply.send(result);
}
