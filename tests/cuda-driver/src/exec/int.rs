//! Arithmetic of integers and bits. Each function gives the loop for a type, or nothing if the instruction has no such type.

use super::lanes::{AluFn, Args, CARRY, LANES, Lane, bits, op, read, set_bits, write};
use super::scalar::Scalar::{self, *};

/// The same expression for all integers of 2, 4 and 8 bytes.
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

/// The same expression for all widths of bits.
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

/// `add`, wrapping; 16-bit pairs are not supported.
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

/// `mul.lo`.
pub fn mul_lo(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| a.wrapping_mul(b))
}

/// `mad.lo`.
pub fn mad_lo(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b, c| a.wrapping_mul(b).wrapping_add(c))
}

/// `mul.hi`.
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

/// `mad.hi`.
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

/// `mad.wide`.
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

/// `mad24.lo`.
pub fn mad24(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        U32 => op!(|a: u32, b: u32, c: u32| -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c) }),
        S32 => op!(|a: i32, b: i32, c: i32| -> i32 { (a << 8 >> 8).wrapping_mul(b << 8 >> 8).wrapping_add(c) }),
        _ => return None,
    })
}

/// `sad`: c + |a - b|.
pub fn sad(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b, c| c.wrapping_add(if a < b {
        b.wrapping_sub(a)
    } else {
        a.wrapping_sub(b)
    }))
}

/// `div`: towards zero; by zero, all bits are set, as cards do.
pub fn div(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| if b == 0 { !b } else { a.wrapping_div(b) })
}

/// `rem`: of the sign of `a`; by zero, `a`.
pub fn rem(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })
}

/// `min`.
pub fn min(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| if a < b { a } else { b })
}

/// `max`.
pub fn max(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a, b| if a > b { a } else { b })
}

/// `neg`, of signed integers.
pub fn neg(kind: Scalar) -> Option<AluFn> {
    integers!(kind, |a| a.wrapping_neg())
}

/// `abs`, of signed integers.
pub fn abs(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        S16 => op!(|a: i16| -> i16 { a.wrapping_abs() }),
        S32 => op!(|a: i32| -> i32 { a.wrapping_abs() }),
        S64 => op!(|a: i64| -> i64 { a.wrapping_abs() }),
        _ => return None,
    })
}

/// `and`.
pub fn and(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, b| a & b)
}

/// `or`.
pub fn or(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, b| a | b)
}

/// `xor`.
pub fn xor(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, b| a ^ b)
}

/// `not`.
pub fn not(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, _b| !a)
}

/// `cnot`: 1 of 0, and 0 of anything else.
pub fn cnot(kind: Scalar) -> Option<AluFn> {
    words!(kind, |a, _b| (a == 0).into())
}

/// `shl`: amounts from the width on give 0. Amounts have 32 bits.
pub fn shl(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B16 => op!(|a: u16, b: u32| -> u16 { if b < 16 { a << (b & 15) } else { 0 } }),
        B32 => op!(|a: u32, b: u32| -> u32 { if b < 32 { a << (b & 31) } else { 0 } }),
        B64 => op!(|a: u64, b: u32| -> u64 { if b < 64 { a << (b & 63) } else { 0 } }),
        _ => return None,
    })
}

/// `shr`: of signed integers the sign moves in. Amounts are clamped to the width.
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

/// `shf.l` and `shf.r` of the pair b:a; `clamp` limits amounts to 32, otherwise their low 5 bits count.
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

/// `popc`: the result has 32 bits.
pub fn popc(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B32 => op!(|a: u32| -> u32 { a.count_ones() }),
        B64 => op!(|a: u64| -> u32 { a.count_ones() }),
        _ => return None,
    })
}

/// `clz`: the result has 32 bits.
pub fn clz(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B32 => op!(|a: u32| -> u32 { a.leading_zeros() }),
        B64 => op!(|a: u64| -> u32 { a.leading_zeros() }),
        _ => return None,
    })
}

/// `brev`.
pub fn brev(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B32 => op!(|a: u32| -> u32 { a.reverse_bits() }),
        B64 => op!(|a: u64| -> u64 { a.reverse_bits() }),
        _ => return None,
    })
}

/// `bfind`: the place of the highest bit that is not the sign, or -1; with `.shiftamt`, how far to shift it to the top.
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

/// `bfe`: c bits from bit b on; position and length are bytes.
pub fn bfe(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        U32 => op!(|a: u32, b: u32, c: u32| -> u32 { extract(a.into(), b, c, 32, false) as u32 }),
        S32 => op!(|a: u32, b: u32, c: u32| -> u32 { extract(a.into(), b, c, 32, true) as u32 }),
        U64 => op!(|a: u64, b: u32, c: u32| -> u64 { extract(a, b, c, 64, false) }),
        S64 => op!(|a: u64, b: u32, c: u32| -> u64 { extract(a, b, c, 64, true) }),
        _ => return None,
    })
}

/// A field that reaches beyond the width is filled with its sign, the topmost bit that is there.
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

/// `bfi`: the low `d` bits of `a` at bit `c` of `b`. Its fourth operand is a constant or a register in `extra`.
pub fn bfi(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        B32 => insert::<u32>,
        B64 => insert::<u64>,
        _ => return None,
    })
}

/// Unsigned words, as wide ones.
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
/// That of [`AluFn`]; `extra` is the slot of a register of 32 bits.
unsafe fn insert<T: Word>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the caller says so.
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
    // SAFETY: the caller says so.
    unsafe { write(file, args.d, &d, mask) }
}

/// `lop3`: bit by bit, the table in `extra` at 4a + 2b + c.
pub fn lop3() -> AluFn {
    op!(|a: u32, b: u32, c: u32, table| -> u32 {
        let mut result = 0;
        for entry in 0..8u32 {
            let a = if entry & 4 != 0 { a } else { !a };
            let b = if entry & 2 != 0 { b } else { !b };
            let c = if entry & 1 != 0 { c } else { !c };
            let wanted = 0u32.wrapping_sub(table >> entry & 1);
            result |= a & b & c & wanted;
        }
        result
    })
}

/// `prmt`: each nibble of c chooses one of the 8 bytes of b:a, or its sign. With a mode, c chooses among patterns of nibbles.
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

/// `dp4a`: c plus the products of four bytes each.
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

/// `dp2a`: c plus the products of two halves of a and the two low or high bytes of b.
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

/// Extended arithmetic: an addition or subtraction that takes and gives a carry. A multiplication before it is an instruction of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// `sub` instead of `add`; the carry is then a borrow.
    pub subtract: bool,
    /// Whether it adds the carry (`addc`).
    pub takes: bool,
    /// Whether it sets it (`.cc`).
    pub gives: bool,
}

/// The loop of extended arithmetic on 32 or 64 bits.
pub fn carried(kind: Scalar, form: Carried) -> Option<AluFn> {
    let wide = match kind {
        U32 | S32 | B32 => false,
        U64 | S64 | B64 => true,
        _ => return None,
    };
    Some(match (wide, form.subtract, form.takes, form.gives) {
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
/// That of [`AluFn`].
unsafe fn add_carried<T: Word, const SUBTRACT: bool, const TAKES: bool>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the caller says so; the carry is a predicate of every file.
    unsafe {
        let carry = sums::<T, SUBTRACT, TAKES>(file, args, mask);
        set_bits(file, CARRY, carry, mask);
    }
}

/// # Safety
/// That of [`AluFn`].
unsafe fn add_carried_silent<T: Word, const SUBTRACT: bool>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the caller says so.
    unsafe {
        sums::<T, SUBTRACT, true>(file, args, mask);
    }
}

/// Writes sums or differences and returns the carries.
///
/// # Safety
/// That of [`AluFn`].
unsafe fn sums<T: Word, const SUBTRACT: bool, const TAKES: bool>(file: *mut u8, args: &Args, mask: u32) -> u32 {
    // SAFETY: the caller says so; the carry is a predicate of every file.
    let (a, b, carry) = unsafe { (read::<T>(file, args.a), read::<T>(file, args.b), bits(file, CARRY)) };
    let (mut d, mut carries) = ([T::default(); LANES], 0);
    for i in 0..LANES {
        let carry = if TAKES { u128::from(carry >> i & 1) } else { 0 };
        let (a, b) = (u128::from(a[i].widen()), u128::from(b[i].widen()));
        let sum = if SUBTRACT {
            a.wrapping_sub(b).wrapping_sub(carry)
        } else {
            a + b + carry
        };
        d[i] = T::cut(sum as u64);
        carries |= ((sum >> T::BITS & 1) as u32) << i;
    }
    // SAFETY: the caller says so.
    unsafe { write(file, args.d, &d, mask) };
    carries
}
