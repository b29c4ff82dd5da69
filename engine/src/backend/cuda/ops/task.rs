//! A node that is being planned, and the target of its launches.

use bytemuck::{Pod, bytes_of};
use kernels::Precision;

use super::super::context::LaunchShape;
use super::super::gpu::Gpu;
use super::super::kernel::Kernel;
use super::arguments::{ErrorArg, RopeArg, TensorArg};
use super::unplanned::Unplanned;
use crate::graph::{Graph, Tensor, TensorId};

/// Threads per block of kernels with one thread per element.
pub(super) const THREADS: u32 = 256;

/// Alignment of column buffers in bytes.
pub(in super::super) const COLUMNS_ALIGNMENT: usize = 256;

/// Maximum number of blocks in the second and third dimension of a grid.
const MAX_BLOCKS: u32 = 65535;

/// Quantized form of columns for matmuls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum ColumnForm {
    /// 16-bit integers in two parts, with scales and sums.
    Integers,
    /// bf16 values, with this number of columns that are adjacent without padding.
    Bfloats(u32),
    /// f16 values in tiles, with the columns' powers of two.
    Halves(Halves),
}

/// Form of columns for `half_products.cuh`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Halves {
    /// Columns per tile.
    pub(super) tile: u32,
    /// Sums per column and step.
    pub(super) sums: u32,
    /// Exponent of the largest value of a column.
    pub(super) exponent: i32,
    /// Columns that share tiles.
    pub(super) of_outer: u32,
}

/// Columns grouped by the matrix that their ids select, in tiles of `tile` columns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct Grouping {
    pub(in super::super) ids: TensorArg,
    pub(super) n_matrices: i32,
    pub(super) tile: i32,
    pub(super) n_tiles: i32,
}

/// Receives launches and provides the addresses of operands.
pub(in super::super) trait Target {
    /// Returns the address of a tensor's first byte after checking its bounds, and that it is writable if
    /// `written`.
    fn address(&mut self, id: TensorId, written: bool) -> Result<u64, Unplanned>;

    /// Returns the address of scratch memory for use by the node's kernels.
    fn scratch(&mut self, bytes: usize) -> Result<u64, Unplanned>;

    /// Returns the address of the scratch memory with a grouping of columns, and true if the caller must
    /// group the columns first.
    fn grouping(&mut self, of: &Grouping, bytes: usize) -> Result<(u64, bool), Unplanned>;

    /// Returns the required precision of matmuls.
    fn precision(&self) -> Precision;

    /// Returns the sizes of the GPU.
    fn gpu(&self) -> Gpu;

    /// Returns the address of the converted columns of a tensor, and true if the caller must convert them
    /// first.
    ///
    /// Integer columns use a different buffer than those requested before, which may still be in use.
    fn columns(&mut self, of: &TensorArg, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Unplanned>;

    /// Returns the address of a table of angles, and true if the caller must compute the table first.
    fn angles(&mut self, of: &RopeArg, bytes: usize) -> Result<(u64, bool), Unplanned>;

    /// Returns the address of the error record, and the node's index in it.
    fn error_record(&mut self, node: TensorId) -> (u64, u32);

    /// Appends a kernel launch.
    fn launch(&mut self, kernel: Kernel, shape: LaunchShape, parameters: &[u8]) -> Result<(), Unplanned>;

    /// Appends a launch of the first kernel, or of the second kernel with the same parameters if the GPU cannot run the
    /// first one.
    fn launch_either(
        &mut self,
        [(kernel, shape), _]: [(Kernel, LaunchShape); 2],
        parameters: &[u8],
    ) -> Result<(), Unplanned> {
        self.launch(kernel, shape, parameters)
    }
}

/// Returns the shape, unless its grid exceeds the limits.
fn checked(shape: LaunchShape) -> Result<LaunchShape, Unplanned> {
    let [_, y, z] = shape.grid;
    if y > MAX_BLOCKS || z > MAX_BLOCKS {
        return Err("the grid is too large".into());
    }
    Ok(shape)
}

/// A node that is being planned.
pub(super) struct Task<'a> {
    pub(super) graph: &'a Graph,
    pub(super) id: TensorId,
    pub(super) node: &'a Tensor,
    pub(super) target: &'a mut dyn Target,
}

impl<'a> Task<'a> {
    /// Returns operand `i` of the node.
    pub(super) fn operand(&self, i: usize) -> &'a Tensor {
        self.graph.tensor(self.node.source(i))
    }

    pub(super) fn has(&self, i: usize) -> bool {
        self.node.src[i].is_some()
    }

    /// Returns operand `i` as a kernel argument.
    pub(super) fn source(&mut self, i: usize) -> Result<TensorArg, Unplanned> {
        let id = self.node.source(i);
        TensorArg::new(self.graph.tensor(id), self.target.address(id, false)?)
    }

    /// Returns operand `i` as a kernel argument, or [`TensorArg::NONE`].
    pub(super) fn optional(&mut self, i: Option<usize>) -> Result<TensorArg, Unplanned> {
        i.map_or(Ok(TensorArg::NONE), |i| self.source(i))
    }

    /// Returns operand `i` as a kernel argument, or [`TensorArg::NONE`] if the node does not have it.
    pub(super) fn source_or_none(&mut self, i: usize) -> Result<TensorArg, Unplanned> {
        if self.has(i) {
            self.source(i)
        } else {
            Ok(TensorArg::NONE)
        }
    }

    /// Returns operand `i`, which the op modifies, as a kernel argument.
    pub(super) fn state(&mut self, i: usize) -> Result<TensorArg, Unplanned> {
        let id = self.node.source(i);
        TensorArg::new(self.graph.tensor(id), self.target.address(id, true)?)
    }

    /// Returns the result as a kernel argument.
    pub(super) fn result(&mut self) -> Result<TensorArg, Unplanned> {
        TensorArg::new(self.node, self.target.address(self.id, true)?)
    }

    pub(super) fn fault(&mut self) -> ErrorArg {
        let (record, node) = self.target.error_record(self.id);
        ErrorArg { record, node }
    }

    /// Launches a kernel with one thread for each of `n` elements.
    pub(super) fn for_each(&mut self, kernel: Kernel, n: u32, parameters: &impl Pod) -> Result<(), Unplanned> {
        self.launch(kernel, [n.div_ceil(THREADS), 1, 1], THREADS, parameters)
    }

    /// Launches a kernel without dynamic shared memory.
    pub(super) fn launch(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        block: u32,
        parameters: &impl Pod,
    ) -> Result<(), Unplanned> {
        self.launch_with(kernel, grid, block, 0, parameters)
    }

    /// Launches a kernel with `shared` bytes of dynamic shared memory per block.
    pub(super) fn launch_with(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        parameters: &impl Pod,
    ) -> Result<(), Unplanned> {
        let shape = checked(LaunchShape { grid, block, shared })?;
        self.target.launch(kernel, shape, bytes_of(parameters))
    }

    /// Launches the first kernel, or the second if the GPU cannot run the first.
    pub(super) fn launch_either(
        &mut self,
        kernels: [(Kernel, LaunchShape); 2],
        parameters: &impl Pod,
    ) -> Result<(), Unplanned> {
        for (_, shape) in kernels {
            checked(shape)?;
        }
        self.target.launch_either(kernels, bytes_of(parameters))
    }
}
