//! bf16 dot products in 512-bit registers (AVX512-BF16), arranged as a tile unit.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::int256::Avx512VnniInt;
use crate::simd::TileUnit;
use crate::simd::tiles::{BF16, COLUMNS, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileBlock, TileSums};

/// Returns true if the CPU has bf16 dot products that are faster than f32 multiply-adds.
///
/// AMD's CPUs complete a dot product of 512 bits per cycle. Intel's take two cycles, which is half of the rate
/// of f32 multiply-adds.
pub(crate) fn is_fast() -> bool {
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    is_x86_feature_detected!("avx512bf16") && name.as_flattened() == b"AuthenticAMD"
}

/// Columns multiplied at a time. Their sums take two registers each, which hides the latency of the dot
/// products.
const COLUMNS_AT_ONCE: usize = 8;
const _: () = assert!(COLUMNS.is_multiple_of(COLUMNS_AT_ONCE));

/// The sums of a block between [`begin`](TileUnit::begin) and [`end`](TileUnit::end). Whole blocks keep their
/// sums in registers.
pub(crate) struct Bf16Dots(TileSums);

/// Adds a block to the sums of [`COLUMNS_AT_ONCE`] columns starting at `column`.
///
/// # Safety
/// - The CPU supports AVX-512 and AVX512-BF16.
/// - `block` describes valid operands, sums, and destination, and `column` is below [`COLUMNS`].
#[inline(always)]
unsafe fn add_columns(block: &TileBlock, column: usize) {
    // SAFETY: the columns and steps are within the block (function contract). No access requires alignment.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; COLUMNS_AT_ONCE];
        if !block.sums.is_null() {
            for (j, sums) in sums.iter_mut().enumerate() {
                let before = (&raw const (*block.sums).0[column + j]).cast::<f32>();
                *sums = [_mm512_loadu_ps(before), _mm512_loadu_ps(before.add(TILE_ROWS))];
            }
        }
        let mut x = block.x.add(column * block.x_stride);
        let mut w = block.w;
        for _ in 0..block.steps {
            for _ in 0..TILE_ROWS {
                let weights = [load_pairs(w), load_pairs(w.add(TILE_BYTES))];
                for (j, sums) in sums.iter_mut().enumerate() {
                    let x = broadcast_pair(x.add(j * block.x_stride));
                    sums[0] = _mm512_dpbf16_ps(sums[0], weights[0], x);
                    sums[1] = _mm512_dpbf16_ps(sums[1], weights[1], x);
                }
                x = x.add(2 * BF16);
                w = w.add(TILE_WIDTH);
            }
            w = w.add(TILE_BYTES);
        }
        for (j, sums) in sums.into_iter().enumerate() {
            let to = block.to.byte_add((column + j) * block.to_stride);
            _mm512_storeu_ps(to, sums[0]);
            _mm512_storeu_ps(to.add(TILE_ROWS), sums[1]);
        }
    }
}

/// Adds a block to the sums of all of its columns.
///
/// # Safety
/// - The CPU supports AVX-512 and AVX512-BF16.
/// - `block` describes valid operands, sums, and destination for its columns, rounded up to a multiple of
///   [`COLUMNS_AT_ONCE`].
#[inline(always)]
unsafe fn add_block(block: &TileBlock) {
    for column in (0..block.columns).step_by(COLUMNS_AT_ONCE) {
        // SAFETY: the operands of these columns are valid (function contract).
        unsafe { add_columns(block, column) }
    }
}

/// Loads a pair of bf16 for each of 16 rows.
///
/// # Safety
/// The CPU supports AVX-512, and `p` is valid for reads of 64 bytes.
#[inline(always)]
unsafe fn load_pairs(p: *const u8) -> __m512bh {
    // SAFETY: `p` is readable (function contract), and both types are registers of 64 bytes.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(p.cast())) }
}

/// Broadcasts a pair of bf16.
///
/// # Safety
/// The CPU supports AVX-512, and `p` is valid for reads of 4 bytes.
#[inline(always)]
unsafe fn broadcast_pair(p: *const u8) -> __m512bh {
    // SAFETY: `p` is readable (function contract), and both types are registers of 64 bytes.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(p.cast::<i32>().read_unaligned())) }
}

impl TileUnit for Bf16Dots {
    type Float = Avx512;
    type Int = Avx512VnniInt;
    const IN_BACKGROUND: bool = false;

    #[inline(always)]
    unsafe fn new() -> Bf16Dots {
        Bf16Dots(TileSums::ZERO)
    }

    #[inline(always)]
    unsafe fn store_bf16(x: Avx512, to: *mut u8) {
        // SAFETY: `to` is valid for writes of 32 bytes, and the CPU supports AVX512-BF16 (trait contract).
        unsafe { to.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(x.register())) }
    }

    #[inline(always)]
    unsafe fn begin(&mut self, sums: *const TileSums) {
        // SAFETY: `sums` is null or valid for reads (trait contract).
        self.0 = unsafe { sums.as_ref() }.copied().unwrap_or(TileSums::ZERO);
    }

    #[inline(always)]
    unsafe fn step(&mut self, x: *const u8, x_stride: usize, w: *const u8) {
        // Both uses of the sums go through one pointer.
        let sums = &raw mut self.0;
        let block = TileBlock {
            x,
            x_stride,
            columns: COLUMNS,
            w,
            streams: false,
            steps: 1,
            sums,
            to: sums.cast(),
            to_stride: TileSums::STRIDE,
        };
        // SAFETY: the operands are those of a step (trait contract). Each column's sums are read before they are
        // written, and no reference to the sums exists.
        unsafe { add_block(&block) }
    }

    #[inline(always)]
    unsafe fn end(&mut self, to: *mut f32, to_stride: usize) {
        for (column, sums) in self.0.0.iter().enumerate() {
            // SAFETY: `to` is valid for writes of all columns (trait contract).
            unsafe {
                to.byte_add(column * to_stride)
                    .cast::<[f32; 2 * TILE_ROWS]>()
                    .write_unaligned(*sums)
            }
        }
    }

    #[inline(always)]
    unsafe fn add(&mut self, block: &TileBlock) {
        // SAFETY: the block is valid for all columns, also beyond the last one used (trait contract).
        unsafe { add_block(block) }
    }
}
