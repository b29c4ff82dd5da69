//! How the rows of a weight are arranged in memory: as in the file, or otherwise, for kernels that read them faster that way.

use std::fmt;
use std::ops::Range;

use kernels::GgmlType;

/// An arrangement that is not the file's. Rows are stored in groups; a group lies in one piece, in the order of the groups, so that a
/// tensor can be converted a few groups at a time.
pub trait Repack: Send + Sync {
    /// Unique name, such as `rows_x4`.
    fn name(&self) -> &'static str;

    /// True if tensors of this type and shape can be arranged so. The number of rows `ne[1]` must then be a multiple of
    /// [`group_rows`](Repack::group_rows), so that a group never reaches into the next matrix.
    fn accepts(&self, ty: GgmlType, ne: [usize; 4]) -> bool;

    /// Rows of a group.
    fn group_rows(&self) -> usize;

    /// Bytes of a group of rows of `n` elements; they need not be as many as in the file.
    fn group_bytes(&self, ty: GgmlType, n: usize) -> usize;

    /// Arranges the rows of one group, as they are in a file, into `group`.
    fn pack(&self, ty: GgmlType, n: usize, rows: &[u8], group: &mut [u8]);

    /// Row `i` of a group, as it is in a file.
    fn unpack_row(&self, ty: GgmlType, n: usize, group: &[u8], i: usize, row: &mut [u8]);

    /// The inverse of [`pack`](Repack::pack).
    fn unpack(&self, ty: GgmlType, n: usize, group: &[u8], rows: &mut [u8]) {
        let row_bytes = rows.len() / self.group_rows();
        for (i, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
            self.unpack_row(ty, n, group, i, row);
        }
    }
}

/// The arrangement of a tensor's rows.
#[derive(Clone, Copy, Default)]
pub enum Layout {
    /// As in a file: row after row, blocks in order; what strides describe.
    #[default]
    Plain,
    /// As the kernels of some device like it. Strides then say nothing but the shape's.
    Repacked(&'static dyn Repack),
}

impl Layout {
    /// Name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Plain => "plain",
            Layout::Repacked(repack) => repack.name(),
        }
    }

    /// True if strides say where elements lie.
    pub fn is_plain(self) -> bool {
        matches!(self, Layout::Plain)
    }

    /// True if tensors of this type and shape can be arranged so.
    pub fn accepts(self, ty: GgmlType, ne: [usize; 4]) -> bool {
        match self {
            Layout::Plain => true,
            Layout::Repacked(repack) => ne[1].is_multiple_of(repack.group_rows()) && repack.accepts(ty, ne),
        }
    }

    /// Rows that can only be moved together.
    pub fn group_rows(self) -> usize {
        match self {
            Layout::Plain => 1,
            Layout::Repacked(repack) => repack.group_rows(),
        }
    }

    /// Bytes of a group of rows of `n` elements; `None` if they are no whole blocks or do not fit the address space.
    pub fn group_bytes(self, ty: GgmlType, n: usize) -> Option<usize> {
        match self {
            Layout::Plain => ty.row_bytes(n),
            Layout::Repacked(repack) => Some(repack.group_bytes(ty, n)),
        }
    }

    /// Where rows of `n` elements lie, from the start of their tensor; `None` unless they are whole groups that fit the address space.
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
