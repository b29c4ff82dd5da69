//! Weights and columns in f16 for `half_products.cuh`: types that kernels convert to f16, and columns that are rounded to f16
//! in the order of fragments.

use bytemuck::{Pod, Zeroable};
use kernels::GgmlType;

use super::super::kernel::{HALVE_COLUMNS, Kernel, Value};
use super::arguments::TensorArg;
use super::decoder::decoder;
use super::integers::{FETCH, GROUP, has_whole_rows};
use super::task::{ColumnForm, Halves, Task};
use super::unplanned::{Unplanned, size};
use crate::graph::Tensor;

/// Values of a row per step. The last step of a row may be incomplete.
pub(super) const STEP: usize = 256;

/// Maximum number of columns of a step; larger tiles consist of several steps.
const STEP_COLUMNS: u32 = 64;

/// Threads per block of `halve_columns.cu`.
const THREADS: u32 = 1024;

/// Number of counters after the columns: tiles of a launch whose rows are divided.
pub(super) const COUNTERS: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct HalveParams {
    x: TensorArg,
    steps: u64,
    factors: u64,
    counters: u64,
    n_counters: i32,
    is_dense: i32,
}

/// Parameters of `mul_stream.cu` and `mul_mat_halves.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Params {
    pub(super) w: TensorArg,
    pub(super) x: TensorArg,
    pub(super) y: TensorArg,
    pub(super) columns: u64,
    pub(super) factors: u64,
    pub(super) counters: u64,
    pub(super) parts: u64,
    pub(super) tiles: u64,
    pub(super) order: u64,
    pub(super) n_steps: i32,
    pub(super) n_used: i32,
    /// Bytes of a row that kernels may load.
    pub(super) row_bytes: i32,
    pub(super) padding: i32,
}

/// A type that `halves_of_rows.cuh` supports.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) decoder: Value,
    /// Bytes between rows in shared memory.
    pub(super) stride: u32,
    /// Sums of the values of a column that a step needs.
    pub(super) sums: u32,
    /// True if values are sums of products and minimums.
    pub(super) has_mins: bool,
    /// Bytes of a row, with its padding.
    pub(super) row_bytes: u32,
}

impl Weights {
    /// Returns the type of the weights, or `None` if kernels cannot convert them.
    pub(super) fn of(weights: &Tensor, w: &TensorArg) -> Option<Weights> {
        if !weights.ne[0].is_multiple_of(GROUP) || !has_whole_rows(weights, w) {
            return None;
        }
        let decoder = decoder(weights, w);
        let (stride, sums, has_mins) = match decoder {
            Value::Type(GgmlType::Q2_K) => (112, 16, true),
            Value::Type(GgmlType::Q4_0 | GgmlType::Q3_K | GgmlType::IQ4_NL | GgmlType::IQ4_XS | GgmlType::MXFP4)
            | Value::Word("q3_K_x8") => (144, 8, false),
            Value::Type(GgmlType::Q4_K) => (144, 8, true),
            Value::Type(GgmlType::Q4_1 | GgmlType::Q5_K) => (176, 8, true),
            Value::Type(GgmlType::Q5_0) | Value::Word("q5_0_x8") => (176, 8, false),
            Value::Type(GgmlType::Q5_1) => (208, 8, true),
            Value::Type(GgmlType::Q6_K) | Value::Word("q6_K_x8") => (240, 8, false),
            Value::Type(GgmlType::Q8_0) => (272, 8, false),
            Value::Word("f16x8" | "bf16x8") => (288, 8, false),
            _ => return None,
        };
        Some(Weights {
            decoder,
            stride,
            sums,
            has_mins,
            row_bytes: size(weights.layout.group_bytes(weights.ty, weights.ne[0])?).ok()?,
        })
    }

    /// Returns true if the weights are floats, whose powers of two only `mul_mat_halves.cu` applies.
    pub(super) fn are_floats(self) -> bool {
        matches!(self.decoder, Value::Word("f16x8" | "bf16x8"))
    }

    /// Returns the bytes of a step of a tile's columns.
    pub(super) fn step_bytes(self, columns: usize) -> usize {
        columns * (2 * STEP + self.sum_bytes())
    }

    /// Returns the bytes of a column's sums of a step: two halves per sum.
    pub(super) fn sum_bytes(self) -> usize {
        4 * self.sums as usize
    }
}

/// Addresses of converted columns.
pub(super) struct Converted {
    pub(super) columns: u64,
    pub(super) factors: u64,
    pub(super) counters: u64,
}

impl Halves {
    /// Plans the conversion of columns, unless they already exist.
    pub(super) fn of_columns(self, task: &mut Task<'_>, x: &TensorArg) -> Result<Converted, Unplanned> {
        let [k, n, n2, n3] = x.ne.map(|n| n as usize);
        // Tiles of several steps have the columns of these steps.
        let form = Halves {
            tile: self.tile.min(STEP_COLUMNS),
            ..self
        };
        let of_column = (2 * STEP + 4 * self.sums as usize) * k.div_ceil(STEP);
        let (outer, n_padded) = (n2 * n3, n.next_multiple_of(form.tile as usize));
        let of_steps = n_padded * outer * of_column;
        let of_factors = size_of::<f32>() * n_padded * outer;
        let n_bytes = of_steps + of_factors + size_of::<u32>() * COUNTERS;
        let (columns, is_new) = task.target.columns(x, ColumnForm::Halves(form), n_bytes)?;
        let factors = columns + of_steps as u64;
        let counters = factors + of_factors as u64;
        if is_new {
            let params = HalveParams {
                x: *x,
                steps: columns,
                factors,
                counters,
                n_counters: COUNTERS as i32,
                is_dense: x.has_vectors(size_of::<f32>(), FETCH).into(),
            };
            let kernel = Kernel::new(&HALVE_COLUMNS, "halve_columns")
                .with_int("COLUMNS", form.tile.into())
                .with_int("SUMS", self.sums.into())
                .with_int("EXPONENT", self.exponent.into());
            task.launch(kernel, [size(n_padded)?, size(outer)?, 1], THREADS, &params)?;
        }
        Ok(Converted {
            columns,
            factors,
            counters,
        })
    }
}
