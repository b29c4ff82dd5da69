//! Weights into memory: in place where the file is mapped and the CPU computes, else copied to the device's buffers.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::backend::{BackendError, Buffer, BufferType, UploadQueue};
use crate::build::{WeightLeaf, WeightPart};
use crate::gguf::{GgufSet, Mapping};
use crate::graph::{BufferId, Home, Name};

use super::load::{LoadParams, READING, progress};
use super::placement::Placement;
use super::staging::{N_SLOTS, Ring, SLOT};
use super::{Consumer, ModelError, TableRow};

/// The weights as graphs see them, and the buffers they lie in; homes name buffers by position.
type Uploaded = (Vec<WeightLeaf>, Vec<Arc<dyn Buffer>>);

/// An error if a row has a type that nothing computes with.
pub(super) fn check_types(path: &Path, rows: &[TableRow]) -> Result<(), ModelError> {
    for row in rows {
        // Rows may be of integers in layers, as lists of experts are; tables outside of them are of embeddings.
        let ints = row.ty == kernels::GgmlType::I32 && row.consumer == Consumer::GetRows && row.layer.is_some();
        if !ints && !kernels::can_dequantize(row.ty) {
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

/// Places every row of the table and copies what cannot be used in place.
pub(super) fn upload(
    set: &GgufSet,
    rows: &[TableRow],
    placement: &Placement,
    params: &LoadParams,
) -> Result<Uploaded, ModelError> {
    let path = set.first().path();
    let mut layout = Layout::new(set, placement);
    let pieces: Vec<Vec<Piece>> = (0..rows.len()).map(|i| layout.place(set, rows, placement, i)).collect();
    let buffers = layout.allocate().map_err(|source| ModelError::Backend {
        path: path.to_owned(),
        source,
    })?;
    let mut new: Vec<Job<'_>> = Vec::new();
    for (row, pieces) in rows.iter().zip(&pieces) {
        let to_copy = pieces.iter().filter(|p| p.home.buffer.0 as usize >= layout.n_mapped);
        new.extend(to_copy.map(|&piece| Job {
            row,
            piece,
            buffer: &buffers[piece.home.buffer.0 as usize],
        }));
    }
    copy(set, &new, placement, params)?;
    let leafs = rows
        .iter()
        .zip(&pieces)
        .map(|(row, pieces)| leaf(row, pieces))
        .collect();
    Ok((leafs, buffers))
}

/// Consecutive rows of a tensor that go to one memory: of most tensors all of them.
#[derive(Clone, Copy)]
struct Piece {
    /// First byte in the tensor as it is stored.
    begin: usize,
    bytes: usize,
    n_rows: usize,
    home: Home,
}

fn leaf(row: &TableRow, pieces: &[Piece]) -> WeightLeaf {
    let part = |p: &Piece| WeightPart {
        n_rows: p.n_rows,
        home: p.home,
    };
    WeightLeaf {
        ty: row.stored_type(),
        ne: row.ne,
        home: pieces[0].home,
        name: Name {
            base: row.base,
            layer: row.layer,
        },
        parts: match pieces {
            [_] => Vec::new(),
            pieces => pieces.iter().map(part).collect(),
        },
    }
}

/// Mapped shards come first, then the buffers to allocate.
struct Layout {
    mapped: Vec<Arc<dyn Buffer>>,
    n_mapped: usize,
    /// Kind of memory and bytes of each new buffer.
    new: Vec<(Arc<dyn BufferType>, usize)>,
    /// The buffer that each kind of memory is being filled in.
    open: Vec<Option<usize>>,
    /// Homes of pieces that others share (a tied output): file tensor, offset, memory, size.
    seen: Vec<((usize, usize, usize, usize), Home)>,
}

impl Layout {
    fn new(set: &GgufSet, placement: &Placement) -> Layout {
        let map = |shard: &crate::gguf::GgufFile| placement.cpu().buffer_from_host(shard.mapping().clone());
        let mapped: Option<Vec<_>> = set.shards().iter().map(map).collect();
        let mapped = mapped.unwrap_or_default();
        Layout {
            n_mapped: mapped.len(),
            mapped,
            new: Vec::new(),
            open: vec![None; placement.types.len()],
            seen: Vec::new(),
        }
    }

    fn place(&mut self, set: &GgufSet, rows: &[TableRow], placement: &Placement, i: usize) -> Vec<Piece> {
        let row = &rows[i];
        let mut begin = 0;
        let parts = placement.parts_or_whole(i, row);
        let pieces = parts.iter().map(|part| {
            // Divided tensors are matrices; whole ones may have further dimensions.
            let bytes = match parts.len() {
                1 => row.bytes(),
                _ => row.bytes() / row.ne[1] * part.n_rows,
            };
            let piece = Piece {
                begin,
                bytes,
                n_rows: part.n_rows,
                home: self.home(set, row, placement, part.memory, (begin, bytes)),
            };
            begin += bytes;
            piece
        });
        pieces.collect()
    }

    /// A place for `bytes` of a tensor from byte `begin` on.
    fn home(
        &mut self,
        set: &GgufSet,
        row: &TableRow,
        placement: &Placement,
        memory: usize,
        (begin, bytes): (usize, usize),
    ) -> Home {
        let key = (row.file_index, row.offset + begin, memory, bytes);
        if let Some((_, home)) = self.seen.iter().find(|(k, _)| *k == key) {
            return *home;
        }
        let ty = &placement.types[memory];
        let file = &set.shards()[row.shard];
        let info = file.tensor(&row.name).expect("the table was matched against this file");
        let offset = file.tensor_offset(info) + row.offset + begin;
        // Some ops take numbers as lists: those that a file's alignment puts between two places are copied.
        let is_list = matches!(row.ty, kernels::GgmlType::F32 | kernels::GgmlType::I32);
        let lies_well = !is_list || offset.is_multiple_of(align_of::<f32>());
        let home = if self.n_mapped > 0 && ty.is_host() && row.stored_type() == row.ty && lies_well {
            Home {
                buffer: BufferId(row.shard as u32),
                offset,
            }
        } else {
            self.take(ty, memory, bytes)
        };
        self.seen.push((key, home));
        home
    }

    /// Room in the open buffer of a kind of memory, or in a new one when that would exceed the kind's limit.
    fn take(&mut self, ty: &Arc<dyn BufferType>, memory: usize, bytes: usize) -> Home {
        let fits = |&b: &usize| self.new[b].1.next_multiple_of(ty.alignment()).saturating_add(bytes) <= ty.max_size();
        let buffer = self.open[memory].filter(fits).unwrap_or_else(|| {
            self.new.push((ty.clone(), 0));
            self.new.len() - 1
        });
        self.open[memory] = Some(buffer);
        let offset = self.new[buffer].1.next_multiple_of(ty.alignment());
        self.new[buffer].1 = offset + bytes;
        Home {
            buffer: BufferId((self.n_mapped + buffer) as u32),
            offset,
        }
    }

    fn allocate(&self) -> Result<Vec<Arc<dyn Buffer>>, BackendError> {
        let mut buffers = self.mapped.clone();
        for (ty, size) in &self.new {
            buffers.push(ty.allocate(*size)?);
        }
        Ok(buffers)
    }
}

/// A piece of a tensor to be copied.
struct Job<'a> {
    row: &'a TableRow,
    piece: Piece,
    buffer: &'a Arc<dyn Buffer>,
}

impl Job<'_> {
    /// The bytes as they are stored.
    fn data<'b>(&self, set: &'b GgufSet) -> Cow<'b, [u8]> {
        let (row, piece) = (self.row, self.piece);
        let bytes = file_bytes(set, row);
        if row.stored_type() == row.ty {
            return Cow::Borrowed(&bytes[piece.begin..piece.begin + piece.bytes]);
        }
        // Only whole tensors are stored in another type.
        let mut floats = vec![0f32; row.ne.iter().product()];
        kernels::dequantize_row(row.ty, bytes, &mut floats);
        Cow::Owned(bytemuck::cast_slice(&floats).to_vec())
    }
}

/// What the threads of an upload have in common.
struct Transfer<'a> {
    set: &'a GgufSet,
    params: &'a LoadParams,
    done: AtomicUsize,
    total: usize,
    cancelled: AtomicBool,
}

/// Fills the new buffers. Devices with a queue get their data one after the other through a [`Ring`] each, all others several
/// tensors at a time. A cancelled or failed load drops all buffers with the caller's error.
fn copy(set: &GgufSet, new: &[Job<'_>], placement: &Placement, params: &LoadParams) -> Result<(), ModelError> {
    let transfer = Transfer {
        set,
        params,
        done: AtomicUsize::new(0),
        total: new.iter().map(|job| job.piece.bytes).sum(),
        cancelled: AtomicBool::new(false),
    };
    let mut direct: Vec<&Job<'_>> = new.iter().collect();
    let mut queued = Vec::new();
    for device in &placement.devices {
        let name = device.buffer_type().name().to_owned();
        let is_here = |job: &&Job<'_>| job.buffer.buffer_type().name() == name;
        if !direct.iter().any(is_here) {
            continue;
        }
        if let Some(queue) = device.upload_queue().map_err(|e| transfer.failed(e))? {
            let (here, others): (Vec<_>, _) = direct.into_iter().partition(is_here);
            direct = others;
            queued.push((queue, here));
        }
    }
    let (queued, direct) = rayon::join(
        || (queued.into_par_iter()).try_for_each(|(queue, jobs)| transfer.through_ring(queue, &jobs)),
        || direct.par_iter().try_for_each(|job| transfer.write(job)),
    );
    queued.and(direct)
}

impl Transfer<'_> {
    fn through_ring(&self, queue: Box<dyn UploadQueue>, jobs: &[&Job<'_>]) -> Result<(), ModelError> {
        let mut ring = Ring::new(queue, N_SLOTS, SLOT).map_err(|e| self.failed(e))?;
        for job in jobs {
            let data = job.data(self.set);
            let go_on = || !self.cancelled.load(Ordering::Relaxed);
            let is_sent = ring.write(job.buffer, job.piece.home.offset, &data, go_on);
            if !is_sent.map_err(|e| self.failed(e))? {
                return Err(self.cancelled());
            }
            self.progress(data.len())?;
        }
        ring.finish().map_err(|e| self.failed(e))
    }

    fn write(&self, job: &Job<'_>) -> Result<(), ModelError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(self.cancelled());
        }
        let written = job.buffer.write(job.piece.home.offset, &job.data(self.set));
        written.map_err(|e| self.failed(e))?;
        self.progress(job.piece.bytes)
    }

    fn progress(&self, bytes: usize) -> Result<(), ModelError> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let before = if self.params.mmap { 0.0 } else { READING };
        let part = before + (0.99 - before) * done as f32 / self.total as f32;
        progress(self.params, self.path(), part).inspect_err(|_| self.cancelled.store(true, Ordering::Relaxed))
    }

    fn failed(&self, source: BackendError) -> ModelError {
        let path = self.path().to_owned();
        ModelError::Backend { path, source }
    }

    fn cancelled(&self) -> ModelError {
        let path = self.path().to_owned();
        ModelError::Cancelled { path }
    }

    fn path(&self) -> &Path {
        self.set.first().path()
    }
}

/// A row's bytes in its shard.
pub(super) fn file_bytes<'a>(set: &'a GgufSet, row: &TableRow) -> &'a [u8] {
    let file = &set.shards()[row.shard];
    let info = file.tensor(&row.name).expect("the table was matched against this file");
    &file.tensor_data(info)[row.offset..row.offset + row.file_bytes()]
}

/// Looks at every value of every tensor for those that are no finite numbers; damaged scales of quantized blocks show that way too.
pub(super) fn check_values(set: &GgufSet, rows: &[TableRow]) -> Result<(), ModelError> {
    rows.par_iter()
        .filter(|r| kernels::can_dequantize(r.ty))
        .try_for_each(|row| {
            let n = row.ne[0];
            let mut values = vec![0f32; n];
            let row_bytes = row.ty.row_bytes(n).expect("rows are whole blocks");
            for (i, bytes) in file_bytes(set, row).chunks_exact(row_bytes).enumerate() {
                kernels::dequantize_row(row.ty, bytes, &mut values);
                if let Some(at) = values.iter().position(|v| !v.is_finite()) {
                    return Err(ModelError::BadValue {
                        path: set.shards()[row.shard].path().to_owned(),
                        tensor: row.name.clone(),
                        index: i * n + at,
                        value: values[at],
                    });
                }
            }
            Ok(())
        })
}

/// Mapped memory that stays resident.
pub(super) struct Locked(Arc<Mapping>);

impl Locked {
    /// Locks all shards; what cannot be locked is told in `warnings`.
    pub fn all(set: &GgufSet, warnings: &mut Vec<String>) -> Vec<Locked> {
        let lock = |shard: &crate::gguf::GgufFile| {
            let bytes = shard.mapping().bytes();
            // SAFETY: the range is a live mapping, which `Locked` keeps alive until it is unlocked.
            match unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) } {
                0 => Ok(Locked(shard.mapping().clone())),
                _ => Err(lock_warning(shard.path(), bytes.len())),
            }
        };
        set.shards()
            .iter()
            .filter_map(|s| lock(s).map_err(|w| warnings.push(w)).ok())
            .collect()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let bytes = self.0.bytes();
        // SAFETY: the mapping is alive and was locked when this value was made.
        unsafe { libc::munlock(bytes.as_ptr().cast(), bytes.len()) };
    }
}

fn lock_warning(path: &Path, size: usize) -> String {
    let reason = std::io::Error::last_os_error();
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for the answer.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    let limit = if known {
        format!("; the limit is {} bytes (`ulimit -l` raises it)", limit.rlim_cur)
    } else {
        String::new()
    };
    format!(
        "{}: {size} bytes cannot be locked in memory: {reason}{limit}",
        path.display()
    )
}
