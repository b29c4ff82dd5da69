//! What a kernel did wrong.

/// The kind of a fault, which decides the driver's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An access outside of every allocation, or to one that is freed.
    OutOfBounds,
    /// An address that is no multiple of the access's width.
    Misaligned,
    /// A read of memory that nobody wrote.
    Uninitialized,
    /// Two threads touch a word without a barrier between, one of them writing.
    Race,
    /// A barrier, or an instruction of the whole warp, that not all wanted threads come to.
    Synchronization,
    /// Streams touch the same memory without an event between.
    Order,
    /// `trap`, or a failed assertion.
    Trap,
    /// A warp that does not end.
    Hang,
}

/// A fault, and where it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind it is.
    pub kind: Kind,
    /// What happened, with address and allocation.
    pub what: String,
    /// The line of PTX, counted from 1; 0 if it is that of the running instruction.
    pub line: u32,
    /// The thread's index in its block, if one thread did it.
    pub thread: Option<u32>,
    /// The block.
    pub block: [u32; 3],
}

impl Fault {
    /// A fault that the running instruction causes in a thread.
    pub fn new(kind: Kind, thread: Option<u32>, what: impl Into<String>) -> Box<Self> {
        let what = what.into();
        Box::new(Self {
            kind,
            what,
            line: 0,
            thread,
            block: [0; 3],
        })
    }
}
