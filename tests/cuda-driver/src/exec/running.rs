//! The asynchronous matrix products of a warp that may be running, with the registers and the shared memory that they
//! use.

use super::lanes::Slot;
use super::timing::Timing;

/// Accesses of a register by running products and other instructions.
#[derive(Debug, Clone, Copy, Default)]
struct Register {
    /// Number of fences before the last access by another instruction, plus 1; 0 for no access.
    accessed_at: u32,
    /// Number of the last group that writes the register, starting at 1.
    group: u32,
}

/// The products of a warp that may be running.
#[derive(Default)]
pub struct Products {
    /// Registers by slot / 64. Empty if the kernel has no products.
    registers: Vec<Register>,
    /// Number of committed groups, and of groups that a wait completed.
    committed: u32,
    completed: u32,
    /// Number of `wgmma.fence`.
    fences: u32,
    /// Group and address of 16 bytes that running products read.
    reads: Vec<(u32, u64)>,
}

impl Products {
    /// Prepares a block of a kernel with products, whose register file has `file_bytes` bytes.
    pub fn begin(&mut self, file_bytes: u32) {
        let reads = std::mem::take(&mut self.reads);
        *self = Self {
            registers: vec![Register::default(); file_bytes as usize / 64],
            reads,
            ..Self::default()
        };
        self.reads.clear();
    }

    /// Records the registers that another instruction accesses. Returns false if a running product uses one of them.
    pub fn access(&mut self, timing: &Timing) -> bool {
        let mut is_allowed = true;
        for slot in timing.reads.iter().chain(&timing.writes) {
            let register = &mut self.registers[*slot as usize / 64];
            is_allowed &= register.group <= self.completed;
            register.accessed_at = self.fences + 1;
        }
        is_allowed
    }

    /// Executes `wgmma.fence`.
    pub fn fence(&mut self) {
        self.fences += 1;
    }

    /// Executes `wgmma.commit_group`.
    pub fn commit(&mut self) {
        self.committed += 1;
    }

    /// Completes all groups except the last `running`. Returns the addresses that their products read.
    pub fn complete(&mut self, running: u32) -> Vec<u64> {
        self.completed = self.completed.max(self.committed.saturating_sub(running));
        let mut done = Vec::new();
        self.reads.retain(|&(group, address)| {
            if group <= self.completed {
                done.push(address);
            }
            group > self.completed
        });
        done
    }

    /// Starts a product of the current group with these sums. Returns false if no fence orders an earlier access.
    pub fn start(&mut self, sums: &[Slot]) -> bool {
        let fences = self.fences;
        sums.iter().all(|slot| {
            let register = &mut self.registers[*slot as usize / 64];
            register.group = self.committed + 1;
            fences > 0 && register.accessed_at != fences + 1
        })
    }

    /// Records that a product of the current group reads 16 bytes of shared memory.
    pub fn read(&mut self, address: u64) {
        self.reads.push((self.committed + 1, address));
    }
}
