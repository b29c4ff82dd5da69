//! Search for the largest values of rows, so that a sampler does not need all logits on the host.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable, bytes_of};

use super::context::{Context, DeviceMemory, Function, LaunchShape, Start, Stream};
use super::driver::CudaError;
use super::kernel::{BEST, Kernel};
use crate::backend::BestRows;

/// Values per block of `best_of_slice`, threads of both kernels, and maximum number of values to find; match `best.cu`.
const SLICE: usize = 4096;
const SLICE_THREADS: u32 = 256;
const ROW_THREADS: u32 = 512;
const MAX_K: usize = 256;

/// Maximum number of keys that `best_of_row` searches.
const MAX_KEYS: usize = 8192;

/// Maximum number of rows per launch.
const MAX_ROWS: usize = 65535;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    x: u64,
    keys: u64,
    invalid: u64,
    y: u64,
    n: i32,
    k: i32,
    n_slices: i32,
    padding: i32,
}

/// Sizes of a search.
#[derive(Clone, Copy)]
struct Sizes {
    n: i32,
    k: i32,
    n_slices: i32,
    n_rows: u32,
    /// Bytes of the results, of the keys, and of the indices of invalid values.
    results: usize,
    keys: usize,
    invalid: usize,
}

impl Sizes {
    /// Returns the sizes of a search, or `None` if the kernels cannot search these rows.
    fn of(rows: BestRows) -> Option<Sizes> {
        let BestRows {
            n_values, n_rows, k, ..
        } = rows;
        let n_slices = n_values.div_ceil(SLICE);
        let fits = (1..=MAX_K.min(n_values)).contains(&k) && n_slices * k <= MAX_KEYS;
        if !fits || !(1..=MAX_ROWS).contains(&n_rows) {
            return None;
        }
        // All sizes are small: there are at most MAX_KEYS slices of SLICE values.
        Some(Sizes {
            n: n_values as i32,
            k: k as i32,
            n_slices: n_slices as i32,
            n_rows: n_rows as u32,
            results: n_rows * (2 * k + 2) * size_of::<u32>(),
            keys: n_rows * n_slices * k * size_of::<u64>(),
            invalid: n_rows * n_slices * size_of::<u32>(),
        })
    }
}

/// Kernels and scratch memory of searches.
#[derive(Default)]
pub(super) struct BestSearch {
    functions: Option<[Arc<Function>; 2]>,
    /// Keys, then results, then indices of invalid values.
    memory: Option<DeviceMemory>,
}

/// Returns the kernels of a search.
pub(super) fn kernels() -> [Kernel; 2] {
    ["best_of_slice", "best_of_row"].map(|name| Kernel::new(&BEST, name))
}

/// Returns true if these rows can be searched.
pub(super) fn suits(rows: BestRows) -> bool {
    Sizes::of(rows).is_some()
}

/// Returns the size of the results in bytes; 0 if these rows cannot be searched.
pub(super) fn result_bytes(rows: BestRows) -> usize {
    Sizes::of(rows).map_or(0, |sizes| sizes.results)
}

impl BestSearch {
    /// Returns true if the kernels are loaded.
    pub(super) fn has_kernels(&self) -> bool {
        self.functions.is_some()
    }

    /// Sets the loaded kernels.
    pub(super) fn use_kernels(&mut self, functions: [Arc<Function>; 2]) {
        self.functions = Some(functions);
    }

    /// Enqueues a search. Returns the memory with the results, and their byte range. Returns `None` if the rows are
    /// unsuitable, the kernels are not loaded, or the GPU has no memory for a search. The results are valid until the
    /// next search on the stream. The caller checks the bounds of `from`.
    pub(super) fn queue(
        &mut self,
        context: &Arc<Context>,
        stream: &Stream,
        from: &DeviceMemory,
        rows: BestRows,
    ) -> Result<Option<(&DeviceMemory, Range<usize>)>, CudaError> {
        let (Some(sizes), Some(functions)) = (Sizes::of(rows), &self.functions) else {
            return Ok(None);
        };
        let n_bytes = sizes.keys + sizes.results + sizes.invalid;
        let memory = match self.memory.take().filter(|memory| memory.len() >= n_bytes) {
            Some(memory) => memory,
            None => match DeviceMemory::new(context, n_bytes.next_power_of_two()) {
                Err(error) if error.is_out_of_memory() => return Ok(None),
                memory => memory?,
            },
        };
        let memory = self.memory.insert(memory);
        let results = sizes.keys..sizes.keys + sizes.results;
        let params = Params {
            x: from.address() + rows.offset as u64,
            keys: memory.address(),
            invalid: memory.address() + results.end as u64,
            y: memory.address() + results.start as u64,
            n: sizes.n,
            k: sizes.k,
            n_slices: sizes.n_slices,
            padding: 0,
        };
        let shapes = [
            ([sizes.n_slices as u32, sizes.n_rows, 1], SLICE_THREADS),
            ([sizes.n_rows, 1, 1], ROW_THREADS),
        ];
        for (function, (grid, block)) in functions.iter().zip(shapes) {
            let shape = LaunchShape { grid, block, shared: 0 };
            // SAFETY: `params` is the parameter struct of `best.cu`. The caller checked the bounds of the rows, and the
            // areas of the scratch memory have the sizes that the kernels access. Memory is freed only after its
            // context is idle.
            unsafe { stream.launch(function, shape, Start::InOrder, bytes_of(&params).as_ptr().cast())? };
        }
        Ok(Some((memory, results)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_too_many_keys_are_unsuitable() {
        let rows = |n_values, k| BestRows {
            offset: 0,
            n_values,
            n_rows: 2,
            k,
        };
        assert!(suits(rows(128_256, 40)) && suits(rows(262_144, 128)) && suits(rows(40, 40)));
        for (n_values, k) in [(262_144, 129), (128_256, 257), (39, 40), (128_256, 0)] {
            assert!(!suits(rows(n_values, k)), "{n_values}, {k}");
        }
    }
}
