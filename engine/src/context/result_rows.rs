//! Output rows appended by successive ubatches.

use std::ops::Range;

use crate::backend::{BackendError, PendingRead};

/// Rows of equal width, `[n, width]`. Capacity is reused between batches.
#[derive(Default)]
pub(super) struct ResultRows {
    values: Vec<f32>,
    /// Number of elements per row.
    width: usize,
    /// Ranges of `values` with reads in flight.
    pending: Vec<(Range<usize>, Box<dyn PendingRead>)>,
}

impl ResultRows {
    /// Reserves memory for `n` result elements.
    pub fn reserve(&mut self, n: usize) {
        self.values.reserve(n);
    }

    /// Removes all result rows.
    pub fn clear(&mut self) {
        self.values.clear();
        self.pending.clear();
    }

    /// Appends `n` rows to be filled.
    pub fn append(&mut self, n: usize, width: usize) -> &mut [f32] {
        self.width = width;
        let start = self.values.len();
        self.values.resize(start + n * width, 0.0);
        &mut self.values[start..]
    }

    /// Registers a pending read into the last `n` rows.
    pub fn await_rows(&mut self, n: usize, read: Box<dyn PendingRead>) {
        let end = self.values.len();
        self.pending.push((end - n * self.width..end, read));
    }

    /// Waits for all pending reads.
    pub fn complete(&mut self) -> Result<(), BackendError> {
        for (range, read) in self.pending.drain(..) {
            read.wait(bytemuck::cast_slice_mut(&mut self.values[range]))?;
        }
        Ok(())
    }

    /// Returns a row, if it exists.
    pub fn get(&self, row: usize) -> Option<&[f32]> {
        self.values.get(row * self.width..(row + 1) * self.width)
    }
}
