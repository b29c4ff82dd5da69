//! Decoded instructions and kernels.

use super::lanes::{AluFn, Args, Slot};
use super::scalar::Scalar;
use super::timing::Timing;
use crate::ptx::Space;

/// A decoded instruction.
pub struct Inst {
    /// Line number in the PTX source.
    pub line: u32,
    /// Predicate that selects the active lanes.
    pub guard: Slot,
    /// All ones if the guard is negated, otherwise 0.
    pub negate: u32,
    /// Class under which executions are counted.
    pub class: Class,
    pub action: Action,
}

/// Classes of instructions in the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Integer arithmetic, bit operations, and comparisons.
    Integer,
    /// Arithmetic on f32.
    Single,
    /// Arithmetic on f64.
    Double,
    /// Arithmetic on 16-bit floats.
    Half,
    /// Reciprocals, roots, exponentials, and similar functions.
    Special,
    Convert,
    /// Moves and selections.
    Move,
    /// Matrix instructions.
    Matrix,
    /// Accesses to global memory.
    Global,
    /// Accesses to shared memory.
    Shared,
    /// Accesses to local memory.
    Local,
    /// Accesses to constants and parameters.
    Constant,
    /// Branches, calls, and exits.
    Control,
    /// Barriers and fences.
    Synchronize,
    /// Shuffles and votes.
    Exchange,
}

/// The operation of an instruction.
pub enum Action {
    /// Arithmetic instruction, computed lane by lane.
    Alu(AluFn, Args),
    Load(Access),
    Store(Access),
    /// Atomic read-modify-write.
    Atomic(Atomic),
    /// A branch to the instruction with this index.
    Branch(u32),
    /// A branch to one of several instructions, selected by a register (`brx.idx`).
    BranchIndexed(Slot, Box<[u32]>),
    /// Exit of a thread.
    Exit,
    Trap,
    /// Barrier of the block (`bar`).
    Barrier(Barrier),
    /// Barrier of the warp (`bar.warp.sync`), with the member mask.
    WarpBarrier(Slot),
    /// Data exchange between the lanes of a warp.
    Exchange(Exchange),
    /// Warp-level matrix instruction.
    Matrix(Matrix),
    /// Asynchronous copy from global to shared memory.
    AsyncCopy(AsyncCopy),
    /// Commit of a group of asynchronous copies.
    AsyncCommit,
    /// Wait until at most this number of copy groups is pending; `None` waits for all copies.
    AsyncWait(Option<u32>),
    /// Publication of stores to shared memory for `wgmma` and bulk copies (`fence.proxy.async`).
    ProxyFence,
    /// Publication of initialized `mbarrier` objects for bulk copies (`fence.mbarrier_init`).
    MbarrierFence,
    /// An `mbarrier` instruction that does not wait.
    Mbarrier(MbarrierOp),
    /// A wait for the end of a phase of an `mbarrier`.
    MbarrierWait(PhaseWait),
    /// Asynchronous copy of many bytes.
    BulkCopy(BulkCopy),
    /// Change of the registers per thread to a number; true for an increase.
    SetRegisters(u32, bool),
    /// Ordering of register accesses before `wgmma`.
    ProductsFence,
    /// Commit of a group of `wgmma`.
    ProductsCommit,
    /// Wait until at most this number of groups of `wgmma` is running.
    ProductsWait(u32),
    /// Wait for earlier kernels of the stream (`griddepcontrol.wait`).
    GridWait,
    /// Read of a clock register of 4 or 8 bytes.
    Clock(Slot, u32),
    /// An instruction without an effect in the emulator, such as a fence or prefetch.
    Nothing,
}

/// The address and the registers of a memory access.
#[derive(Debug, Clone)]
pub struct Access {
    pub space: Space,
    /// Register or constant that contains the address.
    pub address: Slot,
    /// True if the address has 64 bits, false for 32 bits.
    pub is_wide: bool,
    /// Offset added to the address, in bytes.
    pub offset: i64,
    /// Type of the accessed elements, which are consecutive in memory.
    pub kind: Scalar,
    /// Registers of the loaded or stored elements, in order.
    pub registers: Vec<Slot>,
    /// Size of an element register in bytes.
    pub register_bytes: u32,
}

impl Access {
    /// Returns the size of the access in bytes.
    pub fn bytes(&self) -> u32 {
        self.kind.bytes() * self.registers.len() as u32
    }
}

/// An atomic instruction (`atom` or `red`).
pub struct Atomic {
    /// Address and type. The register receives the old value.
    pub access: Access,
    pub op: AtomicOp,
    /// Register with the operand, or with the comparison value of `cas`.
    pub b: Slot,
    /// Register with the new value of a `cas`.
    pub c: Slot,
}

/// The operation of an atomic instruction.
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
    /// Register with the barrier ID, 0 to 15.
    pub id: Slot,
    /// Register with the number of participating threads; `None` for all threads of the block.
    pub count: Option<Slot>,
    /// True if the warp waits for the other threads, false for `bar.arrive`.
    pub waits: bool,
    /// Reduction of a `bar.red`: operation, predicate, negation mask, and result register.
    pub reduce: Option<(BarrierOp, Slot, u32, Slot)>,
}

/// The reduction operation of `bar.red`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarrierOp {
    Count,
    All,
    Any,
}

/// A data exchange between the lanes of a warp.
pub struct Exchange {
    pub kind: ExchangeKind,
    /// Register of the result; a predicate for votes.
    pub d: Slot,
    /// Second result, a predicate; the sink if unused.
    pub p: Slot,
    /// Register with the value to exchange.
    pub a: Slot,
    /// Register with the source lane of a shuffle.
    pub b: Slot,
    /// Register with the segment and bound of a shuffle.
    pub c: Slot,
    /// All ones if the predicate in `a` is negated, otherwise 0.
    pub negate: u32,
    /// Register with the member mask; `None` for the arrived lanes.
    pub members: Option<Slot>,
}

/// The kinds of data exchange.
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
    /// `match.any` or `match.all` on values of this size in bytes.
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

/// An asynchronous copy (`cp.async`).
pub struct AsyncCopy {
    /// Destination address in shared memory.
    pub to: Access,
    /// Source address in global memory.
    pub from: Access,
    /// Number of bytes to copy: 4, 8, or 16.
    pub bytes: u32,
    /// Register with the number of bytes to read. The rest is filled with zeros.
    pub read: Option<Slot>,
    /// Predicate and negation mask of the lanes that read nothing.
    pub ignore: Option<(Slot, u32)>,
}

/// The operation of an `mbarrier` instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseOperation {
    Init,
    Invalidate,
    Arrive,
    Expect,
    ArriveAndExpect,
}

/// An `mbarrier` instruction.
pub struct MbarrierOp {
    pub operation: PhaseOperation,
    /// Address of the object in shared memory.
    pub object: Access,
    /// Register with the count of arrivals or the number of bytes.
    pub operand: Slot,
}

/// A wait for the end of a phase.
pub struct PhaseWait {
    /// Address of the object in shared memory.
    pub object: Access,
    /// Register with the parity of the phase.
    pub parity: Slot,
    /// Predicate of the result.
    pub done: Slot,
}

/// A bulk copy (`cp.async.bulk`) from global to shared memory.
pub struct BulkCopy {
    pub to: Access,
    pub from: Access,
    /// Register with the number of bytes.
    pub bytes: Slot,
    /// Address of the `mbarrier` that receives the bytes.
    pub object: Access,
}

/// Special registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// Special register `%tid` of a dimension.
    Thread(usize),
    /// Special register `%ntid` of a dimension.
    Threads(usize),
    /// Special register `%ctaid` of a dimension.
    Block(usize),
    /// Special register `%nctaid` of a dimension.
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    /// `%lanemask_…`: whether the mask includes lower lanes, the lane itself, and higher lanes.
    LaneMask([bool; 3]),
    Processor,
    Processors,
    Grid,
    SharedBytes,
    DynamicSharedBytes,
}

/// A decoded kernel.
pub struct Kernel {
    pub name: String,
    /// Instructions of the kernel; the last is an exit.
    pub code: Vec<Inst>,
    /// Registers and latency of each instruction.
    pub timings: Vec<Timing>,
    /// Size of a warp's register file in bytes.
    pub file_bytes: u32,
    /// Constants with their slot, bits, and size in bytes.
    pub constants: Vec<(Slot, u64, u32)>,
    /// Special registers that the kernel reads, with their slots.
    pub specials: Vec<(Special, Slot)>,
    /// Size of static shared memory in bytes.
    pub shared_bytes: u32,
    /// Size of local memory per thread in bytes.
    pub local_bytes: u32,
    /// Size of the parameter buffer in bytes.
    pub param_bytes: u32,
    /// Offset and size of each parameter.
    pub params: Vec<(u32, u32)>,
    /// Maximum number of threads per block.
    pub max_threads: Option<u32>,
    /// True if the kernel contains `wgmma`.
    pub has_products: bool,
    /// True if the kernel contains `mbarrier` instructions.
    pub has_mbarriers: bool,
    /// True if blocks must have exactly `max_threads` threads (`.reqntid`).
    pub exact_threads: bool,
}

/// A warp-level matrix instruction.
pub enum Matrix {
    /// Multiply-accumulate D = A B + C (`mma.sync`).
    Multiply(Multiply),
    /// Asynchronous multiply-accumulate of a warpgroup (`wgmma.mma_async`).
    Group(GroupProduct),
    /// Load from shared memory of one 8 x 8 matrix of 16-bit elements per register. The flag selects
    /// transposition.
    Load(Access, bool),
    /// Store to shared memory of 8 x 8 matrices. The flag selects transposition.
    Store(Access, bool),
    /// Transposition of an 8 x 8 matrix in registers (`movmatrix`).
    Transpose(Slot, Slot),
}

/// The parameters of `mma.sync`.
pub struct Multiply {
    /// Rows of A, 8 or 16. B always has 8 columns.
    pub m: usize,
    /// Number of columns of A and rows of B.
    pub k: usize,
    /// Element types of the matrices A and B.
    pub kinds: [Scalar; 2],
    /// Element type of C and D: f16, f32, or s32.
    pub sum: Scalar,
    /// True to saturate integer sums instead of wrapping.
    pub saturate: bool,
    /// Registers of the matrices D, A, B, and C.
    pub registers: [Vec<Slot>; 4],
}

impl Multiply {
    /// Returns the number of multiply-add operations.
    pub fn operations(&self) -> u64 {
        (self.m * 8 * self.k) as u64
    }
}

/// A product D = A B + D (`wgmma.mma_async`) of 64 rows.
pub struct GroupProduct {
    /// Number of columns of B.
    pub n: usize,
    /// Element type of A and B.
    pub kind: Scalar,
    /// Registers of D: register `i` of a lane is at row `lane / 4 + 8 * (i / 2 % 2)` and column
    /// `8 * (i / 4) + lane % 4 * 2 + i % 2`.
    pub registers: Vec<Slot>,
    /// 64-bit registers that describe A and B.
    pub operands: [Slot; 2],
    /// Predicate and negation mask; if false, D is not added.
    pub adds: (Slot, u32),
}

impl GroupProduct {
    /// Returns the number of multiply-add operations of a warp.
    pub fn operations(&self) -> u64 {
        (16 * self.n * 16) as u64
    }
}
