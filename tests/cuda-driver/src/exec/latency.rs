//! Latency of a block: the clocks that its longest chain of dependent instructions takes.
//!
//! Each register has the time at which its value is ready. Between two branches or barriers, instructions start as
//! soon as the registers that they read are ready, one per clock in total. The model thus assumes that the assembler
//! found the best order. An instruction never starts before a preceding branch, and a branch waits until every
//! preceding instruction has started. A load whose result is not read before the branch thus stays in flight.
//!
//! | result of | ready after |
//! |---|---:|
//! | loads from global memory, atomics, asynchronous copies | 550 clocks |
//! | bulk copies | 550, and 1 for each 64 bytes |
//! | `wgmma` with n columns | n / 2 |
//! | `mma`, `ldmatrix` | 33 |
//! | loads from shared memory, shuffles, votes, arrivals at `mbarrier` | 25 |
//! | reciprocals, roots, exponentials, and similar functions | 22 |
//! | all others | 5 |
//!
//! These are published measurements of an H100. Caches, other warps of the same multiprocessor, and the time of stores
//! are ignored.

use super::inst::{Action, Class, Exchange, Inst, Matrix};
use super::lanes::Slot;
use super::timing::{Order, Timing};
use std::collections::VecDeque;

pub const GLOBAL: u64 = 550;
/// Bytes that a multiprocessor receives from the L2 cache per clock.
pub const L2_BYTES: u64 = 64;
const MATRIX: u64 = 33;
pub const SHARED: u64 = 25;
const SPECIAL: u64 = 22;
const OTHER: u64 = 5;

impl Timing {
    pub fn new(inst: &Inst) -> Self {
        let (mut reads, writes) = registers(&inst.action);
        reads.push(inst.guard);
        let clocks = match (&inst.action, inst.class) {
            (Action::Atomic(_), _) | (_, Class::Global) => GLOBAL,
            (Action::Matrix(Matrix::Group(product)), _) => product.n as u64 / 2,
            (_, Class::Matrix) => MATRIX,
            (_, Class::Shared | Class::Exchange | Class::Local) => SHARED,
            (_, Class::Special) => SPECIAL,
            _ => OTHER,
        };
        let order = match inst.action {
            Action::Branch(_)
            | Action::BranchIndexed(..)
            | Action::Exit
            | Action::Barrier(_)
            | Action::WarpBarrier(_)
            | Action::Mbarrier(_)
            | Action::MbarrierWait(_)
            | Action::SetRegisters(..) => Order::Fixed,
            Action::Matrix(Matrix::Group(_)) => Order::Product,
            Action::ProductsCommit => Order::ProductCommit,
            Action::ProductsWait(n) => Order::ProductWait(n),
            Action::AsyncCopy(_) => Order::Copy,
            Action::AsyncCommit => Order::Commit,
            Action::AsyncWait(n) => Order::Wait(n),
            _ => Order::Free,
        };
        Self {
            reads: reads.into(),
            writes: writes.into(),
            clocks,
            order,
        }
    }
}

/// Returns the registers that an instruction reads and writes. Unused operands are constant slots.
fn registers(action: &Action) -> (Vec<Slot>, Vec<Slot>) {
    match action {
        Action::Alu(_, args) => (vec![args.a, args.b, args.c], vec![args.d]),
        Action::Load(access) => (vec![access.address], access.registers.clone()),
        Action::Store(access) => ([&[access.address], &access.registers[..]].concat(), vec![]),
        Action::Atomic(atomic) => (
            vec![atomic.access.address, atomic.b, atomic.c],
            atomic.access.registers.clone(),
        ),
        Action::BranchIndexed(index, _) => (vec![*index], vec![]),
        Action::Exchange(Exchange { a, b, c, d, p, .. }) => (vec![*a, *b, *c], vec![*d, *p]),
        Action::Matrix(Matrix::Multiply(m)) => {
            let [d, sources @ ..] = &m.registers;
            (sources.concat(), d.clone())
        }
        Action::Matrix(Matrix::Group(product)) => {
            let operands = [&product.operands[..], &[product.adds.0], &product.registers];
            (operands.concat(), product.registers.clone())
        }
        Action::Matrix(Matrix::Load(access, _)) => (vec![access.address], access.registers.clone()),
        Action::Matrix(Matrix::Store(access, _)) => ([&[access.address], &access.registers[..]].concat(), vec![]),
        Action::Matrix(Matrix::Transpose(d, a)) => (vec![*a], vec![*d]),
        Action::AsyncCopy(copy) => {
            let len = copy.read.into_iter().chain(copy.ignore.map(|(slot, _)| slot));
            let addresses = [copy.to.address, copy.from.address];
            (addresses.into_iter().chain(len).collect(), vec![])
        }
        Action::Mbarrier(op) => (vec![op.object.address, op.operand], vec![]),
        Action::MbarrierWait(wait) => (vec![wait.object.address, wait.parity], vec![wait.done]),
        Action::BulkCopy(copy) => {
            let addresses = [&copy.to, &copy.from, &copy.object].map(|access| access.address);
            ([&addresses[..], &[copy.bytes]].concat(), vec![])
        }
        Action::Barrier(barrier) => {
            let (predicate, result) = barrier.reduce.map(|(_, p, _, d)| (p, d)).unzip();
            (predicate.into_iter().collect(), result.into_iter().collect())
        }
        Action::Clock(d, _) => (vec![], vec![*d]),
        _ => (vec![], vec![]),
    }
}

/// The clock of a warp.
#[derive(Default)]
pub struct Chain {
    /// Time at which each register is ready, by slot / 4. Empty if latencies are not measured.
    ready: Vec<u64>,
    /// Earliest start of the next instruction.
    from: u64,
    /// Latest start of an instruction, and number of instructions, since `from`.
    last: u64,
    issued: u64,
    /// Time at which the uncommitted copies, and each group of copies, are complete.
    copying: u64,
    copied: VecDeque<u64>,
    /// Time at which the uncommitted products, and each group of products, are complete.
    multiplying: u64,
    multiplied: VecDeque<u64>,
}

impl Chain {
    /// Starts a block. `file_bytes` is the size of the register file.
    pub fn begin(&mut self, file_bytes: u32) {
        self.ready.clear();
        self.ready.resize(file_bytes as usize / 4, 0);
        self.copied.clear();
        self.multiplied.clear();
        self.multiplying = 0;
        (self.from, self.last, self.issued, self.copying) = (0, 0, 0, 0);
    }

    /// Adds an instruction.
    pub fn issue(&mut self, timing: &Timing) {
        let ready = timing.reads.iter().map(|&slot| self.ready[slot as usize / 4]);
        let start = ready.fold(self.from, u64::max);
        self.last = self.last.max(start);
        self.issued += 1;
        for &slot in &timing.writes {
            self.ready[slot as usize / 4] = start + timing.clocks;
        }
        match timing.order {
            Order::Free => {}
            Order::Fixed => self.fix(),
            Order::Copy => self.copying = self.copying.max(start + GLOBAL),
            Order::Product => self.multiplying = self.multiplying.max(start + timing.clocks),
            Order::ProductCommit => self.multiplied.push_back(std::mem::take(&mut self.multiplying)),
            Order::ProductWait(n) => {
                self.fix();
                while self.multiplied.len() > n as usize {
                    self.from = self.from.max(self.multiplied.pop_front().unwrap_or_default());
                }
            }
            Order::Commit => self.copied.push_back(std::mem::take(&mut self.copying)),
            Order::Wait(n) => {
                self.fix();
                let kept = n.map_or(0, |n| n as usize);
                while self.copied.len() > kept {
                    self.from = self.from.max(self.copied.pop_front().unwrap_or_default());
                }
                if n.is_none() {
                    self.from = self.from.max(std::mem::take(&mut self.copying));
                }
            }
        }
    }

    /// Makes later instructions start after all earlier ones.
    fn fix(&mut self) {
        self.from = (self.from + self.issued).max(self.last + 1);
        self.last = self.from;
        self.issued = 0;
    }

    /// Returns the time at which the next instruction can start.
    pub fn now(&self) -> u64 {
        self.from
    }

    /// Continues after a barrier that was complete at `time`.
    pub fn wait_until(&mut self, time: u64) {
        self.from = self.from.max(time + OTHER);
        self.last = self.last.max(self.from);
    }
}
