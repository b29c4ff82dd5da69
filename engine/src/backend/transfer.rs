//! Transfers weights to and from buffers in any layout, a few rows at a time, so that no second copy of the
//! model is needed.

use std::borrow::Cow;
use std::ops::Range;

use kernels::GgmlType;
use rayon::prelude::*;

use super::{BackendError, Buffer, check_range};
use crate::graph::{Layout, Repack, Tensor, dense_bytes};

/// Bytes that a thread copies at a time.
const PIECE: usize = 1 << 20;

/// Description of a tensor stored in a buffer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stored {
    /// Element type.
    pub ty: GgmlType,
    /// Shape, innermost dimension first. Rows are numbered across all dimensions but the first.
    pub ne: [usize; 4],
    /// Row layout.
    pub layout: Layout,
    /// Offset of the first byte in the buffer.
    pub offset: usize,
}

impl Stored {
    /// Describes a contiguous tensor at an offset in a buffer.
    pub fn new(tensor: &Tensor, offset: usize) -> Stored {
        Stored {
            ty: tensor.ty,
            ne: tensor.ne,
            layout: tensor.layout,
            offset,
        }
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.ne[1..].iter().product()
    }

    /// Returns the size of the tensor in the buffer, in bytes.
    pub fn nbytes(&self) -> usize {
        dense_bytes(self.ty, self.ne, self.layout)
    }

    /// Returns the byte range of rows in the buffer. Returns an error unless they form whole row groups and
    /// have `file_bytes` bytes in the file format.
    fn locate(&self, rows: &Range<usize>, file_bytes: usize) -> Result<Range<usize>, BackendError> {
        self.stored_range(rows, file_bytes).ok_or_else(|| BackendError::Rows {
            rows: rows.clone(),
            n_rows: self.n_rows(),
            layout: self.layout.name(),
            bytes: file_bytes,
        })
    }

    /// Returns the byte range of rows, or `None` under the conditions of [`locate`](Self::locate).
    fn stored_range(&self, rows: &Range<usize>, file_bytes: usize) -> Option<Range<usize>> {
        if !self.layout.accepts(self.ty, self.ne) || rows.end > self.n_rows() {
            return None;
        }
        let in_file = Layout::Plain.byte_range(self.ty, self.ne[0], rows.clone())?;
        let stored = self.layout.byte_range(self.ty, self.ne[0], rows.clone())?;
        if in_file.len() != file_bytes {
            return None;
        }
        Some(stored.start.checked_add(self.offset)?..stored.end.checked_add(self.offset)?)
    }

    /// Converts rows from the file format to the tensor's layout. Returns their offset in the buffer and the
    /// converted bytes.
    pub fn pack<'a>(&self, rows: &Range<usize>, data: &'a [u8]) -> Result<(usize, Cow<'a, [u8]>), BackendError> {
        let range = self.locate(rows, data.len())?;
        let stored = match self.layout {
            Layout::Plain => Cow::Borrowed(data),
            Layout::Repacked(repack) => {
                let mut stored = vec![0; range.len()];
                self.pack_groups(repack, data, &mut stored);
                Cow::Owned(stored)
            }
        };
        Ok((range.start, stored))
    }

    /// Converts all rows from the tensor's layout to the file format.
    pub(super) fn unpack(&self, stored: &[u8]) -> Vec<u8> {
        let Layout::Repacked(repack) = self.layout else {
            return stored.to_vec();
        };
        let mut rows = vec![0; self.n_rows() * self.ty.row_bytes(self.ne[0]).unwrap_or(0)];
        self.unpack_groups(repack, stored, &mut rows);
        rows
    }

    fn pack_groups(&self, repack: &dyn Repack, rows: &[u8], stored: &mut [u8]) {
        let (group, in_file) = (repack.group_bytes(self.ty, self.ne[0]), self.group_in_file(repack));
        let groups = stored.par_chunks_exact_mut(group).zip(rows.par_chunks_exact(in_file));
        groups.for_each(|(group, rows)| repack.pack(self.ty, self.ne[0], rows, group));
    }

    fn unpack_groups(&self, repack: &dyn Repack, stored: &[u8], rows: &mut [u8]) {
        let (group, in_file) = (repack.group_bytes(self.ty, self.ne[0]), self.group_in_file(repack));
        let groups = rows.par_chunks_exact_mut(in_file).zip(stored.par_chunks_exact(group));
        groups.for_each(|(rows, group)| repack.unpack(self.ty, self.ne[0], group, rows));
    }

    /// Returns the size of a row group in the file format, at least 1.
    fn group_in_file(&self, repack: &dyn Repack) -> usize {
        let row = self.ty.row_bytes(self.ne[0]).unwrap_or(0);
        (row * repack.group_rows()).max(1)
    }
}

/// Default implementation of [`Buffer::set_tensor`].
pub(super) fn set_tensor<B: Buffer + ?Sized>(
    buffer: &mut B,
    tensor: &Stored,
    rows: Range<usize>,
    data: &[u8],
) -> Result<(), BackendError> {
    let range = tensor.locate(&rows, data.len())?;
    check_range(buffer, range.start, range.len())?;
    let Some(bytes) = buffer.bytes_mut() else {
        let (at, stored) = tensor.pack(&rows, data)?;
        return buffer.write(at, &stored);
    };
    let stored = &mut bytes[range];
    match tensor.layout {
        Layout::Repacked(repack) => tensor.pack_groups(repack, data, stored),
        Layout::Plain => {
            let pieces = stored.par_chunks_mut(PIECE).zip(data.par_chunks(PIECE));
            pieces.for_each(|(to, from)| to.copy_from_slice(from));
        }
    }
    Ok(())
}

/// Default implementation of [`Buffer::get_tensor`].
pub(super) fn get_tensor<B: Buffer + ?Sized>(
    buffer: &B,
    tensor: &Stored,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<(), BackendError> {
    let range = tensor.locate(&rows, out.len())?;
    let Layout::Repacked(repack) = tensor.layout else {
        return buffer.read(range.start, out);
    };
    check_range(buffer, range.start, range.len())?;
    match buffer.bytes() {
        Some(bytes) => tensor.unpack_groups(repack, &bytes[range], out),
        None => {
            let mut stored = vec![0; range.len()];
            buffer.read(range.start, &mut stored)?;
            tensor.unpack_groups(repack, &stored, out);
        }
    }
    Ok(())
}
