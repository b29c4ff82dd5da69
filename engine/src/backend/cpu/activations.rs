//! Activations of matrix products as integers: made once for all products of one operand.
//!
//! A few rows are quantized by every thread for itself when it comes to the first product, which takes less time than waiting for others, and where they are the
//! rows of a norm that nothing else reads, every thread computes the norm for itself, too; many
//! rows by all threads together, in memory that they share, in a step of its own with a barrier before the product. Where nothing but such products read
//! a result, the op that makes it stores it in their form at once, in the place of the floats.

use kernels::{
    ActivationForm, Activations, BF16_STEP, Precision, activation_bytes, activation_form, quantize_activations,
    round_to_bf16,
};

use super::ops::Need;
use super::ops::norm::RmsNorm;
use super::queue::WorkQueue;
use super::scratch::Parts;
use super::view::{Place, Source, Target, row_index};
use crate::graph::{Graph, Op, Tensor, TensorId};

/// Most elements that every thread quantizes for itself: a matter of two microseconds.
const FEW: usize = 8192;

/// Rows that a thread quantizes at a time where threads share the work.
const PIECE: usize = 8;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Where quantized rows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// In each thread's own memory: all rows, many times over.
    Own,
    /// In memory that threads share.
    Shared,
    /// Where the operand itself is, which was [stored in this form](Quantized::can_be_stored) by the op that made it.
    Operand,
}

/// What rows are quantized of.
pub(super) enum Origin<'a> {
    Stored(Source<'a>),
    /// A norm that is not stored.
    Norm(RmsNorm<'a>),
}

/// Rows of activations in a form other than f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Quantized {
    form: ActivationForm,
    /// Elements of a row.
    k: usize,
    n_rows: usize,
    pub(super) room: Room,
}

impl Quantized {
    /// How a product wants its activations; `None` if as they are.
    pub(super) fn for_product(graph: &Graph, node: &Tensor, precision: Precision) -> Option<Quantized> {
        let n = match node.op {
            Op::MulMat => node.ne[1],
            Op::MulMatId => node.ne[2],
            _ => return None,
        };
        let (w, x) = (graph.tensor(node.source(0)), graph.tensor(node.source(1)));
        let form = activation_form(w.ty, n, precision);
        let (k, n_rows) = (x.ne[0], x.nrows());
        let room = if k * n_rows <= FEW.max(k) {
            Room::Own
        } else {
            Room::Shared
        };
        (form != ActivationForm::F32).then_some(Quantized { form, k, n_rows, room })
    }

    /// Memory for the rows, in floats. What threads need of their own depends neither on how many rows there are nor on their form, so that a
    /// reservation for the largest graph serves all.
    pub(super) fn need(&self) -> Need {
        let row = self.stride() / size_of::<f32>();
        let shared = match self.room {
            Room::Own | Room::Operand => 0,
            Room::Shared => row * self.n_rows,
        };
        Need {
            per_thread: row_floats(self.k) * (FEW / self.k).max(1),
            shared,
        }
    }

    fn stride(&self) -> usize {
        row_bytes(self.form, self.k)
    }

    /// The same rows, stored as the operand.
    pub(super) fn as_operand(self) -> Quantized {
        Quantized {
            room: Room::Operand,
            ..self
        }
    }

    /// True if the rows can take the place of a result of floats.
    pub(super) fn can_be_stored(&self, result: &Tensor, at: &Place) -> bool {
        let is_result = result.is_contiguous() && result.ne[0] == self.k && result.nrows() == self.n_rows;
        is_result && at.is_aligned_to(LINE) && self.n_rows * self.stride() <= result.nbytes()
    }

    /// True if parts of a row of `n` elements can be stored one by one, by different threads: then no number of it depends on others than its neighbours.
    pub(super) fn can_be_stored_in_parts(&self, n: usize) -> bool {
        self.form == ActivationForm::Bf16Row && n.is_multiple_of(BF16_STEP)
    }

    /// Stores row `i` in the place of a result of floats.
    ///
    /// # Safety
    /// Nobody else reads or writes the row meanwhile, which lies where [`rows`](Quantized::rows) says.
    pub(super) unsafe fn store(&self, i: usize, x: &[f32], target: &Target<'_>) {
        let start = i * self.stride();
        // SAFETY: the caller's promise.
        let out = unsafe { target.bytes(start..start + activation_bytes(self.form, self.k)) };
        quantize_activations(self.form, x, out);
    }

    /// Stores elements of row `i` from `first` on, a multiple of [`BF16_STEP`], up to the end of the row or such a multiple.
    ///
    /// # Safety
    /// As for [`store`](Quantized::store), of these elements.
    pub(super) unsafe fn store_part(&self, i: usize, first: usize, x: &[f32], target: &Target<'_>) {
        assert!(self.can_be_stored_in_parts(first));
        let start = i * self.stride() + first * size_of::<u16>();
        let len = x.len().next_multiple_of(BF16_STEP) * size_of::<u16>();
        // SAFETY: the caller's promise.
        let out = unsafe { target.bytes(start..start + len) };
        round_to_bf16(x, out);
    }

    /// Quantizes all rows to the own memory of thread `ith`. `scratch` has room for two rows of floats.
    ///
    /// # Safety
    /// Nobody reads or writes that memory until this returns.
    pub(super) unsafe fn fill_own(&self, from: &Origin<'_>, parts: &Parts<'_>, scratch: &mut [f32], ith: usize) {
        let row = self.stride() / size_of::<f32>();
        // SAFETY: the caller's promise.
        let own = unsafe { parts.of_thread(ith) };
        for (i, out) in own.chunks_exact_mut(row).take(self.n_rows).enumerate() {
            match from {
                Origin::Stored(x) => self.quantize(x.row(row_index(&x.ne(), i), scratch), out),
                Origin::Norm(norm) => self.quantize(norm.row(i, scratch), out),
            }
        }
    }

    /// Quantizes rows of `x` as the queue has them to the memory that threads share. `scratch` has room for one row of floats.
    ///
    /// # Safety
    /// No product reads the shared memory in this phase.
    pub(super) unsafe fn fill_shared(
        &self,
        x: Source<'_>,
        parts: &Parts<'_>,
        scratch: &mut [f32],
        queue: &WorkQueue<'_>,
    ) {
        let (row, shared) = (self.stride() / size_of::<f32>(), parts.shared());
        while let Some(piece) = queue.take(self.n_rows.div_ceil(PIECE)) {
            for i in piece * PIECE..self.n_rows.min((piece + 1) * PIECE) {
                // SAFETY: the caller promises that nothing reads the rows, and no other thread takes this piece.
                let out = unsafe { shared.write(i * row..(i + 1) * row) };
                self.quantize(x.row(row_index(&x.ne(), i), scratch), out);
            }
        }
    }

    fn quantize(&self, row: &[f32], out: &mut [f32]) {
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        quantize_activations(self.form, row, &mut out[..activation_bytes(self.form, self.k)]);
    }

    /// The rows, as thread `ith` has them, once they are filled in.
    ///
    /// # Safety
    /// While the rows live nobody quantizes anything to the same room, and what others filled in was in an earlier phase.
    pub(super) unsafe fn rows<'a>(&self, x: &Source<'a>, parts: &'a Parts<'_>, ith: usize) -> QuantizedRows<'a> {
        let stride = self.stride();
        let n_floats = self.n_rows * stride / size_of::<f32>();
        let bytes = match self.room {
            // SAFETY: only this thread uses its part, and the caller promises that it writes nothing there.
            Room::Own => bytemuck::cast_slice(unsafe { &parts.of_thread(ith)[..n_floats] }),
            // SAFETY: the caller's promise.
            Room::Shared => bytemuck::cast_slice(unsafe { parts.shared().read(0..n_floats) }),
            Room::Operand => x.bytes(self.n_rows * stride),
        };
        QuantizedRows {
            form: self.form,
            bytes,
            stride,
        }
    }
}

/// Quantized rows of activations, counted as if the rows of the operand were dense.
#[derive(Clone, Copy)]
pub(super) struct QuantizedRows<'a> {
    form: ActivationForm,
    bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub(super) stride: usize,
}

impl<'a> QuantizedRows<'a> {
    /// Whether they are multiplied with many rows of weights at a time: by a unit for tiles, or as bytes with sums in registers.
    pub(super) fn is_for_tiles(&self) -> bool {
        matches!(self.form, ActivationForm::Bf16Row | ActivationForm::U8Chunk)
    }

    /// `n` rows from row `i` on.
    pub(super) fn span(&self, i: usize, n: usize) -> &'a [u8] {
        &self.bytes[i * self.stride..(i + n) * self.stride]
    }

    /// Rows of this form and stride as an operand.
    pub(super) fn as_activations<'b>(&self, rows: &'b [u8]) -> Activations<'b> {
        Activations::Quantized {
            form: self.form,
            rows,
            stride: self.stride,
        }
    }
}

/// Most floats that a row of `k` activations takes up in any form.
pub(super) fn row_floats(k: usize) -> usize {
    k.max(row_bytes(ActivationForm::I16Row, k) / size_of::<f32>())
}

/// Most floats that a row of `k` activations takes up in a form [for tiles](QuantizedRows::is_for_tiles).
pub(super) fn tile_row_floats(k: usize) -> usize {
    let bytes = [ActivationForm::Bf16Row, ActivationForm::U8Chunk].map(|form| row_bytes(form, k));
    bytes[0].max(bytes[1]) / size_of::<f32>()
}

/// Bytes from one row of `k` activations to the next, a multiple of a cache line.
fn row_bytes(form: ActivationForm, k: usize) -> usize {
    activation_bytes(form, k).next_multiple_of(LINE)
}

/// Which activations are in the rooms while a plan runs, as the planner knows it. Each has a number.
#[derive(Default)]
pub(super) struct Held {
    rooms: [Option<Holding>; 2],
    last_number: u32,
    /// Results that are stored in this form.
    stored: Vec<(TensorId, Quantized)>,
    /// Norms that every thread computes for itself: what products read, the norm, and which of the plan's it is.
    norms: Vec<(TensorId, (TensorId, usize))>,
}

#[derive(Clone, Copy, PartialEq)]
struct Holding {
    x: TensorId,
    quantized: Quantized,
    number: u32,
}

impl Held {
    /// At the start of a plan for so many nodes nothing is known.
    pub(super) fn start(&mut self, n_nodes: usize) {
        self.forget();
        self.stored.clear();
        self.stored.reserve(n_nodes);
        self.norms.clear();
        self.norms.reserve(n_nodes);
    }

    /// Nothing is known of the rooms: an operand may have been written.
    pub(super) fn forget(&mut self) {
        self.rooms = [None; 2];
    }

    /// Result `id` is stored in this form.
    pub(super) fn store(&mut self, id: TensorId, quantized: Quantized) {
        self.stored.push((id, quantized));
    }

    /// The form in which a result is stored, if not as floats.
    pub(super) fn stored(&self, id: TensorId) -> Option<Quantized> {
        let of_id = self.stored.iter().rev().find(|(stored, _)| *stored == id);
        of_id.map(|(_, quantized)| *quantized)
    }

    /// Every thread computes `norm`, the plan's norm number `i`, for itself for products that read `id`.
    pub(super) fn add_norm(&mut self, id: TensorId, norm: TensorId, i: usize) {
        self.norms.push((id, (norm, i)));
    }

    /// The norm that every thread computes for itself for products that read `id`, if there is one.
    pub(super) fn norm(&self, id: TensorId) -> Option<(TensorId, usize)> {
        let of_id = self.norms.iter().rev().find(|(read, _)| *read == id);
        of_id.map(|(_, norm)| *norm)
    }

    /// The number of the activations `x` of a product, and whether they have to be quantized for it: they are noted then.
    pub(super) fn number(&mut self, x: TensorId, quantized: Quantized) -> (u32, bool) {
        let room = &mut self.rooms[quantized.room as usize];
        if let Some(held) = room
            && (held.x, held.quantized) == (x, quantized)
        {
            return (held.number, false);
        }
        self.last_number = self.last_number.wrapping_add(1);
        let number = self.last_number;
        *room = Some(Holding { x, quantized, number });
        (number, true)
    }
}
