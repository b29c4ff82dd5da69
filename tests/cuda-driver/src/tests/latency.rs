//! Latency of blocks: chains of dependent instructions, barriers, and asynchronous copies.

use super::{Machine, module};
use crate::exec::grid::Latency;

/// Returns the latency of one block of `threads` threads with a buffer of 4 KiB.
fn latency(threads: u32, body: &str) -> Latency {
    let declared = format!(
        ".reg .b64 %a<9>; .reg .b32 %r<20>; .reg .f32 %f<9>; .reg .pred %p;\n.shared .align 16 .b8 s[4096];\n{body}"
    );
    let mut machine = Machine::new(&module(1, &declared)).buffer(&[0; 4096]);
    machine.threads = threads;
    machine.run().expect("the kernel has no fault").latency
}

const BEGIN: &str = "ld.param.u64 %a1, [p0];\n";

#[test]
fn independent_loads_overlap() {
    let loads = |n: u32| {
        (0..n)
            .map(|i| format!("ld.global.u32 %r{i}, [%a1+{}];\n", 4 * i))
            .collect::<String>()
    };
    let sum = |n: u32| {
        (1..n)
            .map(|i| format!("add.u32 %r0, %r0, %r{i};\n"))
            .collect::<String>()
    };
    let clocks = |n| latency(32, &format!("{BEGIN}{}{}st.global.u32 [%a1], %r0;", loads(n), sum(n))).longest;
    // The parameter, a load, and the sums.
    assert_eq!(clocks(1), 5 + 550 + 1);
    assert_eq!(clocks(4), 5 + 550 + 3 * 5 + 1);
}

#[test]
fn dependent_loads_add_up() {
    let next = "ld.global.u32 %r1, [%a1];\ncvt.u64.u32 %a2, %r1;\nadd.u64 %a1, %a1, %a2;\n";
    let clocks = |n| latency(32, &format!("{BEGIN}{}st.global.u32 [%a1], %r1;", next.repeat(n))).longest;
    assert_eq!(clocks(3) - clocks(2), 550 + 5 + 5);
}

#[test]
fn shuffles_and_special_functions_take_their_clocks() {
    let clocks = |body: &str| latency(32, &format!("mov.f32 %f1, 0f3f800000;\nmov.u32 %r1, 1;\n{body}")).longest;
    let idle = clocks("setp.eq.f32 %p, %f1, %f1;\n@%p bra end;\nend:\n");
    let exponential = clocks("ex2.approx.f32 %f1, %f1;\nsetp.eq.f32 %p, %f1, %f1;\n@%p bra end;\nend:\n");
    assert_eq!(exponential - idle, 22);
    let idle = clocks("setp.eq.u32 %p, %r1, %r1;\n@%p bra end;\nend:\n");
    let shuffle = clocks("shfl.sync.bfly.b32 %r1, %r1, 16, 31, -1;\nsetp.eq.u32 %p, %r1, %r1;\n@%p bra end;\nend:\n");
    assert_eq!(shuffle - idle, 25);
}

#[test]
fn load_stays_in_flight_over_a_branch() {
    let branch = "mov.u32 %r2, 1;\nsetp.eq.u32 %p, %r2, 1;\n@%p bra end;\nend:\n";
    let unused = latency(32, &format!("{BEGIN}ld.global.u32 %r1, [%a1];\n{branch}")).longest;
    assert!(unused < 100, "{unused}");
    let used = latency(
        32,
        &format!("{BEGIN}ld.global.u32 %r1, [%a1];\n{branch}st.global.u32 [%a1], %r1;"),
    )
    .longest;
    assert_eq!(used, 5 + 550 + 1);
}

#[test]
fn barrier_waits_for_slowest_warp() {
    let body = format!(
        "{BEGIN}mov.u32 %r2, %tid.x;\nsetp.ge.u32 %p, %r2, 32;\n@%p bra wait;\nld.global.u32 %r1, [%a1];\n\
         st.shared.u32 [s], %r1;\nwait:\nbar.sync 0;\n"
    );
    let both = latency(64, &body);
    assert!((560..620).contains(&both.longest), "{both:?}");
    assert_eq!(both.longest, both.total);
}

#[test]
fn asynchronous_copies_end_at_their_wait() {
    let copy = |at: u32| format!("cp.async.cg.shared.global [s+{at}], [%a1], 16;\ncp.async.commit_group;\n");
    let clocks = |wait: &str| latency(1, &format!("{BEGIN}{}{}{wait}", copy(0), copy(16))).longest;
    assert!(clocks("cp.async.wait_group 2;") < 100);
    assert!((555..600).contains(&clocks("cp.async.wait_group 1;")));
    assert!((555..600).contains(&clocks("cp.async.wait_all;")));
}
