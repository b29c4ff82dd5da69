//! The input and the outcome of an op's function on one thread.

use std::fmt;

use crate::backend::cpu::activations::QuantizedRows;
use crate::backend::cpu::phases::Abandoned;
use crate::backend::cpu::plan::PlannedNode;
use crate::backend::cpu::queue::{Stolen, WorkQueue, WorkShare};
use crate::backend::cpu::scratch::Shared;
use crate::backend::cpu::view::{Source, Target};
use crate::graph::{Graph, Tensor};

/// A node to compute, as seen by one thread.
pub(in crate::backend::cpu) struct Task<'a> {
    pub(in crate::backend::cpu) graph: &'a Graph,
    pub(in crate::backend::cpu) node: &'a Tensor,
    pub(in crate::backend::cpu) planned: &'a PlannedNode,
    /// The part of the node to compute. Functions of ops that [take pieces](super::takes_pieces) ignore the
    /// share and take work from the queue instead.
    pub(in crate::backend::cpu) share: WorkShare,
    pub(in crate::backend::cpu) queue: &'a WorkQueue<'a>,
    pub(in crate::backend::cpu) target: Target<'a>,
    /// This thread's scratch memory: at least `ScratchSize::per_thread` floats, uninitialized.
    pub(in crate::backend::cpu) scratch: &'a mut [f32],
    /// Shared scratch memory: at least `ScratchSize::shared` floats, uninitialized.
    pub(in crate::backend::cpu) shared: Shared<'a>,
    /// The quantized second operand of a matmul, or `None` if the matmul reads f32.
    pub(in crate::backend::cpu) activations: Option<QuantizedRows<'a>>,
}

impl<'a> Task<'a> {
    pub(super) fn source(&self, i: usize) -> Source<'a> {
        self.planned.memory.source(self.graph, i)
    }

    pub(super) fn optional(&self, i: usize) -> Option<Source<'a>> {
        self.node.src[i].map(|_| self.source(i))
    }
}

/// Reason why a thread could not finish a node.
pub(in crate::backend::cpu) enum NodeExit {
    Abandoned,
    Stolen,
    KernelError(KernelError),
}

impl From<Stolen> for NodeExit {
    fn from(_: Stolen) -> NodeExit {
        NodeExit::Stolen
    }
}

impl From<Abandoned> for NodeExit {
    fn from(_: Abandoned) -> NodeExit {
        NodeExit::Abandoned
    }
}

impl From<KernelError> for NodeExit {
    fn from(fault: KernelError) -> NodeExit {
        NodeExit::KernelError(fault)
    }
}

/// Invalid input found while computing a node.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cpu) enum KernelError {
    /// A row or expert index is outside the table.
    IndexOutOfRange { row: i64, rows: usize },
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::IndexOutOfRange { row, rows } => {
                write!(f, "index {row} is out of range for a table of {rows} rows")
            }
        }
    }
}

/// Converts `row` to an index, which must be less than `rows`.
pub(super) fn row_number(row: impl Into<i64>, rows: usize) -> Result<usize, KernelError> {
    let row = row.into();
    match usize::try_from(row) {
        Ok(row) if row < rows => Ok(row),
        _ => Err(KernelError::IndexOutOfRange { row, rows }),
    }
}
