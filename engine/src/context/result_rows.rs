//! Rows of results that ubatches give one after the other.

use std::ops::Range;

use crate::backend::{BackendError, PendingRead};

/// Rows of one width, `[n, width]`; the memory is kept from batch to batch.
#[derive(Default)]
pub(super) struct ResultRows {
    values: Vec<f32>,
    /// Elements of a row.
    width: usize,
    /// Elements of `values` that are on their way.
    pending: Vec<(Range<usize>, Box<dyn PendingRead>)>,
}

impl ResultRows {
    /// Takes memory for so many elements.
    pub fn reserve(&mut self, n: usize) {
        self.values.reserve(n);
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.values.clear();
        self.pending.clear();
    }

    /// Room for `n` more rows.
    pub fn append(&mut self, n: usize, width: usize) -> &mut [f32] {
        self.width = width;
        let start = self.values.len();
        self.values.resize(start + n * width, 0.0);
        &mut self.values[start..]
    }

    /// The `n` rows appended last are on their way.
    pub fn await_rows(&mut self, n: usize, read: Box<dyn PendingRead>) {
        let end = self.values.len();
        self.pending.push((end - n * self.width..end, read));
    }

    /// Waits for all rows that are on their way.
    pub fn complete(&mut self) -> Result<(), BackendError> {
        for (range, read) in self.pending.drain(..) {
            read.wait(bytemuck::cast_slice_mut(&mut self.values[range]))?;
        }
        Ok(())
    }

    /// A row, if there are so many.
    pub fn get(&self, row: usize) -> Option<&[f32]> {
        self.values.get(row * self.width..(row + 1) * self.width)
    }
}
