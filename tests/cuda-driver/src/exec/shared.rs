//! Shared memory of a block: the bytes, their initialization, and the accesses to each word since the last
//! barrier.

use super::fault::{Fault, Kind};
use super::lanes::LANES;
use super::mbarrier::{BYTES, Mbarriers, Written};
use super::vector_clocks::{copier, is_copier};

/// The last accesses to a word, used to detect data races. Times count the barriers of all blocks that a
/// worker ran, so nothing needs clearing between blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    /// Barrier count of the block at the last write, or `PENDING` during an asynchronous copy.
    written_at: u32,
    /// Barrier count of the warp at the last write.
    written_at_in_warp: u32,
    writer: u16,
    /// Bytes of the word that the last writer wrote, one bit each.
    bytes: u8,
    readers: Readers,
    read_at: u32,
    read_at_in_warp: u32,
    reader: u16,
    /// Number of `fence.proxy.async` that the writer's warp had executed at the last write, or `BULK`.
    published: u32,
}

/// Value of [`Word::published`] after a bulk copy, which needs no fence.
const BULK: u32 = u32::MAX;

/// The threads that read a word since the last barrier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Readers {
    #[default]
    One,
    /// Several lanes of one warp have read the word.
    OneWarp,
    Several,
}

const PENDING: u32 = u32::MAX;

/// Maximum number of warps of a block.
const MAX_WARPS: usize = 32;

/// The logical time of a thread, in barriers.
#[derive(Debug, Clone, Copy)]
pub struct LogicalTime {
    /// Number of barriers that the block has completed.
    pub block: u32,
    /// Number of `bar.warp.sync` that the warp has completed.
    pub warp: u32,
}

/// The shared memory of a block.
#[derive(Default)]
pub struct Shared {
    /// Memory in 128-bit words, so that vector accesses are aligned.
    data: Vec<u128>,
    written: Vec<u8>,
    words: Vec<Word>,
    size: u32,
    /// True to detect data races.
    detect_races: bool,
    /// Number of `fence.proxy.async` by warp.
    fences: [u32; MAX_WARPS],
    /// Number of running matrix products that read each 16 bytes, and the sum of these numbers.
    product_reads: Vec<u16>,
    n_product_reads: u32,
    /// Present if the kernel uses `mbarrier`.
    pub mbarriers: Option<Box<Mbarriers>>,
}

impl Shared {
    /// Prepares uninitialized memory of `size` bytes for a block.
    pub fn begin(&mut self, size: u32, detect_races: bool) {
        let bytes = (size as usize).next_multiple_of(16);
        if self.data.len() * 16 < bytes {
            self.data.resize(bytes / 16, 0);
            self.words.resize(bytes / 4, Word::default());
        }
        self.written.clear();
        self.written.resize(bytes, 0);
        self.size = size;
        self.detect_races = detect_races;
        self.product_reads.clear();
        self.product_reads.resize(bytes / 16, 0);
        self.n_product_reads = 0;
        self.mbarriers = None;
    }

    /// Prepares `mbarrier` objects of a block with `threads` threads.
    pub fn begin_mbarriers(&mut self, threads: u32) {
        self.mbarriers = Some(Box::new(Mbarriers::new(threads, self.words.len())));
    }

    /// Enables or disables race detection; returns the previous setting.
    pub fn set_race_detection(&mut self, enabled: bool) -> bool {
        std::mem::replace(&mut self.detect_races, enabled)
    }

    /// Returns a pointer to the first byte.
    pub fn data(&mut self) -> *mut u8 {
        self.data.as_mut_ptr().cast()
    }

    /// Checks and records an access by a thread. `address` is a multiple of `len`.
    #[inline]
    pub fn touch(
        &mut self,
        address: u64,
        len: u32,
        thread: u32,
        now: LogicalTime,
        is_write: bool,
    ) -> Result<(), Box<Fault>> {
        if address >= self.size.into() || u64::from(self.size) - address < len.into() {
            let description = format!(
                "shared memory has {} bytes, but the access covers {len} bytes at offset {address}",
                self.size
            );
            return Err(Fault::new(Kind::OutOfBounds, Some(thread), description));
        }
        let (at, len) = (address as usize, len as usize);
        if is_write {
            self.written[at..at + len].fill(1);
        } else if self.written[at..at + len].iter().fold(1, |all, w| all & w) == 0
            && let Some(i) = self.written[at..at + len].iter().position(|w| *w == 0)
        {
            let description = format!("uninitialized read: byte {} of shared memory was never written", at + i);
            return Err(Fault::new(Kind::Uninitialized, Some(thread), description));
        }
        if !self.detect_races {
            return Ok(());
        }
        if is_write && self.n_product_reads > 0 {
            self.check_product_reads(at, len, thread)?;
        }
        if let Some(mbarriers) = &self.mbarriers
            && mbarriers.overlaps(address, len as u32)
        {
            let description = format!("access of byte {at} of shared memory, which belongs to an `mbarrier`");
            return Err(Fault::new(Kind::Synchronization, Some(thread), description));
        }
        let fences = self.fences[thread as usize / LANES % MAX_WARPS];
        let mut from = at;
        while from < at + len {
            let end = (from / 4 * 4 + 4).min(at + len);
            let bytes = ((1u8 << (end - from)) - 1) << (from % 4);
            self.check_order(from, bytes, thread, now, is_write)?;
            let word = &mut self.words[from / 4];
            let is_first = word.read_at != now.block;
            if is_write {
                word.published = fences;
                word.set_writer(bytes, thread as u16, now);
            } else {
                word.set_reader(thread, now);
            }
            match &mut self.mbarriers {
                Some(mbarriers) if is_write => mbarriers.clocks.write(from / 4, thread as u16),
                Some(mbarriers) => mbarriers.clocks.read(from / 4, thread as u16, is_first),
                None => {}
            }
            from = end;
        }
        Ok(())
    }

    /// Returns an error if no barrier orders an access of bytes in a word and earlier accesses.
    #[inline]
    fn check_order(
        &self,
        from: usize,
        bytes: u8,
        thread: u32,
        now: LogicalTime,
        is_write: bool,
    ) -> Result<(), Box<Fault>> {
        let (word, index) = (&self.words[from / 4], from / 4);
        let clocks = self.mbarriers.as_ref().map(|mbarriers| &mbarriers.clocks);
        if let Some(conflict) = word.unordered_write(bytes, thread, now) {
            let is_ordered = |writer| clocks.is_some_and(|c| c.orders_write(index, writer, thread));
            if !matches!(conflict, Conflict::Written(writer) if is_ordered(writer)) {
                return Err(conflict.fault(from, thread, is_write));
            }
        }
        if is_write && let Some((reader, readers)) = word.unordered_read(thread, now) {
            let is_of_warp = readers != Readers::Several && warp(reader) == warp(thread as u16);
            if is_of_warp || !clocks.is_some_and(|c| c.orders_reads(index, thread)) {
                return Err(Conflict::Read(reader, readers).fault(from, thread, true));
            }
        }
        Ok(())
    }

    /// Marks the destination of an asynchronous copy, which must not be accessed until the copy completes.
    pub fn begin_copy(&mut self, address: u64, len: u32, thread: u32, now: LogicalTime) -> Result<(), Box<Fault>> {
        self.touch(address, len, thread, now, true)?;
        if self.detect_races {
            for word in &mut self.words[address as usize / 4..(address as usize + len as usize).div_ceil(4)] {
                word.written_at = PENDING;
            }
        }
        Ok(())
    }

    /// Completes an asynchronous copy, which counts as a write by the thread.
    pub fn end_copy(&mut self, address: u64, bytes: &[u8], thread: u32, now: LogicalTime) {
        let at = address as usize;
        // SAFETY: `begin_copy` checked that the destination is within shared memory.
        unsafe { self.data().add(at).copy_from(bytes.as_ptr(), bytes.len()) };
        if self.detect_races {
            let fences = self.fences[thread as usize / LANES % MAX_WARPS];
            for i in at / 4..(at + bytes.len()).div_ceil(4) {
                self.words[i].set_writer(15, thread as u16, now);
                self.words[i].published = fences;
                if let Some(mbarriers) = &mut self.mbarriers {
                    mbarriers.clocks.write(i, thread as u16);
                }
            }
        }
    }

    /// Marks the destination of a bulk copy, which must not be accessed until the copy completes.
    pub fn begin_bulk_copy(&mut self, to: u64, len: u32, thread: u32, now: LogicalTime) -> Result<(), Box<Fault>> {
        let (from, end) = (to as usize, to as usize + len as usize);
        if end <= self.size as usize && self.detect_races {
            let is_hidden = |i: &usize| {
                let word = &self.words[i / 4];
                let fences = self.fences[usize::from(warp(word.writer)) % MAX_WARPS];
                self.written[*i] != 0 && word.written_at != PENDING && word.published == fences
            };
            if let Some(i) = (from..end).step_by(4).find(is_hidden) {
                let description = format!(
                    "data race: a bulk copy writes byte {i} of shared memory, but thread {} wrote it without `fence.proxy.async`",
                    self.words[i / 4].writer
                );
                return Err(Fault::new(Kind::Race, Some(thread), description));
            }
        }
        (to..to + u64::from(len))
            .step_by(16)
            .try_for_each(|at| self.begin_copy(at, 16, thread, now))
    }

    /// Names the barrier whose bulk copy writes these bytes.
    pub fn set_copier(&mut self, to: u64, len: u32, barrier: usize) {
        for word in &mut self.words[to as usize / 4..(to as usize + len as usize) / 4] {
            word.writer = copier(barrier);
        }
    }

    /// Completes a bulk copy.
    pub fn end_bulk_copy(&mut self, copy: &Written, now: LogicalTime) {
        let at = copy.to as usize;
        // SAFETY: `begin_bulk_copy` checked that the destination is within shared memory.
        unsafe { self.data().add(at).copy_from(copy.bytes.as_ptr(), copy.bytes.len()) };
        if !self.detect_races {
            return;
        }
        for i in at / 4..(at + copy.bytes.len()) / 4 {
            self.words[i].set_writer(15, copier(copy.barrier), now);
            self.words[i].published = BULK;
            if let Some(mbarriers) = &mut self.mbarriers {
                mbarriers.clocks.write(i, copier(copy.barrier));
            }
        }
    }

    /// Returns an error if no barrier orders the initialization of an `mbarrier` and its use.
    pub fn check_mbarrier(&self, address: u64, thread: u32, now: LogicalTime) -> Result<(), Box<Fault>> {
        if !self.detect_races || address + BYTES > self.size.into() {
            return Ok(());
        }
        (0..BYTES as usize)
            .step_by(4)
            .try_for_each(|i| self.check_order(address as usize + i, 15, thread, now, false))
    }

    /// Publishes all writes of a warp for matrix products and bulk copies.
    pub fn publish(&mut self, warp: u32) {
        self.fences[warp as usize % MAX_WARPS] += 1;
        if let Some(mbarriers) = &mut self.mbarriers {
            mbarriers.publish(warp);
        }
    }

    /// Starts the read of 16 bytes by a matrix product, during which they must not be written.
    pub fn begin_product_read(&mut self, address: u64, thread: u32, now: LogicalTime) -> Result<[u8; 16], Box<Fault>> {
        self.touch(address, 16, thread, now, false)?;
        let at = address as usize;
        if self.detect_races {
            let is_hidden = |word: &&Word| word.published == self.fences[usize::from(warp(word.writer)) % MAX_WARPS];
            if let Some(word) = self.words[at / 4..at / 4 + 4].iter().find(is_hidden) {
                let description = format!(
                    "data race: `wgmma` reads byte {at} of shared memory, but thread {} wrote it without `fence.proxy.async`",
                    word.writer
                );
                return Err(Fault::new(Kind::Race, Some(thread), description));
            }
        }
        self.product_reads[at / 16] += 1;
        self.n_product_reads += 1;
        let mut bytes = [0; 16];
        // SAFETY: `touch` checked that the 16 bytes are within shared memory.
        unsafe { bytes.as_mut_ptr().copy_from(self.data().add(at), 16) };
        Ok(bytes)
    }

    /// Ends the read of 16 bytes by a matrix product.
    pub fn end_product_read(&mut self, address: u64, thread: u32, now: LogicalTime) -> Result<(), Box<Fault>> {
        self.product_reads[address as usize / 16] -= 1;
        self.n_product_reads -= 1;
        self.touch(address, 16, thread, now, false)
    }

    fn check_product_reads(&self, at: usize, len: usize, thread: u32) -> Result<(), Box<Fault>> {
        if self.product_reads[at / 16..(at + len).div_ceil(16)]
            .iter()
            .all(|n| *n == 0)
        {
            return Ok(());
        }
        let description = format!("data race: write to byte {at} of shared memory, but a running `wgmma` reads it");
        Err(Fault::new(Kind::Race, Some(thread), description))
    }
}

/// An access of another thread that conflicts with the current one.
enum Conflict {
    Written(u16),
    Read(u16, Readers),
    Copy(u16),
}

impl Conflict {
    fn fault(&self, byte: usize, thread: u32, is_write: bool) -> Box<Fault> {
        let access = if is_write { "write to" } else { "read of" };
        let other = match self {
            Self::Written(other) if is_copier(*other) => "a bulk copy wrote it".into(),
            Self::Written(other) => format!("thread {other} wrote it"),
            Self::Read(other, Readers::One) => format!("thread {other} read it"),
            Self::Read(other, _) => format!("thread {other} and others read it"),
            Self::Copy(other) if is_copier(*other) => "a bulk copy to it is not complete".into(),
            Self::Copy(other) => format!("thread {other} did not wait for its asynchronous copy"),
        };
        let when = if matches!(self, Self::Copy(_)) {
            ""
        } else {
            ", and no barrier orders the two accesses"
        };
        Fault::new(
            Kind::Race,
            Some(thread),
            format!("data race: {access} byte {byte} of shared memory, but {other}{when}"),
        )
    }
}

impl Word {
    /// Returns a reader of the word that no barrier of the block orders before a write, and the number of readers.
    fn unordered_read(&self, thread: u32, now: LogicalTime) -> Option<(u16, Readers)> {
        let is_other =
            self.readers == Readers::Several || self.reader != thread as u16 || self.readers == Readers::OneWarp;
        if self.read_at == now.block && is_other {
            let same_warp = self.readers != Readers::Several && warp(self.reader) == warp(thread as u16);
            if !same_warp || self.read_at_in_warp == now.warp {
                return Some((self.reader, self.readers));
            }
        }
        None
    }

    fn set_reader(&mut self, thread: u32, now: LogicalTime) {
        let thread = thread as u16;
        if self.read_at != now.block {
            self.readers = Readers::One;
        } else if warp(self.reader) != warp(thread) {
            self.readers = Readers::Several;
        } else if self.readers == Readers::OneWarp && self.read_at_in_warp != now.warp {
            self.readers = Readers::One;
        } else if self.readers == Readers::One && self.reader != thread && self.read_at_in_warp == now.warp {
            self.readers = Readers::OneWarp;
        }
        (self.reader, self.read_at, self.read_at_in_warp) = (thread, now.block, now.warp);
    }

    fn unordered_write(&self, bytes: u8, thread: u32, now: LogicalTime) -> Option<Conflict> {
        if self.written_at == PENDING {
            return Some(Conflict::Copy(self.writer));
        }
        let is_recent = self.written_at == now.block && self.writer != thread as u16 && self.bytes & bytes != 0;
        let is_ordered = warp(self.writer) == warp(thread as u16) && self.written_at_in_warp != now.warp;
        (is_recent && !is_ordered).then_some(Conflict::Written(self.writer))
    }

    fn set_writer(&mut self, bytes: u8, thread: u16, now: LogicalTime) {
        // Each word records a single writer, so bytes that another thread wrote since the barrier are
        // forgotten.
        let same = self.written_at == now.block && self.writer == thread;
        self.bytes = if same { self.bytes | bytes } else { bytes };
        (self.writer, self.written_at, self.written_at_in_warp) = (thread, now.block, now.warp);
    }
}

fn warp(thread: u16) -> u16 {
    thread / LANES as u16
}

/// Returns the number of waves of an access without bank conflicts, and the number of extra waves due to bank
/// conflicts.
pub fn bank_waves(addresses: &[u64; LANES], mask: u32, bytes: u32) -> (u32, u32) {
    let lanes_at_once = (128 / bytes.max(4)) as usize;
    let (mut waves, mut extra) = (0, 0);
    for first in (0..LANES).step_by(lanes_at_once) {
        let mut words = [0u64; LANES];
        let mut n = 0;
        for lane in (first..LANES.min(first + lanes_at_once)).filter(|lane| mask >> lane & 1 != 0) {
            for part in 0..bytes.div_ceil(4).max(1) {
                words[n] = addresses[lane] / 4 + u64::from(part);
                n += 1;
            }
        }
        waves += u32::from(n > 0);
        extra += max_words_per_bank(&mut words[..n]).saturating_sub(1);
    }
    (waves, extra)
}

/// Returns the maximum number of distinct words in a bank.
fn max_words_per_bank(words: &mut [u64]) -> u32 {
    if words.windows(2).all(|w| w[1] == w[0] + 1) && words.len() <= LANES {
        return u32::from(!words.is_empty());
    }
    if words.iter().all(|word| *word == words[0]) {
        return 1;
    }
    words.sort_unstable();
    let mut counts = [0u32; 32];
    let mut last = None;
    for word in words.iter() {
        if last != Some(*word) {
            counts[*word as usize % 32] += 1;
        }
        last = Some(*word);
    }
    counts.into_iter().max().unwrap_or(0)
}
