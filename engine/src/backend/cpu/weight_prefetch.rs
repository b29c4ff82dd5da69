//! Prefetches the weights of upcoming matmuls on threads that wait at a barrier.
//!
//! Decoding is bound by memory bandwidth: its speed is the speed at which weights arrive. While one thread
//! computes a norm or a RoPE between two matmuls, memory would be idle. A waiting thread therefore prefetches
//! the weights that it will read next.

use std::hint;
use std::ops::Range;

use kernels::{CACHE_LINE, CacheLevel, prefetch};

use super::queue::WorkShare;

/// Maximum number of bytes that a thread prefetches per phase: half of a small L2 cache.
const MOST: usize = 256 << 10;

/// Bytes to prefetch per iteration of the spin loop.
const AT_ONCE: usize = 4 * CACHE_LINE;

/// The weights to prefetch after each phase of a plan.
#[derive(Default)]
pub(super) struct WeightPrefetcher {
    weights: Vec<Weights>,
    /// For each phase, the range of `weights` to prefetch while waiting for its end.
    after: Vec<Range<usize>>,
}

/// A weight matrix in shared memory.
pub(super) struct Weights {
    pub(super) start: usize,
    /// Size in bytes of the chunk of weights that a thread takes from the work queue.
    pub(super) piece: usize,
    pub(super) n_pieces: usize,
}

/// Prefetch progress of a thread.
#[derive(Default)]
pub(super) struct Cursor {
    /// The range of weights to prefetch after the current phase.
    list: Range<usize>,
    /// The part of `list` that follows the matrix in `bytes`.
    rest: Range<usize>,
    /// Address range that is not prefetched yet.
    bytes: Range<usize>,
    /// Remaining bytes of the limit [`MOST`].
    left: usize,
}

impl WeightPrefetcher {
    /// Clears the plan and reserves capacity for the weights of `n_nodes` nodes.
    pub(super) fn clear(&mut self, n_nodes: usize) {
        self.weights.clear();
        self.weights.reserve(n_nodes);
        self.after.clear();
        self.after.reserve(n_nodes);
    }

    /// Appends a phase, given the weights that it reads.
    pub(super) fn add_phase(&mut self, weights: impl Iterator<Item = Weights>) {
        let first = self.weights.len();
        self.weights.extend(weights);
        let new = first..self.weights.len();
        if !new.is_empty() {
            let waiting = self.after.iter_mut().rev().take_while(|ahead| Range::is_empty(ahead));
            waiting.for_each(|ahead| *ahead = new.clone());
        }
        self.after.push(new.end..new.end);
    }

    /// Returns a prefetcher for the part of the next weights that `share` will compute.
    pub(super) fn after<'a>(&'a self, phase: usize, cursor: &'a mut Cursor, share: WorkShare) -> Fetch<'a> {
        let list = self.after.get(phase).cloned().unwrap_or_default();
        if cursor.list != list {
            *cursor = Cursor {
                rest: list.clone(),
                list,
                bytes: 0..0,
                left: MOST,
            };
        }
        Fetch {
            weights: &self.weights,
            cursor,
            share,
        }
    }
}

/// Prefetches the weights that a thread reads next.
pub(super) struct Fetch<'a> {
    weights: &'a [Weights],
    cursor: &'a mut Cursor,
    share: WorkShare,
}

impl Fetch<'_> {
    /// Prefetches up to [`AT_ONCE`] bytes, then pauses the core for one spin iteration.
    pub(super) fn fetch_some(&mut self) {
        for line in self.next_bytes().step_by(CACHE_LINE) {
            prefetch(std::ptr::without_provenance(line), CacheLevel::Second);
        }
        hint::spin_loop();
    }

    /// Returns the next address range to prefetch: at most [`AT_ONCE`] bytes of the thread's part of a
    /// matrix.
    fn next_bytes(&mut self) -> Range<usize> {
        let Cursor { rest, bytes, left, .. } = &mut *self.cursor;
        if Range::is_empty(bytes)
            && let Some(next) = rest.next()
        {
            let Weights { start, piece, n_pieces } = self.weights[next];
            let own = self.share.of(n_pieces);
            *bytes = start + own.start * piece..start + own.end * piece;
            bytes.end = bytes.end.min(bytes.start + *left);
            *left -= bytes.len();
        }
        let start = bytes.start;
        bytes.start = bytes.end.min(start + AT_ONCE);
        start..bytes.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(start: usize, n_pieces: usize) -> Weights {
        Weights {
            start,
            piece: 1 << 10,
            n_pieces,
        }
    }

    /// Returns the ranges that a thread prefetches after a phase in `pauses` iterations.
    fn prefetched(
        ahead: &WeightPrefetcher,
        phase: usize,
        cursor: &mut Cursor,
        ith: usize,
        pauses: usize,
    ) -> Vec<Range<usize>> {
        let mut fetch = ahead.after(phase, cursor, WorkShare { ith, nth: 2 });
        let mut prefetched: Vec<Range<usize>> = Vec::new();
        for bytes in (0..pauses).map(|_| fetch.next_bytes()) {
            assert!(bytes.len() <= AT_ONCE);
            match prefetched.last_mut() {
                Some(last) if last.end == bytes.start => last.end = bytes.end,
                _ if !bytes.is_empty() => prefetched.push(bytes),
                _ => {}
            }
        }
        prefetched
    }

    #[test]
    fn thread_prefetches_its_part_of_next_weights_once() {
        let mut ahead = WeightPrefetcher::default();
        ahead.clear(8);
        let phases = [
            vec![],
            vec![weights(0, 4), weights(10 << 10, 3)],
            vec![],
            vec![],
            vec![weights(1 << 20, 1 << 10)],
        ];
        phases
            .into_iter()
            .for_each(|weights| ahead.add_phase(weights.into_iter()));

        let mut cursor = Cursor::default();
        assert_eq!(
            prefetched(&ahead, 0, &mut cursor, 0, 100),
            [0..2 << 10, 10 << 10..12 << 10]
        );
        assert!(prefetched(&ahead, 0, &mut cursor, 0, 100).is_empty());
        assert_eq!(
            prefetched(&ahead, 0, &mut Cursor::default(), 1, 100),
            [2 << 10..4 << 10, 12 << 10..13 << 10]
        );

        // Large weights are prefetched up to the limit. The next phase continues where the previous phase
        // stopped.
        let (start, stop) = ((1 << 20) + (512 << 10), (1 << 20) + (512 << 10) + 2 * AT_ONCE);
        let first = prefetched(&ahead, 1, &mut cursor, 1, 2);
        assert_eq!(first.first(), Some(&(start..stop)));
        let rest = prefetched(&ahead, 3, &mut cursor, 1, 1 << 20);
        assert_eq!(rest.first(), Some(&(stop..start + MOST)));
        assert_eq!((first.len(), rest.len()), (1, 1));
        assert!(prefetched(&ahead, 4, &mut cursor, 1, 100).is_empty());
    }
}
