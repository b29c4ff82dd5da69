//! Operands as contiguous arrays. Strides and types are handled here, so that the ops are plain arithmetic.

use kernels::GgmlType;

use super::scratch::{Piece, Scratch};
use crate::graph::Tensor;

/// Indices of an element, innermost dimension first.
pub(super) type Index = [usize; 4];

/// A contiguous array of f32 values.
#[derive(Debug, PartialEq)]
pub(super) struct Array {
    pub(super) ne: [usize; 4],
    pub(super) data: Piece<f32>,
}

/// A contiguous array of integers.
#[derive(Debug, PartialEq)]
pub(super) struct Ints {
    pub(super) ne: [usize; 4],
    pub(super) data: Piece<i64>,
}

/// Returns all indices of a shape in memory order.
pub(super) fn indices(ne: [usize; 4]) -> impl Iterator<Item = Index> {
    let mut next = [0; 4];
    (0..ne.iter().product()).map(move |_| {
        let index = next;
        for (i, n) in next.iter_mut().zip(ne) {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
        index
    })
}

fn dense_offset(ne: [usize; 4], i: Index) -> usize {
    debug_assert!((0..4).all(|d| i[d] < ne[d]));
    i[0] + ne[0] * (i[1] + ne[1] * (i[2] + ne[2] * i[3]))
}

fn byte_offset(t: &Tensor, i: Index) -> usize {
    (0..4).map(|d| i[d] * t.nb[d]).sum()
}

impl Array {
    /// Creates an array whose element at `i` is `f(i)`, computed in f64 and rounded once. Allocates from the
    /// same pool as this array.
    pub(super) fn derive(&self, ne: [usize; 4], mut f: impl FnMut(Index) -> f64) -> Array {
        let mut data = self.data.scratch().take(ne.iter().product());
        for (x, i) in data.iter_mut().zip(indices(ne)) {
            *x = f(i) as f32;
        }
        Array { ne, data }
    }

    /// Reads the elements of `t` as f32. The tensor starts at `bytes[0]`.
    pub(super) fn read(t: &Tensor, bytes: &[u8], scratch: &Scratch) -> Array {
        let mut data = scratch.take(t.nelements());
        let rows = data.chunks_exact_mut(t.ne[0].max(1));
        for (row, i) in rows.zip(indices([1, t.ne[1], t.ne[2], t.ne[3]])) {
            let start = byte_offset(t, i);
            if t.has_dense_rows() {
                let end = start + t.ne[0] / t.ty.block_size() * t.ty.block_bytes();
                kernels::dequantize_row(t.ty, &bytes[start..end], row);
            } else {
                for (i0, x) in row.iter_mut().enumerate() {
                    let at = start + i0 * t.nb[0];
                    kernels::dequantize_row(t.ty, &bytes[at..at + t.ty.block_bytes()], std::slice::from_mut(x));
                }
            }
        }
        Array { ne: t.ne, data }
    }

    /// Writes the elements to the f32 tensor `t`, which starts at `bytes[0]`.
    pub(super) fn write(&self, t: &Tensor, bytes: &mut [u8]) {
        let rows = self.data.chunks_exact(t.ne[0].max(1));
        for (row, i) in rows.zip(indices([1, t.ne[1], t.ne[2], t.ne[3]])) {
            let start = byte_offset(t, i);
            for (i0, x) in row.iter().enumerate() {
                let at = start + i0 * t.nb[0];
                bytes[at..at + 4].copy_from_slice(&x.to_le_bytes());
            }
        }
    }

    /// Returns the element at `i`.
    pub(super) fn at(&self, i: Index) -> f64 {
        f64::from(self.data[dense_offset(self.ne, i)])
    }

    /// Returns the element at `i`, with the array repeated in all dimensions.
    pub(super) fn at_repeated(&self, i: Index) -> f64 {
        self.at(std::array::from_fn(|d| i[d] % self.ne[d]))
    }

    /// Returns the row that contains element `i`.
    pub(super) fn row(&self, [_, i1, i2, i3]: Index) -> &[f32] {
        let start = dense_offset(self.ne, [0, i1, i2, i3]);
        &self.data[start..start + self.ne[0]]
    }

    /// Applies `f` to each row. `f` must return a row of equal length.
    pub(super) fn map_rows<'a, R>(&'a self, mut f: impl FnMut(&'a [f32]) -> R) -> Array
    where
        R: Iterator<Item = f64>,
    {
        let mut data = self.data.scratch().take(self.data.len());
        let rows = indices([1, self.ne[1], self.ne[2], self.ne[3]]);
        for (out, x) in data.iter_mut().zip(rows.flat_map(|i| f(self.row(i)))) {
            *out = x as f32;
        }
        Array { ne: self.ne, data }
    }
}

impl Ints {
    /// Reads the elements of the i32 or i64 tensor `t`, which starts at `bytes[0]`.
    pub(super) fn read(t: &Tensor, bytes: &[u8], scratch: &Scratch) -> Ints {
        let element = |i| {
            let at = byte_offset(t, i);
            match t.ty {
                GgmlType::I32 => i64::from(i32::from_le_bytes(word(&bytes[at..]))),
                _ => i64::from_le_bytes(word(&bytes[at..])),
            }
        };
        let mut data = scratch.take(t.nelements());
        for (x, i) in data.iter_mut().zip(indices(t.ne)) {
            *x = element(i);
        }
        Ints { ne: t.ne, data }
    }

    /// Writes the elements to the i32 tensor `t`, which starts at `bytes[0]`.
    pub(super) fn write(&self, t: &Tensor, bytes: &mut [u8]) {
        for (i, &x) in indices(t.ne).zip(&*self.data) {
            let at = byte_offset(t, i);
            bytes[at..at + 4].copy_from_slice(&(x as i32).to_le_bytes());
        }
    }

    /// Returns the element at `i`.
    pub(super) fn at(&self, i: Index) -> i64 {
        self.data[dense_offset(self.ne, i)]
    }
}

fn word<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes[i])
}
