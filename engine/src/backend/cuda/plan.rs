//! Plans: the kernels of a split with their parameters, addresses included.

use std::ops::Range;
use std::sync::Arc;

use kernels::Precision;

use super::buffer::{CudaBuffer, foreign};
use super::context::{DeviceMemory, Function, Recording, Shape};
use super::kernel::Kernel;
use super::library::Library;
use super::ops::{ColumnForm, Refusal, Target};
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
    pub(super) scratch: Option<Arc<DeviceMemory>>,
    /// The tensor whose columns are there in a form, and its addresses, as long as neither is written.
    pub(super) columns: Option<(TensorId, ColumnForm, Range<u64>)>,
    /// Some kernel may find a number that is beyond its table.
    pub(super) has_faults: bool,
    /// Times that the kernels were queued one by one.
    pub(super) n_runs: u32,
    /// The kernels as one, once they are worth recording.
    pub(super) recording: Option<Recording>,
}

impl Plan for CudaPlan {}

impl CudaPlan {
    /// Forgets all but the memory it takes.
    pub(super) fn clear(&mut self) {
        self.launches.clear();
        self.words.clear();
        self.scratch = None;
        self.columns = None;
        self.has_faults = false;
        self.n_runs = 0;
        self.recording = None;
    }
}

/// Notes the launches of nodes in a plan.
pub(super) struct Planner<'a> {
    pub(super) device: &'a str,
    pub(super) graph: &'a Graph,
    pub(super) memory: &'a MemoryMap,
    pub(super) library: &'a Library,
    /// Address of the record of faults, and the number of the node's name in it.
    pub(super) fault: (u64, u32),
    /// Memory that each node may use as it likes.
    pub(super) scratch: &'a Arc<DeviceMemory>,
    pub(super) precision: Precision,
    pub(super) plan: &'a mut CudaPlan,
}

impl Planner<'_> {
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
        let address = ours.memory().address() + home.offset as u64;
        let alignment = super::ops::alignment_of(tensor.ty) as u64;
        if !address.is_multiple_of(alignment) {
            return Err(self.error(format!("{name} is not aligned to {alignment} bytes")));
        }
        let written = written.then(|| address..address + tensor.nbytes() as u64);
        let overlaps = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        if let (Some(written), Some((_, _, read))) = (&written, &self.plan.columns)
            && overlaps(written, read)
        {
            self.plan.columns = None;
        }
        Ok(address)
    }

    fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal> {
        assert!(
            bytes <= self.scratch.len(),
            "scratch memory was set aside for every node"
        );
        self.plan.scratch = Some(self.scratch.clone());
        self.plan.columns = None;
        Ok(self.scratch.address())
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn columns(&mut self, of: TensorId, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Refusal> {
        let known = self.plan.columns.as_ref();
        if known.is_some_and(|(id, known, _)| (*id, *known) == (of, form)) {
            return Ok((self.scratch.address(), false));
        }
        let start = self.address(of, false)?;
        let scratch = self.scratch(bytes)?;
        self.plan.columns = Some((of, form, start..start + self.graph.tensor(of).nbytes() as u64));
        Ok((scratch, true))
    }

    fn fault(&mut self) -> (u64, u32) {
        self.plan.has_faults = true;
        self.fault
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
