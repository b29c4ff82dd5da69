//! Registers and latency of an instruction.

use super::lanes::Slot;

/// Effect of an instruction on the order of other instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The instruction only depends on registers.
    Free,
    /// A branch, barrier, or `mbarrier` instruction.
    Fixed,
    /// An asynchronous copy.
    Copy,
    /// The end of a group of asynchronous copies.
    Commit,
    /// A wait for all groups of copies except the last; `None` waits for all copies.
    Wait(Option<u32>),
    /// A product of a warpgroup.
    Product,
    /// The end of a group of products.
    ProductCommit,
    /// A wait for all groups of products except the last.
    ProductWait(u32),
}

/// The registers and the latency of an instruction.
#[derive(Debug)]
pub struct Timing {
    pub(super) reads: Box<[Slot]>,
    pub(super) writes: Box<[Slot]>,
    pub(super) clocks: u64,
    pub(super) order: Order,
}
