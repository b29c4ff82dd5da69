//! `wgmma`: results of products, and accesses that running products forbid. Layouts are transcribed from the figures of
//! the PTX manual.

use super::{Machine, hopper_module};
use crate::exec::fault::Kind;
use crate::exec::scalar::{f32_to_bf16, f32_to_f16};

/// Rows of A, columns of B, and values of a row.
const M: usize = 64;
const N: usize = 64;
const K: usize = 64;
const THREADS: usize = 128;

fn value(seed: usize, row: usize, k: usize) -> f32 {
    ((row * 7 + k * 3 + seed * 5 + row * k) % 13) as f32 - 6.0
}

/// Returns A and B in shared memory: the 16-byte unit `u` of a row is at unit `u ^ (row % 8)`.
fn image(encode: impl Fn(f32) -> u16) -> Vec<u8> {
    let mut image = vec![0u8; (M + N) * 2 * K];
    for row in 0..M + N {
        for k in 0..K {
            let bits = encode(value(row / M, row % M, k)).to_le_bytes();
            let at = row * 2 * K + ((k / 8) ^ (row % 8)) * 16 + k % 8 * 2;
            image[at..at + 2].copy_from_slice(&bits);
        }
    }
    image
}

const PUBLISH: &str = "fence.proxy.async.shared::cta;\n";
const BEGIN: &str = "wgmma.fence.sync.aligned;\n";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;\n";
const DESCRIPTION: &str = "0x4000004000010000";

/// Returns a kernel that multiplies A by B in four products of two groups. The sums are initially 7.
fn kernel(kind: &str) -> String {
    let sums: Vec<String> = (0..32).map(|i| format!("%d{i}")).collect();
    let mut body = String::from(
        ".shared .align 1024 .b8 s[16384];\n.reg .b32 %t, %s, %v<4>, %i; .reg .b64 %p, %o, %da, %db; .reg .f32 %d<32>; .reg .pred %q;
mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 128; ld.param.u64 %p, [p0]; add.u64 %p, %p, %o;
mov.u32 %i, s; mad.lo.u32 %s, %t, 128, %i; setp.eq.u32 %q, 0, 0;\n",
    );
    for i in 0..8 {
        let at = 16 * i;
        body += &format!(
            "ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%p+{at}]; st.shared.v4.b32 [%s+{at}], {{%v0, %v1, %v2, %v3}};\n"
        );
    }
    body += PUBLISH;
    body += &format!(
        "bar.sync 0;\nshr.u32 %i, %i, 4; cvt.u64.u32 %da, %i; or.b64 %da, %da, {DESCRIPTION}; add.u64 %db, %da, 512;\n"
    );
    sums.iter().for_each(|d| body += &format!("mov.f32 {d}, 0f40E00000;\n"));
    body += BEGIN;
    for i in 0..4 {
        let sums = sums.join(", ");
        body += &format!(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.{kind}.{kind} {{{sums}}}, %da, %db, %q, 1, 1, 0, 0;
add.u64 %da, %da, 2; add.u64 %db, %db, 2;\n"
        );
        if i % 2 == 1 {
            body += "wgmma.commit_group.sync.aligned;\n";
        }
    }
    body += WAIT;
    body += "ld.param.u64 %p, [p1]; add.u64 %p, %p, %o;\n";
    for (i, d) in sums.iter().enumerate() {
        body += &format!("st.global.f32 [%p+{}], {d};\n", 4 * i);
    }
    hopper_module(2, &(body + "ret;"))
}

fn machine(text: &str, image: &[u8]) -> Machine {
    let mut machine = Machine::new(text).buffer(image).unwritten(THREADS * 128);
    machine.threads = THREADS as u32;
    machine
}

/// Returns the sums of all threads.
fn expected(first: f32) -> Vec<f32> {
    let of_thread = |thread: usize| {
        (0..32).map(move |i| {
            let (warp, lane) = (thread / 32, thread % 32);
            let row = 16 * warp + lane / 4 + if i % 4 < 2 { 0 } else { 8 };
            let column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
            let products = (0..K).map(|k| value(0, row, k) * value(1, column, k));
            first + products.sum::<f32>()
        })
    };
    (0..THREADS).flat_map(of_thread).collect()
}

fn floats(machine: &Machine) -> Vec<f32> {
    machine.words(1).into_iter().map(f32::from_bits).collect()
}

#[test]
fn warpgroup_product_matches_plain_matmul() {
    for (kind, encode) in [("bf16", f32_to_bf16 as fn(f32) -> u16), ("f16", f32_to_f16)] {
        let machine = machine(&kernel(kind), &image(encode));
        machine
            .run()
            .unwrap_or_else(|fault| panic!("{kind}: {}", fault.description));
        assert_eq!(floats(&machine), expected(7.0), "{kind}");
    }
}

/// A product with a false predicate overwrites its sums.
#[test]
fn product_without_addition_ignores_earlier_sums() {
    let text = kernel("bf16").replacen("%q, 1, 1, 0, 0", "0, 1, 1, 0, 0", 1);
    let machine = machine(&text, &image(f32_to_bf16));
    machine.run().expect("the kernel is correct");
    assert_eq!(floats(&machine), expected(0.0));
}

#[test]
fn early_access_of_running_product_is_a_race() {
    let text = kernel("bf16");
    let image = image(f32_to_bf16);
    let check = |from: &str, to: &str, words: &[&str]| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        machine(&text.replace(from, to), &image).assert_fault(Kind::Race, words);
    };
    check(BEGIN, "", &["no `wgmma.fence`"]);
    check(
        BEGIN,
        &format!("{BEGIN}mov.f32 %d31, 0f00000000;\n"),
        &["no `wgmma.fence`"],
    );
    check(PUBLISH, "", &["without `fence.proxy.async`"]);
    check(WAIT, "", &["a running `wgmma`"]);
    // The second group is still running.
    check(WAIT, "wgmma.wait_group.sync.aligned 1;\n", &["a running `wgmma`"]);
    check(
        WAIT,
        &format!("st.shared.b32 [%s], %t;\n{WAIT}"),
        &["write to byte", "a running `wgmma` reads it"],
    );
    // All warps read B, and the last warp writes its rows before the other warps end.
    check(
        WAIT,
        &format!("{WAIT}st.shared.b32 [%s], %t;\n"),
        &["write to byte", "of shared memory"],
    );
    let ordered = format!("{WAIT}bar.sync 0;\nst.shared.b32 [%s], %t;\n");
    let ordered = machine(&text.replace(WAIT, &ordered), &image);
    ordered.run().expect("a wait and a barrier order the accesses");
}

#[test]
fn product_needs_complete_groups_and_swizzled_operands() {
    let text = kernel("bf16");
    let image = image(f32_to_bf16);
    let mut part = machine(&text, &image);
    part.threads = 96;
    part.assert_fault(Kind::Synchronization, &["four warps", "96 threads"]);
    for other in ["0x0000004000010000", "0x4002004000010000", "0x4000004000010008"] {
        let other = machine(&text.replace(DESCRIPTION, other), &image);
        other.assert_fault(Kind::Misaligned, &["swizzle of 128 bytes"]);
    }
}

#[test]
fn bulk_copy_over_operand_of_running_product_is_a_race() {
    let image = image(f32_to_bf16);
    let prepare = format!(
        ".shared .align 8 .b8 m[8]; .reg .pred %z; setp.eq.u32 %z, %t, 0; @%z mbarrier.init.shared::cta.b64 [m], 1;\n{PUBLISH}"
    );
    let copy = "ld.param.u64 %p, [p0];
@%z mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 16;
@%z cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%p], 16, [m];\n";
    let text = kernel("bf16").replace(PUBLISH, &prepare);
    let early = text.replace(WAIT, &format!("{copy}{WAIT}"));
    machine(&early, &image).assert_fault(Kind::Race, &["write to byte 0", "a running `wgmma` reads it"]);
    // The wait of a thread only completes its own group, but all warps read B.
    let other = copy.replace("[s]", "[s+8192]");
    let alone = text.replace(WAIT, &format!("{WAIT}{other}"));
    machine(&alone, &image).assert_fault(Kind::Race, &["byte 8192", "a bulk copy to it is not complete"]);
    let end = "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %q, [m], 0; @!%q bra AGAIN;\n";
    let ordered = machine(&text.replace(WAIT, &format!("{WAIT}bar.sync 0;\n{copy}{end}")), &image);
    let done = ordered.run();
    done.unwrap_or_else(|fault| panic!("{}", fault.description));
}
