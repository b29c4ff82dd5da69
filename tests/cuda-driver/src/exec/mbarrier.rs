//! Barriers in shared memory (`mbarrier`), and bulk copies that complete at them.
//!
//! A phase of a barrier ends after all expected arrivals and bytes. The bytes of a bulk copy arrive as
//! late as possible: when a warp waits for the barrier. Until then, accesses of the destination are data races.

use super::fault::{Fault, Kind};
use super::vector_clocks::{MAX_BARRIERS, Times, VectorClocks};

/// Maximum number of arrivals and bytes of a phase.
pub const MAX_COUNT: u32 = (1 << 20) - 1;

/// Size of an `mbarrier` object in bytes.
pub const BYTES: u64 = 8;

/// A bulk copy that is not complete.
struct Copy {
    to: u64,
    bytes: Vec<u8>,
    /// Time of the copy in the clock of its barrier.
    time: u32,
    /// Clock of the latency model when the bytes arrive.
    ready_at: u64,
}

/// An `mbarrier` object.
struct Mbarrier {
    address: u64,
    /// Number of the object in the block.
    number: usize,
    /// Number of arrivals of a phase, and of arrivals missing in the current phase.
    count: u32,
    missing: u32,
    /// Number of bytes missing in the current phase.
    bytes: u64,
    /// Number of the current phase.
    phase: u32,
    /// Accesses that precede the end of the current phase, and the end of the last phase.
    current: Times,
    ended: Times,
    /// Clocks of the latency model: last arrival of the current phase, and end of the last phase.
    last: u64,
    ended_at: u64,
    /// True if bulk copies may use the object.
    is_published: bool,
    /// Warp that initialized the object.
    warp: u32,
    copies: Vec<Copy>,
}

/// The `mbarrier` objects of a block, and the order of accesses.
pub struct Mbarriers {
    pub clocks: VectorClocks,
    objects: Vec<Mbarrier>,
    /// Number of objects that were initialized.
    n: usize,
    /// Number of arrivals and started copies. A failed wait cannot succeed before this number changes.
    pub events: u64,
}

/// Bytes that a complete bulk copy writes, and the number of its barrier.
pub struct Written {
    pub to: u64,
    pub bytes: Vec<u8>,
    pub barrier: usize,
}

fn fault<T>(thread: u32, description: String) -> Result<T, Box<Fault>> {
    Err(Fault::new(Kind::Synchronization, Some(thread), description))
}

impl Mbarrier {
    fn describe(&self) -> String {
        format!(
            "phase {} with {} of {} arrivals and {} bytes missing",
            self.phase, self.missing, self.count, self.bytes
        )
    }

    /// Starts the next phase if the current phase has all arrivals and bytes.
    fn advance(&mut self) {
        if self.missing == 0 && self.bytes == 0 {
            self.phase += 1;
            self.missing = self.count;
            self.ended = std::mem::take(&mut self.current);
            self.ended_at = std::mem::take(&mut self.last);
        }
    }
}

impl Mbarriers {
    pub fn new(threads: u32, words: usize) -> Self {
        Self {
            clocks: VectorClocks::new(threads, words),
            objects: Vec::new(),
            n: 0,
            events: 0,
        }
    }

    /// Returns true if an access overlaps an object.
    pub fn overlaps(&self, address: u64, len: u32) -> bool {
        let is_here = |object: &Mbarrier| address < object.address + BYTES && object.address < address + u64::from(len);
        self.objects.iter().any(is_here)
    }

    fn find(&mut self, address: u64, thread: u32) -> Result<&mut Mbarrier, Box<Fault>> {
        match self.objects.iter_mut().find(|object| object.address == address) {
            Some(object) => Ok(object),
            None => fault(
                thread,
                format!("byte {address} of shared memory is not an initialized `mbarrier`"),
            ),
        }
    }

    /// Initializes an object.
    pub fn init(&mut self, address: u64, count: u32, thread: u32) -> Result<(), Box<Fault>> {
        if count == 0 || count > MAX_COUNT {
            return fault(
                thread,
                format!("invalid count of `mbarrier.init`: expected 1 to {MAX_COUNT}, found {count}"),
            );
        }
        if self.n == MAX_BARRIERS {
            return fault(
                thread,
                format!("the emulator supports {MAX_BARRIERS} `mbarrier` objects per block"),
            );
        }
        self.objects.push(Mbarrier {
            address,
            number: self.n,
            count,
            missing: count,
            bytes: 0,
            phase: 0,
            current: Vec::new(),
            ended: Vec::new(),
            last: 0,
            ended_at: 0,
            is_published: false,
            warp: thread / super::lanes::LANES as u32,
            copies: Vec::new(),
        });
        self.n += 1;
        Ok(())
    }

    /// Ends the use of an object.
    pub fn invalidate(&mut self, address: u64, thread: u32) -> Result<(), Box<Fault>> {
        let object = self.find(address, thread)?;
        if !object.copies.is_empty() {
            return fault(thread, "`mbarrier.inval` during a bulk copy".into());
        }
        self.objects.retain(|object| object.address != address);
        Ok(())
    }

    /// Makes the objects that a warp initialized visible to bulk copies.
    pub fn publish(&mut self, warp: u32) {
        for object in self.objects.iter_mut().filter(|object| object.warp == warp) {
            object.is_published = true;
        }
    }

    /// Expects more bytes in the current phase.
    pub fn expect(&mut self, address: u64, bytes: u32, thread: u32) -> Result<(), Box<Fault>> {
        let object = self.find(address, thread)?;
        object.bytes += u64::from(bytes);
        if object.bytes > MAX_COUNT.into() {
            let bytes = object.bytes;
            return fault(
                thread,
                format!("an `mbarrier` expects {bytes} bytes; the limit is {MAX_COUNT}"),
            );
        }
        Ok(())
    }

    /// Counts arrivals of `lanes` of a warp, `n` each. `now` is the clock of the latency model.
    pub fn arrive(&mut self, address: u64, lanes: u32, n: u32, thread: u32, now: u64) -> Result<(), Box<Fault>> {
        let n = n * lanes.count_ones();
        let at = self.objects.iter().position(|object| object.address == address);
        let Some(at) = at else {
            return self.find(address, thread).map(|_| ());
        };
        let object = &mut self.objects[at];
        if n > object.missing {
            let state = object.describe();
            return fault(
                thread,
                format!("{n} arrivals at the `mbarrier` at {address} exceed its count: it is in {state}"),
            );
        }
        self.clocks
            .release(thread / super::lanes::LANES as u32, lanes, &mut object.current);
        object.missing -= n;
        object.last = object.last.max(now);
        object.advance();
        self.events += 1;
        Ok(())
    }

    /// Starts a bulk copy, whose destination was checked. Returns the number of the barrier.
    pub fn start_copy(
        &mut self,
        barrier: u64,
        to: u64,
        bytes: Vec<u8>,
        thread: u32,
        ready_at: u64,
    ) -> Result<usize, Box<Fault>> {
        let object = self.find(barrier, thread)?;
        if !object.is_published {
            let description = "a bulk copy uses an `mbarrier`, but no `fence.mbarrier_init` or `fence.proxy.async` follows its initialization";
            return Err(Fault::new(Kind::Race, Some(thread), description));
        }
        let number = object.number;
        let time = self.clocks.start_copy(number);
        let copy = Copy {
            to,
            bytes,
            time,
            ready_at,
        };
        self.find(barrier, thread)?.copies.push(copy);
        self.events += 1;
        Ok(number)
    }

    /// Completes the bulk copies of a barrier and returns the bytes that they write.
    pub fn complete(&mut self, address: u64, thread: u32) -> Result<Vec<Written>, Box<Fault>> {
        let object = self.find(address, thread)?;
        let (copies, barrier) = (std::mem::take(&mut object.copies), object.number);
        let mut written = Vec::with_capacity(copies.len());
        for copy in copies {
            let at = self.objects.iter().position(|object| object.address == address);
            let object = &mut self.objects[at.unwrap_or_default()];
            let n = copy.bytes.len() as u64;
            if n > object.bytes {
                let state = object.describe();
                return fault(
                    thread,
                    format!("a bulk copy of {n} bytes exceeds the bytes that its `mbarrier` expects: it is in {state}"),
                );
            }
            object.bytes -= n;
            object.last = object.last.max(copy.ready_at);
            self.clocks.end_copy(barrier, copy.time, &mut object.current);
            object.advance();
            written.push(Written {
                to: copy.to,
                bytes: copy.bytes,
                barrier,
            });
        }
        Ok(written)
    }

    /// Returns true if the phase of this parity before the current one has ended, and the clock of its end.
    pub fn has_ended(&mut self, address: u64, parity: u32, thread: u32) -> Result<Option<u64>, Box<Fault>> {
        let at = self.objects.iter().position(|object| object.address == address);
        let Some(at) = at else {
            return self.find(address, thread).map(|_| None);
        };
        let object = &self.objects[at];
        if parity > 1 {
            return fault(thread, format!("invalid phase parity: expected 0 or 1, found {parity}"));
        }
        if object.phase & 1 == parity {
            return Ok(None);
        }
        self.clocks.acquire(thread / super::lanes::LANES as u32, &object.ended);
        Ok(Some(object.ended_at))
    }

    /// Describes an object for messages.
    pub fn describe(&self, address: u64) -> String {
        let object = self.objects.iter().find(|object| object.address == address);
        object.map_or_else(|| "an invalid `mbarrier`".into(), Mbarrier::describe)
    }

    /// Returns the number of incomplete bulk copies.
    pub fn n_copies(&self) -> usize {
        self.objects.iter().map(|object| object.copies.len()).sum()
    }
}
