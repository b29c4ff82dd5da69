//! Plans: the kernel launches of a split with their parameters, including addresses.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use kernels::Precision;

use super::buffer::{CudaBuffer, foreign};
use super::context::{DeviceMemory, Function, LaunchShape, Recording};
use super::fuse::ScratchOffsets;
use super::gpu::Gpu;
use super::input_errors::ErrorBuffer;
use super::kernel::Kernel;
use super::library::Library;
use super::ops::{COLUMNS_ALIGNMENT, ColumnForm, Grouping, RopeArg, Target, TensorArg, Unplanned};
use super::work::Work;
use crate::backend::{BackendError, MemoryMap, Plan};
use crate::graph::{Graph, TensorId};

/// A kernel launch.
pub(super) struct Launch {
    pub(super) function: Arc<Function>,
    pub(super) shape: LaunchShape,
    /// Index of the first parameter word.
    pub(super) parameters: usize,
    pub(super) work: Work,
    pub(super) substitute: Option<Substitute>,
}

/// A kernel that replaces another one if the GPU cannot run it.
pub(super) struct Substitute {
    /// The kernel that is replaced.
    pub(super) replaced: Kernel,
    pub(super) kernel: Kernel,
    pub(super) shape: LaunchShape,
    /// The substitute's function, once a launch has failed.
    pub(super) function: OnceLock<Arc<Function>>,
}

/// The launches of a split for a specific graph and memory.
#[derive(Default)]
pub(super) struct CudaPlan {
    pub(super) version: u64,
    pub(super) stamp: u64,
    pub(super) launches: Vec<Launch>,
    /// Parameters of all kernels. Stored as words for alignment.
    pub(super) words: Vec<u64>,
    /// Scratch memory shared by the kernels.
    pub(super) scratch: Option<Scratch>,
    /// The columns converted last; `None` once the columns or their source have been overwritten.
    pub(super) columns: Option<Columns>,
    /// The grouping in the scratch memory; `None` once the memory or the ids have been overwritten.
    pub(super) grouping: Option<Grouping>,
    /// The tables of angles with their sizes in bytes, while their operands have not been overwritten.
    pub(super) angles: [Option<(RopeArg, usize)>; N_TABLES],
    /// Index of the table that is replaced next.
    pub(super) next_table: usize,
    /// True if these columns are in the second column buffer.
    pub(super) in_second: bool,
    /// True if some kernel may find an index out of range.
    pub(super) may_fail: bool,
    /// Number of runs in which the kernels were enqueued individually.
    pub(super) n_runs: u32,
    /// The kernels as a CUDA graph, recorded after several runs.
    pub(super) recording: Option<Recording>,
}

/// Number of tables of angles in scratch memory. Layers with different settings alternate in some models.
pub(super) const N_TABLES: usize = 2;

impl Plan for CudaPlan {}

/// Activation columns converted to a form for matmuls.
pub(super) struct Columns {
    of: TensorArg,
    form: ColumnForm,
    /// Address range of the source rows.
    rows: Range<u64>,
    /// Device address of the converted columns.
    address: u64,
}

impl CudaPlan {
    /// Clears the plan but keeps its capacity.
    pub(super) fn clear(&mut self) {
        self.launches.clear();
        self.words.clear();
        self.scratch = None;
        self.columns = None;
        self.grouping = None;
        self.angles = [None; N_TABLES];
        self.next_table = 0;
        self.in_second = false;
        self.may_fail = false;
        self.n_runs = 0;
        self.recording = None;
    }
}

/// Scratch memory shared by the kernels, divided into consecutive areas.
#[derive(Clone)]
pub(super) struct Scratch {
    pub(super) memory: Arc<DeviceMemory>,
    pub(super) sizes: ScratchAreas,
}

/// Size of each area in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct ScratchAreas {
    /// Scratch bytes for individual nodes.
    pub(super) work: usize,
    /// Converted columns: two buffers, so that a kernel can write columns while it reads others.
    pub(super) columns: usize,
    /// Relocated results, which only kernels of the plan read.
    pub(super) moved: usize,
    /// Tables of angles.
    pub(super) angles: usize,
}

impl ScratchAreas {
    /// Alignment of the scratch areas in bytes.
    pub(super) const ALIGNMENT: usize = COLUMNS_ALIGNMENT;

    /// Returns the element-wise maximum.
    pub(super) fn max(self, other: ScratchAreas) -> ScratchAreas {
        let max = |a: usize, b: usize| a.max(b).next_multiple_of(ScratchAreas::ALIGNMENT);
        ScratchAreas {
            work: max(self.work, other.work),
            columns: max(self.columns, other.columns),
            moved: max(self.moved, other.moved),
            angles: max(self.angles, other.angles),
        }
    }

    /// Returns the total size.
    pub(super) fn total(self) -> usize {
        self.work + self.columns + self.moved + self.angles
    }
}

impl Scratch {
    /// Returns the size of one column buffer in bytes.
    fn place(&self) -> usize {
        self.sizes.columns / 2 / ScratchAreas::ALIGNMENT * ScratchAreas::ALIGNMENT
    }

    fn columns(&self, in_second: bool) -> u64 {
        let place = if in_second { self.place() } else { 0 };
        self.memory.address() + (self.sizes.work + place) as u64
    }

    fn moved(&self) -> u64 {
        self.memory.address() + (self.sizes.work + self.sizes.columns) as u64
    }

    /// Returns the size of a table of angles in bytes.
    fn table(&self) -> usize {
        self.sizes.angles / N_TABLES / ScratchAreas::ALIGNMENT * ScratchAreas::ALIGNMENT
    }

    fn angles(&self, table: usize) -> u64 {
        self.moved() + (self.sizes.moved + table * self.table()) as u64
    }
}

/// Appends the launches of nodes to a plan.
pub(super) struct Planner<'a> {
    pub(super) device: &'a str,
    pub(super) graph: &'a Graph,
    pub(super) memory: &'a MemoryMap,
    pub(super) library: &'a Library,
    pub(super) gpu: Gpu,
    /// The error record, and the indices of nodes in it.
    pub(super) faults: &'a mut ErrorBuffer,
    pub(super) scratch: &'a Scratch,
    /// Results relocated to scratch memory, with their offsets in that area.
    pub(super) moved: &'a ScratchOffsets,
    pub(super) precision: Precision,
    /// Work of the current step, consumed by the next launch.
    pub(super) work: Work,
    /// Kernels that are not loaded yet. Their launches are omitted.
    pub(super) missing: Vec<Kernel>,
    pub(super) plan: &'a mut CudaPlan,
}

impl Planner<'_> {
    /// Returns the address of a relocated tensor, or `None` if the tensor was not relocated.
    fn moved_to(&self, id: TensorId) -> Option<u64> {
        let (owner, offset) = self.graph.tensor(id).view.unwrap_or((id, 0));
        let at = *self.moved.get(&owner)?;
        Some(self.scratch.moved() + (at + offset) as u64)
    }

    fn error(&self, message: String) -> Unplanned {
        Unplanned::Error(BackendError::Device {
            device: self.device.to_owned(),
            message,
        })
    }
}

impl Target for Planner<'_> {
    fn address(&mut self, id: TensorId, written: bool) -> Result<u64, Unplanned> {
        let (tensor, name) = (self.graph.tensor(id), self.graph.tensor(id).name);
        let home = (self.graph.home(id)).ok_or_else(|| self.error(format!("{name} has no memory assigned")))?;
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
            return Err(self.error(format!("{name} extends beyond its buffer")));
        }
        let address = match self.moved_to(id) {
            Some(address) => address,
            None => ours.memory().address() + home.offset as u64,
        };
        let alignment = super::ops::alignment_of(tensor.ty) as u64;
        if !address.is_multiple_of(alignment) {
            return Err(self.error(format!("{name} is not aligned to {alignment} bytes")));
        }
        let end = address + tensor.nbytes() as u64;
        if written
            && let Some(Columns { rows, .. }) = &self.plan.columns
            && address < rows.end
            && rows.start < end
        {
            self.plan.columns = None;
        }
        if written
            && let Some(Grouping { ids, .. }) = &self.plan.grouping
            && address < ids.data + ids.extent()
            && ids.data < end
        {
            self.plan.grouping = None;
        }
        if written {
            let overwrites = |arg: &TensorArg| arg.data != 0 && address < arg.data + arg.extent() && arg.data < end;
            for table in &mut self.plan.angles {
                table.take_if(|(table, _)| table.operands().iter().any(overwrites));
            }
        }
        Ok(address)
    }

    fn scratch(&mut self, bytes: usize) -> Result<u64, Unplanned> {
        assert!(
            bytes <= self.scratch.sizes.work,
            "reserve_scratch covers the workspace of every node"
        );
        self.plan.grouping = None;
        Ok(self.scratch.memory.address())
    }

    fn grouping(&mut self, of: &Grouping, bytes: usize) -> Result<(u64, bool), Unplanned> {
        if self.plan.grouping.as_ref() == Some(of) {
            return Ok((self.scratch.memory.address(), false));
        }
        let address = self.scratch(bytes)?;
        self.plan.grouping = Some(*of);
        Ok((address, true))
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn gpu(&self) -> Gpu {
        self.gpu
    }

    fn columns(&mut self, of: &TensorArg, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Unplanned> {
        let of = of.as_rows();
        let known = self
            .plan
            .columns
            .as_ref()
            .filter(|known| (known.of, known.form) == (of, form));
        if let Some(known) = known {
            return Ok((known.address, false));
        }
        let capacity = match form {
            ColumnForm::Integers => self.scratch.place(),
            ColumnForm::Bfloats(_) | ColumnForm::Halves(_) => self.scratch.sizes.columns,
        };
        assert!(bytes <= capacity, "reserve_scratch covers the columns of every node");
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

    fn angles(&mut self, of: &RopeArg, bytes: usize) -> Result<(u64, bool), Unplanned> {
        let known = self
            .plan
            .angles
            .iter()
            .position(|table| table.is_some_and(|(table, size)| table == *of && size >= bytes));
        if let Some(table) = known {
            return Ok((self.scratch.angles(table), false));
        }
        assert!(
            bytes <= self.scratch.table(),
            "reserve_scratch covers the angles of every node"
        );
        let table = self.plan.next_table;
        self.plan.next_table = (table + 1) % N_TABLES;
        self.plan.angles[table] = Some((*of, bytes));
        Ok((self.scratch.angles(table), true))
    }

    fn error_record(&mut self, node: TensorId) -> (u64, u32) {
        self.plan.may_fail = true;
        (self.faults.address(), self.faults.number(self.graph.tensor(node).name))
    }

    fn launch(&mut self, kernel: Kernel, shape: LaunchShape, parameters: &[u8]) -> Result<(), Unplanned> {
        let function = self.library.loaded(&kernel, shape.shared);
        match function.map_err(|error| self.error(error.to_string()))? {
            Some(function) => self.add(&kernel, function, shape, parameters, None),
            None => self.missing.push(kernel),
        }
        Ok(())
    }

    fn launch_either(
        &mut self,
        [(replaced, wanted), (kernel, shape)]: [(Kernel, LaunchShape); 2],
        parameters: &[u8],
    ) -> Result<(), Unplanned> {
        if self.library.is_refused(&replaced) {
            return self.launch(kernel, shape, parameters);
        }
        match self.library.loaded(&replaced, wanted.shared) {
            Ok(Some(function)) => {
                let substitute = Substitute {
                    replaced,
                    kernel,
                    shape,
                    function: OnceLock::new(),
                };
                self.add(&replaced, function, wanted, parameters, Some(substitute));
            }
            Ok(None) => self.missing.push(replaced),
            Err(error) => {
                self.library.refuse(&replaced, &error);
                return self.launch(kernel, shape, parameters);
            }
        }
        Ok(())
    }
}

impl Planner<'_> {
    /// Appends a launch of a loaded kernel.
    fn add(
        &mut self,
        kernel: &Kernel,
        function: Arc<Function>,
        shape: LaunchShape,
        parameters: &[u8],
        substitute: Option<Substitute>,
    ) {
        // The matmul or attention of a step is in the first of its hot kernels.
        let work = if kernel.source.is_hot {
            std::mem::take(&mut self.work)
        } else {
            Work::default()
        };
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
            work,
            substitute,
        });
    }
}
