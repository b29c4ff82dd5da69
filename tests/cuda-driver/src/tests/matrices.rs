//! `mma`, `ldmatrix`, `stmatrix`, and `movmatrix`. Fragment layouts are transcribed from the figures of the PTX manual,
//! independent of the interpreter's formula.

use super::{Machine, le, module};
use crate::exec::fault::Kind;
use crate::exec::scalar::{f16_to_f32, f32_to_bf16, f32_to_f16};

/// Maps element i of a lane's fragment to row and column.
type ElementPosition = fn(lane: usize, i: usize) -> (usize, usize);

/// A shape: instruction, types, elements per lane of A, B, and C, and their positions.
struct Shape {
    name: &'static str,
    types: &'static str,
    /// Bits of an element of A and B.
    bits: usize,
    k: usize,
    m: usize,
    elements: [usize; 3],
    a: ElementPosition,
    b: ElementPosition,
    c: ElementPosition,
}

fn group(lane: usize) -> usize {
    lane >> 2
}

fn thread(lane: usize) -> usize {
    lane % 4
}

/// C and D, 16 x 8: c0 and c1 are in the row of the group, c2 and c3 eight rows below.
fn sums(lane: usize, i: usize) -> (usize, usize) {
    (
        if i < 2 { group(lane) } else { group(lane) + 8 },
        thread(lane) * 2 + (i & 1),
    )
}

/// The shape m16n8k16 with f16 elements.
const K16: Shape = Shape {
    name: "m16n8k16",
    types: "f32.f16.f16.f32",
    bits: 16,
    k: 16,
    m: 16,
    elements: [8, 4, 4],
    a: |l, i| {
        let row = if matches!(i, 0 | 1 | 4 | 5) {
            group(l)
        } else {
            group(l) + 8
        };
        let column = thread(l) * 2 + (i & 1);
        (row, if i < 4 { column } else { column + 8 })
    },
    b: |l, i| {
        (
            if i < 2 {
                thread(l) * 2 + (i & 1)
            } else {
                thread(l) * 2 + (i & 1) + 8
            },
            group(l),
        )
    },
    c: sums,
};

/// The shape m16n8k8 with f16 elements.
const K8: Shape = Shape {
    name: "m16n8k8",
    types: "f32.f16.f16.f32",
    bits: 16,
    k: 8,
    m: 16,
    elements: [4, 2, 4],
    a: |l, i| (if i < 2 { group(l) } else { group(l) + 8 }, thread(l) * 2 + (i & 1)),
    b: |l, i| (thread(l) * 2 + i, group(l)),
    c: sums,
};

const SHAPES: [Shape; 10] = [
    K16,
    K8,
    Shape {
        name: "m16n8k16",
        types: "f32.bf16.bf16.f32",
        bits: 16,
        k: 16,
        m: 16,
        elements: [8, 4, 4],
        a: K16.a,
        b: K16.b,
        c: sums,
    },
    Shape {
        name: "m16n8k8",
        types: "f32.bf16.bf16.f32",
        bits: 16,
        k: 8,
        m: 16,
        elements: [4, 2, 4],
        a: K8.a,
        b: K8.b,
        c: sums,
    },
    Shape {
        name: "m16n8k16",
        types: "f16.f16.f16.f16",
        bits: 16,
        k: 16,
        m: 16,
        elements: [8, 4, 4],
        a: K16.a,
        b: K16.b,
        c: sums,
    },
    Shape {
        name: "m16n8k4",
        types: "f32.tf32.tf32.f32",
        bits: 32,
        k: 4,
        m: 16,
        elements: [2, 1, 4],
        a: |l, i| (if i == 0 { group(l) } else { group(l) + 8 }, thread(l)),
        b: |l, _| (thread(l), group(l)),
        c: sums,
    },
    Shape {
        name: "m16n8k8",
        types: "f32.tf32.tf32.f32",
        bits: 32,
        k: 8,
        m: 16,
        elements: [4, 2, 4],
        a: |l, i| {
            let row = if matches!(i, 0 | 2) { group(l) } else { group(l) + 8 };
            (row, if i < 2 { thread(l) } else { thread(l) + 4 })
        },
        b: |l, i| (if i == 0 { thread(l) } else { thread(l) + 4 }, group(l)),
        c: sums,
    },
    Shape {
        name: "m16n8k32",
        types: "s32.s8.s8.s32",
        bits: 8,
        k: 32,
        m: 16,
        elements: [16, 8, 4],
        a: |l, i| {
            let row = if i < 4 || (8..12).contains(&i) {
                group(l)
            } else {
                group(l) + 8
            };
            let column = thread(l) * 4 + (i & 3);
            (row, if i < 8 { column } else { column + 16 })
        },
        b: |l, i| {
            (
                if i < 4 {
                    thread(l) * 4 + (i & 3)
                } else {
                    thread(l) * 4 + (i & 3) + 16
                },
                group(l),
            )
        },
        c: sums,
    },
    Shape {
        name: "m16n8k16",
        types: "s32.s8.u8.s32",
        bits: 8,
        k: 16,
        m: 16,
        elements: [8, 4, 4],
        a: |l, i| (if i < 4 { group(l) } else { group(l) + 8 }, thread(l) * 4 + (i & 3)),
        b: |l, i| (thread(l) * 4 + i, group(l)),
        c: sums,
    },
    Shape {
        name: "m8n8k16",
        types: "s32.u8.s8.s32",
        bits: 8,
        k: 16,
        m: 8,
        elements: [4, 4, 2],
        a: |l, i| (group(l), thread(l) * 4 + i),
        b: |l, i| (thread(l) * 4 + i, group(l)),
        c: |l, i| (group(l), thread(l) * 2 + i),
    },
];

/// Returns a small integer that depends on the position.
fn element(seed: usize, row: usize, column: usize, is_signed: bool) -> i64 {
    let value = (row * 31 + column * 17 + seed * 7) * 2654435761 % 1000003 % 9;
    if is_signed { value as i64 - 4 } else { value as i64 }
}

/// Encodes a value in a type.
fn encode(kind: &str, value: i64) -> u32 {
    match kind {
        "f16" => f32_to_f16(value as f32).into(),
        "bf16" => f32_to_bf16(value as f32).into(),
        "tf32" | "f32" => (value as f32).to_bits(),
        _ => value as i32 as u32,
    }
}

/// Packs fragments into registers, lane by lane, with elements from low to high bits.
fn fragments(bits: usize, n: usize, value: impl Fn(usize, usize) -> u32) -> Vec<u32> {
    let per_word = 32 / bits;
    let mask = if bits == 32 { u32::MAX } else { (1 << bits) - 1 };
    let word = |lane: usize, r: usize| {
        (0..per_word).fold(0, |word, i| word | (value(lane, r * per_word + i) & mask) << (bits * i))
    };
    (0..32)
        .flat_map(|lane| (0..n / per_word).map(move |r| (lane, r)))
        .map(|(lane, r)| word(lane, r))
        .collect()
}

/// Returns a kernel that loads A, B, and C, executes an instruction, and stores D. `counts` gives the registers of A,
/// B, and C.
fn kernel(instruction: &str, counts: [usize; 3]) -> String {
    let mut body = String::from(".reg .b32 %d<4>, %a<4>, %b<4>, %c<4>, %t; .reg .b64 %p, %o;\nmov.u32 %t, %tid.x;\n");
    for (i, (name, n)) in ["a", "b", "c"].iter().zip(counts).enumerate() {
        body += &format!(
            "ld.param.u64 %p, [p{i}];\nmul.wide.u32 %o, %t, {};\nadd.u64 %p, %p, %o;\n",
            4 * n
        );
        for r in 0..n {
            body += &format!("ld.global.b32 %{name}{r}, [%p+{}];\n", 4 * r);
        }
    }
    let list = |name: &str, n: usize| (0..n).map(|r| format!("%{name}{r}")).collect::<Vec<_>>().join(", ");
    let [a, b, c] = counts;
    let operands = [("d", c), ("a", a), ("b", b), ("c", c)].map(|(name, n)| format!("{{{}}}", list(name, n)));
    body += &format!(
        "{instruction} {};\nld.param.u64 %p, [p3];\nmul.wide.u32 %o, %t, {};\nadd.u64 %p, %p, %o;\n",
        operands.join(", "),
        4 * c
    );
    for r in 0..c {
        body += &format!("st.global.b32 [%p+{}], %d{r};\n", 4 * r);
    }
    module(4, &(body + "ret;"))
}

#[test]
fn mma_fragment_layout_matches_ptx_manual() {
    for shape in &SHAPES {
        let kinds: Vec<&str> = shape.types.split('.').collect();
        let [a_kind, b_kind, c_kind] = [kinds[1], kinds[2], kinds[3]];
        let is_signed = |kind: &str| kind != "u8";
        let value = |seed, kind: &str, (row, column)| element(seed, row, column, is_signed(kind));
        let sum_bits = if c_kind == "f16" { 16 } else { 32 };
        let a = fragments(shape.bits, shape.elements[0], |l, i| {
            encode(a_kind, value(1, a_kind, (shape.a)(l, i)))
        });
        let b = fragments(shape.bits, shape.elements[1], |l, i| {
            encode(b_kind, value(2, b_kind, (shape.b)(l, i)))
        });
        let c = fragments(sum_bits, shape.elements[2], |l, i| {
            encode(c_kind, value(3, c_kind, (shape.c)(l, i)))
        });
        let expected = fragments(sum_bits, shape.elements[2], |l, i| {
            let (row, column) = (shape.c)(l, i);
            let products = (0..shape.k).map(|k| value(1, a_kind, (row, k)) * value(2, b_kind, (k, column)));
            encode(c_kind, products.sum::<i64>() + value(3, c_kind, (row, column)))
        });
        let counts = [a.len() / 32, b.len() / 32, c.len() / 32];
        let instruction = format!("mma.sync.aligned.{}.row.col.{}", shape.name, shape.types);
        let machine = Machine::new(&kernel(&instruction, counts));
        let machine = machine
            .buffer(&le(&a))
            .buffer(&le(&b))
            .buffer(&le(&c))
            .unwritten(4 * c.len());
        machine
            .run()
            .unwrap_or_else(|fault| panic!("{instruction}: {}", fault.description));
        assert_eq!(machine.words(3), expected, "{instruction} with {} rows", shape.m);
    }
}

#[test]
fn integer_mma_wraps_or_saturates() {
    for (modifier, expected) in [("", i32::MIN + 31), (".satfinite", i32::MAX)] {
        let instruction = format!("mma.sync.aligned.m16n8k32.row.col{modifier}.s32.s8.s8.s32");
        let machine = Machine::new(&kernel(&instruction, [4, 2, 4]));
        let ones = [0x0101_0101u32; 128];
        let machine = machine
            .buffer(&le(&ones))
            .buffer(&le(&ones[..64]))
            .buffer(&le(&[i32::MAX as u32; 128]))
            .unwritten(512);
        machine.run().expect("the kernel is correct");
        assert_eq!(machine.words(3), [expected as u32; 128]);
    }
}

#[test]
fn tf32_mma_truncates_to_ten_fraction_bits() {
    let machine = Machine::new(&kernel("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", [2, 1, 4]));
    let a = [(1.0f32 + 2f32.powi(-11)).to_bits(); 64];
    let machine = machine
        .buffer(&le(&a))
        .buffer(&le(&[1f32.to_bits(); 32]))
        .buffer(&le(&[0; 128]))
        .unwritten(512);
    machine.run().expect("the kernel is correct");
    assert_eq!(machine.words(3), [4f32.to_bits(); 128]);
}

#[test]
fn mma_requires_all_lanes() {
    let text = kernel("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", [2, 1, 4]);
    let text = text.replace(
        "mov.u32 %t, %tid.x;",
        "mov.u32 %t, %tid.x;\n.reg .pred %q; setp.eq.u32 %q, %t, 3; @%q ret;",
    );
    let machine = Machine::new(&text)
        .buffer(&[0; 256])
        .buffer(&[0; 128])
        .buffer(&[0; 512])
        .unwritten(512);
    machine.assert_fault(Kind::Synchronization, &["lanes 0x00000008 ended"]);
}

/// Returns a kernel with shared memory of 256 halves, each with its index as value. Lane i holds the address
/// of row i.
fn rows_kernel(instruction: &str, n: usize) -> String {
    let list = (0..n).map(|r| format!("%r{r}")).collect::<Vec<_>>().join(", ");
    let mut body = String::from(
        ".shared .align 16 .b8 s[512];\n.reg .b32 %r<4>, %t, %at, %v, %i; .reg .b64 %p, %o; .reg .b16 %h; .reg .pred %q;
mov.u32 %t, %tid.x;\nmul.lo.u32 %at, %t, 16;\nmov.u32 %v, s;\nadd.u32 %at, %at, %v;\nmul.lo.u32 %v, %t, 8;\nmov.u32 %i, %at;\n",
    );
    for _ in 0..8 {
        body += "cvt.u16.u32 %h, %v;\nst.shared.b16 [%i], %h;\nadd.u32 %v, %v, 1;\nadd.u32 %i, %i, 2;\n";
    }
    body += &format!("bar.warp.sync 0xffffffff;\n{instruction} {{{list}}}, [%at];\nld.param.u64 %p, [p0];\n");
    body += &format!("mul.wide.u32 %o, %t, {};\nadd.u64 %p, %p, %o;\n", 4 * n);
    for r in 0..n {
        body += &format!("st.global.b32 [%p+{}], %r{r};\n", 4 * r);
    }
    module(1, &(body + "ret;"))
}

#[test]
fn ldmatrix_loads_rows_of_eight() {
    for n in [1, 2, 4] {
        for transposed in [false, true] {
            let trans = if transposed { ".trans" } else { "" };
            let text = rows_kernel(&format!("ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16"), n);
            let machine = Machine::new(&text).unwritten(128 * n);
            machine.run().expect("the kernel is correct");
            let words = machine.words(0);
            for lane in 0..32 {
                for matrix in 0..n {
                    // Row r of matrix j is at the address of lane 8j + r and has the halves 64j + 8r and
                    // following.
                    let value = |row: usize, column: usize| (64 * matrix + 8 * row + column) as u32;
                    let (row, column) = (lane / 4, 2 * (lane % 4));
                    let (low, high) = if transposed {
                        (value(column, row), value(column + 1, row))
                    } else {
                        (value(row, column), value(row, column + 1))
                    };
                    assert_eq!(
                        words[lane * n + matrix],
                        low | high << 16,
                        "x{n}{trans}, lane {lane}, matrix {matrix}"
                    );
                }
            }
        }
    }
}

#[test]
fn stmatrix_and_movmatrix_transpose() {
    // A load reads back what the corresponding store wrote. `movmatrix` equals a transposed store followed by
    // a load.
    let store = "{ .reg .b32 %x; mov.u32 %x, 0; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%at]; movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r0; bar.warp.sync 0xffffffff;
stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%at], {%r0}; bar.warp.sync 0xffffffff; }\nldmatrix.sync.aligned.m8n8.x1.shared.b16";
    let machine = Machine::new(&rows_kernel(store, 1)).unwritten(128);
    machine.run().expect("the kernel is correct");
    let expected: Vec<u32> = (0..32)
        .map(|lane| (8 * (lane / 4) + 2 * (lane % 4)) as u32)
        .map(|v| v | (v + 1) << 16)
        .collect();
    assert_eq!(machine.words(0), expected);
    assert_eq!(f16_to_f32(0x3c00), 1.0);
}
