//! Layout of weight rows in memory: as in the file, or repacked for faster kernels.

use std::fmt;
use std::ops::Range;

use kernels::GgmlType;

/// Repacked row layout. Rows are stored in contiguous groups, in order, so that a tensor can be converted a
/// few groups at a time.
pub trait Repack: Send + Sync {
    /// Returns a unique name, such as `rows_x4`.
    fn name(&self) -> &'static str;

    /// Returns true if tensors of this type and shape can be repacked. `ne[1]` must then be a multiple of
    /// [`group_rows`](Repack::group_rows), so that no group spans two matrices.
    fn accepts(&self, ty: GgmlType, ne: [usize; 4]) -> bool;

    /// Returns true if rows of this type stay as in a file, one after the other, and are only copied to other
    /// memory.
    fn keeps_rows(&self, _ty: GgmlType) -> bool {
        false
    }

    /// Returns the number of rows per group.
    fn group_rows(&self) -> usize;

    /// Returns the size in bytes of a group of rows of `n` elements, which may differ from that in the plain
    /// layout.
    fn group_bytes(&self, ty: GgmlType, n: usize) -> usize;

    /// Packs the plain rows of a group into `group`.
    fn pack(&self, ty: GgmlType, n: usize, rows: &[u8], group: &mut [u8]);

    /// Unpacks row `i` of a group.
    fn unpack_row(&self, ty: GgmlType, n: usize, group: &[u8], i: usize, row: &mut [u8]);

    /// Unpacks all rows of a group; the inverse of [`pack`](Repack::pack).
    fn unpack(&self, ty: GgmlType, n: usize, group: &[u8], rows: &mut [u8]) {
        let row_bytes = rows.len() / self.group_rows();
        for (i, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
            self.unpack_row(ty, n, group, i, row);
        }
    }
}

/// Row layout of a tensor.
#[derive(Clone, Copy, Default)]
pub enum Layout {
    /// Layout of GGUF files: contiguous rows of consecutive blocks, as described by the strides.
    #[default]
    Plain,
    /// Device-specific layout. The strides only reflect the shape.
    Repacked(&'static dyn Repack),
}

impl Layout {
    /// Returns the name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Plain => "plain",
            Layout::Repacked(repack) => repack.name(),
        }
    }

    /// Returns true if the strides describe the memory layout.
    pub fn is_plain(self) -> bool {
        matches!(self, Layout::Plain)
    }

    /// Returns true if rows of this type stay as in a file.
    pub fn keeps_rows(self, ty: GgmlType) -> bool {
        match self {
            Layout::Plain => true,
            Layout::Repacked(repack) => repack.keeps_rows(ty),
        }
    }

    /// Returns true if tensors of this type and shape can have this layout.
    pub fn accepts(self, ty: GgmlType, ne: [usize; 4]) -> bool {
        match self {
            Layout::Plain => true,
            Layout::Repacked(repack) => ne[1].is_multiple_of(repack.group_rows()) && repack.accepts(ty, ne),
        }
    }

    /// Returns the number of rows that must be moved together.
    pub fn group_rows(self) -> usize {
        match self {
            Layout::Plain => 1,
            Layout::Repacked(repack) => repack.group_rows(),
        }
    }

    /// Returns the size in bytes of a group of rows of `n` elements; `None` if rows are not whole blocks or
    /// the size overflows.
    pub fn group_bytes(self, ty: GgmlType, n: usize) -> Option<usize> {
        match self {
            Layout::Plain => ty.row_bytes(n),
            Layout::Repacked(repack) => Some(repack.group_bytes(ty, n)),
        }
    }

    /// Returns the byte range of rows of `n` elements within their tensor; `None` if the range is not whole
    /// groups or overflows.
    pub fn byte_range(self, ty: GgmlType, n: usize, rows: Range<usize>) -> Option<Range<usize>> {
        let (group, bytes) = (self.group_rows(), self.group_bytes(ty, n)?);
        if !rows.start.is_multiple_of(group) || !rows.end.is_multiple_of(group) || rows.end < rows.start {
            return None;
        }
        let start = (rows.start / group).checked_mul(bytes)?;
        Some(start..(rows.end / group).checked_mul(bytes)?)
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Layout {}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
