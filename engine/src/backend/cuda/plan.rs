//! Plans: the kernels of a split with their parameters, addresses included.

use std::ops::Range;
use std::sync::Arc;

use kernels::Precision;

use super::buffer::{CudaBuffer, foreign};
use super::context::{DeviceMemory, Function, Recording, Shape};
use super::faults::Faults;
use super::fuse::Moved;
use super::kernel::Kernel;
use super::library::Library;
use super::ops::{COLUMNS_ALIGNMENT, ColumnForm, Refusal, Target, TensorArg};
use crate::backend::{BackendError, MemoryMap, Plan};
use crate::graph::{Graph, TensorId};

/// A kernel with its parameters.
pub(super) struct Launch {
    pub(super) function: Arc<Function>,
    pub(super) shape: Shape,
    /// First word of the parameters.
    pub(super) parameters: usize,
}

/// What runs a split on this graph and memory.
#[derive(Default)]
pub(super) struct CudaPlan {
    pub(super) version: u64,
    pub(super) stamp: u64,
    pub(super) launches: Vec<Launch>,
    /// Parameters of all kernels. Words keep them aligned.
    pub(super) words: Vec<u64>,
    /// Memory that kernels use between them.
    pub(super) scratch: Option<Scratch>,
    /// The columns that were made last, as long as neither they nor what they were made of is written.
    pub(super) columns: Option<Columns>,
    /// Whether these lie in the second place for columns.
    pub(super) in_second: bool,
    /// Some kernel may find a number that is beyond its table.
    pub(super) has_faults: bool,
    /// Times that the kernels were queued one by one.
    pub(super) n_runs: u32,
    /// The kernels as one, once they are worth recording.
    pub(super) recording: Option<Recording>,
}

impl Plan for CudaPlan {}

/// Columns of rows in a form.
pub(super) struct Columns {
    of: TensorArg,
    form: ColumnForm,
    /// Addresses of the rows.
    rows: Range<u64>,
    /// Address of the columns.
    address: u64,
}

impl CudaPlan {
    /// Forgets all but the memory it takes.
    pub(super) fn clear(&mut self) {
        self.launches.clear();
        self.words.clear();
        self.scratch = None;
        self.columns = None;
        self.in_second = false;
        self.has_faults = false;
        self.n_runs = 0;
        self.recording = None;
    }
}

/// Memory that kernels use between them, in areas one behind the other.
#[derive(Clone)]
pub(super) struct Scratch {
    pub(super) memory: Arc<DeviceMemory>,
    pub(super) sizes: Areas,
}

/// Bytes of each area.
#[derive(Clone, Copy, Default)]
pub(super) struct Areas {
    /// What each node may use as it likes.
    pub(super) work: usize,
    /// Columns in the form of products: two places, so that a product may write columns while it reads others.
    pub(super) columns: usize,
    /// Results that only kernels of the plan read.
    pub(super) moved: usize,
}

impl Areas {
    /// Areas begin at multiples of this.
    const ALIGNMENT: usize = COLUMNS_ALIGNMENT;

    /// At least as large as both.
    pub(super) fn max(self, other: Areas) -> Areas {
        let max = |a: usize, b: usize| a.max(b).next_multiple_of(Areas::ALIGNMENT);
        Areas {
            work: max(self.work, other.work),
            columns: max(self.columns, other.columns),
            moved: max(self.moved, other.moved),
        }
    }

    /// Of all areas.
    pub(super) fn total(self) -> usize {
        self.work + self.columns + self.moved
    }
}

impl Scratch {
    /// Bytes of a place for columns.
    fn place(&self) -> usize {
        self.sizes.columns / 2 / Areas::ALIGNMENT * Areas::ALIGNMENT
    }

    fn columns(&self, in_second: bool) -> u64 {
        let place = if in_second { self.place() } else { 0 };
        self.memory.address() + (self.sizes.work + place) as u64
    }

    fn moved(&self) -> u64 {
        self.memory.address() + (self.sizes.work + self.sizes.columns) as u64
    }
}

/// Notes the launches of nodes in a plan.
pub(super) struct Planner<'a> {
    pub(super) device: &'a str,
    pub(super) graph: &'a Graph,
    pub(super) memory: &'a MemoryMap,
    pub(super) library: &'a Library,
    /// The record of faults, and the numbers of nodes in it.
    pub(super) faults: &'a mut Faults,
    pub(super) scratch: &'a Scratch,
    /// Results that lie in scratch memory instead of their homes, and where in its area.
    pub(super) moved: &'a Moved,
    pub(super) precision: Precision,
    pub(super) plan: &'a mut CudaPlan,
}

impl Planner<'_> {
    /// Where a tensor lies whose memory was moved.
    fn moved_to(&self, id: TensorId) -> Option<u64> {
        let (owner, offset) = self.graph.tensor(id).view.unwrap_or((id, 0));
        let at = *self.moved.get(&owner)?;
        Some(self.scratch.moved() + (at + offset) as u64)
    }

    fn error(&self, message: String) -> Refusal {
        Refusal::Error(BackendError::Device {
            device: self.device.to_owned(),
            message,
        })
    }
}

impl Target for Planner<'_> {
    fn address(&mut self, id: TensorId, written: bool) -> Result<u64, Refusal> {
        let (tensor, name) = (self.graph.tensor(id), self.graph.tensor(id).name);
        let home = (self.graph.home(id)).ok_or_else(|| self.error(format!("{name} has no memory")))?;
        let buffer = self.memory.get(home.buffer)?;
        let ours = buffer
            .as_any()
            .downcast_ref::<CudaBuffer>()
            .ok_or_else(|| foreign(buffer))?;
        if written && !self.memory.is_writable(home.buffer) {
            let buffer_type = buffer.buffer_type().name().to_owned();
            return Err(BackendError::ReadOnly { buffer_type }.into());
        }
        let end = home.offset.checked_add(tensor.nbytes());
        if end.is_none_or(|end| end > buffer.size()) {
            return Err(self.error(format!("{name} reaches beyond its buffer")));
        }
        let address = match self.moved_to(id) {
            Some(address) => address,
            None => ours.memory().address() + home.offset as u64,
        };
        let alignment = super::ops::alignment_of(tensor.ty) as u64;
        if !address.is_multiple_of(alignment) {
            return Err(self.error(format!("{name} is not aligned to {alignment} bytes")));
        }
        let written = written.then(|| address..address + tensor.nbytes() as u64);
        let overlaps = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        if let (Some(written), Some(Columns { rows, .. })) = (&written, &self.plan.columns)
            && overlaps(written, rows)
        {
            self.plan.columns = None;
        }
        Ok(address)
    }

    fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal> {
        assert!(
            bytes <= self.scratch.sizes.work,
            "scratch memory was set aside for every node"
        );
        Ok(self.scratch.memory.address())
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn columns(&mut self, of: &TensorArg, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Refusal> {
        let of = of.as_rows();
        let known = self
            .plan
            .columns
            .as_ref()
            .filter(|known| (known.of, known.form) == (of, form));
        if let Some(known) = known {
            return Ok((known.address, false));
        }
        let room = match form {
            ColumnForm::Integers => self.scratch.place(),
            ColumnForm::Bfloats => self.scratch.sizes.columns,
        };
        assert!(bytes <= room, "memory for columns was set aside for every node");
        self.plan.in_second = form == ColumnForm::Integers && !self.plan.in_second;
        let address = self.scratch.columns(self.plan.in_second);
        self.plan.columns = Some(Columns {
            of,
            form,
            rows: of.data..of.data + of.extent(),
            address,
        });
        Ok((address, true))
    }

    fn fault_of(&mut self, node: TensorId) -> (u64, u32) {
        self.plan.has_faults = true;
        (self.faults.address(), self.faults.number(self.graph.tensor(node).name))
    }

    fn launch(&mut self, kernel: Kernel, shape: Shape, parameters: &[u8]) -> Result<(), Refusal> {
        let function = self
            .library
            .get(&kernel, shape.shared)
            .map_err(|e| self.error(e.to_string()))?;
        let words = &mut self.plan.words;
        let first = words.len();
        words.extend(parameters.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        }));
        self.plan.launches.push(Launch {
            function,
            shape,
            parameters: first,
        });
        Ok(())
    }
}
