//! Huffman codes and the bits of compressed data.

use crate::MediaError;

/// Bits of a code, or of a code with its value, that a single table lookup decodes.
const LOOKUP_BITS: u32 = 10;

/// Huffman code of symbols.
pub(super) struct HuffmanTable {
    /// Length and symbol for the next bits; 0 for longer codes.
    lookup: Vec<[u8; 2]>,
    /// Value, run of zeros, and number of bits for the next bits; 0 bits if code and value are longer.
    coefficients: Vec<Coefficient>,
    /// For each length, the first code that is longer, in the upper 16 bits.
    ends: [u32; 18],
    /// For each length, the difference between the index of a symbol and its code.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

/// A coefficient that a single table lookup decodes.
#[derive(Clone, Copy, Default)]
struct Coefficient {
    value: i16,
    run: u8,
    n_bits: u8,
}

impl HuffmanTable {
    /// Builds a table from the number of codes of each length, and the symbols in the order of their codes.
    pub fn new(counts: [u8; 16], symbols: &[u8]) -> Option<HuffmanTable> {
        let mut table = HuffmanTable {
            lookup: vec![[0; 2]; 1 << LOOKUP_BITS],
            coefficients: vec![Coefficient::default(); 1 << LOOKUP_BITS],
            ends: [0; 18],
            offsets: [0; 17],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut index) = (0_u32, 0_usize);
        for (length, count) in (1_u32..).zip(counts) {
            table.offsets[length as usize] = index as i32 - code as i32;
            for _ in 0..count {
                let symbol = *symbols.get(index)?;
                if code >= 1 << length {
                    return None;
                }
                if length <= LOOKUP_BITS {
                    let shift = LOOKUP_BITS - length;
                    table.lookup[(code << shift) as usize..][..1 << shift].fill([length as u8, symbol]);
                }
                (code, index) = (code + 1, index + 1);
            }
            table.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        table.ends[17] = u32::MAX;
        for bits in 0..1_usize << LOOKUP_BITS {
            let [length, symbol] = table.lookup[bits];
            let (run, n) = (symbol >> 4, u32::from(symbol & 15));
            let n_bits = u32::from(length) + n;
            if length > 0 && n > 0 && n_bits <= LOOKUP_BITS {
                let value = (bits >> (LOOKUP_BITS - n_bits)) & ((1 << n) - 1);
                table.coefficients[bits] = Coefficient {
                    value: extended(value as i32, n) as i16,
                    run,
                    n_bits: n_bits as u8,
                };
            }
        }
        Some(table)
    }
}

/// Returns the value of `n` bits: values whose first bit is 0 are negative.
fn extended(bits: i32, n: u32) -> i32 {
    match n {
        0 => 0,
        _ if bits < 1 << (n - 1) => bits - (1 << n) + 1,
        _ => bits,
    }
}

/// Reader of the bits of a scan up to the next marker, followed by zeros.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, starting with the most significant bit.
    buffer: u64,
    n: u32,
    /// Zeros in the buffer that are beyond the data.
    n_beyond: u32,
}

impl<'a> Bits<'a> {
    pub fn new(data: &'a [u8], at: usize) -> Bits<'a> {
        Bits {
            data,
            at,
            buffer: 0,
            n: 0,
            n_beyond: 0,
        }
    }

    /// Returns the position of the next marker, or of the end of the data.
    pub fn marker(&self) -> usize {
        let mut at = self.at;
        while let Some(rest) = self.data.get(at..) {
            let Some(next) = rest.iter().position(|&byte| byte == 0xff) else {
                break;
            };
            match rest.get(next + 1) {
                Some(0) => at += next + 2,
                Some(0xff) => at += next + 1,
                Some(_) => return at + next,
                None => break,
            }
        }
        self.data.len()
    }

    /// Continues after the next marker if it is a restart marker.
    pub fn restart(&mut self) {
        let at = self.marker();
        if let Some([0xff, 0xd0..=0xd7]) = self.data.get(at..at + 2) {
            *self = Bits::new(self.data, at + 2);
        }
    }

    /// Returns true if bits beyond the data were used.
    pub fn is_over(&self) -> bool {
        self.n < self.n_beyond
    }

    /// Makes at least 48 bits available.
    #[inline]
    fn fill(&mut self) {
        let chunk = self.data.get(self.at..).and_then(|rest| rest.first_chunk());
        if let Some(chunk) = chunk {
            let bits = u64::from_be_bytes(*chunk);
            // Detects bytes of 0xff, which may start a marker: they are the zero bytes of the complement.
            let is_plain = (!bits).wrapping_sub(0x0101_0101_0101_0101) & bits & 0x8080_8080_8080_8080 == 0;
            if is_plain && self.n < 56 {
                let n_bytes = (64 - self.n) / 8;
                let kept = bits & (u64::MAX << (64 - 8 * n_bytes));
                self.buffer |= kept >> self.n;
                self.n += 8 * n_bytes;
                self.at += n_bytes as usize;
                return;
            }
        }
        self.fill_slowly();
    }

    #[cold]
    fn fill_slowly(&mut self) {
        while self.n <= 56 {
            let byte = match self.data.get(self.at..) {
                Some([0xff, 0, ..]) => {
                    self.at += 2;
                    0xff
                }
                Some([byte, ..]) if *byte != 0xff => {
                    self.at += 1;
                    *byte
                }
                _ => {
                    self.n_beyond += 8;
                    0
                }
            };
            self.buffer |= u64::from(byte) << (56 - self.n);
            self.n += 8;
        }
    }

    #[inline]
    fn drop(&mut self, n: u32) {
        self.buffer <<= n;
        self.n -= n;
    }

    /// Reads up to 16 bits.
    #[inline]
    pub fn take(&mut self, n: u32) -> i32 {
        if self.n < 32 {
            self.fill();
        }
        self.take_filled(n)
    }

    #[inline]
    fn take_filled(&mut self, n: u32) -> i32 {
        // Two shifts, as a shift by 64 is invalid.
        let bits = (self.buffer >> 1 >> (63 - n)) as i32;
        self.drop(n);
        bits
    }

    /// Reads a symbol.
    #[inline]
    pub fn symbol(&mut self, table: &HuffmanTable) -> Result<u8, MediaError> {
        if self.n < 32 {
            self.fill();
        }
        let [length, symbol] = table.lookup[(self.buffer >> (64 - LOOKUP_BITS)) as usize];
        if length > 0 {
            self.drop(u32::from(length));
            return Ok(symbol);
        }
        self.long_symbol(table)
    }

    fn long_symbol(&mut self, table: &HuffmanTable) -> Result<u8, MediaError> {
        let code = (self.buffer >> 48) as u32;
        let length = (LOOKUP_BITS + 1..=16).find(|&length| code < table.ends[length as usize]);
        let symbol = length.and_then(|length| {
            let index = (code >> (16 - length)) as i32 + table.offsets[length as usize];
            table.symbols.get(usize::try_from(index).ok()?)
        });
        let (Some(length), Some(&symbol)) = (length, symbol) else {
            return Err(super::damaged("the compressed data has an invalid code"));
        };
        self.drop(length);
        Ok(symbol)
    }

    /// Reads a symbol that is the number of bits of a value, and the value.
    #[inline]
    pub fn value(&mut self, table: &HuffmanTable) -> Result<i32, MediaError> {
        let n = u32::from(self.symbol(table)? & 15);
        Ok(extended(self.take_filled(n), n))
    }

    /// Reads a coefficient: the number of zeros before it, and its value. A value of 0 is a symbol without a value.
    #[inline]
    pub fn coefficient(&mut self, table: &HuffmanTable) -> Result<(usize, i32), MediaError> {
        if self.n < 32 {
            self.fill();
        }
        let known = table.coefficients[(self.buffer >> (64 - LOOKUP_BITS)) as usize];
        if known.n_bits > 0 {
            self.drop(u32::from(known.n_bits));
            return Ok((usize::from(known.run), i32::from(known.value)));
        }
        let symbol = self.symbol(table)?;
        let n = u32::from(symbol & 15);
        Ok((usize::from(symbol >> 4), extended(self.take_filled(n), n)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_all_lengths_are_read() {
        // One code of each length, as in 0, 10, 110, …
        let symbols: Vec<u8> = (1..=16).collect();
        let table = HuffmanTable::new([1; 16], &symbols).unwrap();
        let mut text = String::new();
        for length in 1..=16 {
            text += &"1".repeat(length - 1);
            text += "0";
        }
        text += &"0".repeat(8 - text.len() % 8);
        let mut data = Vec::new();
        for byte in text.as_bytes().chunks(8) {
            let byte = u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap();
            data.push(byte);
            if byte == 0xff {
                data.push(0);
            }
        }
        data.extend([0xff, 0xd9]);
        let mut bits = Bits::new(&data, 0);
        for symbol in 1..=16 {
            assert_eq!(bits.symbol(&table), Ok(symbol));
        }
        assert!(!bits.is_over());
        assert_eq!((bits.take(16), bits.is_over()), (0, true));
        assert_eq!(bits.marker(), data.len() - 2);
        let mut invalid = Bits::new(&[0xff, 0, 0xff, 0], 0);
        assert!(invalid.symbol(&table).is_err());
        assert!(HuffmanTable::new([3; 16], &symbols).is_none());
    }

    #[test]
    fn values_have_signs() {
        let found: Vec<i32> = (0..8).map(|bits| extended(bits, 3)).collect();
        assert_eq!(found, [-7, -6, -5, -4, 4, 5, 6, 7]);
        assert_eq!(extended(0, 0), 0);
    }
}
