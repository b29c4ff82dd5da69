//! Decoded instructions and kernels.

use super::lanes::{AluFn, Args, Slot};
use super::matrix::Matrix;
use super::scalar::Scalar;
use crate::ptx::Space;

/// An instruction.
pub struct Inst {
    /// Its line in the module's text.
    pub line: u32,
    /// The predicate that decides which lanes do it.
    pub guard: Slot,
    /// All ones if the guard is negated.
    pub negate: u32,
    /// How it is counted.
    pub class: Class,
    /// What it does.
    pub action: Action,
}

/// Kinds of instructions, as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Arithmetic of integers and bits, comparisons.
    Integer,
    /// Arithmetic of f32.
    Single,
    /// Arithmetic of f64.
    Double,
    /// Arithmetic of 16-bit floats.
    Half,
    /// Reciprocals, roots, exponentials and the like.
    Special,
    /// Conversions.
    Convert,
    /// Moves and selections.
    Move,
    /// Products of matrices.
    Matrix,
    /// Memory of the device.
    Global,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Constants and arguments.
    Constant,
    /// Jumps.
    Control,
    /// Barriers, fences.
    Synchronize,
    /// Shuffles, votes.
    Exchange,
}

/// What an instruction does.
pub enum Action {
    /// Arithmetic, lane by lane.
    Alu(AluFn, Args),
    /// From memory to registers.
    Load(Access),
    /// From registers to memory.
    Store(Access),
    /// A read and write at once.
    Atomic(Atomic),
    /// A jump to an instruction.
    Branch(u32),
    /// A jump to one of several.
    BranchIndexed(Slot, Box<[u32]>),
    /// The end of a thread.
    Exit,
    /// A fault.
    Trap,
    /// A barrier of the block.
    Barrier(Barrier),
    /// `bar.warp.sync`: the lanes of a mask.
    WarpBarrier(Slot),
    /// An exchange among lanes of a warp.
    Exchange(Exchange),
    /// Something that the whole warp does to matrices.
    Matrix(Matrix),
    /// The start of a copy from global to shared memory.
    AsyncCopy(AsyncCopy),
    /// The end of a group of those.
    AsyncCommit,
    /// Waits until at most so many groups are under way; `None`: until no copy is.
    AsyncWait(Option<u32>),
    /// A clock, of 4 or 8 bytes.
    Clock(Slot, u32),
    /// Nothing that shows: fences, prefetches, pauses.
    Nothing,
}

/// An access to memory.
#[derive(Debug, Clone)]
pub struct Access {
    /// Where it goes.
    pub space: Space,
    /// The address's register, or that of a constant.
    pub address: Slot,
    /// Whether that has 64 bits.
    pub is_wide: bool,
    /// Added to it.
    pub offset: i64,
    /// Of an element; elements lie one behind the other.
    pub kind: Scalar,
    /// The elements' registers.
    pub registers: Vec<Slot>,
    /// Bytes of each of those.
    pub register_bytes: u32,
}

impl Access {
    /// Of all elements.
    pub fn bytes(&self) -> u32 {
        self.kind.bytes() * self.registers.len() as u32
    }
}

/// `atom` and `red`.
pub struct Atomic {
    /// The place, and the type of what lies there; its register takes the old value.
    pub access: Access,
    /// What is done.
    pub op: AtomicOp,
    /// The operand, or what is compared with.
    pub b: Slot,
    /// What is swapped in by `cas`.
    pub c: Slot,
}

/// What an atomic instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
    Increment,
    Decrement,
}

/// A barrier of the block.
#[derive(Debug, Clone)]
pub struct Barrier {
    /// Which of 16.
    pub id: Slot,
    /// Threads that take part; `None`: all of the block.
    pub count: Option<Slot>,
    /// Whether it waits (`bar.arrive` does not).
    pub waits: bool,
    /// `bar.red`: the predicate, and the register or predicate of the result.
    pub reduce: Option<(BarrierOp, Slot, u32, Slot)>,
}

/// How a barrier reduces predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarrierOp {
    Count,
    All,
    Any,
}

/// An exchange among lanes.
pub struct Exchange {
    /// What is exchanged.
    pub kind: ExchangeKind,
    /// The result; a predicate for votes and `p` of shuffles.
    pub d: Slot,
    /// A second result (a predicate), or the sink.
    pub p: Slot,
    /// The value.
    pub a: Slot,
    /// Lane of a shuffle.
    pub b: Slot,
    /// Bounds of a shuffle.
    pub c: Slot,
    /// For predicates: all ones if `a` is negated.
    pub negate: u32,
    /// Lanes that take part; `None`: those that are there.
    pub members: Option<Slot>,
}

/// The kinds of exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeKind {
    ShuffleUp,
    ShuffleDown,
    ShuffleXor,
    ShuffleIndex,
    VoteAll,
    VoteAny,
    VoteUniform,
    VoteBallot,
    /// Of values of so many bytes.
    MatchAny(u32),
    MatchAll(u32),
    ReduceAdd,
    ReduceMinUnsigned,
    ReduceMaxUnsigned,
    ReduceMinSigned,
    ReduceMaxSigned,
    ReduceAnd,
    ReduceOr,
    ReduceXor,
    ActiveMask,
    Elect,
}

/// `cp.async`.
pub struct AsyncCopy {
    /// Where in shared memory.
    pub to: Access,
    /// From where in global memory.
    pub from: Access,
    /// 4, 8 or 16.
    pub bytes: u32,
    /// How many of them are read, a register; the others are zeros.
    pub read: Option<Slot>,
    /// A predicate: lanes where nothing is read.
    pub ignore: Option<(Slot, u32)>,
}

/// A value of all kernels' threads that instructions read like a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// `%tid`, by dimension.
    Thread(usize),
    /// `%ntid`
    Threads(usize),
    /// `%ctaid`
    Block(usize),
    /// `%nctaid`
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    /// `%lanemask_...`: whether it has the lanes before, the lane itself, and those behind.
    LaneMask([bool; 3]),
    Processor,
    Processors,
    Grid,
    SharedBytes,
    DynamicSharedBytes,
}

/// A kernel, decoded for a device.
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its instructions; the last one is an exit.
    pub code: Vec<Inst>,
    /// Bytes of a warp's register file.
    pub file_bytes: u32,
    /// What is in registers from the start: slot, bits, bytes.
    pub constants: Vec<(Slot, u64, u32)>,
    /// Special registers that it reads, and their slots.
    pub specials: Vec<(Special, Slot)>,
    /// Bytes of its own shared variables.
    pub shared_bytes: u32,
    /// Bytes of a thread's local memory.
    pub local_bytes: u32,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Offset and size of each parameter.
    pub params: Vec<(u32, u32)>,
    /// Most threads in a block.
    pub max_threads: Option<u32>,
    /// Whether it must have exactly that many.
    pub exact_threads: bool,
}
