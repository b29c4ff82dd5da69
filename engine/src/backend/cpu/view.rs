//! Operands as slices: the only module that turns addresses into memory that ops may access.
//!
//! [`NodeMemory::new`] checks that every operand is within its buffer, and that the result overlaps no operand. If the
//! op can run in place, the result may be exactly the first operand. Ops then access [`Source`]s, which return shared
//! slices of rows, and one [`Target`], which returns exclusive slices of the rows of a share.

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use kernels::GgmlType;

use super::barriers::Access;
use super::error::NAME;
use super::queue::WorkShare;
use crate::backend::{BackendError, HostRange, MemoryMap};
use crate::graph::{Graph, MAX_SRC, Op, Repack, Tensor, TensorId};

/// Addresses of the operands and the result of a node.
#[derive(Clone, Copy)]
pub(super) struct NodeMemory {
    pub(super) id: TensorId,
    target: NonNull<u8>,
    sources: [Option<NonNull<u8>>; MAX_SRC],
}

// SAFETY: the struct consists of addresses and plain data. Access through the addresses is governed by `source`
// and `target`.
unsafe impl Send for NodeMemory {}
// SAFETY: shared access follows the same rules as `Send` above: `source` and `target` govern it.
unsafe impl Sync for NodeMemory {}

/// Memory range of a tensor.
pub(super) struct MemRange {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

impl MemRange {
    pub(super) fn access(&self, write: bool) -> Access {
        let start = self.start.as_ptr() as usize;
        Access {
            start,
            end: start + self.len,
            write,
        }
    }

    pub(super) fn is_aligned_to(&self, bytes: usize) -> bool {
        (self.start.as_ptr() as usize).is_multiple_of(bytes)
    }

    /// Returns true if the memory is never written during computation.
    pub(super) fn is_read_only(&self) -> bool {
        !self.writable
    }

    pub(super) fn overlaps(&self, other: &MemRange) -> bool {
        let (a, b) = (self.start.as_ptr() as usize, other.start.as_ptr() as usize);
        a < b + other.len && b < a + self.len
    }
}

impl NodeMemory {
    /// Resolves the operands of a node whose types and shapes were checked, and appends the node's memory
    /// accesses to `accesses`.
    ///
    /// Returns an error that names the tensor if memory is missing, misaligned, read-only, or overlapping.
    pub(super) fn new(
        graph: &Graph,
        memory: &MemoryMap,
        id: TensorId,
        accesses: &mut Vec<Access>,
    ) -> Result<NodeMemory, BackendError> {
        let node = graph.tensor(id);
        let target = locate(graph, memory, id)?;
        if !target.writable {
            return Err(invalid_tensor(node, "cannot be computed: its memory is read-only"));
        }
        if !(target.start.as_ptr() as usize).is_multiple_of(align_of::<f32>()) {
            return Err(invalid_tensor(node, "is not aligned to 4 bytes"));
        }
        let state_operand = node.op.state_operand();
        let states = state_operand
            .map(|i| locate(graph, memory, node.source(i)))
            .transpose()?;
        accesses.push(target.access(true));
        let mut sources = [None; MAX_SRC];
        for (i, source) in node.sources().enumerate() {
            let place = locate(graph, memory, source)?;
            if place.overlaps(&target) && !may_overlap(node, graph.tensor(source), i, &place, &target) {
                return Err(invalid_tensor(node, "overlaps one of its operands"));
            }
            let t = graph.tensor(source);
            if matches!(t.ty, GgmlType::I32 | GgmlType::I64) && !is_aligned(t, &place) {
                return Err(invalid_tensor(t, "is not aligned to its element size"));
            }
            // Recurrences read their operands as contiguous f32.
            let lists = state_operand.is_some();
            let written = state_operand == Some(i);
            if !written && states.as_ref().is_some_and(|states| states.overlaps(&place)) {
                return Err(invalid_tensor(t, "overlaps the states of the recurrence"));
            }
            if written && !place.writable {
                return Err(invalid_tensor(t, "cannot be updated: its memory is read-only"));
            }
            if lists && !(place.start.as_ptr() as usize).is_multiple_of(align_of::<f32>()) {
                return Err(invalid_tensor(t, "is not aligned to 4 bytes"));
            }
            sources[i] = Some(place.start);
            accesses.push(place.access(written));
        }
        Ok(NodeMemory {
            id,
            target: target.start,
            sources,
        })
    }

    /// Returns operand `i`. Panics if the node has no such operand, which `rules::check` excludes.
    pub(super) fn source<'a>(&'a self, graph: &'a Graph, i: usize) -> Source<'a> {
        let tensor = graph.tensor(graph.tensor(self.id).source(i));
        Source {
            tensor,
            start: self.sources[i].unwrap_or_else(|| panic!("{} has no operand {i}", tensor.name)),
        }
    }

    /// Returns the result for one share of the work.
    ///
    /// # Safety
    /// This method is called at most once per share. Sources and targets of a node are used only in the
    /// node's phase.
    pub(super) unsafe fn target<'a>(&'a self, graph: &'a Graph, share: WorkShare) -> Target<'a> {
        let tensor = graph.tensor(self.id);
        Target {
            tensor,
            start: self.target,
            share,
            is_float_list: tensor.ty == GgmlType::F32 && tensor.is_contiguous(),
        }
    }

    /// Returns the states of a recurrence (operand 0). Each thread may access its own lanes.
    pub(super) fn states<'a>(&'a self, graph: &'a Graph) -> States<'a> {
        let node = graph.tensor(self.id);
        assert_eq!(node.op.state_operand(), Some(0));
        let Source { tensor, start } = self.source(graph, 0);
        States { tensor, start }
    }
}

/// Returns true if the op may overwrite operand `i`: element by element for in-place ops, or the table of
/// `SetRows`, which is never read.
pub(super) fn may_overlap(node: &Tensor, source: &Tensor, i: usize, place: &MemRange, target: &MemRange) -> bool {
    let same = place.start == target.start && source.ne == node.ne && source.nb == node.nb && source.ty == node.ty;
    match node.op {
        Op::SetRows => i == 1 && same,
        op => i == 0 && same && op.can_run_in_place(),
    }
}

/// Finds a tensor in host memory and checks that it is within its buffer.
pub(super) fn locate(graph: &Graph, memory: &MemoryMap, id: TensorId) -> Result<MemRange, BackendError> {
    let tensor = graph.tensor(id);
    let home = graph
        .home(id)
        .ok_or_else(|| invalid_tensor(tensor, "has no memory assigned"))?;
    let len = tensor
        .checked_nbytes()
        .ok_or_else(|| invalid_tensor(tensor, "is too large: its size in bytes overflows"))?;
    let range = memory.host_range(home, len).map_err(|e| match e {
        BackendError::OutOfBounds { .. } => invalid_tensor(tensor, "extends beyond its buffer"),
        e => e,
    })?;
    let HostRange { start, len, writable } = range.ok_or_else(|| invalid_tensor(tensor, "is not in host memory"))?;
    Ok(MemRange { start, len, writable })
}

fn is_aligned(t: &Tensor, place: &MemRange) -> bool {
    let size = t.ty.block_bytes();
    (place.start.as_ptr() as usize).is_multiple_of(size) && t.nb.iter().all(|nb| nb.is_multiple_of(size))
}

fn invalid_tensor(tensor: &Tensor, what: &str) -> BackendError {
    BackendError::Device {
        device: NAME.to_string(),
        message: format!("{} ({}) {what}", tensor.name, tensor.op.name()),
    }
}

/// Indices of a row in dimensions 1 to 3.
pub(super) type RowIndex = [usize; 3];

/// Returns the indices of row `i`, numbered as if the rows were contiguous.
pub(super) fn row_index(ne: &[usize; 4], i: usize) -> RowIndex {
    [i % ne[1], i / ne[1] % ne[2], i / ne[1] / ne[2]]
}

/// Read access to an operand of a node.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) tensor: &'a Tensor,
    start: NonNull<u8>,
}

impl<'a> Source<'a> {
    pub(super) fn ne(&self) -> [usize; 4] {
        self.tensor.ne
    }

    /// Returns the scratch memory in floats that [`Source::row`] may need.
    pub(super) fn row_scratch(tensor: &Tensor) -> usize {
        tensor.ne[0]
    }

    /// Returns a row as f32: in place if stored as f32, otherwise converted into `scratch`.
    ///
    /// Must not be used for an operand that the result may overwrite; see [`Source::copy_row`].
    pub(super) fn row<'s>(&self, i: RowIndex, scratch: &'s mut [f32]) -> &'s [f32]
    where
        'a: 's,
    {
        if let Some(row) = self.float_row(i) {
            return row;
        }
        let out = &mut scratch[..self.tensor.ne[0]];
        self.copy_row(i, out);
        out
    }

    /// Returns the row if it consists of aligned, contiguous f32 values.
    pub(super) fn float_row(&self, i: RowIndex) -> Option<&'a [f32]> {
        let at = self.at([0, i[0], i[1], i[2]]).cast::<f32>();
        if self.tensor.ty != GgmlType::F32 || !self.tensor.has_dense_rows() || !at.is_aligned() {
            return None;
        }
        // SAFETY: the row is within the operand's buffer (checked in `NodeMemory::new` and `at`). No thread writes the
        // row in this phase, and every bit pattern is a valid f32.
        Some(unsafe { slice::from_raw_parts(at.as_ptr(), self.tensor.ne[0]) })
    }

    /// Copies a row as f32, for any type and strides. Does nothing if `out` is the row itself.
    pub(super) fn copy_row(&self, i: RowIndex, out: &mut [f32]) {
        let t = self.tensor;
        let at = self.at([0, i[0], i[1], i[2]]);
        assert_eq!(out.len(), t.ne[0]);
        if at.as_ptr().cast_const() == out.as_ptr().cast() {
            return;
        }
        if t.has_dense_rows() {
            return kernels::dequantize_row(t.ty, self.row_bytes(i), out);
        }
        if t.ty == GgmlType::F32 {
            for (i0, x) in out.iter_mut().enumerate() {
                // SAFETY: the element is aligned and within the operand's buffer (checked in
                // `NodeMemory::new`), and no thread writes the element in this phase.
                *x = unsafe { at.add(i0 * t.nb[0]).cast::<f32>().read_unaligned() };
            }
            return;
        }
        for (i0, x) in out.iter_mut().enumerate() {
            // SAFETY: the element is within the operand's buffer (checked in `NodeMemory::new`), and no
            // thread writes the element in this phase. Rows of block-quantized types are contiguous, checked
            // by the rules.
            let element = unsafe { slice::from_raw_parts(at.add(i0 * t.nb[0]).as_ptr(), t.ty.block_bytes()) };
            kernels::dequantize_row(t.ty, element, slice::from_mut(x));
        }
    }

    /// Returns the first `n` bytes of a contiguous operand.
    pub(super) fn bytes(&self, n: usize) -> &'a [u8] {
        assert!(self.tensor.is_contiguous() && n <= self.tensor.nbytes());
        // SAFETY: `n` is at most the tensor's size (asserted), which is within the buffer (checked in
        // `NodeMemory::new`). No thread writes there in this phase.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), n) }
    }

    /// Returns true if the operand consists of aligned, contiguous f32 values.
    pub(super) fn is_float_list(&self) -> bool {
        self.tensor.ty == GgmlType::F32 && self.tensor.is_contiguous() && self.start.cast::<f32>().is_aligned()
    }

    /// Returns `n` elements starting at `at` of a contiguous f32 operand.
    ///
    /// Must not be used for an operand that the result may overwrite; see [`Source::copy_floats`].
    pub(super) fn floats(&self, at: usize, n: usize) -> &'a [f32] {
        // SAFETY: the elements are aligned and in bounds (asserted in `address_of_floats`), and no thread
        // writes them in this phase.
        unsafe { slice::from_raw_parts(self.address_of_floats(at, n), n) }
    }

    /// Copies elements starting at `at` of a contiguous f32 operand. Does nothing if `out` is these elements
    /// themselves.
    pub(super) fn copy_floats(&self, at: usize, out: &mut [f32]) {
        let from = self.address_of_floats(at, out.len());
        if from != out.as_ptr() {
            // SAFETY: the elements are in bounds (asserted in `address_of_floats`). `out` is either exactly
            // the operand's elements, excluded here, or does not overlap them (checked in
            // `NodeMemory::new`).
            unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        }
    }

    fn address_of_floats(&self, at: usize, n: usize) -> *const f32 {
        assert!(self.is_float_list() && at + n <= self.tensor.nelements());
        // SAFETY: the offset is in bounds (asserted above).
        unsafe { self.start.cast::<f32>().add(at).as_ptr() }
    }

    /// Returns the bytes of a contiguous row.
    pub(super) fn row_bytes(&self, i: RowIndex) -> &'a [u8] {
        self.rows_bytes(i, 1)
    }

    /// Returns the bytes of `n` rows along dimension 1, from the start of the first row to the end of the
    /// last.
    pub(super) fn rows_bytes(&self, i: RowIndex, n: usize) -> &'a [u8] {
        self.span(1, i, n)
    }

    /// Returns the bytes of `n` rows along dimension `d`, from the start of the first row to the end of the
    /// last.
    pub(super) fn span(&self, d: usize, i: RowIndex, n: usize) -> &'a [u8] {
        let t = self.tensor;
        assert!(t.has_dense_rows() && n > 0 && i[d - 1] + n <= t.ne[d]);
        let len = (n - 1) * t.nb[d] + t.ne[0] / t.ty.block_size() * t.ty.block_bytes();
        // SAFETY: the last row is within the operand's buffer (checked in `NodeMemory::new`), and so is
        // everything before it. No thread writes there in this phase.
        unsafe { slice::from_raw_parts(self.at([0, i[0], i[1], i[2]]).as_ptr(), len) }
    }

    /// Returns the bytes of a block of rows, `n[0]` along dimension 1 and `n[1]` along dimension 2. The slice starts at
    /// row `i` and ends at the end of the last row.
    pub(super) fn block(&self, i: RowIndex, n: [usize; 2]) -> &'a [u8] {
        let t = self.tensor;
        let is_inside = |d: usize| n[d - 1] > 0 && i[d - 1] + n[d - 1] <= t.ne[d];
        assert!(t.has_dense_rows() && is_inside(1) && is_inside(2) && i[2] < t.ne[3]);
        let row_bytes = t.ne[0] / t.ty.block_size() * t.ty.block_bytes();
        let len = (n[0] - 1) * t.nb[1] + (n[1] - 1) * t.nb[2] + row_bytes;
        // SAFETY: the last row is within the operand's buffer (checked in `NodeMemory::new`), and so is
        // everything before it. No thread writes there in this phase.
        unsafe { slice::from_raw_parts(self.at([0, i[0], i[1], i[2]]).as_ptr(), len) }
    }

    /// Returns the start address of the operand.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Returns the bytes of whole row groups of a repacked operand. Rows are numbered across all matrices.
    pub(super) fn groups(&self, rows: Range<usize>) -> &'a [u8] {
        let t = self.tensor;
        assert!(!t.layout.is_plain() && rows.end <= t.nrows());
        let bytes = t
            .layout
            .byte_range(t.ty, t.ne[0], rows)
            .expect("work is divided at multiples of the group size");
        // SAFETY: a repacked operand is not a view (checked in `rules::layouts`), so all of its row groups
        // are within its buffer. No thread writes there in this phase.
        unsafe { slice::from_raw_parts(self.start.add(bytes.start).as_ptr(), bytes.len()) }
    }

    /// Copies a row of a repacked operand as f32. `scratch` holds [`Source::row_scratch`] floats, enough for
    /// the packed bytes of a row of any type.
    pub(super) fn copy_repacked_row(&self, i: RowIndex, repack: &dyn Repack, scratch: &mut [f32], out: &mut [f32]) {
        let t = self.tensor;
        let row = i[0] + t.ne[1] * (i[1] + t.ne[2] * i[2]);
        let (first, at) = (row - row % repack.group_rows(), row % repack.group_rows());
        let group = self.groups(first..first + repack.group_rows());
        let row_bytes = t.ty.row_bytes(t.ne[0]).expect("rows consist of whole blocks");
        let bytes = &mut bytemuck::cast_slice_mut(scratch)[..row_bytes];
        repack.unpack_row(t.ty, t.ne[0], group, at, bytes);
        kernels::dequantize_row(t.ty, bytes, out);
    }

    /// Returns `n` rows along dimension `d` as f32, and the row stride in floats. The slice extends from the start of
    /// the first row to the end of the last. Returns `None` if the rows are not aligned f32.
    pub(super) fn float_span(&self, d: usize, i: RowIndex, n: usize) -> Option<(&'a [f32], usize)> {
        let t = self.tensor;
        if t.ty != GgmlType::F32 || !t.has_dense_rows() || (n > 1 && !t.nb[d].is_multiple_of(size_of::<f32>())) {
            return None;
        }
        let floats = bytemuck::try_cast_slice(self.span(d, i, n)).ok()?;
        Some((floats, t.nb[d] / size_of::<f32>()))
    }

    /// Returns an element of an i32 operand.
    pub(super) fn i32(&self, i: [usize; 4]) -> i32 {
        assert_eq!(self.tensor.ty, GgmlType::I32);
        // SAFETY: the element is aligned and within the operand's buffer (checked in `NodeMemory::new`).
        unsafe { self.at(i).cast::<i32>().read() }
    }

    /// Returns the elements of a contiguous integer operand.
    pub(super) fn list<T: bytemuck::Pod>(&self) -> &'a [T] {
        let t = self.tensor;
        assert!(t.is_contiguous() && matches!(t.ty, GgmlType::I32 | GgmlType::I64));
        assert_eq!(size_of::<T>(), t.ty.block_bytes());
        // SAFETY: the elements are aligned and within the operand's buffer (checked in `NodeMemory::new`),
        // and no thread writes them in this phase.
        unsafe { slice::from_raw_parts(self.start.cast::<T>().as_ptr(), t.nelements()) }
    }

    /// Returns an element of an operand with an unquantized type.
    pub(super) fn float(&self, i: [usize; 4]) -> f32 {
        let ty = self.tensor.ty;
        assert!(!ty.is_quantized());
        // SAFETY: the element is within the operand's buffer (checked in `NodeMemory::new` and `at`).
        let element = unsafe { slice::from_raw_parts(self.at(i).as_ptr(), ty.block_bytes()) };
        let mut x = 0.0;
        kernels::dequantize_row(ty, element, slice::from_mut(&mut x));
        x
    }

    /// Returns the address of an element, or of a block for a quantized operand. The address is within the
    /// operand's buffer.
    fn at(&self, i: [usize; 4]) -> NonNull<u8> {
        let t = self.tensor;
        assert!((0..4).all(|d| i[d] < t.ne[d]), "{i:?} is beyond {:?}", t.ne);
        let offset: usize = (0..4).map(|d| i[d] * t.nb[d]).sum();
        // SAFETY: the indices are in bounds (asserted), and the whole tensor is within its buffer (checked in
        // `NodeMemory::new`).
        unsafe { self.start.add(offset) }
    }
}

/// The result of a node for one share of the work.
///
/// Only one `Target` exists per share and node (see [`NodeMemory::target`]). Consuming it for the share's
/// rows therefore yields exclusive slices.
pub(super) struct Target<'a> {
    pub(super) tensor: &'a Tensor,
    start: NonNull<u8>,
    share: WorkShare,
    /// True if the result is contiguous f32.
    is_float_list: bool,
}

impl<'a> Target<'a> {
    /// Returns the share's rows of a contiguous f32 result, with their indices.
    pub(super) fn rows(self) -> impl Iterator<Item = (RowIndex, &'a mut [f32])> {
        let ne = self.tensor.ne;
        self.pieces::<f32>(GgmlType::F32, ne[0])
            .map(move |(i, row)| (row_index(&ne, i), row))
    }

    /// Returns the share's rows of a contiguous i32 result, with their indices.
    pub(super) fn int_rows(self) -> impl Iterator<Item = (RowIndex, &'a mut [i32])> {
        let ne = self.tensor.ne;
        self.pieces::<i32>(GgmlType::I32, ne[0])
            .map(move |(i, row)| (row_index(&ne, i), row))
    }

    /// Returns the share's part of a contiguous f32 result, in chunks of `len` elements. The last chunk may
    /// be shorter.
    pub(super) fn float_pieces(self, len: usize) -> impl Iterator<Item = (usize, &'a mut [f32])> {
        self.pieces::<f32>(GgmlType::F32, len)
    }

    fn pieces<T: bytemuck::Pod>(self, ty: GgmlType, len: usize) -> impl Iterator<Item = (usize, &'a mut [T])> {
        let Target {
            tensor, start, share, ..
        } = self;
        let n = tensor.nelements();
        assert!(tensor.ty == ty && size_of::<T>() == ty.block_bytes() && tensor.is_contiguous() && len > 0);
        share.of(n.div_ceil(len)).map(move |i| {
            let first = i * len;
            // SAFETY: the chunk is aligned and within the result's buffer (checked in `NodeMemory::new`).
            // Chunks do not overlap, shares are disjoint, and `self` is consumed, so this is the only slice
            // of the chunk. Operands that overlap it are not read as slices (see `Source::row`).
            let piece = unsafe { slice::from_raw_parts_mut(start.cast::<T>().add(first).as_ptr(), len.min(n - first)) };
            (i, piece)
        })
    }

    /// Returns row `i` of a contiguous f32 result.
    ///
    /// # Safety
    /// While the slice is alive, no thread creates another slice of this row.
    pub(super) unsafe fn row(&self, i: usize) -> &'a mut [f32] {
        let t = self.tensor;
        assert!(self.is_float_list && i < t.nrows());
        // SAFETY: in bounds (asserted) and aligned (checked in `NodeMemory::new`), and no other slice of the
        // row is alive (function contract).
        unsafe { slice::from_raw_parts_mut(self.start.cast::<f32>().add(i * t.ne[0]).as_ptr(), t.ne[0]) }
    }

    /// Returns elements of a contiguous f32 result, viewed as a flat list.
    ///
    /// # Safety
    /// While the slice is alive, no thread creates another slice of these elements.
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &'a mut [f32] {
        let t = self.tensor;
        assert!(self.is_float_list && range.start <= range.end && range.end <= t.nelements());
        // SAFETY: in bounds (asserted) and aligned (checked in `NodeMemory::new`), and no other slice of the
        // elements is alive (function contract).
        unsafe { slice::from_raw_parts_mut(self.start.cast::<f32>().add(range.start).as_ptr(), range.len()) }
    }

    /// Returns bytes of a contiguous result.
    ///
    /// # Safety
    /// While the slice is alive, no thread creates another slice of these bytes.
    pub(super) unsafe fn bytes(&self, range: Range<usize>) -> &'a mut [u8] {
        assert!(self.is_float_list && range.start <= range.end && range.end <= self.tensor.nbytes());
        // SAFETY: in bounds (asserted), and no other slice of the bytes is alive (function contract).
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start).as_ptr(), range.len()) }
    }

    /// Returns the indices of the share's rows.
    pub(super) fn row_numbers(&self) -> Range<usize> {
        self.share.of(self.tensor.nrows())
    }

    /// Returns the bytes of row `i` of a 2-dimensional result with contiguous rows.
    ///
    /// # Safety
    /// While the slice is alive, no thread creates another slice of this row.
    pub(super) unsafe fn row_bytes(&self, i: usize) -> &'a mut [u8] {
        let t = self.tensor;
        assert!(t.has_dense_rows() && i < t.ne[1] && t.ne[2..] == [1, 1]);
        let len = t.ne[0] / t.ty.block_size() * t.ty.block_bytes();
        // SAFETY: in bounds (asserted), and no other slice of the row is alive (function contract).
        unsafe { slice::from_raw_parts_mut(self.start.add(i * t.nb[1]).as_ptr(), len) }
    }

    /// Returns the address of the first of `columns` in row `i` of a contiguous f32 result.
    ///
    /// The columns of this row and of the `n_rows - 1` rows that follow are within the result.
    pub(super) fn tile(&self, i: usize, n_rows: usize, columns: Range<usize>) -> *mut f32 {
        let t = self.tensor;
        assert!(self.is_float_list);
        assert!(n_rows > 0 && i + n_rows <= t.nrows() && columns.end <= t.ne[0] && columns.start < columns.end);
        // SAFETY: the offset is within the result (asserted above).
        unsafe { self.start.cast::<f32>().add(i * t.ne[0] + columns.start).as_ptr() }
    }
}

/// The states of a recurrence, one row per cell. Readable and writable.
pub(super) struct States<'a> {
    tensor: &'a Tensor,
    start: NonNull<u8>,
}

impl<'a> States<'a> {
    /// Returns the number of cells.
    pub(super) fn n_cells(&self) -> usize {
        self.tensor.ne[1]
    }

    /// Returns elements of a cell's row.
    ///
    /// # Safety
    /// While the slice is alive, no thread creates another slice of these elements.
    pub(super) unsafe fn part(&self, cell: usize, range: Range<usize>) -> &'a mut [f32] {
        let t = self.tensor;
        assert!(t.ty == GgmlType::F32 && t.is_contiguous() && cell < t.ne[1]);
        assert!(range.start <= range.end && range.end <= t.ne[0]);
        // SAFETY: the elements are in bounds (asserted), aligned, and writable (checked in `NodeMemory::new`). No
        // other slice of these elements is alive (function contract).
        unsafe {
            let start = self.start.cast::<f32>().add(cell * t.ne[0] + range.start);
            slice::from_raw_parts_mut(start.as_ptr(), range.len())
        }
    }
}
