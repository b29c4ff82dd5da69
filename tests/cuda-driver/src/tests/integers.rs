//! Integer and bit arithmetic, compared with precomputed values or wider arithmetic.

use super::{apply, check};

const EDGE_VALUES: [u64; 9] = [
    0,
    1,
    2,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1234_5678,
    0xdead_beef,
    0x0001_0000,
];

fn s(x: u64) -> i64 {
    i64::from(x as u32 as i32)
}

/// Checks an instruction on all pairs of interesting 32-bit operands.
#[track_caller]
fn pairs(instruction: &str, expected: impl Fn(u64, u64) -> u64) {
    let rows: Vec<Vec<u64>> = EDGE_VALUES
        .iter()
        .flat_map(|a| EDGE_VALUES.map(|b| vec![*a, b, expected(*a, b) & 0xffff_ffff]))
        .collect();
    let rows: Vec<&[u64]> = rows.iter().map(Vec::as_slice).collect();
    check(instruction, "r rr", &rows);
}

#[test]
fn add_and_mul_wrap_on_overflow() {
    pairs("add.u32 %d, %a, %b;", |a, b| a + b);
    pairs("add.s32 %d, %a, %b;", |a, b| a + b);
    pairs("sub.s32 %d, %a, %b;", |a, b| a.wrapping_sub(b));
    pairs("add.sat.s32 %d, %a, %b;", |a, b| {
        (s(a) + s(b)).clamp(i32::MIN.into(), i32::MAX.into()) as u64
    });
    pairs("sub.sat.s32 %d, %a, %b;", |a, b| {
        (s(a) - s(b)).clamp(i32::MIN.into(), i32::MAX.into()) as u64
    });
    pairs("mul.lo.s32 %d, %a, %b;", |a, b| a.wrapping_mul(b));
    pairs("mul.hi.u32 %d, %a, %b;", |a, b| (a * b) >> 32);
    pairs("mul.hi.s32 %d, %a, %b;", |a, b| ((s(a) * s(b)) >> 32) as u64);
    pairs("mul24.lo.u32 %d, %a, %b;", |a, b| (a & 0xff_ffff) * (b & 0xff_ffff));
    pairs("mul24.hi.u32 %d, %a, %b;", |a, b| {
        ((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16
    });
    pairs("mad.lo.s32 %d, %a, %b, 77;", |a, b| a.wrapping_mul(b).wrapping_add(77));
    pairs("mad.hi.u32 %d, %a, %b, 77;", |a, b| ((a * b) >> 32) + 77);
    pairs("sad.u32 %d, %a, %b, 5;", |a, b| a.abs_diff(b) + 5);
    pairs("sad.s32 %d, %a, %b, 5;", |a, b| s(a).abs_diff(s(b)) + 5);
    pairs("min.s32 %d, %a, %b;", |a, b| s(a).min(s(b)) as u64);
    pairs("max.u32 %d, %a, %b;", |a, b| a.max(b));
}

#[test]
fn wide_mul_returns_full_product() {
    check(
        "mul.wide.u32 %d, %a, %b;",
        "l rr",
        &[&[0xffff_ffff, 0xffff_ffff, 0xffff_fffe_0000_0001]],
    );
    check(
        "mul.wide.s32 %d, %a, %b;",
        "l rr",
        &[&[0xffff_ffff, 7, -7i64 as u64], &[0x8000_0000, 0x8000_0000, 1 << 62]],
    );
    check("mul.wide.s16 %d, %a, %b;", "r hh", &[&[0xffff, 3, 0xffff_fffd]]);
    check(
        "mad.wide.u32 %d, %a, %b, %c;",
        "l rrl",
        &[&[0xffff_ffff, 2, 5, 0x2_0000_0003]],
    );
    check("mul.hi.u64 %d, %a, %b;", "l ll", &[&[u64::MAX, u64::MAX, u64::MAX - 1]]);
    check("mul.hi.s64 %d, %a, %b;", "l ll", &[&[u64::MAX, 5, u64::MAX]]);
}

#[test]
fn div_rounds_toward_zero() {
    pairs("div.u32 %d, %a, %b;", |a, b| a.checked_div(b).unwrap_or(0xffff_ffff));
    pairs("rem.u32 %d, %a, %b;", |a, b| a.checked_rem(b).unwrap_or(a));
    pairs("div.s32 %d, %a, %b;", |a, b| {
        s(a).checked_div(s(b)).unwrap_or(-1) as u64
    });
    pairs("rem.s32 %d, %a, %b;", |a, b| {
        s(a).checked_rem(s(b)).unwrap_or(s(a)) as u64
    });
    check(
        "div.s64 %d, %a, %b;",
        "l ll",
        &[&[-7i64 as u64, 2, -3i64 as u64], &[1 << 63, u64::MAX, 1 << 63]],
    );
}

#[test]
fn shift_amount_is_clamped_to_width() {
    for (amount, left, right, arithmetic) in [
        (0, 0x8765_4321, 0x8765_4321, 0x8765_4321u64),
        (4, 0x7654_3210, 0x0876_5432, 0xf876_5432),
        (31, 0x8000_0000, 1, 0xffff_ffff),
        (32, 0, 0, 0xffff_ffff),
        (200, 0, 0, 0xffff_ffff),
    ] {
        check("shl.b32 %d, %a, %b;", "r rr", &[&[0x8765_4321, amount, left]]);
        check("shr.u32 %d, %a, %b;", "r rr", &[&[0x8765_4321, amount, right]]);
        check("shr.s32 %d, %a, %b;", "r rr", &[&[0x8765_4321, amount, arithmetic]]);
    }
    check("shl.b64 %d, %a, %b;", "l lr", &[&[1, 63, 1 << 63], &[1, 64, 0]]);
    check("shr.s64 %d, %a, %b;", "l lr", &[&[1 << 63, 64, u64::MAX]]);
    check(
        "shr.s16 %d, %a, %b;",
        "h hr",
        &[&[0x8000, 3, 0xf000], &[0x8000, 99, 0xffff]],
    );
    let funnel = |form: &str, n: u64| {
        apply(
            &format!("shf.{form}.b32 %d, %a, %b, %c;"),
            "r rrr",
            &[vec![0x1111_2222, 0x3333_4444, n]],
        )[0]
    };
    assert_eq!(funnel("l.wrap", 16), 0x4444_1111);
    assert_eq!(funnel("r.wrap", 16), 0x4444_1111);
    assert_eq!(funnel("l.wrap", 36), 0x3334_4441);
    assert_eq!(funnel("l.clamp", 36), 0x1111_2222);
    assert_eq!(funnel("r.clamp", 36), 0x3333_4444);
}

#[test]
fn bit_count_and_field_ops_match_expected() {
    check(
        "popc.b32 %d, %a;",
        "r r",
        &[&[0, 0], &[0xffff_ffff, 32], &[0x8000_0001, 2]],
    );
    check("popc.b64 %d, %a;", "r l", &[&[u64::MAX, 64]]);
    check("clz.b32 %d, %a;", "r r", &[&[0, 32], &[1, 31], &[0x8000_0000, 0]]);
    check("clz.b64 %d, %a;", "r l", &[&[1, 63]]);
    check(
        "brev.b32 %d, %a;",
        "r r",
        &[&[1, 0x8000_0000], &[0x1234_5678, 0x1e6a_2c48]],
    );
    check(
        "bfind.u32 %d, %a;",
        "r r",
        &[&[0, 0xffff_ffff], &[1, 0], &[0x8000_0000, 31]],
    );
    check(
        "bfind.s32 %d, %a;",
        "r r",
        &[&[0xffff_ffff, 0xffff_ffff], &[0xffff_fffe, 0], &[0x7fff_ffff, 30]],
    );
    check("bfind.shiftamt.u32 %d, %a;", "r r", &[&[1, 31], &[0, 0xffff_ffff]]);
    check(
        "bfe.u32 %d, %a, %b, %c;",
        "r rrr",
        &[
            &[0x8765_4321, 4, 8, 0x32],
            &[0x8765_4321, 28, 8, 8],
            &[1, 0, 0, 0],
            &[u64::MAX, 40, 3, 0],
        ],
    );
    check(
        "bfe.s32 %d, %a, %b, %c;",
        "r rrr",
        &[
            &[0x0000_00f0, 4, 4, 0xffff_ffff],
            &[0x8765_4321, 28, 8, 0xffff_fff8],
            &[0x70, 4, 4, 7],
        ],
    );
    check("bfe.s64 %d, %a, %b, %c;", "l lrr", &[&[1 << 40, 40, 1, u64::MAX]]);
    check(
        "bfi.b32 %d, %a, %b, %c, 8;",
        "r rrr",
        &[
            &[0xabcd, 0xffff_ffff, 8, 0xffff_cdff],
            &[0xff, 0, 28, 0xf000_0000],
            &[1, 5, 32, 5],
        ],
    );
}

#[test]
fn bitwise_ops_match_expected() {
    check("not.b32 %d, %a;", "r r", &[&[0x0f0f_0f0f, 0xf0f0_f0f0]]);
    check("cnot.b32 %d, %a;", "r r", &[&[0, 1], &[5, 0]]);
    check(
        "and.b64 %d, %a, %b;",
        "l ll",
        &[&[0xff00_ff00_ff00_ff00, 0x0ff0_0ff0_0ff0_0ff0, 0x0f00_0f00_0f00_0f00]],
    );
    check(
        "neg.s32 %d, %a;",
        "r r",
        &[&[0x8000_0000, 0x8000_0000], &[5, 0xffff_fffb]],
    );
    check(
        "abs.s32 %d, %a;",
        "r r",
        &[&[0x8000_0000, 0x8000_0000], &[0xffff_fffb, 5]],
    );
}

/// The table index is 4a + 2b + c, so `a` alone is 0xf0, `b` 0xcc and `c` 0xaa.
#[test]
fn lop3_follows_lookup_table() {
    let (a, b, c) = (0x0f0f_3c5au64, 0x3355_a5f0, 0x1248_ff00);
    for (table, expected) in [
        (0xf0, a),
        (0xcc, b),
        (0xaa, c),
        (0x80, a & b & c),
        (0xfe, a | b | c),
        (0x96, a ^ b ^ c),
        (0xe4, (a & c) | (b & !c & 0xffff_ffff)),
        (0x01, !(a | b | c) & 0xffff_ffff),
    ] {
        check(
            &format!("lop3.b32 %d, %a, %b, %c, {table};"),
            "r rrr",
            &[&[a, b, c, expected]],
        );
    }
}

#[test]
fn prmt_selects_bytes() {
    let (a, b) = (0x8302_0100, 0x0706_0584);
    for (mode, selector, expected) in [
        ("", 0x3210, a),
        ("", 0x7654, b),
        ("", 0x0123, 0x0001_0283),
        ("", 0xb8c4, 0xff00_ff84u64),
        (".f4e", 1, 0x8483_0201),
        (".b4e", 1, 0x0607_0001),
        (".rc8", 3, 0x8383_8383),
        (".ecl", 2, 0x8302_0202),
        (".ecr", 1, 0x0101_0100),
        (".rc16", 1, 0x8302_8302),
    ] {
        check(
            &format!("prmt.b32{mode} %d, %a, %b, %c;"),
            "r rrr",
            &[&[a, b, selector, expected]],
        );
    }
}

#[test]
fn dp4a_and_dp2a_accumulate_products() {
    // -1 * 2 + 127 * 3 + 1 * 4 + -128 * 5, and the same bytes as unsigned.
    let (a, b) = (0x8001_7fff, 0x0504_0302);
    check(
        "dp4a.s32.s32 %d, %a, %b, %c;",
        "r rrr",
        &[&[a, b, 10, (-2 + 381 + 4 - 640 + 10i32) as u32 as u64]],
    );
    check(
        "dp4a.u32.u32 %d, %a, %b, %c;",
        "r rrr",
        &[&[a, b, 10, 255 * 2 + 127 * 3 + 4 + 128 * 5 + 10]],
    );
    check(
        "dp4a.u32.s32 %d, %a, %b, %c;",
        "r rrr",
        &[&[2, 0xff, 0, -2i32 as u32 as u64]],
    );
    check(
        "dp4a.s32.s32 %d, %a, %b, %c;",
        "r rrr",
        &[&[1, 1, 0x7fff_ffff, 0x8000_0000]],
    );
    check(
        "dp2a.lo.s32.s32 %d, %a, %b, %c;",
        "r rrr",
        &[&[0xffff_0003, 0x0908_0504, 1, 3 * 4 - 5 + 1]],
    );
    check(
        "dp2a.hi.s32.s32 %d, %a, %b, %c;",
        "r rrr",
        &[&[0xffff_0003, 0x0908_0504, 1, 3 * 8 - 9 + 1]],
    );
}

#[test]
fn carry_propagates_between_words() {
    let sum = "{ .reg .b32 %lo, %hi, %l2, %h2; mov.b64 {%lo, %hi}, %a; mov.b64 {%l2, %h2}, %b;
add.cc.u32 %lo, %lo, %l2; addc.u32 %hi, %hi, %h2; mov.b64 %d, {%lo, %hi}; }";
    let (a, b) = (0x0123_4567_ffff_ffff, 0x0000_0001_0000_0001);
    check(
        sum,
        "l ll",
        &[&[a, b, a.wrapping_add(b)], &[u64::MAX, 1, 0], &[5, 6, 11]],
    );
    let difference = sum.replace("add.cc", "sub.cc").replace("addc", "subc");
    check(
        &difference,
        "l ll",
        &[
            &[a, b, a.wrapping_sub(b)],
            &[0, 1, u64::MAX],
            &[1 << 32, 1, 0xffff_ffff],
        ],
    );
    let product =
        "{ .reg .b32 %x, %y, %z; mad.lo.cc.u32 %x, %a, %b, %c; madc.hi.u32 %y, %a, %b, 0; mov.b64 %d, {%x, %y}; }";
    let (a, b, c) = (0xffff_ffff, 0xffff_fffe, 0xffff_ffff);
    check(product, "l rrr", &[&[a, b, c, a * b + c]]);
}

#[test]
fn integer_comparison_honors_signedness() {
    let test = |comparison: &str, a: u64, b: u64| {
        let code = format!("setp.{comparison} %p, %a, %b; selp.b32 %d, 1, 0, %p;");
        apply(&code, "r rr", &[vec![a, b]])[0] == 1
    };
    assert!(test("lt.s32", 0xffff_ffff, 0) && !test("lt.u32", 0xffff_ffff, 0));
    assert!(test("hi.u32", 0xffff_ffff, 0) && test("ls.u32", 7, 7) && test("lo.u32", 6, 7) && test("hs.u32", 7, 7));
    assert!(
        test("eq.s32", 5, 5)
            && test("ne.b32", 5, 6)
            && test("ge.s32", 5, 0x8000_0000)
            && test("le.s32", 0x8000_0000, 5)
    );
    // Tests a combined predicate, and the negation as second result.
    let both = "setp.lt.u32 %p, %a, %b; { .reg .pred %q, %n; setp.gt.and.u32 %q|%n, %b, 10, %p; selp.b32 %d, 1, 0, %q; @%n add.u32 %d, %d, 2; }";
    check(both, "r rr", &[&[1, 20, 1], &[1, 5, 2], &[30, 20, 0]]);
    let negated = "setp.lt.u32 %p, %a, %b; { .reg .pred %q; setp.gt.or.u32 %q, %b, 10, !%p; selp.b32 %d, 1, 0, %q; }";
    check(negated, "r rr", &[&[1, 5, 0], &[9, 5, 1], &[1, 20, 1]]);
}
