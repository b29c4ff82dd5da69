//! Operands as slices: the one place where addresses become memory that ops may touch.
//!
//! A [`PlannedNode`] is made after checking that every operand lies within its buffer and that the result overlaps none of the
//! operands, except the first one exactly where the op allows it. Ops then see [`Source`]s, which give shared slices of
//! rows, and one [`Target`], which gives each thread exclusive slices of the rows that are its own.

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use kernels::GgmlType;

use super::activations::Quantized;
use super::barriers::Access;
use super::fuse::Fusion;
use super::queue::Share;
use crate::backend::{BackendError, HostRange, MemoryMap};
use crate::graph::{Graph, MAX_SRC, Op, Repack, Tensor, TensorId};

/// A node whose operands have been found in memory.
pub(super) struct PlannedNode {
    pub(super) id: TensorId,
    target: NonNull<u8>,
    sources: [Option<NonNull<u8>>; MAX_SRC],
    /// One thread alone computes it, the same as all such nodes of a phase.
    pub(super) solo: bool,
    /// How it is computed together with the planned node that follows it.
    pub(super) fusion: Option<Fusion>,
    /// The form in which the result is stored, if not as floats.
    pub(super) stores: Option<Quantized>,
    /// How a product has its activations, if not as they are.
    pub(super) activations: Option<Quantized>,
    /// Which of the plan's norms the activations of a product are, if every thread computes it for itself.
    pub(super) norm: Option<usize>,
    /// A product of floats may add up in [any order](kernels::MatMul::any_order).
    pub(super) any_order: bool,
    /// Tells these activations from others.
    pub(super) activations_number: u32,
    pub(super) part: NodePart,
    /// The function of the node takes pieces of work, each of which another thread may [take over](super::queue::WorkQueue::finish).
    pub(super) offers: bool,
}

/// What of a node is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodePart {
    /// The node is computed.
    Compute,
    /// Before a product: its activations are quantized.
    Quantize,
    /// After attention: results of parts are merged.
    Merge,
}

// SAFETY: a planned node is addresses and a counter; what may be done with the addresses is decided in `source` and `target`.
unsafe impl Send for PlannedNode {}
// SAFETY: as above.
unsafe impl Sync for PlannedNode {}

/// Where a tensor lies.
pub(super) struct Place {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

impl Place {
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

    /// True if nobody writes there as long as the memory is used for computing.
    pub(super) fn is_read_only(&self) -> bool {
        !self.writable
    }

    pub(super) fn overlaps(&self, other: &Place) -> bool {
        let (a, b) = (self.start.as_ptr() as usize, other.start.as_ptr() as usize);
        a < b + other.len && b < a + self.len
    }
}

impl PlannedNode {
    /// Finds the operands of a node whose types and shapes have been checked. The error says what is wrong with which tensor.
    /// What the node touches is added to `accesses`.
    pub(super) fn new(
        graph: &Graph,
        memory: &MemoryMap,
        id: TensorId,
        accesses: &mut Vec<Access>,
    ) -> Result<PlannedNode, BackendError> {
        let node = graph.tensor(id);
        let target = locate(graph, memory, id)?;
        if !target.writable {
            return Err(flaw(node, "would be written to read-only memory"));
        }
        if !(target.start.as_ptr() as usize).is_multiple_of(align_of::<f32>()) {
            return Err(flaw(node, "is not aligned"));
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
                return Err(flaw(node, "overlaps an operand"));
            }
            let t = graph.tensor(source);
            if matches!(t.ty, GgmlType::I32 | GgmlType::I64) && !is_aligned(t, &place) {
                return Err(flaw(t, "is not aligned"));
            }
            // Recurrences take their operands as lists of floats.
            let lists = state_operand.is_some();
            let written = state_operand == Some(i);
            if !written && states.as_ref().is_some_and(|states| states.overlaps(&place)) {
                return Err(flaw(t, "overlaps the states"));
            }
            if written && !place.writable {
                return Err(flaw(t, "would be written and lies in read-only memory"));
            }
            if lists && !(place.start.as_ptr() as usize).is_multiple_of(align_of::<f32>()) {
                return Err(flaw(t, "is not aligned"));
            }
            sources[i] = Some(place.start);
            accesses.push(place.access(written));
        }
        Ok(PlannedNode {
            id,
            target: target.start,
            sources,
            solo: false,
            fusion: None,
            stores: None,
            activations: None,
            norm: None,
            any_order: false,
            activations_number: 0,
            part: NodePart::Compute,
            offers: false,
        })
    }

    /// Another part of the node.
    pub(super) fn part(&self, part: NodePart) -> PlannedNode {
        PlannedNode {
            id: self.id,
            target: self.target,
            sources: self.sources,
            solo: self.solo,
            fusion: None,
            stores: self.stores,
            activations: self.activations,
            norm: self.norm,
            any_order: self.any_order,
            activations_number: self.activations_number,
            part,
            offers: false,
        }
    }

    /// Operand `i`. Panics if there is none, which the rules rule out.
    pub(super) fn source<'a>(&'a self, graph: &'a Graph, i: usize) -> Source<'a> {
        let tensor = graph.tensor(graph.tensor(self.id).source(i));
        Source {
            tensor,
            start: self.sources[i].unwrap_or_else(|| panic!("{} has no operand {i}", tensor.name)),
        }
    }

    /// The result.
    ///
    /// # Safety
    /// Each share may be asked for once, and sources and targets of a node may be used only in the phase that it belongs to.
    pub(super) unsafe fn target<'a>(&'a self, graph: &'a Graph, share: Share) -> Target<'a> {
        let tensor = graph.tensor(self.id);
        Target {
            tensor,
            start: self.target,
            share,
            is_float_list: tensor.ty == GgmlType::F32 && tensor.is_contiguous(),
        }
    }

    /// The states of a recurrence, operand 0, of which each thread may use its own lanes.
    pub(super) fn states<'a>(&'a self, graph: &'a Graph) -> States<'a> {
        let node = graph.tensor(self.id);
        assert_eq!(node.op.state_operand(), Some(0));
        let Source { tensor, start } = self.source(graph, 0);
        States { tensor, start }
    }
}

/// True if the op writes this operand's own memory as it should: in place, element over element, or into the table of SetRows,
/// which is never read.
pub(super) fn may_overlap(node: &Tensor, source: &Tensor, i: usize, place: &Place, target: &Place) -> bool {
    let same = place.start == target.start && source.ne == node.ne && source.nb == node.nb && source.ty == node.ty;
    match node.op {
        Op::SetRows => i == 1 && same,
        op => i == 0 && same && op.can_run_in_place(),
    }
}

/// Finds a tensor in host memory and checks that it lies within its buffer.
pub(super) fn locate(graph: &Graph, memory: &MemoryMap, id: TensorId) -> Result<Place, BackendError> {
    let tensor = graph.tensor(id);
    let home = graph.home(id).ok_or_else(|| flaw(tensor, "has no memory"))?;
    let len = tensor.checked_nbytes().ok_or_else(|| flaw(tensor, "is too large"))?;
    let range = memory.host_range(home, len).map_err(|e| match e {
        BackendError::OutOfBounds { .. } => flaw(tensor, "reaches beyond its buffer"),
        e => e,
    })?;
    let HostRange { start, len, writable } = range.ok_or_else(|| flaw(tensor, "does not lie in host memory"))?;
    Ok(Place { start, len, writable })
}

fn is_aligned(t: &Tensor, place: &Place) -> bool {
    let size = t.ty.block_bytes();
    (place.start.as_ptr() as usize).is_multiple_of(size) && t.nb.iter().all(|nb| nb.is_multiple_of(size))
}

fn flaw(tensor: &Tensor, what: &str) -> BackendError {
    BackendError::Device {
        device: super::NAME.to_string(),
        message: format!("{} ({}) {what}", tensor.name, tensor.op.name()),
    }
}

/// Indices of a row in dimensions 1 to 3.
pub(super) type RowIndex = [usize; 3];

/// The indices of row `i`, counted as if rows were dense.
pub(super) fn row_index(ne: &[usize; 4], i: usize) -> RowIndex {
    [i % ne[1], i / ne[1] % ne[2], i / ne[1] / ne[2]]
}

/// An operand to be read.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) tensor: &'a Tensor,
    start: NonNull<u8>,
}

impl<'a> Source<'a> {
    pub(super) fn ne(&self) -> [usize; 4] {
        self.tensor.ne
    }

    /// Floats of scratch memory that [`Source::row`] may need.
    pub(super) fn row_scratch(tensor: &Tensor) -> usize {
        tensor.ne[0]
    }

    /// A row as floats: in place if it is stored so, otherwise converted to `scratch`.
    /// Not for an operand that the result may be written over; see [`Source::copy_row`].
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

    /// The row, if it consists of aligned, adjacent floats.
    pub(super) fn float_row(&self, i: RowIndex) -> Option<&'a [f32]> {
        let at = self.at([0, i[0], i[1], i[2]]).cast::<f32>();
        if self.tensor.ty != GgmlType::F32 || !self.tensor.has_dense_rows() || !at.is_aligned() {
            return None;
        }
        // SAFETY: the row lies within the operand's buffer (see `PlannedNode::new` and `at`), nobody writes it while this node is computed, and
        // any bytes are floats.
        Some(unsafe { slice::from_raw_parts(at.as_ptr(), self.tensor.ne[0]) })
    }

    /// Copies a row as floats, whatever its type and strides. `out` may be the row itself: then nothing is to be done.
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
                // SAFETY: as in `float_row`, for one element.
                *x = unsafe { at.add(i0 * t.nb[0]).cast::<f32>().read_unaligned() };
            }
            return;
        }
        for (i0, x) in out.iter_mut().enumerate() {
            // SAFETY: as in `float_row`, for one element; rows of blocks are dense, as the rules say.
            let element = unsafe { slice::from_raw_parts(at.add(i0 * t.nb[0]).as_ptr(), t.ty.block_bytes()) };
            kernels::dequantize_row(t.ty, element, slice::from_mut(x));
        }
    }

    /// The first `n` bytes of a dense operand.
    pub(super) fn bytes(&self, n: usize) -> &'a [u8] {
        assert!(self.tensor.is_contiguous() && n <= self.tensor.nbytes());
        // SAFETY: as in `row_bytes`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), n) }
    }

    /// True if the operand's elements are one list of aligned floats.
    pub(super) fn is_float_list(&self) -> bool {
        self.tensor.ty == GgmlType::F32 && self.tensor.is_contiguous() && self.start.cast::<f32>().is_aligned()
    }

    /// `n` elements from `at` of an operand that is one list of floats.
    /// Not for an operand that the result may be written over; see [`Source::copy_floats`].
    pub(super) fn floats(&self, at: usize, n: usize) -> &'a [f32] {
        // SAFETY: the elements lie within the operand's buffer, aligned; nobody writes them while this node is computed.
        unsafe { slice::from_raw_parts(self.address_of_floats(at, n), n) }
    }

    /// Copies elements from `at` of an operand that is one list of floats. `out` may be those elements themselves: then nothing is
    /// to be done.
    pub(super) fn copy_floats(&self, at: usize, out: &mut [f32]) {
        let from = self.address_of_floats(at, out.len());
        if from != out.as_ptr() {
            // SAFETY: the elements lie within the operand's buffer. `out` is not the operand itself, so it does not overlap it.
            unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        }
    }

    fn address_of_floats(&self, at: usize, n: usize) -> *const f32 {
        assert!(self.is_float_list() && at + n <= self.tensor.nelements());
        // SAFETY: the offset lies within the operand's buffer.
        unsafe { self.start.cast::<f32>().add(at).as_ptr() }
    }

    /// The bytes of a dense row.
    pub(super) fn row_bytes(&self, i: RowIndex) -> &'a [u8] {
        self.rows_bytes(i, 1)
    }

    /// The bytes from the start of a dense row to the end of the one `n - 1` rows further in dimension 1.
    pub(super) fn rows_bytes(&self, i: RowIndex, n: usize) -> &'a [u8] {
        self.span(1, i, n)
    }

    /// The bytes from the start of a dense row to the end of the one `n - 1` further in dimension `d`.
    pub(super) fn span(&self, d: usize, i: RowIndex, n: usize) -> &'a [u8] {
        let t = self.tensor;
        assert!(t.has_dense_rows() && n > 0 && i[d - 1] + n <= t.ne[d]);
        let len = (n - 1) * t.nb[d] + t.ne[0] / t.ty.block_size() * t.ty.block_bytes();
        // SAFETY: the last of the rows lies within the operand's buffer (see `PlannedNode::new`), and so does what is before it.
        // Nobody writes there while this node is computed.
        unsafe { slice::from_raw_parts(self.at([0, i[0], i[1], i[2]]).as_ptr(), len) }
    }

    /// The bytes from row `i` on with those of `n[1]` rows along dimension 2 and, of each, `n[0]` along dimension 1.
    pub(super) fn block(&self, i: RowIndex, n: [usize; 2]) -> &'a [u8] {
        let t = self.tensor;
        let is_inside = |d: usize| n[d - 1] > 0 && i[d - 1] + n[d - 1] <= t.ne[d];
        assert!(t.has_dense_rows() && is_inside(1) && is_inside(2) && i[2] < t.ne[3]);
        let row_bytes = t.ne[0] / t.ty.block_size() * t.ty.block_bytes();
        let len = (n[0] - 1) * t.nb[1] + (n[1] - 1) * t.nb[2] + row_bytes;
        // SAFETY: the last of the rows lies within the operand's buffer (see `PlannedNode::new`), and so does what is before it.
        // Nobody writes there while this node is computed.
        unsafe { slice::from_raw_parts(self.at([0, i[0], i[1], i[2]]).as_ptr(), len) }
    }

    /// Where the operand starts.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The bytes of whole groups of rows of a repacked operand, rows counted over all matrices.
    pub(super) fn groups(&self, rows: Range<usize>) -> &'a [u8] {
        let t = self.tensor;
        assert!(!t.layout.is_plain() && rows.end <= t.nrows());
        let bytes = t.layout.byte_range(t.ty, t.ne[0], rows).expect("work is cut at groups");
        // SAFETY: the operand is no view of another one (see `rules::layouts`), so all its groups of rows lie within its buffer; nobody writes there
        // while this node is computed.
        unsafe { slice::from_raw_parts(self.start.add(bytes.start).as_ptr(), bytes.len()) }
    }

    /// Copies a row of a repacked operand as floats. `scratch` has [`Source::row_scratch`] floats, which are as long as a row of any type.
    pub(super) fn copy_repacked_row(&self, i: RowIndex, repack: &dyn Repack, scratch: &mut [f32], out: &mut [f32]) {
        let t = self.tensor;
        let row = i[0] + t.ne[1] * (i[1] + t.ne[2] * i[2]);
        let (first, at) = (row - row % repack.group_rows(), row % repack.group_rows());
        let group = self.groups(first..first + repack.group_rows());
        let row_bytes = t.ty.row_bytes(t.ne[0]).expect("rows are of whole blocks");
        let bytes = &mut bytemuck::cast_slice_mut(scratch)[..row_bytes];
        repack.unpack_row(t.ty, t.ne[0], group, at, bytes);
        kernels::dequantize_row(t.ty, bytes, out);
    }

    /// The floats from the start of a dense row to the end of the one `n - 1` further in dimension `d`, and the floats from one row
    /// to the next, if all of them are aligned.
    pub(super) fn float_span(&self, d: usize, i: RowIndex, n: usize) -> Option<(&'a [f32], usize)> {
        let t = self.tensor;
        if t.ty != GgmlType::F32 || !t.has_dense_rows() || (n > 1 && !t.nb[d].is_multiple_of(size_of::<f32>())) {
            return None;
        }
        let floats = bytemuck::try_cast_slice(self.span(d, i, n)).ok()?;
        Some((floats, t.nb[d] / size_of::<f32>()))
    }

    /// An element of an i32 operand.
    pub(super) fn i32(&self, i: [usize; 4]) -> i32 {
        assert_eq!(self.tensor.ty, GgmlType::I32);
        // SAFETY: the element lies within the operand's buffer, aligned (see `PlannedNode::new`).
        unsafe { self.at(i).cast::<i32>().read() }
    }

    /// The elements of a dense operand of integers.
    pub(super) fn list<T: bytemuck::Pod>(&self) -> &'a [T] {
        let t = self.tensor;
        assert!(t.is_contiguous() && matches!(t.ty, GgmlType::I32 | GgmlType::I64));
        assert_eq!(size_of::<T>(), t.ty.block_bytes());
        // SAFETY: the elements lie within the operand's buffer, aligned (see `PlannedNode::new`); nobody writes them while this node is computed.
        unsafe { slice::from_raw_parts(self.start.cast::<T>().as_ptr(), t.nelements()) }
    }

    /// An element of an operand that is not stored in blocks.
    pub(super) fn float(&self, i: [usize; 4]) -> f32 {
        let ty = self.tensor.ty;
        assert!(!ty.is_quantized());
        // SAFETY: the element lies within the operand's buffer.
        let element = unsafe { slice::from_raw_parts(self.at(i).as_ptr(), ty.block_bytes()) };
        let mut x = 0.0;
        kernels::dequantize_row(ty, element, slice::from_mut(&mut x));
        x
    }

    /// The address of an element (of a block, for a quantized operand), which is within the operand's buffer.
    fn at(&self, i: [usize; 4]) -> NonNull<u8> {
        let t = self.tensor;
        assert!((0..4).all(|d| i[d] < t.ne[d]), "{i:?} is beyond {:?}", t.ne);
        let offset: usize = (0..4).map(|d| i[d] * t.nb[d]).sum();
        // SAFETY: `PlannedNode::new` found the extent of the tensor to lie within its buffer.
        unsafe { self.start.add(offset) }
    }
}

/// The result of a node, as one share of the work on it sees it. There is one per share and node (see [`PlannedNode::target`]), so that
/// giving it away for the share's own rows gives slices that nobody else has.
pub(super) struct Target<'a> {
    pub(super) tensor: &'a Tensor,
    start: NonNull<u8>,
    share: Share,
    /// The result is floats without gaps.
    is_float_list: bool,
}

impl<'a> Target<'a> {
    /// The share's part of the rows of a dense f32 result, with their indices.
    pub(super) fn rows(self) -> impl Iterator<Item = (RowIndex, &'a mut [f32])> {
        let ne = self.tensor.ne;
        self.pieces::<f32>(GgmlType::F32, ne[0])
            .map(move |(i, row)| (row_index(&ne, i), row))
    }

    /// The share's part of the rows of a dense i32 result.
    pub(super) fn int_rows(self) -> impl Iterator<Item = (RowIndex, &'a mut [i32])> {
        let ne = self.tensor.ne;
        self.pieces::<i32>(GgmlType::I32, ne[0])
            .map(move |(i, row)| (row_index(&ne, i), row))
    }

    /// The share's part of a dense f32 result seen as a list of pieces of `len` elements, of which the last may be shorter.
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
            // SAFETY: the piece lies within the result's buffer, aligned (see `PlannedNode::new`). Pieces do not overlap, shares
            // are disjoint, and `self` is gone, so this is the only slice of the piece. Operands that overlap it are
            // not read as slices (see `Source::row`).
            let piece = unsafe { slice::from_raw_parts_mut(start.cast::<T>().add(first).as_ptr(), len.min(n - first)) };
            (i, piece)
        })
    }

    /// Row `i` of a dense f32 result.
    ///
    /// # Safety
    /// While the slice lives no other slice of this row may be taken, by this thread or another.
    pub(super) unsafe fn row(&self, i: usize) -> &'a mut [f32] {
        let t = self.tensor;
        assert!(self.is_float_list && i < t.nrows());
        // SAFETY: as in `pieces`; the caller promises that the slice is the only one.
        unsafe { slice::from_raw_parts_mut(self.start.cast::<f32>().add(i * t.ne[0]).as_ptr(), t.ne[0]) }
    }

    /// Elements of a dense f32 result seen as a list.
    ///
    /// # Safety
    /// While the slice lives no other slice of these elements may be taken, by this thread or another.
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &'a mut [f32] {
        let t = self.tensor;
        assert!(self.is_float_list && range.start <= range.end && range.end <= t.nelements());
        // SAFETY: as in `pieces`; the caller promises that the slice is the only one.
        unsafe { slice::from_raw_parts_mut(self.start.cast::<f32>().add(range.start).as_ptr(), range.len()) }
    }

    /// Bytes of a dense result.
    ///
    /// # Safety
    /// While the slice lives no other slice of these bytes may be taken, by this thread or another.
    pub(super) unsafe fn bytes(&self, range: Range<usize>) -> &'a mut [u8] {
        assert!(self.is_float_list && range.start <= range.end && range.end <= self.tensor.nbytes());
        // SAFETY: as in `pieces`; the caller promises that the slice is the only one.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start).as_ptr(), range.len()) }
    }

    /// The rows of the share, by number.
    pub(super) fn row_numbers(&self) -> Range<usize> {
        self.share.of(self.tensor.nrows())
    }

    /// The bytes of row `i` of dimension 1 of any 2-dimensional result with dense rows.
    ///
    /// # Safety
    /// As for [`Target::row`].
    pub(super) unsafe fn row_bytes(&self, i: usize) -> &'a mut [u8] {
        let t = self.tensor;
        assert!(t.has_dense_rows() && i < t.ne[1] && t.ne[2..] == [1, 1]);
        let len = t.ne[0] / t.ty.block_size() * t.ty.block_bytes();
        // SAFETY: as in `row`.
        unsafe { slice::from_raw_parts_mut(self.start.add(i * t.nb[1]).as_ptr(), len) }
    }

    /// The address of column `column` of row `i` of a dense f32 result: `len` floats there, and in each of the `n_rows - 1` rows that
    /// follow, are within the result.
    pub(super) fn tile(&self, i: usize, n_rows: usize, columns: Range<usize>) -> *mut f32 {
        let t = self.tensor;
        assert!(self.is_float_list);
        assert!(n_rows > 0 && i + n_rows <= t.nrows() && columns.end <= t.ne[0] && columns.start < columns.end);
        // SAFETY: the offset lies within the result.
        unsafe { self.start.cast::<f32>().add(i * t.ne[0] + columns.start).as_ptr() }
    }
}

/// The states of a recurrence, which are read and written: a row per cell.
pub(super) struct States<'a> {
    tensor: &'a Tensor,
    start: NonNull<u8>,
}

impl<'a> States<'a> {
    /// Cells.
    pub(super) fn n_cells(&self) -> usize {
        self.tensor.ne[1]
    }

    /// Elements of the row of a cell.
    ///
    /// # Safety
    /// While the slice lives no other slice of these elements may be taken, by this thread or another.
    pub(super) unsafe fn part(&self, cell: usize, range: Range<usize>) -> &'a mut [f32] {
        let t = self.tensor;
        assert!(t.ty == GgmlType::F32 && t.is_contiguous() && cell < t.ne[1]);
        assert!(range.start <= range.end && range.end <= t.ne[0]);
        // SAFETY: the elements lie within the operand's buffer, aligned and writable (see `PlannedNode::new`); the caller promises that the
        // slice is the only one.
        unsafe {
            let start = self.start.cast::<f32>().add(cell * t.ne[0] + range.start);
            slice::from_raw_parts_mut(start.as_ptr(), range.len())
        }
    }
}
