//! A block's shared memory: its bytes, which of them are written, and who touched each word since the last barrier.

use super::fault::{Fault, Kind};
use super::lanes::LANES;

/// Who touched a word last. Times count barriers, over all blocks that a worker runs, so that nothing is cleared between blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    /// The block's time of the last write; `PENDING` while an asynchronous copy is under way.
    written_at: u32,
    /// The writer's warp's time then.
    written_at_in_warp: u32,
    writer: u16,
    /// The bytes that were written then, a bit each.
    bytes: u8,
    readers: Readers,
    read_at: u32,
    read_at_in_warp: u32,
    reader: u16,
}

/// Who read a word since the last barrier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Readers {
    #[default]
    One,
    /// Several lanes of the reader's warp.
    OneWarp,
    Several,
}

const PENDING: u32 = u32::MAX;

/// The running thread's place in time.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Barriers of the block so far.
    pub block: u32,
    /// `bar.warp.sync` of the warp so far.
    pub warp: u32,
}

/// Shared memory.
#[derive(Default)]
pub struct Shared {
    /// In 64-bit words, so that vectors are aligned.
    data: Vec<u128>,
    written: Vec<u8>,
    words: Vec<Word>,
    size: u32,
    /// Whether races are looked for.
    watch: bool,
}

impl Shared {
    /// Memory of `size` bytes for a block, of which nothing is written yet.
    pub fn begin(&mut self, size: u32, watch: bool) {
        let bytes = (size as usize).next_multiple_of(16);
        if self.data.len() * 16 < bytes {
            self.data.resize(bytes / 16, 0);
            self.words.resize(bytes / 4, Word::default());
        }
        self.written.clear();
        self.written.resize(bytes, 0);
        self.size = size;
        self.watch = watch;
    }

    /// Whether races are looked for from now on; returns what was so before.
    pub fn watch(&mut self, watch: bool) -> bool {
        std::mem::replace(&mut self.watch, watch)
    }

    /// The bytes.
    pub fn data(&mut self) -> *mut u8 {
        self.data.as_mut_ptr().cast()
    }

    /// Checks an access by a thread, and notes it. `address` is a multiple of `len`.
    #[inline]
    pub fn touch(&mut self, address: u64, len: u32, thread: u32, now: Now, is_write: bool) -> Result<(), Box<Fault>> {
        if address >= self.size.into() || u64::from(self.size) - address < len.into() {
            let what = format!(
                "{len} bytes at {address} of shared memory, which has {} bytes",
                self.size
            );
            return Err(Fault::new(Kind::OutOfBounds, Some(thread), what));
        }
        let (at, len) = (address as usize, len as usize);
        if is_write {
            self.written[at..at + len].fill(1);
        } else if let Some(i) = self.written[at..at + len].iter().position(|w| *w == 0) {
            let what = format!("read of byte {} of shared memory, which nobody wrote", at + i);
            return Err(Fault::new(Kind::Uninitialized, Some(thread), what));
        }
        if !self.watch {
            return Ok(());
        }
        let mut from = at;
        while from < at + len {
            let end = (from / 4 * 4 + 4).min(at + len);
            let bytes = ((1u8 << (end - from)) - 1) << (from % 4);
            let word = &mut self.words[from / 4];
            let conflict = if is_write {
                word.write(bytes, thread, now)
            } else {
                word.read(bytes, thread, now)
            };
            if let Some(conflict) = conflict {
                return Err(conflict.fault(from, thread, is_write));
            }
            from = end;
        }
        Ok(())
    }

    /// Marks bytes that an asynchronous copy will write: nobody may touch them until it is waited for.
    pub fn begin_copy(&mut self, address: u64, len: u32, thread: u32, now: Now) -> Result<(), Box<Fault>> {
        self.touch(address, len, thread, now, true)?;
        if self.watch {
            for word in &mut self.words[address as usize / 4..(address as usize + len as usize).div_ceil(4)] {
                word.written_at = PENDING;
            }
        }
        Ok(())
    }

    /// The end of an asynchronous copy: from now on it is a write of the thread.
    pub fn end_copy(&mut self, address: u64, bytes: &[u8], thread: u32, now: Now) {
        let at = address as usize;
        // SAFETY: `begin_copy` checked that the bytes lie in shared memory.
        unsafe { self.data().add(at).copy_from(bytes.as_ptr(), bytes.len()) };
        if self.watch {
            for word in &mut self.words[at / 4..(at + bytes.len()).div_ceil(4)] {
                word.set_writer(15, thread, now);
            }
        }
    }
}

/// Another thread's access that is not ordered with the running one.
enum Conflict {
    Written(u16),
    Read(u16, Readers),
    Copy(u16),
}

impl Conflict {
    fn fault(&self, byte: usize, thread: u32, is_write: bool) -> Box<Fault> {
        let access = if is_write { "write to" } else { "read of" };
        let other = match self {
            Self::Written(other) => format!("thread {other} wrote it"),
            Self::Read(other, Readers::One) => format!("thread {other} read it"),
            Self::Read(other, _) => format!("thread {other} and others read it"),
            Self::Copy(other) => format!("an asynchronous copy of thread {other} to it is not waited for"),
        };
        let when = if matches!(self, Self::Copy(_)) {
            ""
        } else {
            ", with no barrier between"
        };
        Fault::new(
            Kind::Race,
            Some(thread),
            format!("{access} byte {byte} of shared memory: {other}{when}"),
        )
    }
}

impl Word {
    fn write(&mut self, bytes: u8, thread: u32, now: Now) -> Option<Conflict> {
        if let Some(conflict) = self.unordered_write(bytes, thread, now) {
            return Some(conflict);
        }
        let is_other =
            self.readers == Readers::Several || self.reader != thread as u16 || self.readers == Readers::OneWarp;
        if self.read_at == now.block && is_other {
            let same_warp = self.readers != Readers::Several && warp(self.reader) == warp(thread as u16);
            if !same_warp || self.read_at_in_warp == now.warp {
                return Some(Conflict::Read(self.reader, self.readers));
            }
        }
        self.set_writer(bytes, thread, now);
        None
    }

    fn read(&mut self, bytes: u8, thread: u32, now: Now) -> Option<Conflict> {
        if let Some(conflict) = self.unordered_write(bytes, thread, now) {
            return Some(conflict);
        }
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
        None
    }

    fn unordered_write(&self, bytes: u8, thread: u32, now: Now) -> Option<Conflict> {
        if self.written_at == PENDING {
            return Some(Conflict::Copy(self.writer));
        }
        let is_recent = self.written_at == now.block && self.writer != thread as u16 && self.bytes & bytes != 0;
        let is_ordered = warp(self.writer) == warp(thread as u16) && self.written_at_in_warp != now.warp;
        (is_recent && !is_ordered).then_some(Conflict::Written(self.writer))
    }

    fn set_writer(&mut self, bytes: u8, thread: u32, now: Now) {
        // Bytes that another thread wrote since the barrier are forgotten: there is one writer for each word.
        let same = self.written_at == now.block && self.writer == thread as u16;
        self.bytes = if same { self.bytes | bytes } else { bytes };
        (self.writer, self.written_at, self.written_at_in_warp) = (thread as u16, now.block, now.warp);
    }
}

fn warp(thread: u16) -> u16 {
    thread / LANES as u16
}

/// Groups of lanes of an access that are served at once, and the ways that bank conflicts add: the words of each bank, less one, for each group.
pub fn ways(addresses: &[u64; LANES], mask: u32, bytes: u32) -> (u32, u32) {
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
        extra += words_of_a_bank(&mut words[..n]).saturating_sub(1);
    }
    (waves, extra)
}

/// Most different words in one bank.
fn words_of_a_bank(words: &mut [u64]) -> u32 {
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
