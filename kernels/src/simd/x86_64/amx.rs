//! AMX with bf16 and int8 tiles: a matrix unit with eight tile registers.

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::avx512::Avx512;
use super::dots512::VnniDots512;
use super::int256::Avx512VnniInt;
use crate::simd::Simd;
use crate::simd::byte_tiles::{ByteSums, ByteTileUnit};
use crate::simd::dots::DoubleWidth;
use crate::simd::tiles::{TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileScales, TileSums, TileUnit, adjust_scale, weights};

/// Returns true if the CPU supports AMX and the operating system permits its use by this process. The
/// permission is requested once and may be denied.
pub(crate) fn is_available() -> bool {
    #[cfg(target_os = "linux")]
    {
        static AVAILABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *AVAILABLE.get_or_init(|| cpu_has_amx() && request_permission())
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Returns true if the CPU supports tiles with bf16 and int8 products, and the operating system saves tile
/// state for each thread.
#[cfg(target_os = "linux")]
fn cpu_has_amx() -> bool {
    const FEATURES_EDX: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const STATES: u64 = 1 << 17 | 1 << 18;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & FEATURES_EDX != FEATURES_EDX {
        return false;
    }
    // SAFETY: `is_x86_feature_detected` confirmed that XSAVE is supported and enabled by the operating
    // system.
    is_x86_feature_detected!("xsave") && unsafe { enabled_states() } & STATES == STATES
}

/// Returns the register states that the operating system saves.
///
/// # Safety
/// The CPU supports XSAVE.
#[cfg(target_os = "linux")]
#[target_feature(enable = "xsave")]
unsafe fn enabled_states() -> u64 {
    // SAFETY: the CPU supports XSAVE (function contract).
    unsafe { _xgetbv(_XCR_XFEATURE_ENABLED_MASK) }
}

/// Requests permission to use tile data for all threads of the process; using tiles without it raises a
/// fault. Linux before 5.16 does not support the request, and sandboxes may deny it.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: the system call does not access memory of the process; `rcx` and `r11` are declared as
    // clobbered.
    unsafe {
        asm!(
            "syscall",
            inout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Operand of `LDTILECFG`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 8],
    reserved2: [u8; 16],
    rows: [u8; 8],
    reserved3: [u8; 8],
}
const _: () = assert!(size_of::<Config>() == 64);

/// Configuration of eight tiles with full size.
const FULL_CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [TILE_WIDTH as u16; 8],
    reserved2: [0; 16],
    rows: [TILE_ROWS as u8; 8],
    reserved3: [0; 8],
};

static CONFIG: Config = FULL_CONFIG;

/// Returns the configuration for int8 steps: tiles 0 to 3 are sums, 4 and 5 are `quads` rows of weights, 6
/// and 7 are activations.
const fn byte_config(quads: u8) -> Config {
    let (mut config, mut tile) = (FULL_CONFIG, 4);
    while tile < 6 {
        config.rows[tile] = quads;
        config.row_bytes[tile + 2] = 4 * quads as u16;
        tile += 1;
    }
    config
}
static BYTE_CONFIG_4: Config = byte_config(4);
static BYTE_CONFIG_8: Config = byte_config(8);

/// Permutation that interleaves the numbers 0..16 with 16..32.
static INTERLEAVE: [u16; 32] = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 32 {
        order[i] = (i / 2 + i % 2 * 16) as u16;
        i += 1;
    }
    order
};

/// The bf16 tiles of the current thread. The unit is only used through this file, so nothing else changes the
/// configuration. Other threads have their own.
pub(crate) struct Amx(());

impl Drop for Amx {
    fn drop(&mut self) {
        // SAFETY: a value proves that the CPU supports AMX, and tiles hold no data between blocks.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}

/// Multiplies a step, given the instruction that loads activations. A multiplication takes 16 cycles and a
/// tile load 8, two of which overlap; four multiplications per four loads keep the unit busy.
macro_rules! multiply_step {
    ($load:literal, $x:ident, $x_stride:ident, $w:ident) => {{
        const { assert!(TILE_BYTES == 1024 && TILE_WIDTH == 64 && TILE_ROWS == 16) };
        asm!(
            concat!($load, " tmm4, [{first} + 1*{x_stride}]"),
            "tileloadd tmm6, [{w} + 1*{width}]",
            "tileloadd tmm7, [{w} + 1*{width} + 1024]",
            concat!($load, " tmm5, [{second} + 1*{x_stride}]"),
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            first = in(reg) $x,
            second = in(reg) $x.add(TILE_ROWS * $x_stride),
            x_stride = in(reg) $x_stride,
            w = in(reg) $w,
            width = in(reg) TILE_WIDTH,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly, preserves_flags),
        );
    }};
}

impl TileUnit for Amx {
    type Float = Avx512;
    type Int = Avx512VnniInt;

    #[inline(always)]
    unsafe fn store_scales(scales: [Avx2; 2], mins: [Avx2; 2], to: *mut TileScales) {
        // SAFETY: `to` is valid for writes (trait contract).
        unsafe {
            let scales = VnniDots512::join_floats(scales[0], scales[1]);
            let mins = VnniDots512::join_floats(mins[0], mins[1]);
            let (scale, min) = adjust_scale(scales, mins);
            scale.store((*to).scales.as_mut_ptr());
            min.store((*to).mins.as_mut_ptr());
        }
    }

    #[inline(always)]
    unsafe fn store_weights(bytes: [Avx512VnniInt; 2], flip: u8, scales: *const TileScales, to: *mut u8) {
        // SAFETY: `scales` has 16 lanes, and `to` is valid for writes of two tile rows (trait contract).
        unsafe {
            let words = VnniDots512::join(bytes[0], bytes[1]).register();
            let scale = Avx512::load((*scales).scales.as_ptr());
            let min = Avx512::load((*scales).mins.as_ptr());
            let w = weights(words, flip, scale, min);
            Self::store_bf16_pairs(w[0], w[1], to);
            Self::store_bf16_pairs(w[2], w[3], to.add(TILE_WIDTH));
        }
    }

    #[inline(always)]
    unsafe fn new() -> Amx {
        // SAFETY: the CPU supports AMX, and the process has permission (trait contract).
        unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly)) };
        Amx(())
    }

    #[inline(always)]
    unsafe fn store_bf16(x: Avx512, to: *mut u8) {
        // SAFETY: `to` is valid for writes of 32 bytes (trait contract). CPUs with AMX support AVX512-BF16.
        unsafe { to.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(x.register())) }
    }

    #[inline(always)]
    unsafe fn store_bf16_pairs(even: Avx512, odd: Avx512, to: *mut u8) {
        // SAFETY: `to` is valid for writes of 64 bytes (trait contract). CPUs with AMX support AVX512-BF16.
        // Both operands are converted to one register, then the halves are interleaved.
        unsafe {
            let halves = _mm512_cvtne2ps_pbh(odd.register(), even.register());
            let order = _mm512_loadu_si512(INTERLEAVE.as_ptr().cast());
            let pairs = _mm512_permutexvar_epi16(order, std::mem::transmute::<__m512bh, __m512i>(halves));
            _mm512_storeu_si512(to.cast(), pairs);
        }
    }

    /// Sums stay in tile registers until [`end`](TileUnit::end). The compiler never uses these registers
    /// itself.
    #[inline(always)]
    unsafe fn begin(&mut self, sums: *const TileSums) {
        const { assert!(TileSums::STRIDE == 128) };
        // SAFETY: `sums` is null or valid (trait contract), and tiles are configured while `self` exists.
        unsafe {
            if sums.is_null() {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, nomem, preserves_flags),
                );
            } else {
                asm!(
                    "tileloadd tmm0, [{sums} + 2*{width}]",
                    "tileloadd tmm1, [{sums} + 2*{width} + 64]",
                    "tileloadd tmm2, [{sums} + 2*{width} + 2048]",
                    "tileloadd tmm3, [{sums} + 2*{width} + 2112]",
                    sums = in(reg) sums,
                    width = in(reg) TILE_WIDTH,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn step(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        // SAFETY: `x` has 32 rows and `w` two tiles (trait contract), and tiles are configured while `self`
        // exists.
        unsafe { multiply_step!("tileloadd", x, x_stride, w) }
    }

    #[inline(always)]
    unsafe fn step_streaming(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        // SAFETY: `x` has 32 rows and `w` two tiles (trait contract), and tiles are configured while `self`
        // exists.
        unsafe { multiply_step!("tileloaddt1", x, x_stride, w) }
    }

    /// Loads each tile once, unlike the default implementation. Weights are loaded with a streaming hint,
    /// because they are read once for some columns.
    #[inline(always)]
    unsafe fn step_split(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        const { assert!(TILE_BYTES == 1024 && TILE_WIDTH == 64 && TILE_ROWS == 16) };
        // SAFETY: `x` has 32 rows of both parts and `w` four tiles (trait contract), and tiles are configured
        // while `self` exists.
        unsafe {
            asm!(
                "tileloadd tmm4, [{first} + 1*{x_stride} + 64]",
                "tileloaddt1 tmm6, [{w} + 1*{width}]",
                "tileloaddt1 tmm7, [{w} + 1*{width} + 1024]",
                "tileloadd tmm5, [{second} + 1*{x_stride} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{first} + 1*{x_stride}]",
                "tileloadd tmm5, [{second} + 1*{x_stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloaddt1 tmm6, [{w} + 1*{width} + 2048]",
                "tileloaddt1 tmm7, [{w} + 1*{width} + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                first = in(reg) x,
                second = in(reg) x.add(TILE_ROWS * x_stride),
                x_stride = in(reg) x_stride,
                w = in(reg) w,
                width = in(reg) TILE_WIDTH,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn end(&mut self, to: *mut f32, to_stride: usize) {
        // SAFETY: `to` is valid for the sums of 32 columns (trait contract), and tiles are configured while
        // `self` exists.
        unsafe {
            asm!(
                "tilestored [{to} + 1*{to_stride}], tmm0",
                "tilestored [{to} + 1*{to_stride} + 64], tmm1",
                "tilestored [{second} + 1*{to_stride}], tmm2",
                "tilestored [{second} + 1*{to_stride} + 64], tmm3",
                to = in(reg) to,
                second = in(reg) to.byte_add(TILE_ROWS * to_stride),
                to_stride = in(reg) to_stride,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// The int8 tiles of the current thread, configured like [`Amx`].
pub(crate) struct AmxBytes {
    /// Bytes per row of an activation tile.
    row_bytes: usize,
}

impl Drop for AmxBytes {
    fn drop(&mut self) {
        // SAFETY: a value proves that the CPU supports AMX, and tiles hold no data between steps.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}

/// Loads weights into one tile and activations into one or two.
macro_rules! load_bytes {
    ($row_bytes:expr, $w:ident => $weights:tt, $( $x:ident => $tile:tt ),*) => {
        asm!(
            concat!("tileloadd ", $weights, ", [{w} + 1*{width}]"),
            $( concat!("tileloadd ", $tile, ", [{", stringify!($x), "} + 1*{row_bytes}]"), )*
            w = in(reg) $w,
            width = in(reg) TILE_WIDTH,
            $( $x = in(reg) $x, )*
            row_bytes = in(reg) $row_bytes,
            out($weights) _, $( out($tile) _, )*
            options(nostack, readonly, preserves_flags),
        )
    };
}

/// Multiplies each activation tile by the weights with the instruction `$dots`.
macro_rules! multiply_bytes {
    ($dots:literal, $weights:tt, $( $tile:tt => $sums:tt ),*) => {
        asm!(
            $( concat!("tilezero ", $sums), concat!($dots, " ", $sums, ", ", $tile, ", ", $weights), )*
            $( out($sums) _, )*
            options(nostack, nomem, preserves_flags),
        )
    };
}

/// Selects the tiles of a step for [`multiply_bytes`].
macro_rules! multiply_step {
    ($dots:literal) => {
        match (ODD, TILES) {
            (false, 1) => multiply_bytes!($dots, "tmm4", "tmm6" => "tmm0"),
            (true, 1) => multiply_bytes!($dots, "tmm5", "tmm7" => "tmm2"),
            (false, _) => multiply_bytes!($dots, "tmm4", "tmm6" => "tmm0", "tmm7" => "tmm1"),
            (true, _) => multiply_bytes!($dots, "tmm5", "tmm6" => "tmm2", "tmm7" => "tmm3"),
        }
    };
}

/// Stores sum tiles contiguously.
macro_rules! store_sums {
    ($to:ident, $( $sums:literal at $at:literal ),*) => {
        asm!(
            $( concat!("tilestored [{to} + 1*{width} + ", $at, "], ", $sums), )*
            to = in(reg) $to,
            width = in(reg) TILE_WIDTH,
            options(nostack, preserves_flags),
        )
    };
}

impl ByteTileUnit for AmxBytes {
    type Float = Avx512;
    type Int = Avx512VnniInt;

    #[inline(always)]
    unsafe fn new(quads: usize) -> AmxBytes {
        let config = if quads == 4 { &BYTE_CONFIG_4 } else { &BYTE_CONFIG_8 };
        // SAFETY: the CPU supports AMX, and the process has permission (trait contract).
        unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly)) };
        AmxBytes { row_bytes: 4 * quads }
    }

    #[inline(always)]
    unsafe fn store_quads(bytes: [Avx512VnniInt; 2], zero: u8, to: *mut u8) {
        // SAFETY: `to` is valid for writes of 64 bytes (trait contract). A single store allows store
        // forwarding to the tile load.
        unsafe {
            let mut row = VnniDots512::join(bytes[0], bytes[1]).register();
            if zero > 0 {
                row = _mm512_sub_epi8(row, _mm512_set1_epi8(zero as i8));
            }
            _mm512_storeu_si512(to.cast(), row);
        }
    }

    #[inline(always)]
    unsafe fn store_floats(halves: [Avx2; 2], to: *mut [f32; TILE_ROWS]) {
        // SAFETY: `to` is valid for writes of 16 floats (trait contract).
        unsafe { VnniDots512::join_floats(halves[0], halves[1]).store(to.cast()) }
    }

    #[inline(always)]
    unsafe fn load<const ODD: bool, const TILES: usize>(&mut self, w: *const u8, x: *const u8) {
        let (row_bytes, second) = (self.row_bytes, x.wrapping_add(TILE_ROWS * self.row_bytes));
        // SAFETY: `w` has a tile row per quad and `x` has `TILES` tiles (trait contract), and tiles are
        // configured while `self` exists.
        unsafe {
            match (ODD, TILES) {
                (false, 1) => load_bytes!(row_bytes, w => "tmm4", x => "tmm6"),
                (true, 1) => load_bytes!(row_bytes, w => "tmm5", x => "tmm7"),
                (false, _) => load_bytes!(row_bytes, w => "tmm4", x => "tmm6", second => "tmm7"),
                (true, _) => load_bytes!(row_bytes, w => "tmm5", x => "tmm6", second => "tmm7"),
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<const ODD: bool, const TILES: usize, const SIGNED: bool>(&mut self) {
        // SAFETY: the operands of the step are loaded (trait contract), and tiles are configured while `self`
        // exists.
        unsafe {
            if SIGNED {
                multiply_step!("tdpbssd");
            } else {
                multiply_step!("tdpbsud");
            }
        }
    }

    #[inline(always)]
    unsafe fn store<const ODD: bool, const TILES: usize>(&mut self, to: *mut ByteSums) {
        const { assert!(size_of::<ByteSums>() == TILE_BYTES && TILE_BYTES == 1024) };
        // SAFETY: `to` is valid for writes of `TILES` sums (trait contract).
        unsafe {
            match (ODD, TILES) {
                (false, 1) => store_sums!(to, "tmm0" at 0),
                (true, 1) => store_sums!(to, "tmm2" at 0),
                (false, _) => store_sums!(to, "tmm0" at 0, "tmm1" at 1024),
                (true, _) => store_sums!(to, "tmm2" at 0, "tmm3" at 1024),
            }
        }
    }
}
