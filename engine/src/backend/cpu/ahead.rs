//! Weights of the next products, fetched into the caches by threads that have nothing to do.
//!
//! What decoding a token takes is the time that memory needs to deliver the weights. Between two products threads wait for each other, and while
//! one of them computes a norm or a rotation memory would be idle. So a thread that waits asks for what it will read next.

use std::hint;
use std::ops::Range;

use kernels::{CACHE_LINE, CacheLevel, prefetch};

use super::queue::Share;

/// Most bytes that a thread fetches ahead of a phase: half of a small second-level cache.
const MOST: usize = 256 << 10;

/// Bytes that a thread asks for in place of a pause.
const AT_ONCE: usize = 4 * CACHE_LINE;

/// The weights that are read next after each phase of a plan.
#[derive(Default)]
pub(super) struct Ahead {
    weights: Vec<Weights>,
    /// For each phase, which of the weights.
    after: Vec<Range<usize>>,
}

/// Weights in memory that threads share.
pub(super) struct Weights {
    pub(super) start: usize,
    /// Bytes of a piece of work.
    pub(super) piece: usize,
    pub(super) n_pieces: usize,
}

/// How far a thread is with the weights ahead of it.
#[derive(Default)]
pub(super) struct Cursor {
    /// Which weights are ahead.
    list: Range<usize>,
    /// Which of them come after those in `bytes`.
    rest: Range<usize>,
    /// Where there is more to ask for.
    bytes: Range<usize>,
    /// Bytes that may be asked for yet.
    left: usize,
}

impl Ahead {
    /// Forgets what there was, and makes room for the weights of `n_nodes` nodes.
    pub(super) fn clear(&mut self, n_nodes: usize) {
        self.weights.clear();
        self.weights.reserve(n_nodes);
        self.after.clear();
        self.after.reserve(n_nodes);
    }

    /// Adds the next phase: the weights that it reads.
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

    /// What a thread with this share of the work may fetch after a phase.
    pub(super) fn after<'a>(&'a self, phase: usize, cursor: &'a mut Cursor, share: Share) -> Fetch<'a> {
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

/// Fetches what is ahead of a thread.
pub(super) struct Fetch<'a> {
    weights: &'a [Weights],
    cursor: &'a mut Cursor,
    share: Share,
}

impl Fetch<'_> {
    /// Asks for a little more, and pauses.
    pub(super) fn fetch_some(&mut self) {
        for line in self.next_bytes().step_by(CACHE_LINE) {
            prefetch(std::ptr::without_provenance(line), CacheLevel::Second);
        }
        hint::spin_loop();
    }

    /// What to ask for next: at most [`AT_ONCE`] bytes of the thread's range of some weights.
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

    /// All that a thread asks for after a phase, in as many pauses.
    fn asked(ahead: &Ahead, phase: usize, cursor: &mut Cursor, ith: usize, pauses: usize) -> Vec<Range<usize>> {
        let mut fetch = ahead.after(phase, cursor, Share { ith, nth: 2 });
        let mut asked: Vec<Range<usize>> = Vec::new();
        for bytes in (0..pauses).map(|_| fetch.next_bytes()) {
            assert!(bytes.len() <= AT_ONCE);
            match asked.last_mut() {
                Some(last) if last.end == bytes.start => last.end = bytes.end,
                _ if !bytes.is_empty() => asked.push(bytes),
                _ => {}
            }
        }
        asked
    }

    #[test]
    fn a_thread_asks_for_its_own_part_of_the_next_weights_once() {
        let mut ahead = Ahead::default();
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
        assert_eq!(asked(&ahead, 0, &mut cursor, 0, 100), [0..2 << 10, 10 << 10..12 << 10]);
        assert_eq!(asked(&ahead, 0, &mut cursor, 0, 100), []);
        assert_eq!(
            asked(&ahead, 0, &mut Cursor::default(), 1, 100),
            [2 << 10..4 << 10, 12 << 10..13 << 10]
        );

        // Of long ones only a part; the next phase goes on where the one before stopped.
        let (start, stop) = ((1 << 20) + (512 << 10), (1 << 20) + (512 << 10) + 2 * AT_ONCE);
        let first = asked(&ahead, 1, &mut cursor, 1, 2);
        assert_eq!(first.first(), Some(&(start..stop)));
        let rest = asked(&ahead, 3, &mut cursor, 1, 1 << 20);
        assert_eq!(rest.first(), Some(&(stop..start + MOST)));
        assert_eq!((first.len(), rest.len()), (1, 1));
        assert_eq!(asked(&ahead, 4, &mut cursor, 1, 100), []);
    }
}
