//! Float arithmetic and conversions, compared with f64 arithmetic and the definitions of the formats.

use super::{apply, check};
use crate::exec::scalar::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

fn f(x: f32) -> u64 {
    x.to_bits().into()
}

const NAN: u64 = 0x7fff_ffff;
/// Smallest positive f32.
const TINY: f32 = f32::from_bits(1);

#[test]
fn add_and_mul_round_to_even_and_keep_subnormals() {
    check(
        "add.f32 %d, %a, %b;",
        "r rr",
        &[
            &[f(1.0), f(f32::EPSILON / 2.0), f(1.0)],
            &[f(TINY), f(TINY), 2],
            &[f(-0.0), f(-0.0), f(-0.0)],
        ],
    );
    check(
        "add.ftz.f32 %d, %a, %b;",
        "r rr",
        &[&[f(TINY), f(TINY), 0], &[f(1.0), f(TINY), f(1.0)]],
    );
    check(
        "mul.ftz.f32 %d, %a, %b;",
        "r rr",
        &[&[f(-f32::MIN_POSITIVE), f(0.5), f(-0.0)]],
    );
    check(
        "mul.sat.f32 %d, %a, %b;",
        "r rr",
        &[
            &[f(3.0), f(0.5), f(1.0)],
            &[f(-3.0), f(0.5), 0],
            &[f(f32::NAN), f(1.0), 0],
            &[f(0.25), f(1.0), f(0.25)],
        ],
    );
    // Fused multiply-add keeps the low bits of the product.
    let x = 1.0 + f32::EPSILON;
    check(
        "fma.rn.f32 %d, %a, %b, %c;",
        "r rrr",
        &[&[f(x), f(x), f(-1.0 - 2.0 * f32::EPSILON), f(f32::EPSILON * f32::EPSILON)]],
    );
    check(
        "sub.f64 %d, %a, %b;",
        "l ll",
        &[&[1f64.to_bits(), 2f64.to_bits(), (-1f64).to_bits()]],
    );
}

/// Compares directed roundings with the neighbors of the exact result in f64.
#[test]
fn directed_rounding_returns_correct_neighbor() {
    let operands = [
        (1.0f32, 3.0f32),
        (-1.0, 3.0),
        (0.1, 0.2),
        (1e-20, -1e-25),
        (3.4e38, 3e30),
        (-7.0, 1e-7),
        (5.0, 5.0),
        (1e-30, 1e-14),
    ];
    for (a, b) in operands {
        for (name, exact) in [
            ("add", f64::from(a) + f64::from(b)),
            ("mul", f64::from(a) * f64::from(b)),
            ("sub", f64::from(a) - f64::from(b)),
        ] {
            for mode in ["rz", "rm", "rp"] {
                let code = format!("{name}.{mode}.f32 %d, %a, %b;");
                let found = f32::from_bits(apply(&code, "r rr", &[vec![f(a), f(b)]])[0] as u32);
                let (down, up) = neighbors(exact);
                let expected = match mode {
                    "rm" => down,
                    "rp" => up,
                    _ if exact > 0.0 => down,
                    _ => up,
                };
                assert_eq!(found, expected, "{code} of {a:e} and {b:e}");
            }
        }
    }
    check(
        "div.rp.f32 %d, %a, %b;",
        "r rr",
        &[&[f(1.0), f(3.0), f(0.333_333_34)], &[f(2.0), f(3.0), f(0.666_666_7)]],
    );
    check(
        "fma.rm.f32 %d, %a, %b, %c;",
        "r rrr",
        &[
            &[f(1.0), f(1.0), f(-1e-30), f(1f32.next_down())],
            &[f(1.0), f(1.0), f(1e-30), f(1.0)],
        ],
    );
    check(
        "fma.rz.f32 %d, %a, %b, %c;",
        "r rrr",
        &[&[f(-1.0), f(1.0), f(1e-30), f(-1f32.next_down())]],
    );
}

/// Returns the f32 numbers at or below and at or above a number.
fn neighbors(x: f64) -> (f32, f32) {
    let nearest = x as f32;
    match f64::from(nearest).partial_cmp(&x) {
        Some(std::cmp::Ordering::Less) => (nearest, nearest.next_up()),
        Some(std::cmp::Ordering::Greater) => (nearest.next_down(), nearest),
        _ => (nearest, nearest),
    }
}

#[test]
fn min_max_prefer_numbers_over_nan() {
    check(
        "min.f32 %d, %a, %b;",
        "r rr",
        &[
            &[f(f32::NAN), f(2.0), f(2.0)],
            &[f(2.0), f(f32::NAN), f(2.0)],
            &[f(0.0), f(-0.0), f(-0.0)],
            &[f(1.0), f(2.0), f(1.0)],
        ],
    );
    check(
        "max.f32 %d, %a, %b;",
        "r rr",
        &[
            &[f(f32::NAN), f(f32::NAN), NAN],
            &[f(-0.0), f(0.0), 0],
            &[f(1.0), f(2.0), f(2.0)],
        ],
    );
    check("max.NaN.f32 %d, %a, %b;", "r rr", &[&[f(f32::NAN), f(2.0), NAN]]);
    check(
        "max.f16 %d, %a, %b;",
        "h hh",
        &[&[0x3c00, 0x4000, 0x4000], &[0x7e00, 0x4000, 0x4000]],
    );
    check("abs.f32 %d, %a;", "r r", &[&[f(-2.0), f(2.0)]]);
    check("neg.f32 %d, %a;", "r r", &[&[f(2.0), f(-2.0)], &[0, f(-0.0)]]);
    check("copysign.f32 %d, %a, %b;", "r rr", &[&[f(-1.0), f(5.0), f(-5.0)]]);
}

#[test]
fn approximate_functions_round_once() {
    for x in [0.3f32, 1.0, 2.5, 17.0, 1e-3] {
        let exact = f64::from(x);
        for (code, expected) in [
            ("rcp.approx.f32 %d, %a;", (1.0 / exact) as f32),
            ("rcp.rn.f32 %d, %a;", 1.0 / x),
            ("sqrt.rn.f32 %d, %a;", x.sqrt()),
            ("sqrt.approx.ftz.f32 %d, %a;", x.sqrt()),
            ("rsqrt.approx.f32 %d, %a;", (1.0 / exact.sqrt()) as f32),
            ("ex2.approx.ftz.f32 %d, %a;", exact.exp2() as f32),
            ("lg2.approx.f32 %d, %a;", exact.log2() as f32),
            ("sin.approx.f32 %d, %a;", exact.sin() as f32),
            ("cos.approx.f32 %d, %a;", exact.cos() as f32),
            ("tanh.approx.f32 %d, %a;", exact.tanh() as f32),
            ("div.full.f32 %d, %a, 0f40400000;", x / 3.0),
        ] {
            check(code, "r r", &[&[f(x), f(expected)]]);
        }
    }
    check(
        "ex2.approx.f32 %d, %a;",
        "r r",
        &[
            &[f(f32::NEG_INFINITY), 0],
            &[f(200.0), f(f32::INFINITY)],
            &[f(-149.0), 1],
        ],
    );
    check("rcp.approx.f32 %d, %a;", "r r", &[&[f(-0.0), f(f32::NEG_INFINITY)]]);
}

/// All f16 values round-trip, and numbers between them round correctly.
#[test]
fn f16_conversion_is_exact_and_rounds_to_even() {
    assert_eq!(f16_to_f32(0x0001), 2f32.powi(-24));
    assert_eq!(f16_to_f32(0x03ff), 1023.0 * 2f32.powi(-24));
    assert_eq!(f16_to_f32(0x7bff), 65504.0);
    assert_eq!(f16_to_f32(0xfc00), f32::NEG_INFINITY);
    for bits in 0..=u16::MAX {
        let x = f16_to_f32(bits);
        let is_nan = bits & 0x7fff > 0x7c00;
        assert_eq!(x.is_nan(), is_nan);
        assert_eq!(f32_to_f16(x), if is_nan { 0x7fff } else { bits }, "{bits:#x}");
        let brain = bf16_to_f32(bits);
        assert_eq!(f32_to_bf16(brain), if brain.is_nan() { 0x7fff } else { bits });
        if bits & 0x7fff < 0x7bff {
            // A number halfway between two halves rounds to the even one.
            let half_way = (x + f16_to_f32(bits + 1)) / 2.0;
            assert_eq!(f32_to_f16(half_way), bits + (bits & 1), "{bits:#x}");
            let a_little_more = if x.is_sign_positive() {
                half_way.next_up()
            } else {
                half_way.next_down()
            };
            assert_eq!(f32_to_f16(a_little_more), bits + 1);
        }
    }
    assert_eq!(f32_to_f16(65519.99), 0x7bff);
    assert_eq!(f32_to_f16(65520.0), 0x7c00);
    assert_eq!(f32_to_f16(2f32.powi(-25)), 0);
}

#[test]
fn float_conversion_honors_rounding_mode() {
    check(
        "cvt.rn.f16.f32 %d, %a;",
        "h r",
        &[
            &[f(1.0), 0x3c00],
            &[f(1e6), 0x7c00],
            &[f(f32::NAN), 0x7fff],
            &[f(-1e-8), 0x8000],
        ],
    );
    check(
        "cvt.rz.f16.f32 %d, %a;",
        "h r",
        &[&[f(1e6), 0x7bff], &[f(0.1), 0x2e66], &[f(-0.1), 0xae66]],
    );
    check(
        "cvt.rp.f16.f32 %d, %a;",
        "h r",
        &[&[f(0.1), 0x2e67], &[f(-0.1), 0xae66], &[f(1e-9), 1]],
    );
    check("cvt.rm.f16.f32 %d, %a;", "h r", &[&[f(-0.1), 0xae67]]);
    check(
        "cvt.rn.bf16.f32 %d, %a;",
        "h r",
        &[&[f(257.0 / 256.0), 0x3f80], &[f(259.0 / 256.0), 0x3f82]],
    );
    check("cvt.f32.f16 %d, %a;", "r h", &[&[0x3555, f(0.333_251_95)]]);
    check("cvt.f32.bf16 %d, %a;", "r h", &[&[0xc040, f(-3.0)]]);
    check(
        "cvt.rn.f16x2.f32 %d, %a, %b;",
        "r rr",
        &[&[f(1.0), f(2.0), 0x3c00_4000]],
    );
    check(
        "cvt.rn.bf16x2.f32 %d, %a, %b;",
        "r rr",
        &[&[f(1.0), f(2.0), 0x3f80_4000]],
    );
    check(
        "cvt.rn.relu.bf16x2.f32 %d, %a, %b;",
        "r rr",
        &[&[f(-1.0), f(2.0), 0x4000]],
    );
}

#[test]
fn f64_conversion_rounds_once() {
    check(
        "cvt.rn.f32.f64 %d, %a;",
        "r l",
        &[
            &[0.1f64.to_bits(), f(0.1)],
            &[1e300f64.to_bits(), f(f32::INFINITY)],
            &[1e-45f64.to_bits(), 1],
        ],
    );
    check(
        "cvt.rz.f32.f64 %d, %a;",
        "r l",
        &[
            &[0.1f64.to_bits(), f(0.1f32.next_down())],
            &[1e300f64.to_bits(), f(f32::MAX)],
        ],
    );
    check("cvt.f64.f32 %d, %a;", "l r", &[&[f(TINY), 2f64.powi(-149).to_bits()]]);
    check(
        "cvt.rna.tf32.f32 %d, %a;",
        "r r",
        &[
            &[f(1.0 + 2f32.powi(-11)), f(1.0 + 2f32.powi(-10))],
            &[f(1.0 + 2f32.powi(-12)), f(1.0)],
        ],
    );
    check(
        "cvt.sat.f32.f32 %d, %a;",
        "r r",
        &[&[f(-3.0), 0], &[f(3.0), f(1.0)], &[f(f32::NAN), 0]],
    );
    check(
        "cvt.rni.f32.f32 %d, %a;",
        "r r",
        &[&[f(2.5), f(2.0)], &[f(-3.5), f(-4.0)], &[f(-0.2), f(-0.0)]],
    );
    check(
        "cvt.rzi.f32.f32 %d, %a;",
        "r r",
        &[&[f(2.9), f(2.0)], &[f(-2.9), f(-2.0)]],
    );
    check("cvt.rmi.f32.f32 %d, %a;", "r r", &[&[f(-2.1), f(-3.0)]]);
    check("cvt.rpi.f64.f64 %d, %a;", "l l", &[&[2.1f64.to_bits(), 3f64.to_bits()]]);
}

#[test]
fn float_to_integer_conversion_saturates() {
    check(
        "cvt.rni.s32.f32 %d, %a;",
        "r r",
        &[
            &[f(2.5), 2],
            &[f(3.5), 4],
            &[f(-2.5), -2i32 as u32 as u64],
            &[f(1e20), 0x7fff_ffff],
            &[f(-1e20), 0x8000_0000],
            &[f(f32::NAN), 0],
        ],
    );
    check(
        "cvt.rzi.u32.f32 %d, %a;",
        "r r",
        &[&[f(-1.5), 0], &[f(1e20), 0xffff_ffff], &[f(7.9), 7]],
    );
    check(
        "cvt.rpi.s32.f32 %d, %a;",
        "r r",
        &[&[f(7.1), 8], &[f(-7.9), -7i32 as u32 as u64]],
    );
    check("cvt.rmi.s32.f32 %d, %a;", "r r", &[&[f(-7.1), -8i32 as u32 as u64]]);
    check(
        "cvt.rzi.s64.f32 %d, %a;",
        "l r",
        &[&[f(f32::NAN), 1 << 63], &[f(1e30), i64::MAX as u64]],
    );
    check(
        "cvt.rzi.s32.f64 %d, %a;",
        "r l",
        &[
            &[f64::NAN.to_bits(), 0x8000_0000],
            &[(-5.5f64).to_bits(), -5i32 as u32 as u64],
        ],
    );
    check("cvt.rzi.u16.f32 %d, %a;", "h r", &[&[f(70000.0), 0xffff]]);
    check("cvt.rzi.s32.f16 %d, %a;", "r h", &[&[0xc500, -5i32 as u32 as u64]]);
}

#[test]
fn integer_conversion_rounds_and_extends() {
    check(
        "cvt.rn.f32.s32 %d, %a;",
        "r r",
        &[
            &[0xffff_ffff, f(-1.0)],
            &[16_777_217, f(16_777_216.0)],
            &[16_777_219, f(16_777_220.0)],
        ],
    );
    check("cvt.rz.f32.u32 %d, %a;", "r r", &[&[0xffff_ffff, f(4_294_967_040.0)]]);
    check("cvt.rp.f32.u32 %d, %a;", "r r", &[&[16_777_217, f(16_777_218.0)]]);
    check(
        "cvt.rn.f32.u64 %d, %a;",
        "r l",
        &[
            &[(1 << 40) + (1 << 16) + 1, f(1_099_511_758_848.0)],
            &[u64::MAX, f(18_446_744_073_709_551_615.0)],
        ],
    );
    check(
        "cvt.rn.f64.s64 %d, %a;",
        "l l",
        &[
            &[(1 << 53) + 1, 2f64.powi(53).to_bits()],
            &[u64::MAX, (-1f64).to_bits()],
        ],
    );
    check(
        "cvt.rp.f64.s64 %d, %a;",
        "l l",
        &[&[(1 << 53) + 1, (2f64.powi(53) + 2.0).to_bits()]],
    );
    check(
        "cvt.rn.f16.u32 %d, %a;",
        "h r",
        &[&[2049, 0x6800], &[2051, 0x6802], &[70000, 0x7c00]],
    );
    check("cvt.s32.s8 %d, %a;", "r r", &[&[0x80, 0xffff_ff80], &[0x17f, 0x7f]]);
    check("cvt.u32.u8 %d, %a;", "r r", &[&[0x180, 0x80]]);
    check("cvt.s64.s32 %d, %a;", "l r", &[&[0x8000_0000, 0xffff_ffff_8000_0000]]);
    check("cvt.u32.u64 %d, %a;", "r l", &[&[0x1_2345_6789, 0x2345_6789]]);
    check("cvt.s16.s8 %d, %a;", "h h", &[&[0xf0, 0xfff0]]);
    check(
        "cvt.sat.s8.s32 %d, %a;",
        "r r",
        &[&[300, 127], &[-300i32 as u32 as u64, 0xffff_ff80]],
    );
    check(
        "cvt.sat.u8.s32 %d, %a;",
        "r r",
        &[&[300, 255], &[-300i32 as u32 as u64, 0]],
    );
    check(
        "cvt.pack.sat.s16.s32 %d, %a, %b;",
        "r rr",
        &[&[70000, -70000i32 as u32 as u64, 0x7fff_8000]],
    );
}

#[test]
fn half_arithmetic_rounds_once() {
    // 2049 is not a half: 2048 + 1 rounds to 2048, and 2050 + 1 to 2052.
    check(
        "add.f16 %d, %a, %b;",
        "h hh",
        &[
            &[0x3c00, 0x4000, 0x4200],
            &[0x6800, 0x3c00, 0x6800],
            &[0x6801, 0x3c00, 0x6802],
        ],
    );
    check("mul.f16 %d, %a, %b;", "h hh", &[&[0x3555, 0x4200, 0x3c00]]);
    check("add.bf16 %d, %a, %b;", "h hh", &[&[0x3f80, 0x3f80, 0x4000]]);
    check(
        "fma.rn.f16x2 %d, %a, %b, %c;",
        "r rrr",
        &[&[0x4000_3c00, 0x4200_4000, 0x3c00_3c00, 0x4700_4200]],
    );
    check(
        "fma.rn.bf16x2 %d, %a, %b, %c;",
        "r rrr",
        &[&[0x4000_3f80, 0x4040_4000, 0x3f80_3f80, 0x40e0_4040]],
    );
    check(
        "fma.rn.bf16 %d, %a, %b, %c;",
        "h hhh",
        &[&[0x3f81, 0x3f80, 0x3b80, 0x3f82], &[0x3f80, 0x3f80, 0x3b80, 0x3f80]],
    );
    // 1.51171875 is halfway between two bfloat16 numbers. Subtracting 2^-60 breaks the tie, although f64
    // cannot represent the difference.
    check(
        "fma.rn.bf16 %d, %a, %b, %c;",
        "h hhh",
        &[&[0x3f81, 0x3fc0, 0, 0x3fc2], &[0x3f81, 0x3fc0, 0xa180, 0x3fc1]],
    );
    check("neg.f16x2 %d, %a;", "r r", &[&[0x3c00_bc00, 0xbc00_3c00]]);
    check("ex2.approx.f16 %d, %a;", "h h", &[&[0x4200, 0x4800]]);
}

#[test]
fn float_comparison_handles_nan() {
    let nan = f(f32::NAN);
    let test = |comparison: &str, a: u64, b: u64| {
        let code = format!("setp.{comparison}.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;");
        apply(&code, "r rr", &[vec![a, b]])[0] == 1
    };
    for comparison in ["eq", "ne", "lt", "le", "gt", "ge"] {
        assert!(!test(comparison, nan, f(1.0)), "{comparison}");
        assert!(test(&format!("{comparison}u"), f(1.0), nan), "{comparison}u");
    }
    assert!(test("nan", nan, f(1.0)) && !test("num", nan, f(1.0)) && test("num", f(1.0), f(2.0)));
    assert!(
        test("eq", 0, f(-0.0))
            && test("ne", f(1.0), f(2.0))
            && test("neu", f(1.0), f(2.0))
            && !test("equ", f(1.0), f(2.0))
    );
    assert!(
        test("lt", f(-1.0), f(1.0))
            && !test("ltu", f(1.0), f(-1.0))
            && test("geu", f(1.0), f(1.0))
            && !test("gtu", f(1.0), f(1.0))
    );
    assert!(test("leu", f(1.0), f(1.0)) && !test("leu", f(2.0), f(1.0)));
    let property = |name: &str, x: u64| {
        apply(
            &format!("testp.{name}.f32 %p, %a; selp.b32 %d, 1, 0, %p;"),
            "r r",
            &[vec![x]],
        )[0] == 1
    };
    assert!(property("finite", f(1.0)) && !property("finite", nan) && property("infinite", f(f32::NEG_INFINITY)));
    assert!(
        property("notanumber", nan) && property("subnormal", 1) && property("normal", f(1.0)) && property("number", 0)
    );
}
