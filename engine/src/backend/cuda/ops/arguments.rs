//! Kernel parameters, laid out like the structs in `common.cuh`.

use bytemuck::{Pod, Zeroable};

use super::unplanned::{Unplanned, size};
use crate::graph::{Layout, ROPE_AXES, Tensor};

/// Descriptor of a tensor, laid out like `Tensor` in `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
pub(in super::super) struct TensorArg {
    /// Address of the first byte; 0 for a missing tensor.
    pub(in super::super) data: u64,
    pub(super) nb: [i64; 4],
    pub(super) ne: [i32; 4],
}

impl TensorArg {
    /// Represents an operand that a node does not have.
    pub(super) const NONE: TensorArg = TensorArg {
        data: 0,
        nb: [0; 4],
        ne: [1; 4],
    };

    pub(super) fn new(t: &Tensor, data: u64) -> Result<TensorArg, Unplanned> {
        let mut arg = TensorArg {
            data,
            ..TensorArg::NONE
        };
        for d in 0..4 {
            arg.ne[d] = size(t.ne[d])? as i32;
            arg.nb[d] = i64::try_from(t.nb[d]).map_err(|_| "a stride exceeds 63 bits")?;
        }
        if let Layout::Repacked(repack) = t.layout {
            // Rows are contiguous.
            arg.nb[1] = i64::from(size(repack.group_bytes(t.ty, t.ne[0]))?);
            arg.nb[2] = arg.nb[1] * i64::from(arg.ne[1]);
            arg.nb[3] = arg.nb[2] * i64::from(arg.ne[2]);
        }
        Ok(arg)
    }

    /// Broadcasts the tensor to a shape: dimensions of size 1 get the size of the shape and a stride of 0.
    pub(super) fn repeated_to(mut self, ne: [i32; 4]) -> TensorArg {
        for d in 0..4 {
            if self.ne[d] == 1 && ne[d] != 1 {
                (self.ne[d], self.nb[d]) = (ne[d], 0);
            }
        }
        self
    }

    /// Merges the outer dimensions into a single one if the rows are contiguous.
    pub(in super::super) fn as_rows(mut self) -> TensorArg {
        let element = self.nb[0];
        let row = element * i64::from(self.ne[0]);
        let mut stride = row;
        let is_dense = (1..4).all(|d| {
            let is_next = self.ne[d] == 1 || self.nb[d] == stride;
            stride *= i64::from(self.ne[d]);
            is_next
        });
        if is_dense {
            let rows: i32 = self.ne[1..].iter().product();
            self.ne = [self.ne[0], rows, 1, 1];
            self.nb = [element, row, 0, 0];
        }
        self
    }

    /// Returns the size in bytes from the first element to the end of the last.
    pub(in super::super) fn extent(&self) -> u64 {
        let last = |d: usize| self.nb[d].unsigned_abs() * (self.ne[d].unsigned_abs().saturating_sub(1) as u64);
        (0..4).map(last).sum::<u64>() + self.nb[0].unsigned_abs()
    }

    /// Returns true if rows can be read in vectors of `bytes` bytes: elements of `element` bytes are
    /// contiguous, and every row is aligned.
    pub(super) fn has_vectors(&self, element: usize, bytes: usize) -> bool {
        let dense = self.nb[0] == element as i64 && (self.ne[0] as usize * element).is_multiple_of(bytes);
        let apart = (1..4).all(|d| self.ne[d] == 1 || self.nb[d] % bytes as i64 == 0);
        dense && apart && self.data.is_multiple_of(bytes as u64)
    }
}

/// Location where a kernel records an index out of range.
#[derive(Clone, Copy)]
pub(super) struct ErrorArg {
    pub(super) record: u64,
    pub(super) node: u32,
}

/// Parameters of the RoPE angles, laid out like the struct in `rope.cuh`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
pub(in super::super) struct RopeArg {
    pub(super) positions: TensorArg,
    pub(super) factors: TensorArg,
    pub(super) step: f32,
    pub(super) freq_scale: f32,
    pub(super) ext_factor: f32,
    pub(super) magnitude: f32,
    pub(super) low: f32,
    pub(super) high: f32,
    pub(super) n_dims: i32,
    pub(super) n_axes: i32,
    pub(super) every: i32,
    pub(super) inverse: i32,
    pub(super) sections: [i32; ROPE_AXES],
    pub(super) interleaved: i32,
    pub(super) padding: i32,
    /// Table of sines and cosines; 0 if the kernel computes them.
    pub(super) table: u64,
}

impl RopeArg {
    /// Returns the operands that the angles depend on.
    pub(in super::super) fn operands(&self) -> [TensorArg; 2] {
        [self.positions, self.factors]
    }
}
