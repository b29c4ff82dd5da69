//! Faults: errors of kernels and copies that the emulator detects.

/// The kind of a fault, which determines the CUDA error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An access outside all live allocations.
    OutOfBounds,
    /// An address that is not a multiple of the access width.
    Misaligned,
    /// A read of uninitialized memory.
    Uninitialized,
    /// A data race: two threads access a word without a barrier in between, and one of them writes.
    Race,
    /// A barrier or warp-level instruction that not all required threads reach.
    Synchronization,
    /// A data race between streams or kernels: no event or wait orders two accesses, and one of them writes.
    Order,
    /// A `trap` instruction or a failed assertion.
    Trap,
    /// A warp that exceeded the maximum number of branches.
    Hang,
}

/// A fault and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// Description, which includes the address and the allocation.
    pub description: String,
    /// PTX line number, starting at 1; 0 means the line of the running instruction.
    pub line: u32,
    /// Index of the thread in its block, if a single thread caused the fault.
    pub thread: Option<u32>,
    /// Index of the block in the grid.
    pub block: [u32; 3],
}

impl Fault {
    /// Creates a fault of the running instruction.
    pub fn new(kind: Kind, thread: Option<u32>, description: impl Into<String>) -> Box<Self> {
        let description = description.into();
        Box::new(Self {
            kind,
            description,
            line: 0,
            thread,
            block: [0; 3],
        })
    }
}
