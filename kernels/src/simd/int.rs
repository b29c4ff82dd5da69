//! What integer kernels ask of an instruction set: 32 bytes in a register, and the floats that sums of products become.

use super::Simd;

/// 32 bytes, which operations take as 32 integers of 8 bits, 16 of 16 bits or 8 of 32 bits, signed where it matters.
///
/// A value is proof that the CPU has the instructions, as with [`Simd`]. The integer operations are exact, so that all implementations
/// agree in every bit; only [`IntSimd::Float`] may round differently.
///
/// # Safety
/// The unsafe functions may be called only on a CPU with the instruction set. Pointers need no alignment and must be valid for
/// the bytes that the function says it reads or writes.
pub(crate) trait IntSimd: Copy {
    /// 8 floats.
    type Float: Simd;

    /// Whether loops over the runs and registers of a chunk are to be unrolled, so that their numbers are constants. The portable form gains little and
    /// takes long to compile.
    const UNROLLED: bool = true;

    /// Registers that there are.
    const REGISTERS: usize = 16;

    /// Whether [`add_fours`](IntSimd::add_fours) is one instruction (VNNI), and the fastest way to multiply bytes.
    const HAS_FOURS: bool = false;

    /// Reads 32 bytes.
    unsafe fn load(p: *const u8) -> Self;

    /// Writes 32 bytes.
    unsafe fn store(self, p: *mut u8);

    /// Reads 16 bytes: their low nibbles, then their high nibbles.
    unsafe fn load_nibbles(p: *const u8) -> Self;

    /// Reads two times 8 bytes: of each their low nibbles, then their high nibbles.
    unsafe fn load_nibbles_by_8(p: *const u8) -> Self;

    /// Reads 8 bytes: the four pairs of bits of each, lowest first.
    unsafe fn load_pairs(p: *const u8) -> Self;

    /// `x` in every byte.
    unsafe fn splat(x: u8) -> Self;

    /// `x` in all 16 integers.
    unsafe fn words(x: i16) -> Self;

    /// Reads 4 bytes, eight times over.
    unsafe fn broadcast(p: *const u8) -> Self;

    /// The bytes of the words, lowest first.
    unsafe fn from_words(words: [u64; 4]) -> Self;

    /// 255 in byte `i` where bit `i` is set, else 0.
    unsafe fn from_bits(bits: u32) -> Self;

    /// Rounds 32 floats of magnitude up to 32767 to integers of 16 bits: those with even index, those with odd index. Others become any integers.
    unsafe fn from_floats(x: [Self::Float; 4]) -> [Self; 2];

    /// Reads a half float at each of `p + i stride` for `i` in `0..8`.
    unsafe fn gather_f16(p: *const u8, stride: usize) -> Self::Float;

    /// Reads 16 signed bytes: those with even index, those with odd index.
    unsafe fn load_even_odd_i8(p: *const u8) -> [Self::Float; 2];

    /// Entry `i` of the first row in the first four lanes, of the second in the last four. `i` is mostly a constant once inlined.
    unsafe fn halves(rows: &[[f32; 8]; 2], i: usize) -> Self::Float;

    /// Starts to bring the cache line at `p`, which may be any address, nearer.
    unsafe fn prefetch(p: *const u8);

    /// Bits in both.
    fn and(self, other: Self) -> Self;
    /// Bits in either.
    fn or(self, other: Self) -> Self;
    /// Bits in one of them.
    fn xor(self, other: Self) -> Self;
    /// Sums of bytes, which wrap around.
    fn add(self, other: Self) -> Self;
    /// Differences of bytes, which wrap around.
    fn sub(self, other: Self) -> Self;
    /// 255 in the bytes that are, unsigned, at least those of `other`, else 0.
    fn at_least(self, other: Self) -> Self;
    /// The whole register as integers of 16 bits, shifted up: bits move from even bytes to odd ones.
    fn shl(self, n: u32) -> Self;
    /// The whole register as integers of 16 bits, shifted down with zeros: bits move from odd bytes to even ones.
    fn shr(self, n: u32) -> Self;
    /// For each byte, which is less than 16, the table's entry.
    fn lookup(self, table: &[i8; 16]) -> Self;

    /// Bytes as integers of 16 bits: those with even index, those with odd index.
    fn widen(self) -> [Self; 2];
    /// As [`widen`](IntSimd::widen), for signed bytes.
    fn widen_signed(self) -> [Self; 2];
    /// Products of integers of 16 bits, those of neighbours added: 8 integers of 32 bits.
    fn multiply_pairs(self, other: Self) -> Self;
    /// Products of unsigned bytes with the signed bytes of `other`, those of neighbours added: 16 integers of 16 bits. The sums must fit.
    fn multiply_bytes(self, other: Self) -> Self;
    /// Sums of 32 bits, to which products of integers of 16 bits are added, those of neighbours: `self + a.multiply_pairs(b)`. They wrap around.
    #[inline(always)]
    fn add_pairs(self, a: Self, b: Self) -> Self {
        self.add32(a.multiply_pairs(b))
    }
    /// Sums of 32 bits, to which products of the unsigned bytes of `a` with the signed bytes of `b` are added, those of 4 neighbours. They wrap around.
    #[inline(always)]
    fn add_fours(self, a: Self, b: Self) -> Self {
        let (a, b) = (a.widen(), b.widen_signed());
        self.add_pairs(a[0], b[0]).add_pairs(a[1], b[1])
    }
    /// Sums of integers of 16 bits, which wrap around.
    fn add16(self, other: Self) -> Self;
    /// The same two values, none of which is used before both are computed. For sums that have an operand in common: else the compiler may compute one sum over a
    /// whole loop first, and keep all those operands in memory for the other.
    #[inline(always)]
    fn side_by_side(values: [Self; 2]) -> [Self; 2] {
        values
    }
    /// The square of groups of 4 bytes, transposed: group `i` of register `j` becomes group `j` of register `i`.
    fn transpose(registers: [Self; 8]) -> [Self; 8];
    /// Sums of integers of 32 bits.
    fn add32(self, other: Self) -> Self;
    /// Differences of integers of 32 bits.
    fn sub32(self, other: Self) -> Self;
    /// Integers of 32 bits, shifted up.
    fn shl32(self, n: u32) -> Self;
    /// Integers of 32 bits as floats, rounded to nearest even.
    fn to_floats(self) -> Self::Float;
    /// The floats that have these bits.
    fn to_float_bits(self) -> Self::Float;
}
