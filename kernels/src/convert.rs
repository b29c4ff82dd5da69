//! Conversion of rows between floats and the tensor types.

use crate::GgmlType;
use crate::dispatch::kernels;
use crate::lengths::check_lengths;

/// Returns true if [`dequantize_row`] supports this type.
pub fn can_decode(ty: GgmlType) -> bool {
    can_dequantize(ty.in_memory())
}

/// Returns true if [`dequantize_row`] and the matmuls support this type.
pub fn can_dequantize(ty: GgmlType) -> bool {
    kernels().find(ty).is_some()
}

/// Returns true if [`quantize_row`] supports this type.
pub fn can_quantize(ty: GgmlType) -> bool {
    kernels().find(ty).is_some_and(|kernels| kernels.quantize.is_some())
}

/// Decodes a row to floats. `src` may be unaligned. Rows without a [header](GgmlType::row_header) may be decoded
/// together.
///
/// # Panics
/// Panics if the type has no decoder (see [`can_decode`]), or the lengths disagree.
pub fn dequantize_row(ty: GgmlType, src: &[u8], dst: &mut [f32]) {
    if ty.row_header() > 0 {
        check_lengths(ty, src.len(), dst.len());
        let floats = dst.chunks_exact_mut(ty.block_size());
        return floats.zip(blocks_in_memory(ty, src)).for_each(|(floats, block)| {
            dequantize_row(ty.in_memory(), &block[..ty.in_memory().block_bytes()], floats)
        });
    }
    let kernels = kernels().for_type(ty);
    check_lengths(ty, src.len(), dst.len());
    // SAFETY: `check_lengths` checked both lengths; `kernels()` matches this CPU.
    unsafe { (kernels.dequantize)(src.as_ptr(), dst.as_mut_ptr(), dst.len()) }
}

/// Converts rows of `n` elements of a file to the [type in memory](GgmlType::in_memory).
///
/// # Panics
/// Panics if `src` and `dst` do not have the lengths of an equal number of whole rows.
pub fn rows_in_memory(ty: GgmlType, n: usize, src: &[u8], dst: &mut [u8]) {
    let in_memory = ty.in_memory();
    let (from, to) = (ty.row_bytes(n).unwrap_or(0), in_memory.row_bytes(n).unwrap_or(0));
    let n_rows = src.len().checked_div(from).unwrap_or(0);
    assert!(
        (src.len(), dst.len()) == (n_rows * from, n_rows * to),
        "{ty}: expected whole rows of {n} elements, found {} and {} bytes",
        src.len(),
        dst.len()
    );
    if in_memory == ty {
        return dst.copy_from_slice(src);
    }
    for (row, to) in src.chunks_exact(from).zip(dst.chunks_exact_mut(to)) {
        let to = to.chunks_exact_mut(in_memory.block_bytes());
        to.zip(blocks_in_memory(ty, row))
            .for_each(|(to, block)| to.copy_from_slice(&block[..to.len()]));
    }
}

/// Largest block in memory of types whose rows have a header.
const MAX_BLOCK: usize = 172;

/// Yields the blocks of a row, each after the header of the row.
fn blocks_in_memory(ty: GgmlType, row: &[u8]) -> impl Iterator<Item = [u8; MAX_BLOCK]> {
    let (header, blocks) = row.split_at(ty.row_header());
    blocks.chunks_exact(ty.block_bytes()).map(|from| {
        let mut block = [0; MAX_BLOCK];
        block[..header.len()].copy_from_slice(header);
        block[header.len()..][..from.len()].copy_from_slice(from);
        block
    })
}

/// Encodes floats to blocks. `dst` may be unaligned.
///
/// # Panics
/// Panics if the type has no encoder (see [`can_quantize`]), or the lengths disagree.
pub fn quantize_row(ty: GgmlType, src: &[f32], dst: &mut [u8]) {
    let quantize = kernels()
        .for_type(ty)
        .quantize
        .unwrap_or_else(|| panic!("{ty} cannot be quantized"));
    check_lengths(ty, dst.len(), src.len());
    // SAFETY: `check_lengths` checked both lengths; `kernels()` matches this CPU.
    unsafe { quantize(src.as_ptr(), dst.as_mut_ptr(), src.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [GgmlType; 2] = [GgmlType::IQ4_KS, GgmlType::IQ5_KS];

    /// Returns a row of `n` elements with scale `d`.
    fn row(ty: GgmlType, n: usize, d: f32) -> Vec<u8> {
        let bytes = ty.row_bytes(n).unwrap();
        let mut row: Vec<u8> = (0..bytes).map(|i| (i * 37 + i / 91) as u8).collect();
        row[..4].copy_from_slice(&d.to_le_bytes());
        row
    }

    #[test]
    fn rows_in_memory_repeat_header_of_their_row() {
        for ty in TYPES {
            let rows = [row(ty, 512, 0.5), row(ty, 512, -3.0)].concat();
            let to = ty.in_memory();
            let mut blocks = vec![0; 2 * to.row_bytes(512).unwrap()];
            rows_in_memory(ty, 512, &rows, &mut blocks);
            for (i, block) in blocks.chunks_exact(to.block_bytes()).enumerate() {
                let row = &rows[i / 2 * rows.len() / 2..][..rows.len() / 2];
                assert_eq!(block[..4], row[..4], "{ty} block {i}");
                let from = &row[4 + i % 2 * ty.block_bytes()..][..ty.block_bytes()];
                assert_eq!(block[4..], *from, "{ty} block {i}");
            }
            let (mut of_rows, mut of_blocks) = ([f32::NAN; 1024], [f32::NAN; 1024]);
            for (row, floats) in rows.chunks_exact(rows.len() / 2).zip(of_rows.chunks_exact_mut(512)) {
                dequantize_row(ty, row, floats);
            }
            dequantize_row(to, &blocks, &mut of_blocks);
            assert_eq!(of_rows, of_blocks, "{ty}");
        }
    }

    #[test]
    fn rows_without_header_are_copied() {
        let mut to = [0; 36];
        rows_in_memory(GgmlType::Q4_0, 32, &[7; 36], &mut to);
        assert_eq!(to, [7; 36]);
    }

    #[test]
    fn header_types_are_decoded_but_not_multiplied() {
        for ty in TYPES {
            assert!(can_decode(ty) && !can_dequantize(ty) && !can_quantize(ty), "{ty}");
            assert!(can_decode(ty.in_memory()) && can_dequantize(ty.in_memory()), "{ty}");
            assert!(ty.in_memory().block_bytes() <= MAX_BLOCK, "{ty}");
        }
    }

    #[test]
    #[should_panic(expected = "iq4_ks: expected whole rows, found 552 bytes for 1024 elements")]
    fn two_rows_with_headers_are_rejected() {
        let rows = [row(GgmlType::IQ4_KS, 512, 1.0), row(GgmlType::IQ4_KS, 512, 1.0)].concat();
        dequantize_row(GgmlType::IQ4_KS, &rows, &mut [0.0; 1024]);
    }

    #[test]
    #[should_panic(expected = "iq5_ks: expected whole rows of 256 elements, found 171 and 172 bytes")]
    fn rows_in_memory_rejects_partial_rows() {
        rows_in_memory(GgmlType::IQ5_KS, 256, &[0; 171], &mut [0; 172]);
    }
}
