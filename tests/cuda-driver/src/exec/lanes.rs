//! A warp's registers, and the loops over its 32 lanes.
//!
//! A register is an array of 32 values, at an offset (`Slot`) in the warp's file. A predicate is a word with a bit for each lane. Constants and
//! special registers are registers, too, so that operands have one form. An instruction of arithmetic is a function pointer: a loop over all
//! lanes that the compiler vectorizes; lanes that are off keep their old value.

/// Lanes of a warp.
pub const LANES: usize = 32;
/// All lanes.
pub const ALL: u32 = u32::MAX;

/// Offset of a register in the file, in bytes.
pub type Slot = u32;
/// A predicate that is always true.
pub const TRUE: Slot = 0;
/// The carry of extended arithmetic, a bit for each lane.
pub const CARRY: Slot = 4;
/// Where results go that nobody wants.
pub const SINK: Slot = 64;
/// The first register of a kernel's own.
pub const FIRST: Slot = SINK + 256;

/// Operands of an instruction of arithmetic.
#[derive(Debug, Clone, Copy, Default)]
pub struct Args {
    /// The result.
    pub d: Slot,
    /// First source.
    pub a: Slot,
    /// Second source.
    pub b: Slot,
    /// Third source.
    pub c: Slot,
    /// A second result, or a constant such as the table of `lop3`.
    pub extra: u32,
}

/// An instruction of arithmetic.
///
/// # Safety
/// The slots of `Args` lie inside the file, aligned for their types, and the CPU [`is_supported`].
pub type AluFn = unsafe fn(file: *mut u8, args: &Args, mask: u32);

/// Values of registers: plain numbers of 2, 4 or 8 bytes.
pub trait Lane: Copy + Default + 'static {}
impl Lane for u16 {}
impl Lane for i16 {}
impl Lane for u32 {}
impl Lane for i32 {}
impl Lane for f32 {}
impl Lane for u64 {}
impl Lane for i64 {}
impl Lane for f64 {}

/// A function of up to three operands, lane by lane.
pub trait Op {
    /// Of the first operand.
    type A: Lane;
    /// Of the second.
    type B: Lane;
    /// Of the third.
    type C: Lane;
    /// Of the result.
    type D: Lane;
    /// The result of a lane.
    fn apply(a: Self::A, b: Self::B, c: Self::C, extra: u32) -> Self::D;
}

/// A comparison, lane by lane.
pub trait Test {
    /// Of both operands.
    type A: Lane;
    /// The result of a lane.
    fn test(a: Self::A, b: Self::A) -> bool;
}

/// All lanes of a register.
///
/// # Safety
/// `slot` holds a register of this type.
#[inline(always)]
pub unsafe fn read<T: Lane>(file: *const u8, slot: Slot) -> [T; LANES] {
    // SAFETY: the caller says so.
    unsafe { *file.add(slot as usize).cast::<[T; LANES]>() }
}

/// Writes the lanes of `mask`.
///
/// # Safety
/// `slot` holds a register of this type.
#[inline(always)]
pub unsafe fn write<T: Lane>(file: *mut u8, slot: Slot, values: &[T; LANES], mask: u32) {
    // SAFETY: the caller says so.
    let register = unsafe { &mut *file.add(slot as usize).cast::<[T; LANES]>() };
    if mask == ALL {
        *register = *values;
        return;
    }
    for i in 0..LANES {
        register[i] = if mask >> i & 1 != 0 { values[i] } else { register[i] };
    }
}

/// A predicate's bits.
///
/// # Safety
/// `slot` holds a predicate.
#[inline(always)]
pub unsafe fn bits(file: *const u8, slot: Slot) -> u32 {
    // SAFETY: the caller says so.
    unsafe { *file.add(slot as usize).cast::<u32>() }
}

/// Sets a predicate in the lanes of `mask`.
///
/// # Safety
/// `slot` holds a predicate.
#[inline(always)]
pub unsafe fn set_bits(file: *mut u8, slot: Slot, value: u32, mask: u32) {
    // SAFETY: the caller says so.
    let predicate = unsafe { &mut *file.add(slot as usize).cast::<u32>() };
    *predicate = *predicate & !mask | value & mask;
}

/// One bit of each flag.
#[inline(always)]
pub fn pack(flags: &[u8; LANES]) -> u32 {
    let mut bits = 0;
    for (i, eight) in flags.chunks_exact(8).enumerate() {
        let mut word = [0; 8];
        word.copy_from_slice(eight);
        // Each byte's bit is moved to its place in the topmost byte.
        let byte = u64::from_le_bytes(word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= (byte as u32) << (8 * i);
    }
    bits
}

/// The loop of an [`Op`].
pub fn lanes<O: Op>() -> AluFn {
    run_lanes::<O>
}

/// The loop of a [`Test`]: `d = test COMBINE c`, `extra` (a slot) `= !test COMBINE c`. `c` is a predicate.
pub fn compare<T: Test>(combine: Combine) -> AluFn {
    match combine {
        Combine::And => compare_with::<T, And>(),
        Combine::Or => compare_with::<T, Or>(),
        Combine::Xor => compare_with::<T, Xor>(),
    }
}

/// How `setp` combines a comparison with another predicate.
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

/// Whether the CPU has what the loops are compiled for. On x86-64 that is more than all CPUs have; a second set of loops for those that lack it
/// would take as long to compile again.
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
/// That of [`AluFn`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt"))]
unsafe fn run_lanes<O: Op>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the caller says so.
    unsafe { lanes_body::<O>(file, args, mask) }
}

/// # Safety
/// That of [`AluFn`].
#[inline(always)]
unsafe fn lanes_body<O: Op>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the caller says so. Slots that an op does not use are those of constants, inside the file.
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
    // SAFETY: the caller says so.
    unsafe { write(file, args.d, &d, mask) }
}

/// # Safety
/// That of [`AluFn`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt"))]
unsafe fn run_compare<T: Test, C: Combined>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the caller says so.
    unsafe { compare_body::<T, C>(file, args, mask) }
}

/// # Safety
/// That of [`AluFn`].
#[inline(always)]
unsafe fn compare_body<T: Test, C: Combined>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the caller says so.
    let (a, b) = unsafe { (read::<T::A>(file, args.a), read::<T::A>(file, args.b)) };
    let mut flags = [0; LANES];
    for i in 0..LANES {
        flags[i] = u8::from(T::test(a[i], b[i]));
    }
    let result = pack(&flags);
    // SAFETY: as above; a second result that is not wanted has the slot of the sink.
    unsafe {
        let c = bits(file, args.c);
        set_bits(file, args.d, C::combine(result, c), mask);
        set_bits(file, args.extra, C::combine(!result, c), mask);
    }
}

/// `op!(|a: f32, b: f32| -> f32 { a + b })`: the loop of an expression over lanes. A fourth parameter is [`Args::extra`].
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
