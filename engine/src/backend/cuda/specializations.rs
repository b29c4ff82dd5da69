//! Which kernels a node needs and which ones were loaded, and their PTX without any card: what tests and prices look at.

use std::sync::{Mutex, PoisonError};

use kernels::Precision;

use super::context::Shape;
use super::kernel::Kernel;
use super::ops::{self, ColumnForm, Refusal, Target, TensorArg};
use super::raw::Compiler;
use crate::graph::{Graph, TensorId};

/// A kernel with what it is specialized by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Specialization(Kernel);

impl Specialization {
    /// Name, source and values.
    pub fn describe(&self) -> String {
        self.0.describe()
    }

    /// True if decoding spends its time here: such a kernel keeps everything in registers.
    pub fn is_hot(&self) -> bool {
        self.0.source.is_hot
    }

    /// Its PTX for a compute capability, 10 times the major plus the minor number. An error with the compiler's words, or if there is no compiler.
    pub fn ptx(&self, capability: i32) -> Result<String, String> {
        let compiler = Compiler::find().map_err(|missing| missing.to_string())?;
        let options = self.0.options(capability);
        let ptx = self
            .0
            .with_headers(|headers| compiler.compile(&self.describe(), self.0.text(), headers, &options));
        Ok(ptx.map_err(|error| error.to_string())?.to_string_lossy().into_owned())
    }
}

/// Why kernels cannot be compiled here, if they cannot.
pub fn compiler_flaw() -> Option<String> {
    Compiler::find().err().map(|missing| missing.to_string())
}

/// Kernels that any device of this process loaded, in that order.
static LOADED: Mutex<Vec<Kernel>> = Mutex::new(Vec::new());

/// Notes a kernel that was loaded.
pub(super) fn note_loaded(kernel: &Kernel) {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if !loaded.contains(kernel) {
        loaded.push(*kernel);
    }
}

/// The kernels that devices of this process loaded so far, those among them that compute several nodes in one go.
pub fn loaded() -> Vec<Specialization> {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.iter().copied().map(Specialization).collect()
}

/// The kernels that compute a node by itself; none if there are none for it.
pub fn specializations(graph: &Graph, node: TensorId, precision: Precision) -> Vec<Specialization> {
    let mut kernels = Kernels {
        found: Vec::new(),
        precision,
    };
    match ops::check(graph, node, precision).map(|_| ops::plan(graph, node, &mut kernels)) {
        Ok(Ok(())) => kernels.found,
        _ => Vec::new(),
    }
}

/// Notes kernels, with operands at addresses that suit them.
struct Kernels {
    found: Vec<Specialization>,
    precision: Precision,
}

impl Target for Kernels {
    fn address(&mut self, _: TensorId, _: bool) -> Result<u64, Refusal> {
        Ok(0)
    }

    fn scratch(&mut self, _: usize) -> Result<u64, Refusal> {
        Ok(0)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn columns(&mut self, _: &TensorArg, _: ColumnForm, _: usize) -> Result<(u64, bool), Refusal> {
        Ok((0, true))
    }

    fn fault_of(&mut self, _: TensorId) -> (u64, u32) {
        (0, 0)
    }

    fn launch(&mut self, kernel: Kernel, _: Shape, _: &[u8]) -> Result<(), Refusal> {
        self.found.push(Specialization(kernel));
        Ok(())
    }
}
