//! Simulated memory of one buffer type: chunks with holes, from which offsets are allocated.

/// Maximum number of chunks. The last chunk grows without limit, so that the buffer type reports the error.
pub(super) const MAX_CHUNKS: usize = 16;

/// Maximum size of a buffer: Rust's limit for the size of an object.
const LARGEST: usize = isize::MAX as usize;

/// An allocated range of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub chunk: usize,
    pub offset: usize,
    /// A multiple of the alignment, at least one unit.
    pub size: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hole {
    offset: usize,
    size: usize,
}

impl Hole {
    fn end(self) -> usize {
        self.offset + self.size
    }
}

/// A future buffer. All memory at or after `tail` is free; before `tail`, only the `holes` are free.
#[derive(Clone, Default, Debug)]
struct Chunk {
    /// Sorted by offset. Holes are never adjacent to each other or to the tail.
    holes: Vec<Hole>,
    tail: usize,
    /// Maximum of `tail` so far: the required size of the buffer.
    high: usize,
    capacity: usize,
}

impl Chunk {
    fn reset(&mut self, capacity: usize) {
        self.holes.clear();
        self.tail = 0;
        self.high = 0;
        self.capacity = capacity;
    }

    fn take_tail(&mut self, size: usize) -> usize {
        let offset = self.tail;
        self.tail += size;
        self.high = self.high.max(self.tail);
        offset
    }

    fn take_hole(&mut self, index: usize, size: usize) -> usize {
        let hole = &mut self.holes[index];
        let offset = hole.offset;
        hole.offset += size;
        hole.size -= size;
        if hole.size == 0 {
            self.holes.remove(index);
        }
        offset
    }

    fn free(&mut self, offset: usize, size: usize) {
        let at = self.holes.partition_point(|h| h.offset < offset);
        let mut freed = Hole { offset, size };
        let joins_next = self.holes.get(at).is_some_and(|next| freed.end() == next.offset);
        if joins_next {
            freed.size += self.holes[at].size;
        }
        let joins_previous = at > 0 && self.holes[at - 1].end() == freed.offset;
        if joins_previous {
            freed.offset = self.holes[at - 1].offset;
            freed.size += self.holes[at - 1].size;
        }
        let first = at - usize::from(joins_previous);
        let last = at + usize::from(joins_next);
        if freed.end() == self.tail {
            self.tail = freed.offset;
            self.holes.drain(first..last);
        } else {
            self.holes.splice(first..last, [freed]);
        }
    }
}

/// Allocates offsets in chunks of at most `max_size` bytes. A reset keeps the capacity of the tables.
#[derive(Clone, Debug)]
pub(super) struct Arena {
    alignment: usize,
    max_size: usize,
    /// Chunks of memory. The first `n_chunks` are in use; the remaining chunks keep their capacity for reuse.
    chunks: Vec<Chunk>,
    n_chunks: usize,
}

impl Arena {
    /// Creates an empty arena. `alignment` must be a power of two.
    pub fn new(alignment: usize, max_size: usize) -> Arena {
        debug_assert!(alignment.is_power_of_two());
        Arena {
            alignment,
            max_size: max_size.min(LARGEST) & !(alignment - 1),
            chunks: Vec::new(),
            n_chunks: 0,
        }
    }

    pub fn reset(&mut self) {
        self.n_chunks = 0;
    }

    /// Returns the required buffer size of each chunk.
    pub fn chunk_sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks[..self.n_chunks].iter().map(|c| c.high)
    }

    /// Rounds `size` up to the alignment, and to at least one unit so that empty tensors have an address,
    /// too. Returns `None` on overflow.
    pub fn padded(&self, size: usize) -> Option<usize> {
        size.max(1)
            .checked_next_multiple_of(self.alignment)
            .filter(|&s| s <= LARGEST)
    }

    /// Allocates a block of at least `size` bytes. Returns `None` if the address space is too small.
    ///
    /// Uses the smallest hole that fits. If no hole fits, uses the end of a chunk that need not grow, or of the chunk
    /// that grows the least.
    pub fn allocate(&mut self, size: usize) -> Option<Block> {
        let size = self.padded(size)?;
        if let Some((chunk, hole)) = self.best_hole(size) {
            let offset = self.chunks[chunk].take_hole(hole, size);
            return Some(Block { chunk, offset, size });
        }
        let chunk = match self.best_tail(size) {
            Some(chunk) => chunk,
            None => self.open_chunk(size)?,
        };
        let offset = self.chunks[chunk].take_tail(size);
        Some(Block { chunk, offset, size })
    }

    /// Frees a block.
    pub fn free(&mut self, block: Block) {
        self.chunks[block.chunk].free(block.offset, block.size);
    }

    /// Frees all but the first `size` bytes of a block.
    pub fn shrink(&mut self, block: Block, size: usize) -> Block {
        let size = self.padded(size).map_or(block.size, |s| s.min(block.size));
        if size < block.size {
            self.free(Block {
                offset: block.offset + size,
                size: block.size - size,
                ..block
            });
        }
        Block { size, ..block }
    }

    fn best_hole(&self, size: usize) -> Option<(usize, usize)> {
        let mut best: Option<(usize, (usize, usize))> = None;
        for (c, chunk) in self.chunks[..self.n_chunks].iter().enumerate() {
            for (h, hole) in chunk.holes.iter().enumerate() {
                if hole.size >= size && best.is_none_or(|(least, _)| hole.size < least) {
                    best = Some((hole.size, (c, h)));
                }
            }
        }
        best.map(|(_, at)| at)
    }

    fn best_tail(&self, size: usize) -> Option<usize> {
        let fits = |chunk: &Chunk| chunk.capacity - chunk.tail >= size;
        let chunks = self.chunks[..self.n_chunks].iter().enumerate();
        chunks
            .filter(|(_, chunk)| fits(chunk))
            .min_by_key(|(_, chunk)| {
                let end = chunk.tail + size;
                // Prefer chunks that need not grow, ordered by the space left over, then chunks that must
                // grow, ordered by growth.
                (end.saturating_sub(chunk.high), chunk.high.saturating_sub(end))
            })
            .map(|(c, _)| c)
    }

    fn open_chunk(&mut self, size: usize) -> Option<usize> {
        if self.n_chunks == MAX_CHUNKS {
            return None;
        }
        let is_last = self.n_chunks + 1 == MAX_CHUNKS;
        let capacity = if is_last { LARGEST } else { self.max_size.max(size) };
        if self.n_chunks == self.chunks.len() {
            self.chunks.push(Chunk::default());
        }
        self.chunks[self.n_chunks].reset(capacity);
        self.n_chunks += 1;
        Some(self.n_chunks - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(alignment: usize, max_size: usize) -> Arena {
        Arena::new(alignment, max_size)
    }

    fn at(b: Block) -> (usize, usize, usize) {
        (b.chunk, b.offset, b.size)
    }

    #[test]
    fn sizes_are_rounded_up_and_empty_tensors_get_an_offset() {
        let mut a = arena(32, usize::MAX);
        assert_eq!(at(a.allocate(1).unwrap()), (0, 0, 32));
        assert_eq!(at(a.allocate(0).unwrap()), (0, 32, 32));
        assert_eq!(at(a.allocate(33).unwrap()), (0, 64, 64));
        assert_eq!(a.chunk_sizes().collect::<Vec<_>>(), [128]);
    }

    #[test]
    fn smallest_sufficient_hole_is_taken() {
        let mut a = arena(1, usize::MAX);
        let blocks: Vec<_> = [40, 1, 16, 1, 24, 1].iter().map(|&s| a.allocate(s).unwrap()).collect();
        for i in [0, 2, 4] {
            a.free(blocks[i]);
        }
        assert_eq!(at(a.allocate(20).unwrap()), (0, blocks[4].offset, 20));
        assert_eq!(at(a.allocate(16).unwrap()), (0, blocks[2].offset, 16));
        assert_eq!(at(a.allocate(30).unwrap()), (0, 0, 30));
        assert_eq!(a.chunk_sizes().collect::<Vec<_>>(), [83]);
    }

    #[test]
    fn adjacent_freed_blocks_become_one_hole() {
        let mut a = arena(1, usize::MAX);
        let b: Vec<_> = (0..5).map(|_| a.allocate(8).unwrap()).collect();
        a.free(b[1]);
        a.free(b[3]);
        a.free(b[2]);
        assert_eq!(a.chunks[0].holes, [Hole { offset: 8, size: 24 }]);
        a.free(b[4]);
        assert_eq!((a.chunks[0].holes.len(), a.chunks[0].tail), (0, 8));
        a.free(b[0]);
        assert_eq!(a.chunks[0].tail, 0);
        assert_eq!(a.chunk_sizes().collect::<Vec<_>>(), [40]);
    }

    #[test]
    fn used_memory_is_preferred_to_growth() {
        let mut a = arena(4, 32);
        let big = a.allocate(24).unwrap();
        let small = a.allocate(4).unwrap();
        a.free(big);
        assert_eq!(at(a.allocate(4).unwrap()), (0, 0, 4));
        a.free(small);
        assert_eq!(a.chunk_sizes().collect::<Vec<_>>(), [28]);
    }

    #[test]
    fn allocation_prefers_chunk_that_need_not_grow() {
        let mut a = arena(1, 16);
        let first = a.allocate(12).unwrap();
        let second = a.allocate(10).unwrap();
        assert_eq!((first.chunk, second.chunk), (0, 1));
        a.free(first);
        // Chunk 0 has 12 bytes that were used before; chunk 1 would have to grow.
        assert_eq!(at(a.allocate(6).unwrap()), (0, 0, 6));
        assert_eq!(at(a.allocate(6).unwrap()), (0, 6, 6));
    }

    #[test]
    fn chunks_respect_maximum_except_for_larger_tensors() {
        let mut a = arena(1, 16);
        assert_eq!(at(a.allocate(24).unwrap()), (0, 0, 24));
        assert_eq!(at(a.allocate(10).unwrap()), (1, 0, 10));
        assert_eq!(at(a.allocate(10).unwrap()), (2, 0, 10));
        assert_eq!(at(a.allocate(6).unwrap()), (1, 10, 6));
    }

    #[test]
    fn last_chunk_has_no_limit() {
        let mut a = arena(8, 8);
        for i in 0..MAX_CHUNKS + 3 {
            let b = a.allocate(8).unwrap();
            assert_eq!(b.chunk, i.min(MAX_CHUNKS - 1));
        }
        assert_eq!(a.chunk_sizes().last(), Some(32));
    }

    #[test]
    fn sizes_beyond_address_space_are_rejected() {
        let mut a = arena(64, usize::MAX);
        assert_eq!(a.allocate(usize::MAX), None);
        assert_eq!(a.allocate(usize::MAX - 62), None);
        a.allocate(isize::MAX as usize / 2).unwrap();
        let second = a.allocate(isize::MAX as usize - 4096).unwrap();
        assert_eq!(second.chunk, 1, "the first chunk has no space left");
    }

    #[test]
    fn shrinking_returns_the_rest() {
        let mut a = arena(8, usize::MAX);
        let b = a.allocate(64).unwrap();
        let _guard = a.allocate(8).unwrap();
        let b = a.shrink(b, 20);
        assert_eq!(b.size, 24);
        assert_eq!(at(a.allocate(40).unwrap()), (0, 24, 40));
    }
}
