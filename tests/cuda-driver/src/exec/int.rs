//! Integer and bit arithmetic. Each function returns the lane loop for a type, or `None` if the instruction
//! does not support it.

use super::lanes::{AluFn, Args, CARRY, LANES, Lane, bits, op, read, set_bits, write};
use super::scalar::Scalar::{self, *};

/// Instantiates an expression for integers of 2, 4, and 8 bytes.
macro_rules! integers {
    ($kind:expr, |$a:ident| $body:expr) => {
        integers!($kind, |$a, _b, _c| $body)
    };
    ($kind:expr, |$a:ident, $b:ident| $body:expr) => {
        integers!($kind, |$a, $b, _c| $body)
    };
    ($kind:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        Some(match $kind {
            U16 => op!(|$a: u16, $b: u16, $c: u16| -> u16 { $body }),
            S16 => op!(|$a: i16, $b: i16, $c: i16| -> i16 { $body }),
            U32 => op!(|$a: u32, $b: u32, $c: u32| -> u32 { $body }),
            S32 => op!(|$a: i32, $b: i32, $c: i32| -> i32 { $body }),
            U64 => op!(|$a: u64, $b: u64, $c: u64| -> u64 { $body }),
            S64 => op!(|$a: i64, $b: i64, $c: i64| -> i64 { $body }),
            _ => return None,
        })
    };
}

/// Instantiates an expression for untyped words of all widths.
macro_rules! words {
    ($kind:expr, |$a:ident, $b:ident| $body:expr) => {
        Some(match $kind {
            B16 | U16 | S16 => op!(|$a: u16, $b: u16| -> u16 { $body }),
            B32 | U32 | S32 => op!(|$a: u32, $b: u32| -> u32 { $body }),
            B64 | U64 | S64 => op!(|$a: u64, $b: u64| -> u64 { $body }),
            _ => return None,
        })
    };
}

/// `add`, wrapping. Packed 16-bit pairs are not supported.
pub fn add(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| a.wrapping_add(b))
}

/// `sub`, wrapping.
pub fn sub(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| a.wrapping_sub(b))
}

/// `add.sat.s32`.
pub fn add_saturating(kind: Scalar) -> Option<AluFn> {
    (kind == S32).then(|| op!(|a: i32, b: i32| -> i32 { a.saturating_add(b) }))
}

/// `sub.sat.s32`.
pub fn sub_saturating(kind: Scalar) -> Option<AluFn> {
    (kind == S32).then(|| op!(|a: i32, b: i32| -> i32 { a.saturating_sub(b) }))
}

pub fn mul_lo(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| a.wrapping_mul(b))
}

pub fn mad_lo(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b, c| a.wrapping_mul(b).wrapping_add(c))
}

pub fn mul_hi(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        U16 => op!(|a: u16, b: u16| -> u16 { ((u32::from(a) * u32::from(b)) >> 16) as u16 }),
        S16 => op!(|a: i16, b: i16| -> i16 { ((i32::from(a) * i32::from(b)) >> 16) as i16 }),
        U32 => op!(|a: u32, b: u32| -> u32 { ((u64::from(a) * u64::from(b)) >> 32) as u32 }),
        S32 => op!(|a: i32, b: i32| -> i32 { ((i64::from(a) * i64::from(b)) >> 32) as i32 }),
        U64 => op!(|a: u64, b: u64| -> u64 { ((u128::from(a) * u128::from(b)) >> 64) as u64 }),
        S64 => op!(|a: i64, b: i64| -> i64 { ((i128::from(a) * i128::from(b)) >> 64) as i64 }),
        _ => return None,
    })
}

pub fn mad_hi(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        U32 => op!(|a: u32, b: u32, c: u32| -> u32 { (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c) }),
        S32 => op!(|a: i32, b: i32, c: i32| -> i32 { (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c) }),
        U64 => {
            op!(|a: u64, b: u64, c: u64| -> u64 { (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c) })
        }
        S64 => {
            op!(|a: i64, b: i64, c: i64| -> i64 { (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c) })
        }
        _ => return None,
    })
}

/// `mul.wide`: the result has twice the width of `kind`.
pub fn mul_wide(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        U16 => op!(|a: u16, b: u16| -> u32 { u32::from(a) * u32::from(b) }),
        S16 => op!(|a: i16, b: i16| -> i32 { i32::from(a) * i32::from(b) }),
        U32 => op!(|a: u32, b: u32| -> u64 { u64::from(a) * u64::from(b) }),
        S32 => op!(|a: i32, b: i32| -> i64 { i64::from(a) * i64::from(b) }),
        _ => return None,
    })
}

pub fn mad_wide(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        U16 => op!(|a: u16, b: u16, c: u32| -> u32 { (u32::from(a) * u32::from(b)).wrapping_add(c) }),
        S16 => op!(|a: i16, b: i16, c: i32| -> i32 { (i32::from(a) * i32::from(b)).wrapping_add(c) }),
        U32 => op!(|a: u32, b: u32, c: u64| -> u64 { (u64::from(a) * u64::from(b)).wrapping_add(c) }),
        S32 => op!(|a: i32, b: i32, c: i64| -> i64 { (i64::from(a) * i64::from(b)).wrapping_add(c) }),
        _ => return None,
    })
}

/// `mul24.lo` and `mul24.hi`: bits 0..32 and 16..48 of the product of the low 24 bits.
pub fn mul24(kind: Scalar, is_high: bool) -> Option<AluFn> {
    Some(match (kind, is_high) {
        (U32, false) => op!(|a: u32, b: u32| -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff) }),
        (S32, false) => op!(|a: i32, b: i32| -> i32 { (a << 8 >> 8).wrapping_mul(b << 8 >> 8) }),
        (U32, true) => {
            op!(|a: u32, b: u32| -> u32 { ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32 })
        }
        (S32, true) => {
            op!(|a: i32, b: i32| -> i32 { ((i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)) >> 16) as i32 })
        }
        _ => return None,
    })
}

pub fn mad24(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        U32 => op!(|a: u32, b: u32, c: u32| -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c) }),
        S32 => op!(|a: i32, b: i32, c: i32| -> i32 { (a << 8 >> 8).wrapping_mul(b << 8 >> 8).wrapping_add(c) }),
        _ => return None,
    })
}

/// ALU function of `sad`: c + |a - b|.
pub fn sad(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b, c| c.wrapping_add(if a < b {
        b.wrapping_sub(a)
    } else {
        a.wrapping_sub(b)
    }))
}

/// `div`, toward zero. As on GPUs, division by zero sets all bits.
pub fn div(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| if b == 0 { !b } else { a.wrapping_div(b) })
}

/// `rem`, with the sign of `a`. The remainder of a division by zero is `a`.
pub fn rem(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })
}

pub fn min(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| if a < b { a } else { b })
}

pub fn max(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| if a > b { a } else { b })
}

/// ALU function of `neg` for signed integers.
pub fn neg(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a| a.wrapping_neg())
}

/// ALU function of `abs` for signed integers.
pub fn abs(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        S16 => op!(|a: i16| -> i16 { a.wrapping_abs() }),
        S32 => op!(|a: i32| -> i32 { a.wrapping_abs() }),
        S64 => op!(|a: i64| -> i64 { a.wrapping_abs() }),
        _ => return None,
    })
}

pub fn and(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, b| a & b)
}

pub fn or(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, b| a | b)
}

pub fn xor(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, b| a ^ b)
}

pub fn not(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, _b| !a)
}

/// ALU function of `cnot`: 1 for 0, otherwise 0.
pub fn cnot(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, _b| (a == 0).into())
}

/// `shl` by a 32-bit amount. Amounts of at least the register width give 0.
pub fn shl(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B16 => op!(|a: u16, b: u32| -> u16 { if b < 16 { a << (b & 15) } else { 0 } }),
        B32 => op!(|a: u32, b: u32| -> u32 { if b < 32 { a << (b & 31) } else { 0 } }),
        B64 => op!(|a: u64, b: u32| -> u64 { if b < 64 { a << (b & 63) } else { 0 } }),
        _ => return None,
    })
}

/// `shr`, arithmetic for signed integers; amounts are clamped to the width.
pub fn shr(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B16 | U16 => op!(|a: u16, b: u32| -> u16 { if b < 16 { a >> (b & 15) } else { 0 } }),
        B32 | U32 => op!(|a: u32, b: u32| -> u32 { if b < 32 { a >> (b & 31) } else { 0 } }),
        B64 | U64 => op!(|a: u64, b: u32| -> u64 { if b < 64 { a >> (b & 63) } else { 0 } }),
        S16 => op!(|a: i16, b: u32| -> i16 { a >> b.min(15) }),
        S32 => op!(|a: i32, b: u32| -> i32 { a >> b.min(31) }),
        S64 => op!(|a: i64, b: u32| -> i64 { a >> b.min(63) }),
        _ => return None,
    })
}

/// `shf.l` and `shf.r` of the pair `b:a`. With `clamp`, amounts are limited to 32; otherwise, only their low
/// 5 bits are used.
pub fn funnel(is_left: bool, clamp: bool) -> AluFn {
    match (is_left, clamp) {
        (true, true) => op!(|a: u32, b: u32, c: u32| -> u32 { funnel_left(a, b, c.min(32)) }),
        (true, false) => op!(|a: u32, b: u32, c: u32| -> u32 { funnel_left(a, b, c & 31) }),
        (false, true) => op!(|a: u32, b: u32, c: u32| -> u32 { funnel_right(a, b, c.min(32)) }),
        (false, false) => op!(|a: u32, b: u32, c: u32| -> u32 { funnel_right(a, b, c & 31) }),
    }
}

#[inline(always)]
fn funnel_left(low: u32, high: u32, n: u32) -> u32 {
    ((u64::from(high) << 32 | u64::from(low)) << n >> 32) as u32
}

#[inline(always)]
fn funnel_right(low: u32, high: u32, n: u32) -> u32 {
    ((u64::from(high) << 32 | u64::from(low)) >> n) as u32
}

/// ALU function of `popc`, with a 32-bit result.
pub fn popc(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B32 => op!(|a: u32| -> u32 { a.count_ones() }),
        B64 => op!(|a: u64| -> u32 { a.count_ones() }),
        _ => return None,
    })
}

/// ALU function of `clz`, with a 32-bit result.
pub fn clz(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B32 => op!(|a: u32| -> u32 { a.leading_zeros() }),
        B64 => op!(|a: u64| -> u32 { a.leading_zeros() }),
        _ => return None,
    })
}

pub fn brev(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B32 => op!(|a: u32| -> u32 { a.reverse_bits() }),
        B64 => op!(|a: u64| -> u64 { a.reverse_bits() }),
        _ => return None,
    })
}

/// `bfind`: position of the highest bit that differs from the sign, or -1. With `.shiftamt`, the left shift
/// that moves it to the top.
pub fn bfind(kind: Scalar, shift: bool) -> Option<AluFn> {
    Some(match (kind, shift) {
        (U32, false) => op!(|a: u32| -> u32 { 31u32.wrapping_sub(a.leading_zeros()) }),
        (S32, false) => op!(|a: i32| -> u32 { 31u32.wrapping_sub((a ^ a >> 31).leading_zeros()) }),
        (U64, false) => op!(|a: u64| -> u32 { 63u32.wrapping_sub(a.leading_zeros()) }),
        (S64, false) => op!(|a: i64| -> u32 { 63u32.wrapping_sub((a ^ a >> 63).leading_zeros()) }),
        (U32, true) => op!(|a: u32| -> u32 { if a == 0 { !0 } else { a.leading_zeros() } }),
        (S32, true) => op!(|a: i32| -> u32 {
            let m = a ^ a >> 31;
            if m == 0 { !0 } else { m.leading_zeros() }
        }),
        (U64, true) => op!(|a: u64| -> u32 { if a == 0 { !0 } else { a.leading_zeros() } }),
        (S64, true) => op!(|a: i64| -> u32 {
            let m = a ^ a >> 63;
            if m == 0 { !0 } else { m.leading_zeros() }
        }),
        _ => return None,
    })
}

/// `bfe`: `c` bits starting at bit `b`; both are 8-bit values.
pub fn bfe(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        U32 => op!(|a: u32, b: u32, c: u32| -> u32 { extract(a.into(), b, c, 32, false) as u32 }),
        S32 => op!(|a: u32, b: u32, c: u32| -> u32 { extract(a.into(), b, c, 32, true) as u32 }),
        U64 => op!(|a: u64, b: u32, c: u32| -> u64 { extract(a, b, c, 64, false) }),
        S64 => op!(|a: u64, b: u32, c: u32| -> u64 { extract(a, b, c, 64, true) }),
        _ => return None,
    })
}

/// Extracts a bit field. For signed types, the field is sign-extended, also beyond the end of the word.
#[inline(always)]
fn extract(value: u64, position: u32, len: u32, width: u32, is_signed: bool) -> u64 {
    let (position, len) = (position & 0xff, len & 0xff);
    let sign_at = (position + len).wrapping_sub(1).min(width - 1);
    let is_negative = is_signed && len > 0 && value >> sign_at & 1 != 0;
    let shifted = if position < width { value >> position } else { 0 };
    let len_there = len.min(width.saturating_sub(position));
    let ones = if len_there >= 64 { !0 } else { (1 << len_there) - 1 };
    if is_negative {
        shifted & ones | !ones
    } else {
        shifted & ones
    }
}

/// `bfi`: inserts the low `d` bits of `a` at bit `c` of `b`. `Args::extra` is the slot of `d`.
pub fn bfi(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B32 => insert::<u32>,
        B64 => insert::<u64>,
        _ => return None,
    })
}

/// An unsigned word that converts to and from u64.
trait Word: Lane {
    const BITS: u32;
    fn widen(self) -> u64;
    fn cut(wide: u64) -> Self;
}
impl Word for u32 {
    const BITS: u32 = 32;
    fn widen(self) -> u64 {
        self.into()
    }
    fn cut(wide: u64) -> Self {
        wide as u32
    }
}
impl Word for u64 {
    const BITS: u32 = 64;
    fn widen(self) -> u64 {
        self
    }
    fn cut(wide: u64) -> Self {
        wide
    }
}

/// # Safety
/// The slots in `args` are within `file` and aligned for their types, `args.extra` is a 32-bit register, and
/// `is_supported` returned true.
unsafe fn insert<T: Word>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are registers of these types (function contract).
    let (field, base, at, len) = unsafe {
        let (field, base) = (read::<T>(file, args.a), read::<T>(file, args.b));
        (field, base, read::<u32>(file, args.c), read::<u32>(file, args.extra))
    };
    let mut d = [T::default(); LANES];
    for i in 0..LANES {
        let (at, len) = (at[i] & 0xff, len[i] & 0xff);
        let len = len.min(T::BITS.saturating_sub(at));
        let ones = if len >= 64 { !0 } else { (1u64 << len) - 1 };
        let at = at.min(63);
        d[i] = T::cut(base[i].widen() & !(ones << at) | (field[i].widen() & ones) << at);
    }
    // SAFETY: `d` is a register of type `T` (function contract).
    unsafe { write(file, args.d, &d, mask) }
}

/// `lop3`: bitwise lookup in the table `extra` at index 4a + 2b + c.
pub fn lop3() -> AluFn {
    op!(|a: u32, b: u32, c: u32, table| -> u32 {
        let mut result = 0;
        for entry in 0..8u32 {
            let a = if entry & 4 != 0 { a } else { !a };
            let b = if entry & 2 != 0 { b } else { !b };
            let c = if entry & 1 != 0 { c } else { !c };
            let selected = 0u32.wrapping_sub(table >> entry & 1);
            result |= a & b & c & selected;
        }
        result
    })
}

/// `prmt`: each nibble of `c` selects a byte of `b:a`, or the sign of the byte. With a mode, `c` selects a
/// fixed pattern of nibbles.
pub fn prmt(mode: Option<&str>) -> Option<AluFn> {
    Some(match mode {
        None => op!(|a: u32, b: u32, c: u32| -> u32 { permute(a, b, c) }),
        Some("f4e") => {
            op!(|a: u32, b: u32, c: u32| -> u32 { permute(a, b, [0x3210, 0x4321, 0x5432, 0x6543][c as usize & 3]) })
        }
        Some("b4e") => {
            op!(|a: u32, b: u32, c: u32| -> u32 { permute(a, b, [0x5670, 0x6701, 0x7012, 0x0123][c as usize & 3]) })
        }
        Some("rc8") => {
            op!(|a: u32, b: u32, c: u32| -> u32 { permute(a, b, [0x0000, 0x1111, 0x2222, 0x3333][c as usize & 3]) })
        }
        Some("ecl") => {
            op!(|a: u32, b: u32, c: u32| -> u32 { permute(a, b, [0x3210, 0x3211, 0x3222, 0x3333][c as usize & 3]) })
        }
        Some("ecr") => {
            op!(|a: u32, b: u32, c: u32| -> u32 { permute(a, b, [0x0000, 0x1110, 0x2210, 0x3210][c as usize & 3]) })
        }
        Some("rc16") => {
            op!(|a: u32, b: u32, c: u32| -> u32 { permute(a, b, [0x1010, 0x3232, 0x1010, 0x3232][c as usize & 3]) })
        }
        Some(_) => return None,
    })
}

#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    let mut result = 0;
    for i in 0..4 {
        let nibble = selector >> (4 * i) & 15;
        let byte = (both >> (8 * (nibble & 7)) & 0xff) as u32;
        let sign = if byte & 0x80 != 0 { 0xff } else { 0 };
        result |= if nibble & 8 != 0 { sign } else { byte } << (8 * i);
    }
    result
}

/// `dp4a`: `c` plus the dot product of the four bytes of `a` and `b`.
pub fn dp4a(a_signed: bool, b_signed: bool) -> AluFn {
    match (a_signed, b_signed) {
        (true, true) => op!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, true, true) }),
        (true, false) => op!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, true, false) }),
        (false, true) => op!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, false, true) }),
        (false, false) => op!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, false, false) }),
    }
}

#[inline(always)]
fn byte(word: u32, i: u32, is_signed: bool) -> i32 {
    let up = word << (24 - 8 * i);
    if is_signed { up as i32 >> 24 } else { (up >> 24) as i32 }
}

#[inline(always)]
fn dot4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let mut sum = c as i32;
    for i in 0..4 {
        sum = sum.wrapping_add(byte(a, i, a_signed) * byte(b, i, b_signed));
    }
    sum as u32
}

/// `dp2a`: `c` plus the dot product of two halves of `a` and the low or high two bytes of `b`.
pub fn dp2a(a_signed: bool, b_signed: bool, high: bool) -> AluFn {
    match (a_signed, b_signed, high) {
        (true, true, false) => op!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, true, true, 0) }),
        (true, true, true) => op!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, true, true, 2) }),
        (true, false, false) => op!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, true, false, 0) }),
        (true, false, true) => op!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, true, false, 2) }),
        (false, true, false) => op!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, false, true, 0) }),
        (false, true, true) => op!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, false, true, 2) }),
        (false, false, false) => op!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, false, false, 0) }),
        (false, false, true) => op!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, false, false, 2) }),
    }
}

#[inline(always)]
fn dot2(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool, first: u32) -> u32 {
    let half = |i: u32| {
        if a_signed {
            (a << (16 - 16 * i)) as i32 >> 16
        } else {
            (a << (16 - 16 * i) >> 16) as i32
        }
    };
    let low = half(0).wrapping_mul(byte(b, first, b_signed));
    let high = half(1).wrapping_mul(byte(b, first + 1, b_signed));
    c.wrapping_add(low as u32).wrapping_add(high as u32)
}

/// The form of an addition or subtraction with carry. A preceding multiplication is a separate instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// True to subtract; the carry is then a borrow.
    pub subtract: bool,
    /// True to add the carry of the previous instruction (`addc`).
    pub carry_in: bool,
    /// Whether the instruction sets the carry (`.cc`).
    pub carry_out: bool,
}

/// Returns the lane loop of extended-precision arithmetic on 32 or 64 bits.
pub fn carried(kind: Scalar, form: Carried) -> Option<AluFn> {
    let wide = match kind {
        U32 | S32 | B32 => false,
        U64 | S64 | B64 => true,
        _ => return None,
    };
    Some(match (wide, form.subtract, form.carry_in, form.carry_out) {
        (false, false, false, _) => add_carried::<u32, false, false>,
        (false, false, true, false) => add_carried_silent::<u32, false>,
        (false, false, true, true) => add_carried::<u32, false, true>,
        (false, true, false, _) => add_carried::<u32, true, false>,
        (false, true, true, false) => add_carried_silent::<u32, true>,
        (false, true, true, true) => add_carried::<u32, true, true>,
        (true, false, false, _) => add_carried::<u64, false, false>,
        (true, false, true, false) => add_carried_silent::<u64, false>,
        (true, false, true, true) => add_carried::<u64, false, true>,
        (true, true, false, _) => add_carried::<u64, true, false>,
        (true, true, true, false) => add_carried_silent::<u64, true>,
        (true, true, true, true) => add_carried::<u64, true, true>,
    })
}

/// # Safety
/// The slots in `args` are within `file` and aligned for type `T`, and `is_supported` returned true.
unsafe fn add_carried<T: Word, const SUBTRACT: bool, const CARRY_IN: bool>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are valid (function contract), and slot `CARRY` exists in every register file.
    unsafe {
        let carry = sums::<T, SUBTRACT, CARRY_IN>(file, args, mask);
        set_bits(file, CARRY, carry, mask);
    }
}

/// # Safety
/// The slots in `args` are within `file` and aligned for type `T`, and `is_supported` returned true.
unsafe fn add_carried_silent<T: Word, const SUBTRACT: bool>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are valid for type `T` (function contract).
    unsafe {
        sums::<T, SUBTRACT, true>(file, args, mask);
    }
}

/// Writes sums or differences and returns the carries.
///
/// # Safety
/// The slots in `args` are within `file` and aligned for type `T`, and `is_supported` returned true.
unsafe fn sums<T: Word, const SUBTRACT: bool, const CARRY_IN: bool>(file: *mut u8, args: &Args, mask: u32) -> u32 {
    // SAFETY: the slots are valid (function contract), and slot `CARRY` exists in every register file.
    let (a, b, carry) = unsafe { (read::<T>(file, args.a), read::<T>(file, args.b), bits(file, CARRY)) };
    let (mut d, mut carries) = ([T::default(); LANES], 0);
    for i in 0..LANES {
        let carry = if CARRY_IN { u128::from(carry >> i & 1) } else { 0 };
        let (a, b) = (u128::from(a[i].widen()), u128::from(b[i].widen()));
        let sum = if SUBTRACT {
            a.wrapping_sub(b).wrapping_sub(carry)
        } else {
            a + b + carry
        };
        d[i] = T::cut(sum as u64);
        carries |= ((sum >> T::BITS & 1) as u32) << i;
    }
    // SAFETY: `d` is a register of type `T` (function contract).
    unsafe { write(file, args.d, &d, mask) };
    carries
}
