//! Data exchange between the lanes of a warp: shuffles, votes, matches, and reductions.

use super::fault::{Fault, Kind};
use super::inst::{Exchange, ExchangeKind};
use super::lanes::{LANES, Slot, read, write};
use super::warp::Warp;

impl Warp {
    /// Executes an exchange between the lanes in `on`. All required lanes have arrived.
    pub fn exchange(&mut self, e: &Exchange, on: u32) -> Result<(), Box<Fault>> {
        let members = self.check_members(e, on)?;
        use ExchangeKind::*;
        match e.kind {
            ShuffleUp | ShuffleDown | ShuffleXor | ShuffleIndex => self.shuffle(e, on)?,
            VoteAll | VoteAny | VoteUniform | VoteBallot => self.vote(e, on, members),
            MatchAny(bytes) | MatchAll(bytes) => self.match_values(e, on, bytes),
            ActiveMask => self.write_all(e.d, on, on),
            Elect => {
                self.write_all(e.d, members.trailing_zeros(), on);
                self.set_predicate(e.p, members & members.wrapping_neg(), on);
            }
            _ => self.reduce(e, on),
        }
        Ok(())
    }

    /// Returns the member mask of an exchange.
    ///
    /// # Errors
    /// Returns an error if the lanes pass different masks, or a participating lane is missing in the mask.
    fn check_members(&self, e: &Exchange, on: u32) -> Result<u32, Box<Fault>> {
        let Some(slot) = e.members else {
            return Ok(on);
        };
        // SAFETY: the decoder assigned a 32-bit register to the member mask.
        let masks = unsafe { read::<u32>(self.file(), slot) };
        let mut lanes = (0..LANES).filter(|lane| on >> lane & 1 != 0);
        let first = masks[on.trailing_zeros() as usize % LANES];
        match lanes.find(|lane| masks[*lane] != first || masks[*lane] >> lane & 1 == 0) {
            None => Ok(first & self.live()),
            Some(lane) => {
                let description = format!(
                    "warp exchange: the member mask {:#010x} does not match the participating lanes {on:#010x}",
                    masks[lane]
                );
                Err(Fault::new(
                    Kind::Synchronization,
                    Some(self.thread(1 << lane)),
                    description,
                ))
            }
        }
    }

    fn shuffle(&mut self, e: &Exchange, on: u32) -> Result<(), Box<Fault>> {
        let file = self.file();
        // SAFETY: the decoder assigned 32-bit registers to the operands of a shuffle.
        let (a, b, c) = unsafe { (read::<u32>(file, e.a), read::<u32>(file, e.b), read::<u32>(file, e.c)) };
        let (mut d, mut valid) = ([0; LANES], 0);
        for lane in (0..LANES).filter(|lane| on >> lane & 1 != 0) {
            let (source, is_valid) = source_lane(e.kind, lane as u32, b[lane] & 31, c[lane]);
            if is_valid && on >> source & 1 == 0 {
                let description = format!("shuffle: a lane reads from lane {source}, which does not participate");
                return Err(Fault::new(
                    Kind::Synchronization,
                    Some(self.thread(1 << lane)),
                    description,
                ));
            }
            d[lane] = a[source as usize];
            valid |= u32::from(is_valid) << lane;
        }
        // SAFETY: the decoder assigned a 32-bit result register.
        unsafe { write(self.file_mut(), e.d, &d, on) };
        self.set_predicate(e.p, valid, on);
        Ok(())
    }

    fn vote(&mut self, e: &Exchange, on: u32, members: u32) {
        let value = (self.predicate(e.a) ^ e.negate) & on;
        let as_mask = |b: bool| if b { u32::MAX } else { 0 };
        match e.kind {
            ExchangeKind::VoteBallot => self.write_all(e.d, value, on),
            ExchangeKind::VoteAll => self.set_predicate(e.d, as_mask(value == members & on), on),
            ExchangeKind::VoteAny => self.set_predicate(e.d, as_mask(value != 0), on),
            _ => self.set_predicate(e.d, as_mask(value == 0 || value == members & on), on),
        }
    }

    fn match_values(&mut self, e: &Exchange, on: u32, bytes: u32) {
        let file = self.file();
        // SAFETY: the decoder assigned a register of the matched width to the value.
        let a: [u64; LANES] = unsafe {
            if bytes == 4 {
                read::<u32>(file, e.a).map(u64::from)
            } else {
                read::<u64>(file, e.a)
            }
        };
        let same = |lane: usize| (0..LANES).fold(0, |m, i| m | u32::from(a[i] == a[lane]) << i) & on;
        let mut d: [u32; LANES] = std::array::from_fn(same);
        if matches!(e.kind, ExchangeKind::MatchAll(_)) {
            let all = d.map(|mask| mask == on);
            let first = all[on.trailing_zeros() as usize % LANES];
            d = [if first { on } else { 0 }; LANES];
            self.set_predicate(e.p, if first { u32::MAX } else { 0 }, on);
        }
        // SAFETY: the decoder assigned a 32-bit result register.
        unsafe { write(self.file_mut(), e.d, &d, on) };
    }

    fn reduce(&mut self, e: &Exchange, on: u32) {
        // SAFETY: the decoder assigned a 32-bit value register.
        let a = unsafe { read::<u32>(self.file(), e.a) };
        let values = (0..LANES).filter(|lane| on >> lane & 1 != 0).map(|lane| a[lane]);
        let result = values.reduce(|x, y| match e.kind {
            ExchangeKind::ReduceAdd => x.wrapping_add(y),
            ExchangeKind::ReduceMinUnsigned => x.min(y),
            ExchangeKind::ReduceMaxUnsigned => x.max(y),
            ExchangeKind::ReduceMinSigned => (x as i32).min(y as i32) as u32,
            ExchangeKind::ReduceMaxSigned => (x as i32).max(y as i32) as u32,
            ExchangeKind::ReduceAnd => x & y,
            ExchangeKind::ReduceOr => x | y,
            _ => x ^ y,
        });
        self.write_all(e.d, result.unwrap_or(0), on);
    }

    /// Writes one value to the lanes in `mask`.
    pub fn write_all(&mut self, slot: Slot, value: u32, on: u32) {
        // SAFETY: the decoder assigned a 32-bit result register.
        unsafe { write(self.file_mut(), slot, &[value; LANES], on) };
    }
}

/// Returns the source lane of a shuffle, and whether the lane is in bounds. Bits 8..13 of `c` select the
/// segment, and bits 0..5 are the bound within the segment.
fn source_lane(kind: ExchangeKind, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (clamp, segment) = (c & 31, c >> 8 & 31);
    let greatest = lane & segment | clamp & !segment;
    let least = lane & segment;
    let (source, is_valid) = match kind {
        ExchangeKind::ShuffleUp => (lane.wrapping_sub(b), lane as i32 - b as i32 >= greatest as i32),
        ExchangeKind::ShuffleDown => (lane + b, lane + b <= greatest),
        ExchangeKind::ShuffleXor => (lane ^ b, lane ^ b <= greatest),
        _ => (least | b & !segment, (least | b & !segment) <= greatest),
    };
    (if is_valid { source } else { lane }, is_valid)
}
