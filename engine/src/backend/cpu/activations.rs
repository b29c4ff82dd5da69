//! Quantized activations for matmuls.
//!
//! A matmul with quantized weights needs its f32 activations as integers or bf16 ([`ActivationForm`]). Each
//! operand is quantized once, however many matmuls read it. Where that happens depends on its size:
//!
//! - **Small operands** (up to [`PER_THREAD_MAX`] elements): every thread quantizes the whole operand into its own
//!   scratch buffer. This costs about 2 µs and saves a barrier. If the operand is an RMS norm with no other
//!   reader, each thread also computes the norm itself.
//! - **Large operands**: the threads share the rows, write to a shared buffer, and synchronize before the
//!   matmul. With several NUMA nodes, a thread writes each row to a buffer per node.
//! - **In place**: if only matmuls read a result, the op that produces it stores it in quantized form over
//!   the f32 values. Not with several nodes, since the result is on one of them.

use kernels::{
    ActivationForm, Activations, BF16_STEP, Precision, activation_bytes, activation_form, quantize_activations,
    round_to_bf16,
};

use super::queue::WorkQueue;
use super::scratch::{Parts, ScratchSize};
use super::view::{MemRange, Source, Target, row_index};
use crate::graph::{Graph, Op, Tensor, TensorId};

/// Largest operand, in elements, that every thread quantizes for itself. This takes about 2 µs.
const PER_THREAD_MAX: usize = 8192;

/// Rows that a thread takes from the work queue at a time.
const ROWS_PER_CHUNK: usize = 8;

/// Size of a cache line in bytes.
const CACHE_LINE: usize = 64;

/// Storage of quantized rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Storage {
    /// Each thread's own scratch buffer; every thread has all rows.
    PerThread,
    /// A scratch buffer that all threads share.
    Shared,
    /// The operand's own memory, written there by the op that produced it (see
    /// [`Quantization::fits_in_place`]).
    InPlace,
}

/// Rows of f32 activations to quantize: a tensor, or a norm that is computed on the fly and never stored.
pub(super) trait RowSource {
    /// Returns row `i`, numbered as if the rows were contiguous. `scratch` holds two rows.
    fn activations<'s>(&'s self, i: usize, scratch: &'s mut [f32]) -> &'s [f32];
}

impl RowSource for Source<'_> {
    fn activations<'s>(&'s self, i: usize, scratch: &'s mut [f32]) -> &'s [f32] {
        self.row(row_index(&self.ne(), i), scratch)
    }
}

/// Describes how an operand is quantized: form, shape, and storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Quantization {
    form: ActivationForm,
    /// Elements per row.
    k: usize,
    n_rows: usize,
    pub(super) storage: Storage,
}

impl Quantization {
    /// Returns how the activations of `node` are quantized, or `None` if the matmul reads them as f32.
    pub(super) fn for_matmul(graph: &Graph, node: &Tensor, precision: Precision) -> Option<Quantization> {
        let n = match node.op {
            Op::MulMat => node.ne[1],
            Op::MulMatId => node.ne[2],
            _ => return None,
        };
        let (w, x) = (graph.tensor(node.source(0)), graph.tensor(node.source(1)));
        let form = activation_form(w.ty, n, precision);
        if form == ActivationForm::F32 {
            return None;
        }
        let (k, n_rows) = (x.ne[0], x.nrows());
        let storage = if k * n_rows <= PER_THREAD_MAX.max(k) {
            Storage::PerThread
        } else {
            Storage::Shared
        };
        Some(Quantization {
            form,
            k,
            n_rows,
            storage,
        })
    }

    /// Returns the scratch memory needed, in floats.
    ///
    /// The per-thread size depends neither on the number of rows nor on the form. Memory reserved for the largest
    /// graph therefore fits every smaller one.
    pub(super) fn scratch_size(&self) -> ScratchSize {
        let row = self.stride() / size_of::<f32>();
        let shared = match self.storage {
            Storage::PerThread | Storage::InPlace => 0,
            Storage::Shared => row * self.n_rows,
        };
        ScratchSize {
            per_thread: row_floats(self.k) * (PER_THREAD_MAX / self.k).max(1),
            shared,
        }
    }

    fn stride(&self) -> usize {
        row_bytes(self.form, self.k)
    }

    /// Returns true if the kernel multiplies these rows with many rows of weights at a time.
    pub(super) fn is_for_tiles(&self) -> bool {
        is_for_tiles(self.form)
    }

    /// Returns the description of these rows stored in the operand's own memory.
    pub(super) fn in_place(self) -> Quantization {
        Quantization {
            storage: Storage::InPlace,
            ..self
        }
    }

    /// Returns true if the quantized rows fit into the memory of the f32 `result`, which starts at a cache
    /// line.
    pub(super) fn fits_in_place(&self, result: &Tensor, at: &MemRange) -> bool {
        let is_result = result.is_contiguous() && result.ne[0] == self.k && result.nrows() == self.n_rows;
        is_result && at.is_aligned_to(CACHE_LINE) && self.n_rows * self.stride() <= result.nbytes()
    }

    /// Returns true if different threads can store parts of `n` elements of a row.
    ///
    /// Requires a form without per-row data (bf16) and parts that are multiples of [`BF16_STEP`].
    pub(super) fn can_store_row_parts(&self, n: usize) -> bool {
        self.form == ActivationForm::Bf16Row && n.is_multiple_of(BF16_STEP)
    }

    /// Quantizes `x` and stores it as row `i` over the f32 values of `target`.
    ///
    /// # Safety
    /// No other thread accesses the bytes of quantized row `i`, as [`rows`](Quantization::rows) lays them out,
    /// during the call.
    pub(super) unsafe fn store(&self, i: usize, x: &[f32], target: &Target<'_>) {
        let start = i * self.stride();
        // SAFETY: no other thread accesses row `i` (function contract).
        let out = unsafe { target.bytes(start..start + activation_bytes(self.form, self.k)) };
        quantize_activations(self.form, x, out);
    }

    /// Quantizes `x` and stores it as the elements of row `i` that start at `first`.
    ///
    /// `first` is a multiple of [`BF16_STEP`], and `x` ends at such a multiple or at the end of the row.
    ///
    /// # Safety
    /// No other thread accesses these elements of quantized row `i` during the call.
    pub(super) unsafe fn store_part(&self, i: usize, first: usize, x: &[f32], target: &Target<'_>) {
        assert!(self.can_store_row_parts(first));
        let start = i * self.stride() + first * size_of::<u16>();
        let len = x.len().next_multiple_of(BF16_STEP) * size_of::<u16>();
        // SAFETY: no other thread accesses these elements of row `i` (function contract).
        let out = unsafe { target.bytes(start..start + len) };
        round_to_bf16(x, out);
    }

    /// Quantizes all rows into the scratch buffer of thread `ith`. `scratch` holds two rows of floats.
    ///
    /// # Safety
    /// No other reference to the scratch buffer of thread `ith` exists during the call.
    pub(super) unsafe fn fill_own(&self, from: &dyn RowSource, parts: &Parts<'_>, scratch: &mut [f32], ith: usize) {
        let row = self.stride() / size_of::<f32>();
        // SAFETY: no other reference to the buffer of thread `ith` exists (function contract).
        let own = unsafe { parts.of_thread(ith) };
        for (i, out) in own.chunks_exact_mut(row).take(self.n_rows).enumerate() {
            self.quantize(from.activations(i, scratch), out);
        }
    }

    /// Quantizes the rows of `x` that the queue assigns to this thread into the shared buffer and its copies.
    /// `scratch` holds one row of floats.
    ///
    /// # Safety
    /// No thread reads the shared buffer in this phase.
    pub(super) unsafe fn fill_shared(
        &self,
        x: Source<'_>,
        parts: &Parts<'_>,
        scratch: &mut [f32],
        queue: &WorkQueue<'_>,
    ) {
        let ith = queue.worker.ith;
        let (row, shared) = (self.stride() / size_of::<f32>(), parts.shared_for(ith));
        while let Some(piece) = queue.take(self.n_rows.div_ceil(ROWS_PER_CHUNK)) {
            for i in piece * ROWS_PER_CHUNK..self.n_rows.min((piece + 1) * ROWS_PER_CHUNK) {
                // SAFETY: no thread reads the shared buffer in this phase (function contract), and the queue
                // gives each chunk of rows to one thread.
                let out = unsafe { shared.write(i * row..(i + 1) * row) };
                self.quantize(x.activations(i, scratch), out);
                for copy in parts.copies_for_others(ith) {
                    // SAFETY: as above.
                    unsafe { copy.write(i * row..(i + 1) * row) }.copy_from_slice(out);
                }
            }
        }
    }

    fn quantize(&self, row: &[f32], out: &mut [f32]) {
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        quantize_activations(self.form, row, &mut out[..activation_bytes(self.form, self.k)]);
    }

    /// Returns the quantized rows as seen by thread `ith`, after they were filled in.
    ///
    /// # Safety
    /// While the returned rows are alive, no thread quantizes into the same storage. Rows that other threads
    /// filled in were written in an earlier phase.
    pub(super) unsafe fn rows<'a>(&self, x: &Source<'a>, parts: &'a Parts<'_>, ith: usize) -> QuantizedRows<'a> {
        let stride = self.stride();
        let n_floats = self.n_rows * stride / size_of::<f32>();
        let bytes = match self.storage {
            // SAFETY: only thread `ith` uses its buffer, and it does not write there while the rows are alive
            // (function contract).
            Storage::PerThread => bytemuck::cast_slice(unsafe { &parts.of_thread(ith)[..n_floats] }),
            // SAFETY: the shared rows were written in an earlier phase and stay unchanged (function
            // contract).
            Storage::Shared => bytemuck::cast_slice(unsafe { parts.shared_for(ith).read(0..n_floats) }),
            Storage::InPlace => x.bytes(self.n_rows * stride),
        };
        QuantizedRows {
            form: self.form,
            bytes,
            stride,
        }
    }
}

/// Forms for kernels that multiply many rows of weights at a time: AMX tiles (bf16), or integers with register
/// accumulators.
const TILE_FORMS: [ActivationForm; 3] = [
    ActivationForm::Bf16Row,
    ActivationForm::U8Chunk,
    ActivationForm::I16Pairs,
];

/// Returns true if the kernel multiplies rows of this form with many rows of weights at a time.
fn is_for_tiles(form: ActivationForm) -> bool {
    TILE_FORMS.contains(&form)
}

/// Quantized rows of activations. Rows are numbered as if the operand were contiguous.
#[derive(Clone, Copy)]
pub(super) struct QuantizedRows<'a> {
    form: ActivationForm,
    bytes: &'a [u8],
    /// Distance between rows in bytes.
    pub(super) stride: usize,
}

impl<'a> QuantizedRows<'a> {
    /// Returns true if the kernel multiplies these rows with many rows of weights at a time.
    pub(super) fn is_for_tiles(&self) -> bool {
        is_for_tiles(self.form)
    }

    /// Returns the bytes of `n` rows, starting at row `i`.
    pub(super) fn span(&self, i: usize, n: usize) -> &'a [u8] {
        &self.bytes[i * self.stride..(i + n) * self.stride]
    }

    /// Describes `rows`, which have this form and stride, as a kernel operand.
    pub(super) fn as_activations<'b>(&self, rows: &'b [u8]) -> Activations<'b> {
        Activations::Quantized {
            form: self.form,
            rows,
            stride: self.stride,
        }
    }
}

/// Returns the largest number of floats that a row of `k` activations occupies in any form.
pub(super) fn row_floats(k: usize) -> usize {
    k.max(row_bytes(ActivationForm::I16Row, k) / size_of::<f32>())
}

/// Returns the largest number of floats that a row of `k` activations occupies in a form for
/// [tiles](QuantizedRows::is_for_tiles).
pub(super) fn tile_row_floats(k: usize) -> usize {
    let bytes = TILE_FORMS.map(|form| row_bytes(form, k));
    bytes.into_iter().fold(0, usize::max) / size_of::<f32>()
}

/// Returns the distance in bytes between rows of `k` activations, rounded up to a cache line.
fn row_bytes(form: ActivationForm, k: usize) -> usize {
    activation_bytes(form, k).next_multiple_of(CACHE_LINE)
}

/// Tracks, while a plan is built, the quantized operand that each scratch buffer will hold. An operand that a buffer
/// already holds is not quantized again.
#[derive(Default)]
pub(super) struct QuantizedCache {
    rooms: [Option<CacheSlot>; 2],
    last_number: u32,
    /// Tensors whose values are stored in quantized form.
    stored: Vec<(TensorId, Quantization)>,
    /// Norms that threads compute for themselves: the tensor that matmuls read, the norm, and its index in
    /// the plan.
    norms: Vec<(TensorId, (TensorId, usize))>,
}

#[derive(Clone, Copy, PartialEq)]
struct CacheSlot {
    x: TensorId,
    quantized: Quantization,
    number: u32,
}

impl QuantizedCache {
    /// Resets the cache for a new plan of `n_nodes` nodes.
    pub(super) fn start(&mut self, n_nodes: usize) {
        self.forget();
        self.stored.clear();
        self.stored.reserve(n_nodes);
        self.norms.clear();
        self.norms.reserve(n_nodes);
    }

    /// Forgets the contents of the scratch buffers. Required when an operand may have been overwritten.
    pub(super) fn forget(&mut self) {
        self.rooms = [None; 2];
    }

    /// Records that result `id` is stored in quantized form.
    pub(super) fn store(&mut self, id: TensorId, quantized: Quantization) {
        self.stored.push((id, quantized));
    }

    /// Returns the form in which result `id` is stored, or `None` for f32.
    pub(super) fn stored(&self, id: TensorId) -> Option<Quantization> {
        let of_id = self.stored.iter().rev().find(|(stored, _)| *stored == id);
        of_id.map(|(_, quantized)| *quantized)
    }

    /// Records that matmuls which read `id` recompute `norm`, entry `i` of the plan's norms, on every thread.
    pub(super) fn add_norm(&mut self, id: TensorId, norm: TensorId, i: usize) {
        self.norms.push((id, (norm, i)));
    }

    /// Returns the norm that threads recompute for matmuls which read `id`, and its index in the plan.
    pub(super) fn norm(&self, id: TensorId) -> Option<(TensorId, usize)> {
        let of_id = self.norms.iter().rev().find(|(read, _)| *read == id);
        of_id.map(|(_, norm)| *norm)
    }

    /// Returns the version of the quantized operand `x`, and whether the matmul must quantize it first. In
    /// that case the operand is recorded as cached.
    pub(super) fn number(&mut self, x: TensorId, quantized: Quantization) -> (u32, bool) {
        let storage = &mut self.rooms[quantized.storage as usize];
        if let Some(slot) = storage
            && (slot.x, slot.quantized) == (x, quantized)
        {
            return (slot.number, false);
        }
        self.last_number = self.last_number.wrapping_add(1);
        let number = self.last_number;
        *storage = Some(CacheSlot { x, quantized, number });
        (number, true)
    }
}
