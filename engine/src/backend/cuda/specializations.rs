//! Reports the kernels that a node needs, the kernels loaded so far, and their PTX, for tests and cost
//! estimates. Needs no GPU.

use std::sync::{Mutex, PoisonError};

use kernels::Precision;

use super::code::Form;
use super::context::LaunchShape;
use super::gpu::Gpu;
use super::kernel::Kernel;
use super::ops::{self, ColumnForm, Grouping, RopeArg, Target, TensorArg, Unplanned};
use super::raw::Compiler;
use crate::graph::{Graph, TensorId};

/// A kernel with its specialization.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Specialization(Kernel);

impl Specialization {
    /// Returns name, source, and definitions.
    pub fn describe(&self) -> String {
        self.0.describe()
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.0
    }

    /// Returns true if decoding spends its time in this kernel. Hot kernels must not spill registers.
    pub fn is_hot(&self) -> bool {
        self.0.source.is_hot
    }

    /// Returns true if the kernel only runs on GPUs of the compute capability it is compiled for.
    pub fn is_specific(&self) -> bool {
        self.0.is_specific()
    }

    /// Compiles the kernel to PTX for a compute capability, given as 10 * major + minor.
    ///
    /// # Errors
    /// Returns the compiler's log, or the reason why no compiler is available.
    pub fn ptx(&self, capability: i32) -> Result<String, String> {
        let ptx = self.compiled(Form::Ptx(capability))?;
        Ok(String::from_utf8_lossy(&ptx).into_owned())
    }

    /// Compiles the kernel to machine code (an ELF file) for a compute capability, given as 10 * major + minor.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`Specialization::ptx`].
    pub fn machine_code(&self, capability: i32) -> Result<Vec<u8>, String> {
        self.compiled(Form::MachineCode(capability))
    }

    fn compiled(&self, form: Form) -> Result<Vec<u8>, String> {
        let compiler = Compiler::find().map_err(|missing| missing.to_string())?;
        let (kernel, options) = (&self.0, self.0.options(form));
        let code =
            kernel.with_headers(|headers| compiler.compile(&kernel.describe(), kernel.text(), headers, &options, form));
        code.map_err(|error| error.to_string())
    }
}

/// Returns the reason why kernels cannot be compiled on this machine, or `None` if they can.
pub fn compiler_error() -> Option<String> {
    Compiler::find().err().map(|missing| missing.to_string())
}

/// Kernels loaded by any device of this process, in order of loading.
static LOADED: Mutex<Vec<Kernel>> = Mutex::new(Vec::new());

/// Records that a kernel was loaded.
pub(super) fn note_loaded(kernel: &Kernel) {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if !loaded.contains(kernel) {
        loaded.push(*kernel);
    }
}

/// Returns the kernels that devices of this process have loaded so far, including fused kernels.
pub fn loaded() -> Vec<Specialization> {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.iter().copied().map(Specialization).collect()
}

/// Returns the kernels that compute a node on its own on a GPU of these sizes. Empty if the node is
/// unsupported.
pub fn specializations(graph: &Graph, node: TensorId, precision: Precision, gpu: Gpu) -> Vec<Specialization> {
    let mut kernels = Kernels::new(precision, gpu);
    match ops::check(graph, node, precision, gpu).map(|_| ops::plan(graph, node, &mut kernels)) {
        Ok(Ok(())) => kernels.found,
        _ => Vec::new(),
    }
}

/// Address of all operands, aligned like buffers.
const ADDRESS: u64 = 1 << 40;

/// Collects kernels, assuming suitably aligned operands.
pub(super) struct Kernels {
    pub(super) found: Vec<Specialization>,
    precision: Precision,
    gpu: Gpu,
}

impl Kernels {
    pub(super) fn new(precision: Precision, gpu: Gpu) -> Kernels {
        Kernels {
            found: Vec::new(),
            precision,
            gpu,
        }
    }
}

impl Kernels {
    /// Adds a kernel.
    pub(super) fn add(&mut self, kernel: Kernel) {
        self.found.push(Specialization(kernel));
    }
}

impl Target for Kernels {
    fn address(&mut self, _: TensorId, _: bool) -> Result<u64, Unplanned> {
        Ok(ADDRESS)
    }

    fn scratch(&mut self, _: usize) -> Result<u64, Unplanned> {
        Ok(ADDRESS)
    }

    fn grouping(&mut self, _: &Grouping, _: usize) -> Result<(u64, bool), Unplanned> {
        Ok((ADDRESS, true))
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn gpu(&self) -> Gpu {
        self.gpu
    }

    fn columns(&mut self, _: &TensorArg, _: ColumnForm, _: usize) -> Result<(u64, bool), Unplanned> {
        Ok((ADDRESS, true))
    }

    fn angles(&mut self, _: &RopeArg, _: usize) -> Result<(u64, bool), Unplanned> {
        Ok((ADDRESS, true))
    }

    fn error_record(&mut self, _: TensorId) -> (u64, u32) {
        (0, 0)
    }

    fn launch(&mut self, kernel: Kernel, _: LaunchShape, _: &[u8]) -> Result<(), Unplanned> {
        self.add(kernel);
        Ok(())
    }
}
