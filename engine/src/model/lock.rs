//! Weights that stay in memory for good (`mlock`).

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::backend::Buffer;
use crate::builder::WeightLeaf;

use super::upload::stored_parts;

/// Ranges that lie no further apart than this are locked as one: there is a page that both touch, or little between them.
const GAP: usize = 4096;

/// Memory of weights that is not written to disk to make room, nor read from a mapped file again. Only what weights take up is locked: of a
/// mapped file the pages of those that are used in place.
pub(super) struct Locked {
    buffers: Vec<Arc<dyn Buffer>>,
    /// By buffer, bytes that are locked.
    ranges: Vec<(usize, Range<usize>)>,
}

impl Locked {
    /// Locks the weights that lie in host memory. If that cannot be had, nothing is locked and `warnings` tells it.
    pub(super) fn all(
        path: &Path,
        leafs: &[WeightLeaf],
        buffers: &[Arc<dyn Buffer>],
        warnings: &mut Vec<String>,
    ) -> Locked {
        let mut locked = Locked {
            buffers: buffers.to_vec(),
            ranges: Vec::new(),
        };
        let wanted = ranges(leafs);
        for (buffer, range) in &wanted {
            if !lock(&*buffers[*buffer], range) {
                let size = wanted.iter().map(|(_, range)| range.len()).sum();
                warnings.push(warning(path, size));
                locked.unlock();
                break;
            }
            locked.ranges.push((*buffer, range.clone()));
        }
        locked
    }

    fn unlock(&mut self) {
        for (buffer, range) in self.ranges.drain(..) {
            if let Some(bytes) = self.buffers[buffer].bytes() {
                let bytes = &bytes[range];
                // SAFETY: the memory is that of a live buffer and was locked before.
                unsafe { libc::munlock(bytes.as_ptr().cast(), bytes.len()) };
            }
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// False if these bytes cannot be locked; those of other memory than the host's need not be.
fn lock(buffer: &dyn Buffer, range: &Range<usize>) -> bool {
    let Some(bytes) = buffer.bytes() else { return true };
    let bytes = &bytes[range.clone()];
    // SAFETY: the memory is that of a live buffer, which `Locked` keeps alive until it is unlocked.
    unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) == 0 }
}

/// Where weights lie, by buffer and offset; neighbours are put together.
fn ranges(leafs: &[WeightLeaf]) -> Vec<(usize, Range<usize>)> {
    let parts = leafs.iter().flat_map(stored_parts);
    let mut all: Vec<_> = parts
        .map(|(buffer, part)| (buffer.0 as usize, part.offset..part.offset + part.nbytes()))
        .collect();
    all.sort_by_key(|(buffer, range)| (*buffer, range.start));
    let mut merged: Vec<(usize, Range<usize>)> = Vec::new();
    for (buffer, range) in all {
        match merged.last_mut() {
            Some((last, before)) if *last == buffer && range.start <= before.end + GAP => {
                before.end = before.end.max(range.end);
            }
            _ => merged.push((buffer, range)),
        }
    }
    merged
}

fn warning(path: &Path, size: usize) -> String {
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
