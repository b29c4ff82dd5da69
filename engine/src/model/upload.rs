//! Weights into memory: in place where the file is mapped and the CPU computes, else copied to the device's buffers.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::backend::{BackendError, Buffer, BufferType, Upload};
use crate::build::{WeightLeaf, WeightPart};
use crate::gguf::{GgufSet, Mapping};
use crate::graph::{BufferId, Home, Name};

use super::params::LoadParams;
use super::placement::Placement;
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
    let mut layout = Layout::new(set, placement);
    let pieces: Vec<Vec<Piece>> = (0..rows.len()).map(|i| layout.place(set, rows, placement, i)).collect();
    let transfer = Transfer::new(set, params, rows.iter().zip(&pieces), layout.n_mapped);
    let buffers = layout.fill(&transfer, placement)?;
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
    mapped: Vec<Box<dyn Buffer>>,
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

    /// Allocates the new buffers and fills them, several at a time.
    fn fill(self, transfer: &Transfer<'_>, placement: &Placement) -> Result<Vec<Arc<dyn Buffer>>, ModelError> {
        // All are allocated before the first is filled: what is too much fails early.
        let allocated: Result<Vec<_>, _> = self.new.iter().map(|(ty, size)| ty.allocate(*size)).collect();
        let allocated = allocated.map_err(|e| transfer.failed(e))?;
        let filled: Result<Vec<_>, _> = (allocated.into_par_iter().enumerate())
            .map(|(i, buffer)| transfer.fill(self.n_mapped + i, buffer, placement))
            .collect();
        Ok(self.mapped.into_iter().chain(filled?).map(Arc::from).collect())
    }
}

/// A piece of a tensor to be copied.
struct Job<'a> {
    row: &'a TableRow,
    piece: Piece,
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

/// Bytes that are sent at once, between looks at whether the load goes on.
const CHUNK: usize = 16 << 20;

/// What is copied, and how far it has come. A cancelled or failed load drops all buffers with the caller's error.
struct Transfer<'a> {
    set: &'a GgufSet,
    params: &'a LoadParams,
    jobs: Vec<Job<'a>>,
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
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for (row, pieces) in placed {
            let is_new = |p: &&Piece| p.home.buffer.0 as usize >= n_mapped;
            jobs.extend(pieces.iter().filter(is_new).map(|&piece| Job { row, piece }));
        }
        Transfer {
            set,
            params,
            done: AtomicUsize::new(0),
            total: jobs.iter().map(|job| job.piece.bytes).sum(),
            jobs,
            cancelled: AtomicBool::new(false),
        }
    }

    /// Fills one of the new buffers, by its position among all.
    fn fill(
        &self,
        index: usize,
        buffer: Box<dyn Buffer>,
        placement: &Placement,
    ) -> Result<Box<dyn Buffer>, ModelError> {
        let ty = buffer.buffer_type().clone();
        let device = placement.device_of_memory(&*ty);
        let mut upload = device.upload(buffer).map_err(|e| self.failed(e))?;
        for job in self.jobs.iter().filter(|job| job.piece.home.buffer.0 as usize == index) {
            self.send(job, &mut *upload)?;
        }
        upload.finish().map_err(|e| self.failed(e))
    }

    fn send(&self, job: &Job<'_>, upload: &mut dyn Upload) -> Result<(), ModelError> {
        let data = job.data(self.set);
        for (i, chunk) in data.chunks(CHUNK).enumerate() {
            if self.cancelled.load(Ordering::Relaxed) {
                let path = self.path().to_owned();
                return Err(ModelError::Cancelled { path });
            }
            let sent = upload.write(job.piece.home.offset + i * CHUNK, chunk);
            sent.map_err(|e| self.failed(e))?;
            self.progress(chunk.len())?;
        }
        Ok(())
    }

    fn progress(&self, bytes: usize) -> Result<(), ModelError> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let before = self.params.part_of_reading();
        let part = before + (0.99 - before) * done as f32 / self.total as f32;
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
