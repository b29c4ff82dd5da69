//! Grids: the codebooks of the IQ1, IQ2, and IQ3 types, and the code that these types share.
//!
//! A grid type stores values as points of a grid: a small set of vectors. A vector has 8 elements of 3 levels (IQ3: 4
//! elements of 8 levels). The index of a point is its rank in lexicographic order, where the last element is the most
//! significant. A grid is therefore fully described by a bit set over all possible vectors. [`points`] and
//! [`half_points`] expand this set to a table at compile time.

use crate::layout::block::{Block, Half};
use crate::layout::decode::Sink;
use crate::layout::runs::{RUNS, Scales, in_memory};
use crate::simd::{IntSimd, Simd};

/// Levels of the IQ1 grid, which represent -1, 0, and 1.
pub(super) const IQ1_LEVELS: [u8; 3] = [0, 1, 2];
pub(super) const IQ2_LEVELS: [u8; 3] = [8, 25, 43];
pub(super) const IQ3_XXS_LEVELS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
pub(super) const IQ3_S_LEVELS: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

pub(crate) static IQ1: [u64; 2048] = points(&IQ1_SET, IQ1_LEVELS);
pub(crate) static IQ2_XXS: [u64; 256] = points(&IQ2_XXS_SET, IQ2_LEVELS);
pub(crate) static IQ2_XS: [u64; 512] = points(&IQ2_XS_SET, IQ2_LEVELS);
pub(crate) static IQ2_S: [u64; 1024] = points(&IQ2_S_SET, IQ2_LEVELS);
pub(crate) static IQ3_XXS: [u32; 256] = half_points(&IQ3_XXS_SET, IQ3_XXS_LEVELS);
pub(crate) static IQ3_S: [u32; 512] = half_points(&IQ3_S_SET, IQ3_S_LEVELS);

/// Returns the 8 elements of each point, the first in the lowest byte. Compilation fails if the set does not
/// have `N` members.
const fn points<const N: usize>(set: &[u32], levels: [u8; 3]) -> [u64; N] {
    let (mut table, mut n, mut code) = ([0; N], 0, 0);
    while code < set.len() * 32 {
        if is_member(set, code) {
            table[n] = vector(code, &levels, 8);
            n += 1;
        }
        code += 1;
    }
    assert!(n == N);
    table
}

/// Returns the 4 elements of each point, the first in the lowest byte. Compilation fails if the set does not
/// have `N` members.
const fn half_points<const N: usize>(set: &[u32], levels: [u8; 8]) -> [u32; N] {
    let (mut table, mut n, mut code) = ([0; N], 0, 0);
    while code < set.len() * 32 {
        if is_member(set, code) {
            table[n] = vector(code, &levels, 4) as u32;
            n += 1;
        }
        code += 1;
    }
    assert!(n == N);
    table
}

const fn is_member(set: &[u32], code: usize) -> bool {
    set[code / 32] >> (code % 32) & 1 != 0
}

/// Returns the vector whose elements are the digits of `code`, lowest first, in the base given by the number
/// of levels.
const fn vector(mut code: usize, levels: &[u8], n: usize) -> u64 {
    let (mut bytes, mut i) = (0, 0);
    while i < n {
        bytes |= (levels[code % levels.len()] as u64) << (8 * i);
        code /= levels.len();
        i += 1;
    }
    bytes
}

/// Concatenates two grid points of four elements.
#[inline(always)]
pub(super) fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// Expands 28 bits to the signs of 32 elements; see [`eighth_signs`].
#[inline(always)]
pub(super) fn even_signs(bits: u32) -> u32 {
    let signs = bits & 0x7f | bits << 1 & 0x7f00 | bits << 2 & 0x7f_0000 | bits << 3 & 0x7f00_0000;
    eighth_signs(u64::from(signs)) as u32
}

/// Completes bytes of seven signs with an eighth that makes the number of negative elements even.
#[inline(always)]
pub(super) fn eighth_signs(signs: u64) -> u64 {
    // Compute the parity of each byte in its lowest bit.
    let parity = signs ^ signs >> 4;
    let parity = parity ^ parity >> 2;
    let parity = parity ^ parity >> 1;
    signs | (parity & 0x0101_0101_0101_0101) << 7
}

/// Splits each byte into its low and high nibble.
#[inline(always)]
pub(super) fn nibbles<const N: usize>(bytes: [u8; N]) -> [[u8; 2]; N] {
    bytes.map(|byte| [byte & 15, byte >> 4])
}

/// Joins nibbles to bytes; the inverse of [`nibbles`].
pub(super) fn from_nibbles<const N: usize>(nibbles: [[u8; 2]; N]) -> [u8; N] {
    nibbles.map(|[low, high]| low | high << 4)
}

/// Returns the index of a grid point.
pub(super) fn index<T: Ord>(grid: &[T], point: T) -> u32 {
    grid.binary_search(&point).unwrap_or_default() as u32
}

/// Removes the eighth sign of each byte; the inverse of [`even_signs`].
pub(super) fn without_eighth_signs(signs: u32) -> u32 {
    signs & 0x7f | signs >> 1 & 0x3f80 | signs >> 2 & 0x1f_c000 | signs >> 3 & 0x0fe0_0000
}

/// Formula for the values of a [`GridBlock`], computed exactly in f32.
pub(crate) enum Form {
    /// `d * scale * element`, negated if the element's bit is set.
    Signed,
    /// `d * scale * (element - 7/8)`, or `(element - 9/8)` if the element's bit is set.
    Shifted,
}

/// A block of 256 elements in 8 groups of grid points.
pub(crate) trait GridBlock: Block {
    const FORM: Form;

    /// Bits of the integers, and the zero point if they are unsigned; see
    /// [`Unpack`](crate::layout::runs::Unpack).
    const BITS: u32 = 8;
    const ZERO: u8 = 0;

    /// Whether each half of a group has its own scale.
    const BY_16: bool;

    /// Possible values of an element in ascending order: 3 or 8 levels.
    const LEVELS: &'static [u8];

    /// Right shift that maps an element to the index of its level.
    const LEVEL_SHIFT: u32;

    /// Factor applied to `scale + 1/2`.
    const FACTOR: f32;

    /// Values computed once for all groups to find their elements; `()` if there are none.
    type Indices: Default;

    /// Returns the scale of the block.
    fn d(&self) -> Half;

    /// Returns the scale of each 16 elements, of at most 4 bits.
    fn scales(&self) -> [u8; 16];

    /// Returns the factor of each 16 elements.
    #[inline(always)]
    fn factors(&self) -> [f32; 16] {
        self.scales().map(|scale| (f32::from(scale) + 0.5) * Self::FACTOR)
    }

    /// Returns one bit per element, 32 per word; see [`Form`].
    fn bits(&self) -> [u32; 8];

    #[inline(always)]
    fn indices(&self) -> Self::Indices {
        Self::Indices::default()
    }

    /// Returns the 32 elements of group `g` as the bytes of four words, lowest first.
    fn elements(&self, indices: &Self::Indices, g: usize) -> [u64; 4];

    /// Builds a block from its parts.
    fn from_parts(parts: &BlockParts) -> Self;
}

/// Decoded contents of a block.
#[derive(Clone)]
pub(crate) struct BlockParts {
    pub d: Half,
    /// See [`GridBlock::scales`].
    pub scales: [u8; 16],
    /// See [`GridBlock::elements`].
    pub elements: [[u64; 4]; 8],
    /// See [`GridBlock::bits`].
    pub bits: [u32; 8],
}

impl BlockParts {
    pub fn of<B: GridBlock>(block: &B) -> BlockParts {
        let indices = block.indices();
        BlockParts {
            d: block.d(),
            scales: block.scales(),
            elements: std::array::from_fn(|g| block.elements(&indices, g)),
            bits: block.bits(),
        }
    }

    /// Returns the index of each four elements of group `g`.
    pub fn half_indices(&self, g: usize, grid: &[u32]) -> [u32; 8] {
        std::array::from_fn(|i| index(grid, (self.elements[g][i / 2] >> (32 * (i % 2))) as u32))
    }
}

/// Implements [`Block::dequantize`] for grid types.
pub(super) fn dequantize<B: GridBlock>(block: &B, out: &mut [f32]) {
    let (d, scales, bits, indices) = (block.d().get(), block.factors(), block.bits(), block.indices());
    for (g, out) in out.chunks_exact_mut(32).enumerate() {
        let elements = block.elements(&indices, g);
        for (i, v) in out.iter_mut().enumerate() {
            let scale = d * scales[g * 2 + i / 16];
            let element = f32::from(elements[i / 8].to_le_bytes()[i % 8]);
            let bit = bits[g] >> i & 1 != 0;
            *v = match B::FORM {
                Form::Signed => scale * if bit { -element } else { element },
                Form::Shifted => scale * (element - if bit { 1.125 } else { 0.875 }),
            };
        }
    }
}

/// Implements [`Decode::decode`](crate::layout::decode::Decode::decode) for grid types.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` is valid for reads of a block, and the sink accepts 256 elements.
#[inline(always)]
pub(super) unsafe fn decode<V: Simd, B: GridBlock, S: Sink<V>>(p: *const u8, sink: &mut S) {
    // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it. A register holds 8 or
    // 16 elements, which are one or two words.
    unsafe {
        let block = &*p.cast::<B>();
        let d = block.d();
        let d = V::splat_f16((&raw const d).cast());
        let (mut scales, bits, indices) = (block.factors(), block.bits(), block.indices());
        for at in (0..16).step_by(V::LANES) {
            let scale = V::load(scales.as_ptr().add(at)).mul(d);
            scale.store(scales.as_mut_ptr().add(at));
        }
        let (scales, bits, indices) = in_memory((&scales, &bits, &indices));
        for g in 0..8 {
            let elements = block.elements(indices, g);
            for at in (0..32).step_by(V::LANES) {
                let scale = V::splat(scales[g * 2 + at / 16]);
                let x = V::from_int(V::bytes([elements[at / 8], elements[at / 8 + V::LANES / 8 - 1]]));
                let mask = V::mask(bits[g], at);
                let weights = match B::FORM {
                    Form::Signed => x.mul(scale).negate_where(mask),
                    Form::Shifted => x.sub(V::splat(0.875)).add_where(mask, V::splat(-0.25)).mul(scale),
                };
                sink.put(g * 32 + at, weights);
            }
        }
    }
}

/// Implements [`Unpack::scales`](crate::layout::runs::Unpack::scales) for grid types.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` is valid for reads of a block.
#[inline(always)]
pub(super) unsafe fn integer_scales<V: Simd, B: GridBlock>(p: *const u8, to: &mut Scales) {
    // SAFETY: `p` is valid for a block, which has alignment 1 (function contract); each array has 8 floats,
    // one per lane.
    unsafe {
        let block = &*p.cast::<B>();
        let (d, scales) = (block.d(), block.factors());
        let factor = match B::FORM {
            Form::Signed => 1.0,
            Form::Shifted => 0.125,
        };
        let d = V::splat_f16((&raw const d).cast()).mul(V::splat(factor));
        for half in 0..2 {
            let scales: [f32; RUNS] = std::array::from_fn(|i| scales[2 * i + half]);
            let scales = V::load(scales.as_ptr()).mul(d);
            scales.store(to.scales[half].as_mut_ptr());
            if B::ZERO > 0 {
                let zero = V::splat(-f32::from(B::ZERO));
                scales.mul(zero).store(to.mins[half].as_mut_ptr());
            }
        }
    }
}

/// Implements [`Unpack::values`](crate::layout::runs::Unpack::values) for grid types: the elements, or
/// eight times the shifted elements.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` is valid for reads of a block, and `i < 8`.
#[inline(always)]
pub(super) unsafe fn integers<V: IntSimd, B: GridBlock>(p: *const u8, i: usize) -> V {
    // SAFETY: `p` is valid for a block, which has alignment 1 (function contract).
    unsafe {
        let block = &*p.cast::<B>();
        let elements = V::from_words(block.elements(&block.indices(), i));
        let mask = V::from_bits(block.bits()[i]);
        match B::FORM {
            Form::Signed => elements.xor(mask).sub(mask).add(V::splat(B::ZERO)),
            // Elements are small enough that no bit moves to another byte.
            Form::Shifted => elements
                .shl(3)
                .add(V::splat(B::ZERO.wrapping_sub(7)))
                .sub(mask.and(V::splat(2))),
        }
    }
}

const IQ1_SET: [u32; 206] = [
    0x85142555, 0x514202a0, 0xa8314508, 0xa28a2086, 0x202a081a, 0x14508514, 0x45442082, 0xa0051525, 0x88208202,
    0x82080018, 0xa02a03a0, 0x0aaabb88, 0x000baa90, 0xaa0a0022, 0x08a0828c, 0x45085140, 0x50808821, 0x08514214,
    0x9808308a, 0x2a8008a0, 0x14214508, 0x42482085, 0x01450855, 0x20a0c22c, 0x2a00268a, 0xa2aaa824, 0x08afe208,
    0x00282808, 0x284202a0, 0xa82028aa, 0x9b0a2080, 0xa8bab908, 0x89aeca20, 0x3aaaaea2, 0xbaeaeb7c, 0xb80e82bb,
    0xd3caba22, 0x2202920e, 0xa8202200, 0x820aba8a, 0x2a000802, 0x3ba2e04a, 0xa22b2022, 0x81408100, 0x08288aaa,
    0x85140122, 0x20821550, 0x54214509, 0x0208a085, 0x203aa823, 0x54208284, 0xa2085142, 0x50950820, 0x082a0214,
    0x8082a8b8, 0x200248a0, 0x68a28208, 0xab2802a2, 0x2085082a, 0x08308208, 0x45004045, 0xa0851421, 0x00514200,
    0x82290145, 0x2a828a00, 0x1430a108, 0x82145005, 0x21450828, 0x02208514, 0x2aaa2002, 0xb1122000, 0xa828ae8a,
    0xa8aaa1ba, 0x0a820070, 0x22280208, 0x82008402, 0xa0804800, 0xaa2ab0ea, 0xba8b20c2, 0xa7daea22, 0xa86e8b8b,
    0xaa2ab092, 0x448a8b72, 0x48202a0c, 0x8a284084, 0x20aa082a, 0x22a2ccc8, 0xa09aafa2, 0x0002a8e8, 0xa82a0002,
    0x80200088, 0xa2a28ba0, 0x80a0ba28, 0xba0a3282, 0xfebab8be, 0x2ba0a2eb, 0x0a8a08a2, 0x00a2ea28, 0x0c0232a1,
    0xdeeaa4fa, 0x2ea82bef, 0xeb7ebe8d, 0xbf7ff7fa, 0xdeba7de6, 0xff27fb69, 0x12fa26bf, 0x228ae1e9, 0x0ebeaa10,
    0xb208aa84, 0xae820ba8, 0xe924baff, 0x62048083, 0xa8f2682c, 0x002ba40a, 0x08082a02, 0x0012aae2, 0x0a2a8202,
    0x82c920a6, 0x28829089, 0x8c00a200, 0x82001380, 0x6c000808, 0xbbaaaa8a, 0x8abea602, 0x8002caa0, 0xd02e976b,
    0x8210e9b2, 0xdeaa2e10, 0xa5d11528, 0x820a0004, 0x20828a00, 0x20a10108, 0xba39aa82, 0xa0843222, 0x00188009,
    0x0262a28a, 0x51441481, 0xac214500, 0x42145082, 0x20aa0851, 0x0a87aa28, 0x45082a12, 0xa0051421, 0x08514208,
    0x02200145, 0x22a240a0, 0x08008800, 0x8a6a08a2, 0xaaaab86e, 0x0a200080, 0x22c8e282, 0x50440821, 0x09514214,
    0x8515208a, 0x0a861450, 0x2a2aaa08, 0x420a0080, 0x21450851, 0x145000a8, 0xe2085142, 0x0a828820, 0x082a8218,
    0x8aaaa2aa, 0x0a028bb0, 0x2820aa2a, 0x0aaa8082, 0x00280828, 0x220288a9, 0x280bbea0, 0xba8a08b8, 0xffaeb24b,
    0xaef8a4ba, 0x285220aa, 0x30a0b668, 0x020a80e6, 0x6a220828, 0x0a208062, 0x2baaaa02, 0xa9a2eaaa, 0x0808a2a0,
    0x8aa02010, 0x0e820022, 0x14214500, 0x400aa085, 0x21450851, 0x4a0006a9, 0xa50802aa, 0x440d1000, 0x08288214,
    0x05142145, 0x82820800, 0x0020f2ac, 0x0aaa0000, 0x20ba0a28, 0x0002a2ea, 0x28094882, 0x110014e9, 0x0051454b,
    0x02a80145, 0x51421450, 0x08248808, 0x400a2888, 0x01450008, 0x02a00514, 0x45085140, 0x00000001,
];

const IQ2_XXS_SET: [u32; 206] = [
    0x55141555, 0x41414410, 0x44140400, 0x00001000, 0x00400400, 0x00400014, 0x04000000, 0x10500000, 0x00114140,
    0x40041401, 0x00400450, 0x05000010, 0x50000010, 0x00010000, 0x00004000, 0x40041441, 0x00001414, 0x04000004,
    0x00040000, 0x00000000, 0x00100400, 0x00000000, 0x14000000, 0x00101004, 0x11040040, 0x10010400, 0x00404000,
    0x00000001, 0x04010000, 0x00000000, 0x40041000, 0x00004004, 0x00000004, 0x00001000, 0x00001000, 0x10004000,
    0x00000000, 0x00000000, 0x04000105, 0x00400000, 0x00110000, 0x00000000, 0x01000000, 0x00000000, 0x00000040,
    0x04140000, 0x00010000, 0x00000501, 0x10000000, 0x00000010, 0x00500000, 0x00000000, 0x00000000, 0x00004140,
    0x00004001, 0x00400000, 0x00040000, 0x00000040, 0x00000000, 0x00000000, 0x40000040, 0x00000400, 0x04000000,
    0x00000000, 0x00000000, 0x00000000, 0x01000000, 0x00000000, 0x44105000, 0x01101041, 0x10000414, 0x00004000,
    0x00440400, 0x00404000, 0x00404000, 0x40000001, 0x00010010, 0x00100000, 0x04000010, 0x00000010, 0x00000000,
    0x00000001, 0x00000000, 0x04140000, 0x00011000, 0x00000000, 0x00000004, 0x04011000, 0x00000000, 0x00040000,
    0x00040000, 0x00504410, 0x04000000, 0x01000001, 0x00040000, 0x00000000, 0x00000001, 0x00000000, 0x00000040,
    0x00000000, 0x01400000, 0x00010000, 0x00000000, 0x04000000, 0x00000000, 0x00000001, 0x04100400, 0x04000000,
    0x00000000, 0x00400000, 0x00000000, 0x00040000, 0x00000000, 0x00000000, 0x01000041, 0x00010000, 0x00004000,
    0x00400000, 0x00000000, 0x00004000, 0x00001000, 0x00110000, 0x00000000, 0x00000000, 0x00001400, 0x04000000,
    0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000001, 0x00000000, 0x00000000, 0x00000000, 0x00000000,
    0x00000000, 0x41400000, 0x00040000, 0x00004000, 0x00400400, 0x00000004, 0x00000000, 0x00000004, 0x00000000,
    0x00441400, 0x00400010, 0x04000000, 0x04000000, 0x10000000, 0x00040000, 0x01000040, 0x40000000, 0x00000000,
    0x00000000, 0x00010000, 0x00000000, 0x00000000, 0x00000100, 0x00000000, 0x01040000, 0x00000410, 0x01000000,
    0x00004000, 0x00400000, 0x00000000, 0x00010000, 0x00000000, 0x00400004, 0x00000001, 0x00000000, 0x01000000,
    0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00001000, 0x01000000, 0x00000000, 0x00000000,
    0x00000000, 0x00000000, 0x00000400, 0x00001000, 0x00000004, 0x00000001, 0x00000000, 0x00000400, 0x00000000,
    0x00000000, 0x00000400, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000,
    0x00040000, 0x00000000, 0x00000004, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000,
];

const IQ2_XS_SET: [u32; 206] = [
    0x51555555, 0x15414555, 0x55540145, 0x41455055, 0x00010510, 0x40105154, 0x01000441, 0x55500001, 0x15154145,
    0x00041401, 0x00414550, 0x04040105, 0x41400000, 0x00051000, 0x00004000, 0x11055540, 0x10010414, 0x05404000,
    0x00040001, 0x00104000, 0x04000100, 0x00000001, 0x54011000, 0x45505155, 0x01054041, 0x10515400, 0x00004140,
    0x50005001, 0x00400011, 0x00000100, 0x41455000, 0x10014500, 0x40000004, 0x01000041, 0x00000000, 0x04004000,
    0x00010000, 0x00000000, 0x04000505, 0x04000040, 0x00110000, 0x00000000, 0x00000004, 0x00000000, 0x00000040,
    0x55550000, 0x00414010, 0x04000100, 0x40001050, 0x00100010, 0x00100000, 0x00000100, 0x00000400, 0x40004144,
    0x00000001, 0x00400000, 0x10040000, 0x10000000, 0x01000100, 0x00000000, 0x41100000, 0x00000401, 0x00100001,
    0x00000004, 0x10000000, 0x00000100, 0x00001001, 0x01440000, 0x45555000, 0x11055541, 0x50000414, 0x05004145,
    0x00440001, 0x01414040, 0x00000140, 0x40000000, 0x14014515, 0x00100004, 0x01050001, 0x00000410, 0x00400000,
    0x40000101, 0x00000010, 0x04140000, 0x01011000, 0x00000001, 0x00001004, 0x00400041, 0x00400000, 0x00000000,
    0x00000000, 0x10414550, 0x04000105, 0x41400000, 0x00050004, 0x00000000, 0x00000040, 0x00000010, 0x05400000,
    0x00040401, 0x00004010, 0x00004101, 0x40000000, 0x00000010, 0x00001000, 0x00001000, 0x00400404, 0x00004040,
    0x00010000, 0x01401000, 0x00000000, 0x00000000, 0x00000000, 0x40000040, 0x01000041, 0x01001010, 0x00005000,
    0x00000000, 0x00000000, 0x00100000, 0x00000004, 0x40010001, 0x00000000, 0x00000000, 0x10000400, 0x00000001,
    0x00001000, 0x00000000, 0x00000000, 0x00000010, 0x01000000, 0x00000000, 0x00000400, 0x00000000, 0x00000400,
    0x00101000, 0x15400000, 0x04150105, 0x00005000, 0x00011550, 0x00041004, 0x01000000, 0x00000400, 0x00014000,
    0x00541441, 0x00400010, 0x04000040, 0x01000000, 0x00000000, 0x04000040, 0x00000000, 0x10000001, 0x00040004,
    0x00140100, 0x00040400, 0x00000000, 0x00000000, 0x00040000, 0x04100000, 0x01051004, 0x01000400, 0x00000100,
    0x00100001, 0x00010000, 0x00000000, 0x04000000, 0x00004000, 0x00000044, 0x00001041, 0x00000000, 0x00001000,
    0x00140000, 0x00000000, 0x00000001, 0x00000000, 0x04000000, 0x00000000, 0x00000004, 0x00000100, 0x00000000,
    0x00000010, 0x00000010, 0x04014500, 0x00000004, 0x00010000, 0x40000000, 0x00000010, 0x00011440, 0x00000010,
    0x00040001, 0x00400000, 0x40000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00004000, 0x00400004,
    0x00000045, 0x10400000, 0x00000004, 0x05000000, 0x00000000, 0x00000500, 0x00010000, 0x00000001,
];

const IQ2_S_SET: [u32; 206] = [
    0x51555555, 0x15554555, 0x55551105, 0x55455051, 0x14150514, 0x50105154, 0x11000455, 0x55501011, 0x55555545,
    0x51455415, 0x14555550, 0x54145555, 0x55401051, 0x14510004, 0x00105004, 0x11551540, 0x10515555, 0x05400101,
    0x51440455, 0x00404010, 0x10140100, 0x00001005, 0x54004000, 0x45515155, 0x51151555, 0x55555414, 0x05155545,
    0x50001455, 0x04414114, 0x04140005, 0x55455000, 0x14555514, 0x40105154, 0x55051555, 0x10500414, 0x05144000,
    0x00041401, 0x40000010, 0x54045155, 0x01401051, 0x14550000, 0x00105004, 0x04000010, 0x10000410, 0x00000400,
    0x51540000, 0x05415115, 0x00110104, 0x40415054, 0x14010505, 0x10100004, 0x01045100, 0x00050000, 0x05145544,
    0x50041455, 0x14400010, 0x04140105, 0x00001100, 0x00010500, 0x00040004, 0x11000000, 0x10500014, 0x00400000,
    0x00041500, 0x00000000, 0x00001000, 0x00004004, 0x01400400, 0x55555000, 0x15555545, 0x50514414, 0x55055545,
    0x51541455, 0x15414010, 0x04145104, 0x40000050, 0x54555555, 0x45505155, 0x55550041, 0x10515414, 0x00004150,
    0x50041455, 0x00400010, 0x55141000, 0x41455051, 0x00010400, 0x40105154, 0x01000041, 0x10500040, 0x00004000,
    0x00000000, 0x15554550, 0x54145555, 0x55400051, 0x14550515, 0x00105004, 0x01051440, 0x14000414, 0x55000000,
    0x51541455, 0x00414010, 0x04145500, 0x40001050, 0x14000000, 0x00110004, 0x00000000, 0x10515400, 0x00404140,
    0x50000001, 0x00400010, 0x00000000, 0x10001000, 0x00000000, 0x44000040, 0x51051545, 0x10400414, 0x05154000,
    0x00041401, 0x00100010, 0x04000104, 0x00000100, 0x14510100, 0x00105004, 0x00000040, 0x10000414, 0x00100010,
    0x00040004, 0x00000000, 0x00100000, 0x00001050, 0x00100000, 0x00100100, 0x00004000, 0x00000000, 0x00000000,
    0x00000004, 0x15404000, 0x54141145, 0x01411011, 0x14554500, 0x40005154, 0x11400041, 0x10500015, 0x00000000,
    0x11555400, 0x00414550, 0x54000105, 0x41401051, 0x01010000, 0x00105000, 0x00000050, 0x10000000, 0x05000141,
    0x00000001, 0x00014040, 0x40000100, 0x00000000, 0x00040000, 0x00400500, 0x55450100, 0x10515410, 0x00004140,
    0x50001411, 0x00001010, 0x04140000, 0x00001000, 0x40000000, 0x40105154, 0x01000041, 0x10500040, 0x00004000,
    0x11000000, 0x00000010, 0x00100010, 0x41400000, 0x00011000, 0x00000000, 0x00000050, 0x00001100, 0x00000000,
    0x00000000, 0x00400000, 0x10111100, 0x00001054, 0x01040000, 0x00100000, 0x00000400, 0x40041000, 0x00000014,
    0x51000144, 0x00400010, 0x01000000, 0x10001040, 0x00000000, 0x00000000, 0x00000000, 0x00000004, 0x00400000,
    0x00000040, 0x01000000, 0x00000000, 0x04000040, 0x01400000, 0x00000114, 0x00001000, 0x00000001,
];

const IQ3_XXS_SET: [u32; 128] = [
    0x02058a15, 0x28000004, 0x0522050a, 0x01001002, 0x8a050215, 0x20008200, 0x00200582, 0x01000000, 0x80000800,
    0x28008010, 0x04000082, 0x00000400, 0x20000000, 0x00100000, 0x00005100, 0x00020008, 0x150a050a, 0x00000180,
    0x00050205, 0x00000000, 0x0102050a, 0x04000000, 0x02010005, 0x00400040, 0x00000022, 0x00000100, 0x00110000,
    0x02000040, 0x00000020, 0x00000000, 0x00040000, 0x00000001, 0x02450a05, 0x00000004, 0x0102052a, 0x01880000,
    0x80058205, 0x00002001, 0x00001102, 0x11000000, 0x20000000, 0x00000800, 0x00800008, 0x10000002, 0x00000000,
    0x00000000, 0x0000400a, 0x00000020, 0x000a0502, 0x04200100, 0x02010005, 0x00000050, 0x0020010a, 0x04000400,
    0x08000200, 0x00000000, 0x01000000, 0x04000080, 0x00040041, 0x00002000, 0x40001000, 0x00080000, 0x08000000,
    0x00010000, 0xa0008010, 0x00008800, 0x00000000, 0x10000000, 0x80010000, 0x00410001, 0x00000080, 0x00000020,
    0x00000010, 0x00100200, 0x00200000, 0x01000008, 0x00000000, 0x00000000, 0x01000520, 0x00000000, 0x00000400,
    0x01000002, 0x00400041, 0x00002000, 0x04001000, 0x04000000, 0x00000004, 0x00000800, 0x00880100, 0x04000000,
    0x02000004, 0x00000000, 0x00000000, 0x00000100, 0x00100000, 0x00000004, 0x00100000, 0x00100050, 0x00020000,
    0x00020000, 0x00008000, 0x00100000, 0x41000000, 0x00000000, 0x00000000, 0x00000010, 0x00000020, 0x00000400,
    0x08000000, 0x00000000, 0x00020008, 0x00000000, 0x040001a8, 0x00000400, 0x00400000, 0x00000001, 0x00000400,
    0x00000420, 0x08002001, 0x00010000, 0x00020000, 0x00000002, 0x00100005, 0x00000000, 0x01000000, 0x00000000,
    0x00000000, 0x00000000,
];

const IQ3_S_SET: [u32; 128] = [
    0x082357a7, 0x92050aa5, 0x22892317, 0x04220010, 0x112249a3, 0x09000aa4, 0x4a052208, 0x22800510, 0x04128801,
    0x01000209, 0x08450014, 0x084000a2, 0x02000a40, 0x02000400, 0x08450015, 0x00001100, 0x5205ab17, 0x04025000,
    0x0902114b, 0x41000502, 0x0411a401, 0x04012009, 0x11820992, 0x01040002, 0x0a001428, 0x00001144, 0x05020902,
    0x00000200, 0x00910000, 0x00000050, 0x2002050a, 0x01040002, 0x058a55ab, 0x2980052a, 0x12248905, 0x00000204,
    0x810a0092, 0x12008802, 0x0a140225, 0x00400104, 0x24090082, 0x24000002, 0x80040210, 0x01000801, 0x00020085,
    0x00022000, 0x01400220, 0x00000108, 0x2a04aa04, 0x02080294, 0x000a102a, 0x44010001, 0x14010401, 0x00000100,
    0x018a1102, 0x0800208a, 0x02044208, 0x00110400, 0x04200502, 0x08004010, 0x00004000, 0x00000002, 0x2005000a,
    0x00000000, 0x04910411, 0x01000102, 0x21040a84, 0x00002208, 0x0802210a, 0x01048001, 0x22050a10, 0x00000000,
    0x80100005, 0x02000001, 0x000200a0, 0x00040000, 0x10000800, 0x00010000, 0x01002100, 0x00000208, 0x00041104,
    0x10400491, 0x0402042a, 0x04000000, 0x41080201, 0x00000800, 0x00800184, 0x08200210, 0x04010012, 0x00000040,
    0x00400400, 0x00000a00, 0x00000000, 0x00000004, 0x00040014, 0x00000000, 0x0a002a00, 0x00010000, 0x00810001,
    0x00100000, 0x10000400, 0x01042004, 0x00021001, 0x00000001, 0x00200000, 0x00040008, 0x10000009, 0x00010000,
    0x00000020, 0x00000001, 0x00000a00, 0x00000000, 0x40050091, 0x00041001, 0x00100204, 0x00000028, 0x01024112,
    0x00000200, 0x24000004, 0x00000800, 0x00010822, 0x00000100, 0x00040000, 0x00000004, 0x02000004, 0x00000000,
    0x00000001, 0x00000000,
];
