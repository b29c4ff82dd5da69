//! The register file of a warp, and loops over its 32 lanes.
//!
//! A register is an array of 32 values at an offset (`Slot`) in the register file. A predicate is a word with
//! one bit per lane. Constants and special registers are stored like registers, so that all operands have the
//! same form. An arithmetic instruction is a pointer to a loop over all lanes, which the compiler vectorizes.
//! Inactive lanes keep their values.

/// Number of lanes in a warp.
pub const LANES: usize = 32;
/// Lane mask that selects all lanes.
pub const ALL: u32 = u32::MAX;

/// Byte offset of a register in the register file.
pub type Slot = u32;
/// Slot of the predicate that is always true.
pub const TRUE: Slot = 0;
/// Slot of the carry flags, one bit per lane.
pub const CARRY: Slot = 4;
/// Register slot for results that are discarded.
pub const SINK: Slot = 64;
/// First register slot available to a kernel.
pub const FIRST: Slot = SINK + 256;

/// The operands of an arithmetic instruction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Args {
    /// Slot that receives the result.
    pub d: Slot,
    /// Slot of the first source operand.
    pub a: Slot,
    /// Slot of the second source operand.
    pub b: Slot,
    /// Slot of the third source operand.
    pub c: Slot,
    /// Slot of a second result, or a constant such as the table of `lop3`.
    pub extra: u32,
}

/// The lane loop of an arithmetic instruction, called with the register file, the operands, and the mask of
/// active lanes.
///
/// # Safety
/// The slots in `Args` are within the register file and aligned for their types, and [`is_supported`]
/// returned true.
pub type AluFn = unsafe fn(file: *mut u8, args: &Args, mask: u32);

/// A register value: a number of 2, 4, or 8 bytes.
pub trait Lane: Copy + Default + 'static {}
impl Lane for u16 {}
impl Lane for i16 {}
impl Lane for u32 {}
impl Lane for i32 {}
impl Lane for f32 {}
impl Lane for u64 {}
impl Lane for i64 {}
impl Lane for f64 {}

/// A lane-wise function of up to three operands.
pub trait Op {
    /// Type of the first operand.
    type A: Lane;
    /// Type of the second operand.
    type B: Lane;
    /// Type of the third operand.
    type C: Lane;
    /// Type of the result.
    type D: Lane;
    /// Computes the result of one lane.
    fn apply(a: Self::A, b: Self::B, c: Self::C, extra: u32) -> Self::D;
}

/// A lane-wise comparison.
pub trait Test {
    /// Type of both operands.
    type A: Lane;
    /// Compares the operands of one lane.
    fn test(a: Self::A, b: Self::A) -> bool;
}

/// Reads all lanes of a register.
///
/// # Safety
/// `slot` is a register of type `T` in `file`.
#[inline(always)]
pub unsafe fn read<T: Lane>(file: *const u8, slot: Slot) -> [T; LANES] {
    // SAFETY: `slot` is a register of type `T` (function contract).
    unsafe { *file.add(slot as usize).cast::<[T; LANES]>() }
}

/// Writes the lanes in `mask` of a register.
///
/// # Safety
/// `slot` is a register of type `T` in `file`.
#[inline(always)]
pub unsafe fn write<T: Lane>(file: *mut u8, slot: Slot, values: &[T; LANES], mask: u32) {
    // SAFETY: `slot` is a register of type `T` (function contract).
    let register = unsafe { &mut *file.add(slot as usize).cast::<[T; LANES]>() };
    if mask == ALL {
        *register = *values;
        return;
    }
    for i in 0..LANES {
        register[i] = if mask >> i & 1 != 0 { values[i] } else { register[i] };
    }
}

/// Reads a predicate.
///
/// # Safety
/// `slot` is a predicate in `file`.
#[inline(always)]
pub unsafe fn bits(file: *const u8, slot: Slot) -> u32 {
    // SAFETY: `slot` is a predicate (function contract).
    unsafe { *file.add(slot as usize).cast::<u32>() }
}

/// Writes the lanes in `mask` of a predicate.
///
/// # Safety
/// `slot` is a predicate in `file`.
#[inline(always)]
pub unsafe fn set_bits(file: *mut u8, slot: Slot, value: u32, mask: u32) {
    // SAFETY: `slot` is a predicate (function contract).
    let predicate = unsafe { &mut *file.add(slot as usize).cast::<u32>() };
    *predicate = *predicate & !mask | value & mask;
}

/// Packs 32 flags into a mask.
#[inline(always)]
pub fn pack(flags: &[u8; LANES]) -> u32 {
    let mut bits = 0;
    for (i, eight) in flags.chunks_exact(8).enumerate() {
        let mut word = [0; 8];
        word.copy_from_slice(eight);
        // The multiplication moves the low bit of each byte to its position in the highest byte.
        let byte = u64::from_le_bytes(word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= (byte as u32) << (8 * i);
    }
    bits
}

/// Returns the lane loop of an [`Op`].
pub fn lanes<O: Op>() -> AluFn {
    run_lanes::<O>
}

/// Returns the lane loop of a [`Test`]. The loop sets predicate `d` to `test COMBINE c`, and predicate
/// `extra` to `!test COMBINE c`.
pub fn compare<T: Test>(combine: Combine) -> AluFn {
    match combine {
        Combine::And => compare_with::<T, And>(),
        Combine::Or => compare_with::<T, Or>(),
        Combine::Xor => compare_with::<T, Xor>(),
    }
}

/// The operation that combines a comparison with another predicate in `setp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    And,
    Or,
    Xor,
}

trait Combined {
    fn combine(a: u32, b: u32) -> u32;
}
struct And;
struct Or;
struct Xor;
impl Combined for And {
    fn combine(a: u32, b: u32) -> u32 {
        a & b
    }
}
impl Combined for Or {
    fn combine(a: u32, b: u32) -> u32 {
        a | b
    }
}
impl Combined for Xor {
    fn combine(a: u32, b: u32) -> u32 {
        a ^ b
    }
}

fn compare_with<T: Test, C: Combined>() -> AluFn {
    run_compare::<T, C>
}

/// Returns whether the CPU has the features that the lane loops are compiled for. A fallback for older x86-64
/// CPUs would double the compile time.
pub fn is_supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// # Safety
/// The slots in `args` are within `file` and aligned for the types of `O`, and [`is_supported`] returned
/// true.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt"))]
unsafe fn run_lanes<O: Op>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are valid for the types of `O` (function contract).
    unsafe { lanes_body::<O>(file, args, mask) }
}

/// # Safety
/// The slots in `args` are within `file` and aligned for the types of `O`.
#[inline(always)]
unsafe fn lanes_body<O: Op>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are valid for the types of `O` (function contract). Unused slots are 0, which is
    // within the file.
    let (a, b, c) = unsafe {
        (
            read::<O::A>(file, args.a),
            read::<O::B>(file, args.b),
            read::<O::C>(file, args.c),
        )
    };
    let mut d = [O::D::default(); LANES];
    for i in 0..LANES {
        d[i] = O::apply(a[i], b[i], c[i], args.extra);
    }
    // SAFETY: `args.d` is a register of type `O::D` (function contract).
    unsafe { write(file, args.d, &d, mask) }
}

/// # Safety
/// The slots in `args` are within `file` and aligned for the types of `T`, and [`is_supported`] returned
/// true.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt"))]
unsafe fn run_compare<T: Test, C: Combined>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are valid for the types of `T` (function contract).
    unsafe { compare_body::<T, C>(file, args, mask) }
}

/// # Safety
/// The slots in `args` are within `file` and aligned for the types of `T`.
#[inline(always)]
unsafe fn compare_body<T: Test, C: Combined>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: `args.a` and `args.b` are registers of type `T::A` (function contract).
    let (a, b) = unsafe { (read::<T::A>(file, args.a), read::<T::A>(file, args.b)) };
    let mut flags = [0; LANES];
    for i in 0..LANES {
        flags[i] = u8::from(T::test(a[i], b[i]));
    }
    let result = pack(&flags);
    // SAFETY: `args.c`, `args.d`, and `args.extra` are predicates (function contract). An unused second
    // result has the slot `SINK`.
    unsafe {
        let c = bits(file, args.c);
        set_bits(file, args.d, C::combine(result, c), mask);
        set_bits(file, args.extra, C::combine(!result, c), mask);
    }
}

/// Expands `op!(|a: f32, b: f32| -> f32 { a + b })` to the lane loop of the expression. A fourth parameter
/// receives [`Args::extra`].
macro_rules! op {
    (|$a:ident: $A:ty| -> $D:ty $body:block) => {
        op!(|$a: $A, _b: $A, _c: $A, _extra| -> $D $body)
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty| -> $D:ty $body:block) => {
        op!(|$a: $A, $b: $B, _c: $A, _extra| -> $D $body)
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| -> $D:ty $body:block) => {
        op!(|$a: $A, $b: $B, $c: $C, _extra| -> $D $body)
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty, $extra:ident| -> $D:ty $body:block) => {{
        struct Expression;
        impl $crate::exec::lanes::Op for Expression {
            type A = $A;
            type B = $B;
            type C = $C;
            type D = $D;
            #[inline(always)]
            fn apply($a: $A, $b: $B, $c: $C, $extra: u32) -> $D $body
        }
        $crate::exec::lanes::lanes::<Expression>()
    }};
}
pub(crate) use op;
