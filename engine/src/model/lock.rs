//! Locking of weights in physical memory (`mlock`).

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::backend::Buffer;
use crate::builder::WeightLeaf;

use super::leaf::stored_parts;

/// Maximum gap in bytes between ranges that are locked as one. Such ranges may share a page, and locking the gap costs
/// little.
const GAP: usize = 4096;

/// Weights locked in physical memory, so that they are neither swapped out nor dropped from the page cache.
/// Only ranges with weights are locked, which for mapped files means tensors used in place.
pub(super) struct LockedMemory {
    buffers: Vec<Arc<dyn Buffer>>,
    /// Locked byte ranges by buffer index.
    ranges: Vec<(usize, Range<usize>)>,
}

impl LockedMemory {
    /// Locks all weights in host memory. If locking fails, nothing stays locked and a warning is added.
    pub(super) fn all(
        path: &Path,
        leafs: &[WeightLeaf],
        buffers: &[Arc<dyn Buffer>],
        warnings: &mut Vec<String>,
    ) -> LockedMemory {
        let mut locked = LockedMemory {
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
                // SAFETY: the range is inside a live buffer (`self.buffers`) and was locked by `lock`.
                unsafe { libc::munlock(bytes.as_ptr().cast(), bytes.len()) };
            }
        }
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// Locks a byte range. Returns false on failure; ranges outside host memory succeed without effect.
fn lock(buffer: &dyn Buffer, range: &Range<usize>) -> bool {
    let Some(bytes) = buffer.bytes() else { return true };
    let bytes = &bytes[range.clone()];
    // SAFETY: the range is inside a live buffer, which `LockedMemory` keeps alive until it is unlocked.
    unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) == 0 }
}

/// Returns the byte ranges of all weights by buffer, with adjacent ranges merged.
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
    // SAFETY: `limit` is a valid, writable `rlimit`.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    let limit = if known {
        format!("; the limit is {} bytes (raise it with `ulimit -l`)", limit.rlim_cur)
    } else {
        String::new()
    };
    format!(
        "{}: cannot lock {size} bytes in memory: {reason}{limit}",
        path.display()
    )
}
