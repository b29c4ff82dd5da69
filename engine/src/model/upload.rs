//! Transfer of weights into memory. Weights of a mapped file that the CPU can read unchanged are used in place. All
//! others are copied to device buffers, and their pages are released from the process.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::backend::{BackendError, Buffer, BufferType, Upload};
use crate::builder::WeightLeaf;
use crate::gguf::GgufSet;
use crate::graph::{BufferId, BufferSlice, Layout, dense_bytes};

use super::leaf::{Piece, leaf};
use super::params::LoadParams;
use super::placement::{Placement, RowPart};
use super::{Consumer, ModelError, TableRow};

/// Weights as seen by graphs, and their buffers; buffer slices refer to buffers by index.
type Uploaded = (Vec<WeightLeaf>, Vec<Arc<dyn Buffer>>);

/// Checks that every tensor has a supported type.
pub(super) fn check_types(path: &Path, rows: &[TableRow]) -> Result<(), ModelError> {
    for row in rows {
        // I32 is only supported for expert tables inside layers, not for embeddings.
        let ints = row.ty == kernels::GgmlType::I32 && row.consumer == Consumer::GetRows && row.layer.is_some();
        if !ints && !kernels::can_decode(row.ty) {
            let (path, tensor) = (path.to_owned(), row.name.clone());
            return Err(ModelError::UnsupportedType {
                path,
                tensor,
                ty: row.ty,
            });
        }
    }
    Ok(())
}

/// Places all rows of the table and copies the rows that cannot be used in place.
pub(super) fn upload(
    set: &GgufSet,
    rows: &[TableRow],
    placement: &Placement,
    params: &LoadParams,
) -> Result<Uploaded, ModelError> {
    let mut plan = BufferPlan::new(set, placement, params);
    let pieces: Vec<Vec<Piece>> = (0..rows.len()).map(|i| plan.place(set, rows, placement, i)).collect();
    let transfer = Transfer::new(set, params, rows.iter().zip(&pieces), plan.n_mapped);
    let buffers = plan.fill(&transfer, placement)?;
    for shard in set.shards() {
        shard.mapping().check_unchanged().map_err(|e| e.in_file(shard.path()))?;
    }
    let leafs = rows
        .iter()
        .zip(&pieces)
        .map(|(row, pieces)| leaf(row, pieces))
        .collect();
    Ok((leafs, buffers))
}

/// Returns bytes of a file, in place if the file is mapped, else read or computed into `scratch`.
pub(super) fn file_bytes<'a>(
    set: &'a GgufSet,
    params: &LoadParams,
    shard: usize,
    range: Range<usize>,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8], ModelError> {
    let shard = &set.shards()[shard];
    let read = if params.mmap {
        shard.mapping().view(range, scratch)
    } else {
        shard.mapping().read_at(range, scratch)
    };
    read.map_err(|e| e.in_file(shard.path()).into())
}

/// Buffers of the weights: mapped shards first, then buffers to allocate.
struct BufferPlan {
    mapped: Vec<Box<dyn Buffer>>,
    n_mapped: usize,
    /// Buffer of each shard; `None` for shards that are not mapped.
    of_shards: Vec<Option<BufferId>>,
    /// Memory and size in bytes of each new buffer.
    new: Vec<(Arc<dyn BufferType>, usize)>,
    /// Buffer that is currently being filled in each memory.
    open: Vec<Option<usize>>,
    /// Locations of parts that may be shared (tied output), by file tensor, byte offset, and part.
    seen: Vec<((usize, usize, RowPart), BufferSlice)>,
}

impl BufferPlan {
    fn new(set: &GgufSet, placement: &Placement, params: &LoadParams) -> BufferPlan {
        let (mut mapped, mut of_shards) = (Vec::new(), Vec::new());
        for shard in set.shards() {
            let is_usable = params.mmap && !shard.mapping().is_computed();
            let mapping = is_usable.then(|| shard.mapping().clone());
            let buffer = mapping.and_then(|mapping| placement.cpu().buffer_from_host(mapping));
            of_shards.push(buffer.as_ref().map(|_| BufferId(mapped.len() as u32)));
            mapped.extend(buffer);
        }
        BufferPlan {
            n_mapped: mapped.len(),
            mapped,
            of_shards,
            new: Vec::new(),
            open: vec![None; placement.types.len()],
            seen: Vec::new(),
        }
    }

    fn place(&mut self, set: &GgufSet, rows: &[TableRow], placement: &Placement, i: usize) -> Vec<Piece> {
        let row = &rows[i];
        let mut first_row = 0;
        let pieces = placement.parts[i].iter().map(|&part| {
            let piece = Piece {
                first_row,
                part,
                home: self.home(set, row, placement, part, first_row),
            };
            first_row += part.n_rows;
            piece
        });
        pieces.collect()
    }

    /// Assigns a buffer slice to a part of a tensor that starts at `first_row`.
    fn home(
        &mut self,
        set: &GgufSet,
        row: &TableRow,
        placement: &Placement,
        part: RowPart,
        first_row: usize,
    ) -> BufferSlice {
        let begin = row.offset + first_row * row.row_bytes();
        let key = (row.file_index, begin, part);
        if let Some((_, home)) = self.seen.iter().find(|(k, _)| *k == key) {
            return *home;
        }
        let ty = &placement.types[part.memory];
        let offset = row.file_range(set).start + first_row * row.row_bytes();
        // Some ops read f32 or i32 slices. Data that the file does not align for them must be copied.
        let is_list = matches!(row.ty, kernels::GgmlType::F32 | kernels::GgmlType::I32);
        let is_aligned = !is_list || offset.is_multiple_of(align_of::<f32>());
        let is_as_in_file = row.stored_type() == row.ty && part.layout.is_plain();
        let is_usable = ty.is_host() && is_as_in_file && is_aligned;
        let home = match self.of_shards[row.shard] {
            Some(buffer) if is_usable => BufferSlice { buffer, offset },
            _ => self.take(ty, part.memory, part.bytes(row)),
        };
        self.seen.push((key, home));
        home
    }

    /// Reserves space in the current buffer of a memory, or in a new one if the maximum buffer size would be
    /// exceeded.
    fn take(&mut self, ty: &Arc<dyn BufferType>, memory: usize, bytes: usize) -> BufferSlice {
        let fits = |&b: &usize| self.new[b].1.next_multiple_of(ty.alignment()).saturating_add(bytes) <= ty.max_size();
        let buffer = self.open[memory].filter(fits).unwrap_or_else(|| {
            self.new.push((ty.clone(), 0));
            self.new.len() - 1
        });
        self.open[memory] = Some(buffer);
        let offset = self.new[buffer].1.next_multiple_of(ty.alignment());
        self.new[buffer].1 = offset + bytes;
        BufferSlice {
            buffer: BufferId((self.n_mapped + buffer) as u32),
            offset,
        }
    }

    /// Allocates the new buffers and fills them in parallel.
    fn fill(self, transfer: &Transfer<'_>, placement: &Placement) -> Result<Vec<Arc<dyn Buffer>>, ModelError> {
        // Allocate all buffers before filling any, so that an allocation failure is reported early.
        let allocated: Result<Vec<_>, _> = self.new.iter().map(|(ty, size)| ty.allocate(*size)).collect();
        let allocated = allocated.map_err(|e| transfer.failed(e))?;
        let filled: Result<Vec<_>, _> = (allocated.into_par_iter().enumerate())
            .map(|(i, buffer)| transfer.fill(self.n_mapped + i, buffer, placement))
            .collect();
        Ok(self.mapped.into_iter().chain(filled?).map(Arc::from).collect())
    }
}

/// Copy of a part of a tensor.
struct PieceCopy<'a> {
    row: &'a TableRow,
    piece: Piece,
}

impl PieceCopy<'_> {
    /// Returns the number of bytes to copy.
    fn n_bytes(&self) -> usize {
        dense_bytes(
            self.row.stored_type(),
            self.piece.part.shape(self.row.ne),
            Layout::Plain,
        )
    }

    /// Returns the byte range of some rows in the file.
    fn file_range(&self, set: &GgufSet, rows: &Range<usize>) -> Range<usize> {
        let (start, row_bytes) = (self.row.file_range(set).start, self.row.row_bytes());
        let at = |i: usize| start + (self.piece.first_row + i) * row_bytes;
        at(rows.start)..at(rows.end)
    }

    /// Converts rows to the stored type.
    fn converted<'b>(&self, bytes: &'b [u8], scratch: &'b mut ConvertedRows) -> &'b [u8] {
        let row = self.row;
        let (n, row_bytes) = (row.ne[0], row.row_bytes());
        if row.can_map() {
            return bytes;
        }
        if row.keeps_weights() {
            let stored_bytes = row.stored_type().row_bytes(n).unwrap_or(0);
            scratch.blocks.resize(bytes.len() / row_bytes * stored_bytes, 0);
            kernels::rows_in_memory(row.ty, n, bytes, &mut scratch.blocks);
            return &scratch.blocks;
        }
        scratch.floats.resize(bytes.len() / row_bytes * n, 0.0);
        for (bytes, floats) in bytes.chunks_exact(row_bytes).zip(scratch.floats.chunks_exact_mut(n)) {
            kernels::dequantize_row(row.ty, bytes, floats);
        }
        bytemuck::cast_slice(&scratch.floats)
    }
}

/// Bytes copied between checks for cancellation.
const CHUNK: usize = 16 << 20;

/// Reusable buffers for reading and conversion.
#[derive(Default)]
struct Scratch {
    bytes: Vec<u8>,
    converted: ConvertedRows,
}

/// Reusable buffers for rows in the stored type.
#[derive(Default)]
struct ConvertedRows {
    floats: Vec<f32>,
    blocks: Vec<u8>,
}

/// State of the copy. If the load fails or is cancelled, all buffers are dropped with the error.
struct Transfer<'a> {
    set: &'a GgufSet,
    params: &'a LoadParams,
    copies: Vec<PieceCopy<'a>>,
    done: AtomicUsize,
    total: usize,
    cancelled: AtomicBool,
}

impl<'a> Transfer<'a> {
    fn new(
        set: &'a GgufSet,
        params: &'a LoadParams,
        placed: impl Iterator<Item = (&'a TableRow, &'a Vec<Piece>)>,
        n_mapped: usize,
    ) -> Transfer<'a> {
        let mut copies: Vec<PieceCopy<'_>> = Vec::new();
        // Rows that share bytes are copied once.
        let mut sent = HashSet::new();
        for (row, pieces) in placed {
            let is_new = |p: &Piece| p.home.buffer.0 as usize >= n_mapped;
            for &piece in pieces.iter().filter(|p| is_new(p)) {
                if sent.insert((piece.home, piece.part.bytes(row))) {
                    copies.push(PieceCopy { row, piece });
                }
            }
        }
        // File order is the fastest for disks and the page cache.
        copies.sort_by_key(|copy| (copy.row.shard, copy.file_range(set, &(0..0)).start));
        Transfer {
            set,
            params,
            done: AtomicUsize::new(0),
            total: copies.iter().map(PieceCopy::n_bytes).sum(),
            copies,
            cancelled: AtomicBool::new(false),
        }
    }

    /// Fills a new buffer, given its index among all buffers.
    fn fill(
        &self,
        index: usize,
        buffer: Box<dyn Buffer>,
        placement: &Placement,
    ) -> Result<Box<dyn Buffer>, ModelError> {
        let ty = buffer.buffer_type().clone();
        let device = placement.device_of_memory(&*ty);
        let mut upload = device.upload(buffer).map_err(|e| self.failed(e))?;
        let mut scratch = Scratch::default();
        for copy in self
            .copies
            .iter()
            .filter(|copy| copy.piece.home.buffer.0 as usize == index)
        {
            self.send(copy, &mut *upload, &mut scratch)?;
        }
        upload.finish().map_err(|e| self.failed(e))
    }

    fn send(&self, copy: &PieceCopy<'_>, upload: &mut dyn Upload, scratch: &mut Scratch) -> Result<(), ModelError> {
        let stored = copy.piece.stored(copy.row);
        let step = (CHUNK / copy.row.row_bytes().max(1)).max(1);
        let step = step.next_multiple_of(stored.layout.group_rows());
        let file = self.set.shards()[copy.row.shard].mapping();
        for first in (0..stored.n_rows()).step_by(step) {
            if self.cancelled.load(Ordering::Relaxed) {
                let path = self.path().to_owned();
                return Err(ModelError::Cancelled { path });
            }
            let rows = first..(first + step).min(stored.n_rows());
            let range = copy.file_range(self.set, &rows);
            file.prefetch(range.end..range.end + CHUNK);
            let bytes = file_bytes(self.set, self.params, copy.row.shard, range.clone(), &mut scratch.bytes)?;
            let data = copy.converted(bytes, &mut scratch.converted);
            let sent = upload.set_tensor(&stored, rows, data);
            sent.map_err(|e| self.failed(e))?;
            file.release(range);
            self.progress(data.len())?;
        }
        Ok(())
    }

    fn progress(&self, bytes: usize) -> Result<(), ModelError> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let part = 0.99 * done as f32 / self.total as f32;
        let reported = self.params.report(self.path(), part);
        reported.inspect_err(|_| self.cancelled.store(true, Ordering::Relaxed))
    }

    fn failed(&self, source: BackendError) -> ModelError {
        let path = self.path().to_owned();
        ModelError::Backend { path, source }
    }

    fn path(&self) -> &Path {
        self.set.first().path()
    }
}

/// Checks all weights for NaN and infinity; corrupt scales of quantized blocks show up as such values.
pub(super) fn check_values(set: &GgufSet, rows: &[TableRow], params: &LoadParams) -> Result<(), ModelError> {
    let is_checked = |row: &&TableRow| kernels::can_decode(row.ty);
    rows.par_iter()
        .filter(is_checked)
        .try_for_each(|row| check_row(set, row, params))
}

/// Checks a single row of the table; see [`check_values`].
fn check_row(set: &GgufSet, row: &TableRow, params: &LoadParams) -> Result<(), ModelError> {
    let (n, row_bytes) = (row.ne[0], row.row_bytes());
    let (all, step) = (row.file_range(set), (CHUNK / row_bytes).max(1) * row_bytes);
    let (mut scratch, mut values) = (Vec::new(), vec![0f32; n]);
    for start in all.clone().step_by(step) {
        let range = start..all.end.min(start + step);
        let bytes = file_bytes(set, params, row.shard, range.clone(), &mut scratch)?;
        for (i, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
            kernels::dequantize_row(row.ty, bytes, &mut values);
            if let Some(at) = values.iter().position(|v| !v.is_finite()) {
                return Err(ModelError::BadValue {
                    path: set.shards()[row.shard].path().to_owned(),
                    tensor: row.name.clone(),
                    index: ((start - all.start) / row_bytes + i) * n + at,
                    value: values[at],
                });
            }
        }
        set.shards()[row.shard].mapping().release(range);
    }
    Ok(())
}
