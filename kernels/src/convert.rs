//! Conversion of rows between floats and the tensor types.

use crate::GgmlType;
use crate::dispatch::kernels;
use crate::lengths::check_lengths;

/// Returns true if [`dequantize_row`] and the matmuls support this type.
pub fn can_dequantize(ty: GgmlType) -> bool {
    kernels().find(ty).is_some()
}

/// Returns true if [`quantize_row`] supports this type.
pub fn can_quantize(ty: GgmlType) -> bool {
    kernels().find(ty).is_some_and(|kernels| kernels.quantize.is_some())
}

/// Decodes the blocks of `src` to floats. `src` may be unaligned.
///
/// # Panics
/// If the type has no decoder (see [`can_dequantize`]), or the lengths disagree.
pub fn dequantize_row(ty: GgmlType, src: &[u8], dst: &mut [f32]) {
    let kernels = kernels().for_type(ty);
    check_lengths(ty, src.len(), dst.len());
    // SAFETY: `check_lengths` checked both lengths; `kernels()` matches this CPU.
    unsafe { (kernels.dequantize)(src.as_ptr(), dst.as_mut_ptr(), dst.len()) }
}

/// Encodes floats to blocks. `dst` may be unaligned.
///
/// # Panics
/// If the type has no encoder (see [`can_quantize`]), or the lengths disagree.
pub fn quantize_row(ty: GgmlType, src: &[f32], dst: &mut [u8]) {
    let quantize = kernels()
        .for_type(ty)
        .quantize
        .unwrap_or_else(|| panic!("{ty} cannot be quantized"));
    check_lengths(ty, dst.len(), src.len());
    // SAFETY: `check_lengths` checked both lengths; `kernels()` matches this CPU.
    unsafe { quantize(src.as_ptr(), dst.as_mut_ptr(), src.len()) }
}
