//! Weights into memory: in place where the file is mapped and the CPU computes, else copied to the device's buffers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::backend::{Buffer, BufferType};
use crate::build::{WeightLeaf, WeightPart};
use crate::gguf::{GgufSet, Mapping};
use crate::graph::{BufferId, Home, Name};

use super::load::{LoadParams, progress};
use super::placement::Placement;
use super::{ModelError, TableRow};

/// The weights as graphs see them, and the buffers they lie in; homes name buffers by position.
type Uploaded = (Vec<WeightLeaf>, Vec<Arc<dyn Buffer>>);

/// Places every row of the table and copies what cannot be used in place.
pub(super) fn upload(
    set: &GgufSet,
    rows: &[TableRow],
    placement: &Placement,
    params: &LoadParams,
) -> Result<Uploaded, ModelError> {
    let path = set.first().path();
    for row in rows {
        if !kernels::can_dequantize(row.ty) {
            let (path, tensor) = (path.to_owned(), row.name.clone());
            return Err(ModelError::UnsupportedType {
                path,
                tensor,
                ty: row.ty,
            });
        }
    }
    let mut layout = Layout::new(set, placement);
    let pieces: Vec<Vec<Piece>> = (0..rows.len()).map(|i| layout.place(set, rows, placement, i)).collect();
    let buffers = layout.allocate().map_err(|source| ModelError::Backend {
        path: path.to_owned(),
        source,
    })?;
    copy(set, rows, &pieces, &buffers, layout.n_mapped, params)?;
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
        let home = if self.n_mapped > 0 && ty.is_host() && row.stored_type() == row.ty {
            let info = file.tensor(&row.name).expect("the table was matched against this file");
            Home {
                buffer: BufferId(row.shard as u32),
                offset: file.tensor_offset(info) + row.offset + begin,
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

    fn allocate(&self) -> Result<Vec<Arc<dyn Buffer>>, crate::backend::BackendError> {
        let mut buffers = self.mapped.clone();
        for (ty, size) in &self.new {
            buffers.push(ty.allocate(*size)?);
        }
        Ok(buffers)
    }
}

/// Fills the new buffers, several tensors at a time. A cancelled or failed load drops all buffers with the caller's error.
fn copy(
    set: &GgufSet,
    rows: &[TableRow],
    pieces: &[Vec<Piece>],
    buffers: &[Arc<dyn Buffer>],
    n_mapped: usize,
    params: &LoadParams,
) -> Result<(), ModelError> {
    let path = set.first().path();
    let of_row = |(row, pieces): (_, &'_ Vec<Piece>)| pieces.iter().map(move |&p| (row, p)).collect::<Vec<_>>();
    let mut new: Vec<(&TableRow, Piece)> = rows.iter().zip(pieces).flat_map(of_row).collect();
    new.retain(|(_, piece)| piece.home.buffer.0 as usize >= n_mapped);
    let total: usize = new.iter().map(|(_, p)| p.bytes).sum();
    let (done, cancelled) = (AtomicUsize::new(0), AtomicBool::new(false));
    new.par_iter().try_for_each(|(row, piece)| {
        if cancelled.load(Ordering::Relaxed) {
            return Err(ModelError::Cancelled { path: path.to_owned() });
        }
        let fail = |source| ModelError::Backend {
            path: path.to_owned(),
            source,
        };
        write_piece(set, row, piece, &*buffers[piece.home.buffer.0 as usize]).map_err(fail)?;
        let done = done.fetch_add(piece.bytes, Ordering::Relaxed) + piece.bytes;
        progress(params, path, done as f32 / total as f32 * 0.99)
            .inspect_err(|_| cancelled.store(true, Ordering::Relaxed))
    })
}

fn write_piece(
    set: &GgufSet,
    row: &TableRow,
    piece: &Piece,
    buffer: &dyn Buffer,
) -> Result<(), crate::backend::BackendError> {
    let bytes = file_bytes(set, row);
    if row.stored_type() == row.ty {
        return buffer.write(piece.home.offset, &bytes[piece.begin..piece.begin + piece.bytes]);
    }
    // Only whole tensors are stored in another type.
    let mut floats = vec![0f32; row.ne.iter().product()];
    kernels::dequantize_row(row.ty, bytes, &mut floats);
    buffer.write(piece.home.offset, bytemuck::cast_slice(&floats))
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
