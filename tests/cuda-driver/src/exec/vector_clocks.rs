//! Order of accesses to shared memory by `mbarrier`.
//!
//! Each warp has a clock, which counts its synchronizations and arrivals, and a vector clock: a time for every thread.
//! Accesses until this time happen before the next instruction of the warp. An arrival merges the vector clock of its
//! warp into the barrier, and a wait merges that of the barrier into the warp. Each barrier counts as a further thread,
//! whose accesses are its bulk copies. Barriers of the block order all accesses, and need no clocks.

use super::lanes::LANES;

/// Last times of accesses, by thread, that happen before an instruction.
pub type Times = Vec<u32>;

/// Maximum number of `mbarrier` objects of a block.
pub const MAX_BARRIERS: usize = 64;

/// Number of the first barrier as a thread.
const FIRST_BARRIER: u16 = 1 << 15;

/// Lane that represents several lanes of a warp.
const SEVERAL: u8 = u8::MAX;

/// The last read of a word by a warp; time 0 if the warp did not read the word.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    time: u32,
    lane: u8,
}

/// The clocks of a block, and the times of accesses.
pub struct VectorClocks {
    /// Time of each warp.
    now: Vec<u32>,
    /// Time of the last synchronization of all lanes of each warp.
    synced: Vec<u32>,
    /// Vector clock of each warp.
    seen: Vec<Times>,
    /// Number of bulk copies of each barrier.
    copies: Vec<u32>,
    /// Time of the last write of each word.
    writes: Vec<u32>,
    /// Last reads of each word by each warp, since the last barrier of the block.
    reads: Vec<Read>,
}

/// Returns the number under which bulk copies of a barrier access memory.
pub fn copier(barrier: usize) -> u16 {
    FIRST_BARRIER + barrier as u16
}

/// Returns true if the accesses are bulk copies.
pub fn is_copier(thread: u16) -> bool {
    thread >= FIRST_BARRIER
}

impl VectorClocks {
    /// Creates the clocks of a block with `threads` threads and `words` words of shared memory.
    pub fn new(threads: u32, words: usize) -> Self {
        let warps = (threads as usize).div_ceil(LANES);
        Self {
            now: vec![1; warps],
            synced: vec![1; warps],
            seen: vec![vec![0; warps * LANES + MAX_BARRIERS]; warps],
            copies: vec![0; MAX_BARRIERS],
            writes: vec![0; words],
            reads: vec![Read::default(); words * warps],
        }
    }

    fn warps(&self) -> usize {
        self.now.len()
    }

    /// Returns the index of a thread or barrier in vector clocks.
    fn index(&self, thread: u16) -> usize {
        if is_copier(thread) {
            self.warps() * LANES + usize::from(thread - FIRST_BARRIER)
        } else {
            thread.into()
        }
    }

    fn reads_of(&mut self, word: usize) -> &mut [Read] {
        let n = self.warps();
        &mut self.reads[word * n..(word + 1) * n]
    }

    /// Records a write. `thread` is a thread or [`copier`].
    pub fn write(&mut self, word: usize, thread: u16) {
        self.writes[word] = if is_copier(thread) {
            self.copies[usize::from(thread - FIRST_BARRIER)]
        } else {
            self.now[usize::from(thread) / LANES]
        };
    }

    /// Records a read. `is_first` is true for the first read since the last barrier of the block.
    pub fn read(&mut self, word: usize, thread: u16, is_first: bool) {
        let (warp, lane) = (usize::from(thread) / LANES, (usize::from(thread) % LANES) as u8);
        let time = self.now[warp];
        let reads = self.reads_of(word);
        if is_first {
            reads.fill(Read::default());
        }
        let is_other = reads[warp].time != 0 && reads[warp].lane != lane;
        let lane = if is_other { SEVERAL } else { lane };
        reads[warp] = Read { time, lane };
    }

    /// Returns true if the last write of a word, by `writer`, happens before the next instruction of the thread's warp.
    pub fn orders_write(&self, word: usize, writer: u16, thread: u32) -> bool {
        let seen = &self.seen[thread as usize / LANES];
        seen[self.index(writer)] >= self.writes[word]
    }

    /// Returns true if all reads of a word by other warps happen before the next instruction of the thread's warp.
    pub fn orders_reads(&self, word: usize, thread: u32) -> bool {
        let own = thread as usize / LANES;
        let seen = &self.seen[own];
        let reads = &self.reads[word * self.warps()..(word + 1) * self.warps()];
        reads.iter().enumerate().all(|(warp, read)| {
            let threads = &seen[warp * LANES..(warp + 1) * LANES];
            let time = match read.lane {
                SEVERAL => threads.iter().copied().min().unwrap_or(0),
                lane => threads[usize::from(lane)],
            };
            warp == own || time >= read.time
        })
    }

    /// Synchronizes the lanes of a warp.
    pub fn sync(&mut self, warp: u32) {
        let warp = warp as usize;
        self.now[warp] += 1;
        self.synced[warp] = self.now[warp];
    }

    /// Merges the vector clock of the arriving `lanes` of a warp into `times`.
    pub fn release(&mut self, warp: u32, lanes: u32, times: &mut Times) {
        let warp = warp as usize;
        times.resize(self.seen[warp].len(), 0);
        for (time, seen) in times.iter_mut().zip(&self.seen[warp]) {
            *time = (*time).max(*seen);
        }
        for lane in 0..LANES {
            let seen = if lanes >> lane & 1 != 0 {
                self.now[warp]
            } else {
                self.synced[warp] - 1
            };
            let time = &mut times[warp * LANES + lane];
            *time = (*time).max(seen);
        }
        self.now[warp] += 1;
    }

    /// Merges `times` into the vector clock of a warp.
    pub fn acquire(&mut self, warp: u32, times: &Times) {
        for (seen, time) in self.seen[warp as usize].iter_mut().zip(times) {
            *seen = (*seen).max(*time);
        }
    }

    /// Starts a bulk copy of a barrier and returns its time.
    pub fn start_copy(&mut self, barrier: usize) -> u32 {
        self.copies[barrier] += 1;
        self.copies[barrier]
    }

    /// Adds bulk copies of a barrier until `time` to `times`.
    pub fn end_copy(&self, barrier: usize, time: u32, times: &mut Times) {
        let index = self.index(copier(barrier));
        times.resize(self.seen[0].len(), 0);
        times[index] = times[index].max(time);
    }
}
