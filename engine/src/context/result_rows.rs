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

    fn append(&mut self, n: usize, width: usize) -> &mut [f32] {
        self.width = width;
        let start = self.values.len();
        self.values.resize(start + n * width, 0.0);
        &mut self.values[start..]
    }

    /// Appends `n` rows of `width` values filled by `read`, which may leave the transfer pending until
    /// [`ResultRows::complete`].
    pub fn read<E>(
        &mut self,
        n: usize,
        width: usize,
        read: impl FnOnce(&mut [f32]) -> Result<Option<Box<dyn PendingRead>>, E>,
    ) -> Result<(), E> {
        if let Some(pending) = read(self.append(n, width))? {
            let end = self.values.len();
            self.pending.push((end - n * width..end, pending));
        }
        Ok(())
    }

    /// Appends `n` rows whose transfer is pending until [`ResultRows::complete`].
    pub fn append_pending(&mut self, n: usize, width: usize, pending: Box<dyn PendingRead>) {
        self.append(n, width);
        let end = self.values.len();
        self.pending.push((end - n * width..end, pending));
    }

    /// Returns the number of rows of this width.
    pub fn n_rows(&self, width: usize) -> usize {
        self.values.len() / width.max(1)
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

/// Numbers the tokens that have a row, in order, replacing the previous numbers.
pub(super) fn number_rows(rows: &mut Vec<Option<u32>>, has_row: impl Iterator<Item = bool>) {
    rows.clear();
    let mut n = 0;
    rows.extend(has_row.map(|has_row| {
        let row = if has_row { Some(n) } else { None };
        n += u32::from(has_row);
        row
    }));
}
