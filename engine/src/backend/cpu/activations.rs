//! Activations of matrix products as integers: made once for all products of one operand, by a step of its own before the first of them.
//!
//! A few rows are quantized by every thread for itself, which takes less time than waiting for others; many rows by all threads together,
//! in memory that they share, with a barrier before the product.

use kernels::{ActivationForm, Activations, Precision, activation_bytes, activation_form, quantize_activations};

use super::barriers::Access;
use super::ops::Need;
use super::pool::Worker;
use super::scratch::Parts;
use super::view::{Source, WorkQueue, row_index};
use crate::graph::{Graph, Op, Tensor, TensorId};

/// Most elements that every thread quantizes for itself: a matter of two microseconds.
const FEW: usize = 8192;

/// Rows that a thread quantizes at a time where threads share the work.
const PIECE: usize = 8;

/// Where quantized rows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// In each thread's own memory: all rows, many times over.
    Own,
    /// In memory that threads share.
    Shared,
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
            Room::Own => 0,
            Room::Shared => row * self.n_rows,
        };
        Need {
            per_thread: row_floats(self.k) * (FEW / self.k).max(1),
            shared,
        }
    }

    /// What quantizing touches besides the operand (`write`), and what the products touch.
    pub(super) fn access(&self, write: bool) -> Option<Access> {
        (self.room == Room::Shared).then(|| Access::shared_activations(write))
    }

    fn stride(&self) -> usize {
        row_bytes(self.form, self.k)
    }

    /// Quantizes this thread's share of the rows of `x`. `scratch` has room for one row of floats.
    ///
    /// # Safety
    /// No product reads the thread's own part, or the shared one, until this returns.
    pub(super) unsafe fn fill(
        &self,
        x: Source<'_>,
        parts: &Parts<'_>,
        scratch: &mut [f32],
        worker: Worker<'_>,
        queue: WorkQueue<'_>,
    ) {
        let ne = x.ne();
        let mut quantize = |i: usize, out: &mut [f32]| {
            let out: &mut [u8] = bytemuck::cast_slice_mut(out);
            let out = &mut out[..activation_bytes(self.form, self.k)];
            quantize_activations(self.form, x.row(row_index(&ne, i), scratch), out);
        };
        let row = self.stride() / size_of::<f32>();
        match self.room {
            Room::Own => {
                // SAFETY: the caller promises that nothing reads this thread's part, and only this thread writes it.
                let own = unsafe { parts.of_thread(worker.ith) };
                for (i, out) in own.chunks_exact_mut(row).take(self.n_rows).enumerate() {
                    quantize(i, out);
                }
            }
            Room::Shared => {
                let shared = parts.shared();
                while let Some(piece) = queue.take(self.n_rows.div_ceil(PIECE)) {
                    for i in piece * PIECE..self.n_rows.min((piece + 1) * PIECE) {
                        // SAFETY: the caller promises that nothing reads the rows, and no other thread takes this piece.
                        quantize(i, unsafe { shared.write(i * row..(i + 1) * row) });
                    }
                }
            }
        }
    }

    /// The rows, after [`fill`](Quantized::fill).
    ///
    /// # Safety
    /// While the rows live nobody quantizes anything to the same room, and there was a barrier since others did.
    pub(super) unsafe fn rows<'a>(&self, parts: &'a Parts<'_>, worker: Worker<'_>) -> QuantizedRows<'a> {
        let stride = self.stride();
        let n_floats = self.n_rows * stride / size_of::<f32>();
        let floats: &[f32] = match self.room {
            // SAFETY: only this thread uses its part, and the caller promises that it writes nothing there.
            Room::Own => unsafe { &parts.of_thread(worker.ith)[..n_floats] },
            // SAFETY: the caller's promise.
            Room::Shared => unsafe { parts.shared().read(0..n_floats) },
        };
        QuantizedRows {
            form: self.form,
            bytes: bytemuck::cast_slice(floats),
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

/// Bytes from one row of `k` activations to the next, a multiple of a cache line.
fn row_bytes(form: ActivationForm, k: usize) -> usize {
    activation_bytes(form, k).next_multiple_of(64)
}

/// Which activations are in the rooms while a plan runs, as the planner knows it.
#[derive(Default)]
pub(super) struct Held {
    rooms: [Option<Holding>; 2],
}

#[derive(Clone, Copy, PartialEq)]
struct Holding {
    x: TensorId,
    quantized: Quantized,
    /// In the own memory of thread 0 only.
    solo: bool,
}

impl Held {
    /// Nothing is known: at the start of a plan, or when an operand may have been written.
    pub(super) fn forget(&mut self) {
        self.rooms = [None; 2];
    }

    /// True if `x` has to be quantized for a product, which is then noted. `solo`: thread 0 alone computes it.
    pub(super) fn lacks(&mut self, x: TensorId, quantized: Quantized, solo: bool) -> bool {
        let room = &mut self.rooms[quantized.room as usize];
        let serves = |held: &Holding| (held.x, held.quantized) == (x, quantized) && (solo || !held.solo);
        if room.as_ref().is_some_and(serves) {
            return false;
        }
        *room = Some(Holding { x, quantized, solo });
        true
    }
}
