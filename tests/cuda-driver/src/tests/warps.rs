//! Lanes of a warp: divergence, exchanges, barriers, atomics, and asynchronous copies.

use super::{Machine, le, module};
use crate::exec::fault::Kind;

/// Returns the word that each thread computes in `%d`; `%t` is its index.
fn run_each(threads: u32, body: &str) -> Vec<u32> {
    let machine = machine(threads, body);
    machine
        .run()
        .unwrap_or_else(|fault| panic!("line {}: {}", fault.line, fault.description));
    machine.words(0)
}

fn machine(threads: u32, body: &str) -> Machine {
    let text = format!(
        ".reg .b32 %d, %t, %a, %b, %c, %i; .reg .b64 %x, %y, %g; .reg .pred %p, %q;\nmov.u32 %t, %tid.x;\n{body}
ld.param.u64 %x, [p0];\nmul.wide.u32 %y, %t, 4;\nadd.u64 %x, %x, %y;\nst.global.u32 [%x], %d;\nret;"
    );
    let mut machine = Machine::new(&module(2, &text))
        .unwritten(4 * threads as usize)
        .buffer(&[0; 64]);
    machine.threads = threads;
    machine
}

#[test]
fn diverged_lanes_reconverge() {
    // Each lane loops as often as its index, then all lanes vote.
    let body = "mov.u32 %d, 0; mov.u32 %i, 0;\nloop: setp.ge.u32 %p, %i, %t; @%p bra out; add.u32 %d, %d, %i; add.u32 %i, %i, 1; bra loop;
out: vote.sync.ballot.b32 %a, %p, 0xffffffff; setp.ne.u32 %q, %a, 0xffffffff; @%q mov.u32 %d, 999;";
    assert_eq!(
        run_each(32, body),
        (0..32).map(|t: u32| t * t.saturating_sub(1) / 2).collect::<Vec<_>>()
    );
    // Tests both sides of nested branches.
    let body = "and.b32 %a, %t, 1; setp.eq.u32 %p, %a, 0; @%p bra even; mov.u32 %d, 1; and.b32 %a, %t, 2; setp.eq.u32 %p, %a, 0; @%p bra end; mov.u32 %d, 3; bra end;
even: mov.u32 %d, 2;\nend:";
    assert_eq!(
        run_each(32, body),
        (0..32).map(|t| [2, 1, 2, 3][t % 4]).collect::<Vec<u32>>()
    );
    let body = "and.b32 %a, %t, 3;\ntable: .branchtargets one, two, three, four;\nbrx.idx %a, table;
one: mov.u32 %d, 10; bra end;\ntwo: mov.u32 %d, 20; bra end;\nthree: mov.u32 %d, 30; bra end;\nfour: mov.u32 %d, 40;\nend:";
    assert_eq!(
        run_each(32, body),
        (0..32).map(|t| [10, 20, 30, 40][t % 4]).collect::<Vec<u32>>()
    );
}

#[test]
fn shuffle_in_loop_waits_for_all_lanes() {
    // Lanes 16 and above take the second branch first; the mask includes all lanes.
    let body = "mov.u32 %i, 0;\nloop: setp.lt.u32 %p, %t, 16; @%p bra low; add.u32 %a, %t, 100; bra meet;\nlow: mov.u32 %a, %t;
meet: shfl.sync.bfly.b32 %d, %a, 16, 31, 0xffffffff; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 3; @%p bra loop;";
    assert_eq!(
        run_each(32, body),
        (0..32)
            .map(|t| if t < 16 { t + 116 } else { t - 16 })
            .collect::<Vec<u32>>()
    );
}

#[test]
fn shuffle_stays_within_segment() {
    let shuffle = |form: &str, b: &str, c: &str| {
        run_each(
            32,
            &format!(
                "add.u32 %a, %t, 100; shfl.sync.{form}.b32 %d|%p, %a, {b}, {c}, 0xffffffff; @!%p add.u32 %d, %d, 1000;"
            ),
        )
    };
    let all = |f: &dyn Fn(u32) -> u32| (0..32).map(f).collect::<Vec<u32>>();
    assert_eq!(shuffle("bfly", "5", "0x1f"), all(&|t| (t ^ 5) + 100));
    assert_eq!(shuffle("up", "3", "0"), all(&|t| if t < 3 { t + 1100 } else { t + 97 }));
    assert_eq!(
        shuffle("down", "3", "0x1f"),
        all(&|t| if t > 28 { t + 1100 } else { t + 103 })
    );
    assert_eq!(shuffle("idx", "7", "0x1f"), all(&|_| 107));
    // Segments of 8 lanes: bits 3 and 4 of the lane are fixed.
    assert_eq!(shuffle("idx", "2", "0x181f"), all(&|t| t / 8 * 8 + 102));
    assert_eq!(
        shuffle("down", "1", "0x181f"),
        all(&|t| if t % 8 == 7 { t + 1100 } else { t + 101 })
    );
    assert_eq!(
        shuffle("up", "1", "0x1800"),
        all(&|t| if t % 8 == 0 { t + 1100 } else { t + 99 })
    );
}

#[test]
fn votes_matches_and_reductions_match_expected() {
    let one = |body: &str| run_each(32, body);
    let all = |f: &dyn Fn(u32) -> u32| (0..32).map(f).collect::<Vec<u32>>();
    assert_eq!(
        one("setp.gt.u32 %p, %t, 15; vote.sync.ballot.b32 %d, %p, -1;"),
        all(&|_| 0xffff_0000)
    );
    assert_eq!(
        one("setp.gt.u32 %p, %t, 15; vote.sync.any.pred %q, %p, -1; selp.u32 %d, 1, 0, %q;"),
        all(&|_| 1)
    );
    assert_eq!(
        one("setp.gt.u32 %p, %t, 15; vote.sync.all.pred %q, !%p, -1; selp.u32 %d, 1, 0, %q;"),
        all(&|_| 0)
    );
    assert_eq!(
        one("setp.gt.u32 %p, %t, 99; vote.sync.uni.pred %q, %p, -1; selp.u32 %d, 1, 0, %q;"),
        all(&|_| 1)
    );
    assert_eq!(
        one("and.b32 %a, %t, 3; match.any.sync.b32 %d, %a, -1;"),
        all(&|t| 0x1111_1111 << (t % 4))
    );
    assert_eq!(
        one("mov.u32 %a, 5; match.all.sync.b32 %d|%p, %a, -1; @!%p mov.u32 %d, 7;"),
        all(&|_| u32::MAX)
    );
    assert_eq!(
        one("match.all.sync.b32 %d|%p, %t, -1; @!%p mov.u32 %d, 7;"),
        all(&|_| 7)
    );
    assert_eq!(one("redux.sync.add.u32 %d, %t, -1;"), all(&|_| 496));
    assert_eq!(
        one("sub.u32 %a, %t, 16; redux.sync.min.s32 %d, %a, -1;"),
        all(&|_| -16i32 as u32)
    );
    assert_eq!(
        one("sub.u32 %a, %t, 16; redux.sync.max.u32 %d, %a, -1;"),
        all(&|_| u32::MAX)
    );
    assert_eq!(one("redux.sync.xor.b32 %d, %t, -1;"), all(&|_| 0));
    assert_eq!(
        one("setp.lt.u32 %p, %t, 5; mov.u32 %d, 0; @%p activemask.b32 %d;"),
        all(&|t| if t < 5 { 31 } else { 0 })
    );
    assert_eq!(one("mov.u32 %d, %lanemask_lt;"), all(&|t| (1 << t) - 1));
    assert_eq!(one("mov.u32 %d, %lanemask_ge;"), all(&|t| u32::MAX << t));
    assert_eq!(
        one("mov.u32 %a, %laneid; mov.u32 %b, %ntid.x; mad.lo.u32 %d, %a, 2, %b;"),
        all(&|t| 2 * t + 32)
    );
}

#[test]
fn barrier_synchronizes_warps() {
    let body =
        ".shared .align 4 .b8 s[512]; mov.u32 %a, s; mad.lo.u32 %b, %t, 4, %a; st.shared.u32 [%b], %t; bar.sync 0;
xor.b32 %c, %t, 96; mad.lo.u32 %b, %c, 4, %a; ld.shared.u32 %d, [%b];";
    assert_eq!(run_each(128, body), (0..128).map(|t| t ^ 96).collect::<Vec<u32>>());
    let body = "setp.lt.u32 %p, %t, 70; bar.red.popc.u32 %d, 0, %p; bar.red.and.pred %q, 0, %p; @%q add.u32 %d, %d, 1000; bar.red.or.pred %q, 0, %p; @%q add.u32 %d, %d, 5000;";
    assert_eq!(run_each(128, body), [5070; 128]);
    // Two halves of the block use separate barriers. The second half only arrives at a third one.
    let body = "mov.u32 %d, 1; setp.lt.u32 %p, %t, 64; @%p bra low; bar.sync 2, 64; bar.arrive 3, 128; bra end;\nlow: bar.sync 1, 64; bar.sync 3, 128;\nend:";
    assert_eq!(run_each(128, body), [1; 128]);
}

#[test]
fn atomics_are_applied_in_order() {
    let atomic = |op: &str, start: u32| {
        let mut machine = machine(
            64,
            &format!("ld.param.u64 %g, [p1]; add.u32 %a, %t, 1; atom.global.{op} %d, [%g], %a;"),
        );
        machine.buffers.swap(0, 1);
        let (at, _) = machine.buffers[0];
        let (i, _) = machine.memory.find(at, 4).expect("the buffer is allocated");
        // SAFETY: the buffer has more than 4 bytes.
        unsafe { machine.memory.regions()[i].data(0).cast::<u32>().write(start) };
        machine.run().unwrap_or_else(|fault| panic!("{}", fault.description));
        (machine.words(0)[0], machine.words(1))
    };
    assert_eq!(
        atomic("add.u32", 10),
        (10 + 2080, (0..64).map(|t| 10 + t * (t + 1) / 2).collect())
    );
    assert_eq!(atomic("max.s32", -5i32 as u32).0, 64);
    assert_eq!(atomic("max.u32", -5i32 as u32).0, -5i32 as u32);
    assert_eq!(atomic("min.s32", 30).0, 1);
    assert_eq!(atomic("exch.b32", 9), (64, std::iter::once(9).chain(1..64).collect()));
    assert_eq!(atomic("or.b32", 0).0, 127);
    assert_eq!(atomic("and.b32", u32::MAX).0, 0);
    assert_eq!(atomic("xor.b32", 0).0, (1..=64).fold(0, |x, t| x ^ t));
    assert_eq!(atomic("inc.u32", 0).1[..3], [0, 1, 2]);
    assert_eq!(atomic("dec.u32", 0).1[..3], [0, 1, 0]);
    let body = "ld.param.u64 %g, [p1]; atom.global.cas.b32 %d, [%g], %t, 77;";
    assert_eq!(run_each(32, body)[..3], [0, 77, 77]);
    let body = "ld.param.u64 %g, [p1]; mov.u32 %a, 0f3F000000; red.global.add.f32 [%g], %a; bar.sync 0; ld.global.u32 %d, [%g];";
    assert_eq!(run_each(64, body), [32f32.to_bits(); 64]);
    let body = "ld.param.u64 %g, [p1]; mov.u32 %a, 0x3c004000; red.global.add.noftz.f16x2 [%g], %a; bar.sync 0; ld.global.u32 %d, [%g];";
    assert_eq!(run_each(32, body), [0x5000_5400; 32]);
}

#[test]
fn vector_and_byte_accesses_round_trip() {
    let body = ".reg .b64 %x, %y; .reg .b32 %r<8>; .reg .b16 %h<4>; .reg .b64 %l<2>; ld.param.u64 %x, [p0]; ld.param.u64 %y, [p1];
ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%x]; ld.global.u8 %h0, [%x+3]; ld.global.s8 %r4, [%x+3]; ld.global.v2.b64 {%l0, %l1}, [%x]; ld.global.u16 %r5, [%x+2]; ld.global.s16 %h1, [%x+2];
st.global.v4.u32 [%y], {%r3, %r2, %r1, %r0}; st.global.u8 [%y+16], %h0; st.global.u8 [%y+17], 1; st.global.u16 [%y+18], %h1; st.global.u32 [%y+20], %r4; st.global.u32 [%y+24], %r5; st.global.u64 [%y+32], %l1; ret;";
    let mut machine = Machine::new(&module(2, body))
        .buffer(&le(&[0x8002_0304, 2, 3, 4]))
        .buffer(&[0; 40]);
    machine.threads = 1;
    machine.run().expect("the kernel is correct");
    assert_eq!(
        machine.words(1),
        [4, 3, 2, 0x8002_0304, 0x8002_0180, 0xffff_ff80, 0x8002, 0, 3, 4]
    );
}

#[test]
fn local_memory_is_private_to_thread() {
    let body = ".local .align 8 .b8 mine[16]; mov.u64 %x, mine; cvta.local.u64 %y, %x; st.local.u32 [%x+4], %t; xor.b32 %a, %t, 1; ld.u32 %d, [%y+4]; shfl.sync.bfly.b32 %d, %d, 1, 31, -1;";
    assert_eq!(run_each(32, body), (0..32).map(|t| t ^ 1).collect::<Vec<u32>>());
}

const COPY: &str = ".shared .align 16 .b8 s[512]; ld.param.u64 %x, [p1]; mov.u32 %a, s; mad.lo.u32 %b, %t, 16, %a; and.b32 %c, %t, 3; mul.wide.u32 %y, %c, 16; add.u64 %x, %x, %y;
cp.async.ca.shared.global [%b], [%x], 16;\n";

#[test]
fn async_copy_completes_at_wait() {
    let source = le(&(0..16).collect::<Vec<_>>());
    let run = |rest: &str| {
        let mut machine = machine(32, &format!("{COPY}{rest}"));
        let (at, _) = machine.buffers[1];
        let (i, _) = machine.memory.find(at, 64).expect("the buffer is allocated");
        // SAFETY: the buffer has 64 bytes.
        unsafe { machine.memory.region_mut(i).data(0).copy_from(source.as_ptr(), 64) };
        machine
    };
    let right = run("cp.async.commit_group; cp.async.wait_group 0; ld.shared.u32 %d, [%b+8];");
    right.run().expect("the kernel is correct");
    assert_eq!(right.words(0), (0..32).map(|t| t % 4 * 4 + 2).collect::<Vec<u32>>());
    run("cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %d, [%b+8];")
        .assert_fault(Kind::Race, &["did not wait for its asynchronous copy"]);
    run("ld.shared.u32 %d, [%b+8];").assert_fault(Kind::Race, &["did not wait for its asynchronous copy"]);
    // The copy has completed, but belongs to another thread.
    let others = "cp.async.wait_all; xor.b32 %c, %t, 1; mad.lo.u32 %b, %c, 16, %a;";
    run(&format!("{others} ld.shared.u32 %d, [%b];")).assert_fault(Kind::Race, &["no barrier orders"]);
    run(&format!("{others} bar.sync 0; ld.shared.u32 %d, [%b];"))
        .run()
        .expect("the kernel is correct");
}

#[test]
fn async_copy_zero_fills_remainder() {
    let body = ".shared .align 16 .b8 s[512]; ld.param.u64 %x, [p1]; mov.u32 %a, s; mad.lo.u32 %b, %t, 16, %a; st.global.u32 [%x], 0x01020304;
setp.eq.u32 %p, %t, 1; selp.u32 %c, 0, 3, %p; cp.async.cg.shared.global [%b], [%x], 16, %c; cp.async.wait_all; ld.shared.u32 %d, [%b]; ld.shared.u32 %c, [%b+12]; add.u32 %d, %d, %c;";
    let words = run_each(32, body);
    assert_eq!((words[0], words[1]), (0x0002_0304, 0));
}
