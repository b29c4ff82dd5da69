//! Each kind of fault is detected and reported at its location; correct kernels run.

use super::{Machine, module};
use crate::exec::fault::Kind;

/// Creates a kernel with two pointer parameters (`%x`, `%y`) and the thread index in `%t`.
fn machine(body: &str) -> Machine {
    let text = format!(
        ".reg .b32 %t, %a, %b, %c; .reg .b64 %x, %y, %o; .reg .pred %p, %q; .reg .b32 %v<4>;
mov.u32 %t, %tid.x; ld.param.u64 %x, [p0]; ld.param.u64 %y, [p1]; mul.wide.u32 %o, %t, 4;\n{body}\nret;"
    );
    Machine::new(&module(2, &text)).buffer(&[0; 128]).unwritten(128)
}

#[test]
fn out_of_bounds_access_is_reported() {
    let fault = machine("add.u64 %x, %x, %o;\nst.global.u32 [%x+4], %t;").assert_fault(
        Kind::OutOfBounds,
        &["4 bytes at offset 128", "allocation 1", "128 bytes"],
    );
    assert_eq!((fault.line, fault.thread, fault.block), (9, Some(31), [0, 0, 0]));
    machine("ld.global.u32 %a, [%x+-4];")
        .assert_fault(Kind::OutOfBounds, &["read of 4 bytes", "4 bytes before allocation 1"]);
    // The access straddles the end of the allocation.
    machine("ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%x+128];")
        .assert_fault(Kind::OutOfBounds, &["16 bytes at offset 128"]);
    machine("mov.u64 %x, 64; ld.global.u32 %a, [%x];")
        .assert_fault(Kind::OutOfBounds, &["0x40", "does not belong to a device"]);
    machine("ld.param.u32 %a, [p1+8];").assert_fault(Kind::OutOfBounds, &["parameters have 16 bytes"]);
    let shared = ".shared .align 4 .b8 s[64]; mov.u32 %a, s; mad.lo.u32 %a, %t, 4, %a; st.shared.u32 [%a], %t;";
    machine(shared).assert_fault(
        Kind::OutOfBounds,
        &["shared memory has 64 bytes, but the access covers 4 bytes at offset 64"],
    );
    let local = ".local .align 4 .b8 l[8]; mov.u64 %o, l; st.local.u32 [%o+8], %t;";
    machine(local).assert_fault(Kind::OutOfBounds, &["local memory has 8 bytes"]);
}

#[test]
fn dynamic_shared_memory_has_launch_size() {
    let text = module(
        2,
        ".reg .b32 %t, %a; mov.u32 %t, %tid.x; mov.u32 %a, dyn; mad.lo.u32 %a, %t, 4, %a; st.shared.u32 [%a], %t; ret;",
    );
    let text = text.replace(".visible", ".extern .shared .align 16 .b8 dyn[];\n.visible");
    let mut machine = Machine::new(&text).buffer(&[0; 4]).buffer(&[0; 4]);
    machine.dynamic_shared = 124;
    machine.assert_fault(Kind::OutOfBounds, &["has 124 bytes"]);
    machine.dynamic_shared = 128;
    machine.run().expect("128 bytes fit");
}

#[test]
fn access_to_freed_memory_is_reported() {
    let mut machine = machine("ld.global.u32 %a, [%x];");
    let (at, _) = machine.buffers[0];
    assert!(machine.memory.free(at) && !machine.memory.free(at));
    machine.assert_fault(Kind::OutOfBounds, &["was freed", "allocation 1"]);
    // Addresses of freed allocations are never reused.
    let again = machine
        .memory
        .allocate(128, "allocation")
        .expect("the allocation succeeds");
    assert!(again > at);
    machine.assert_fault(Kind::OutOfBounds, &["was freed"]);
}

#[test]
fn misaligned_access_is_reported() {
    machine("ld.global.u32 %a, [%x+2];").assert_fault(Kind::Misaligned, &["4 bytes"]);
    machine("ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%x+8];").assert_fault(Kind::Misaligned, &["16 bytes"]);
    machine(".shared .align 8 .b8 s[64]; mov.u32 %a, s; st.shared.u32 [%a+1], %t;")
        .assert_fault(Kind::Misaligned, &["4 bytes"]);
}

#[test]
fn uninitialized_read_is_reported() {
    machine("add.u64 %y, %y, %o; ld.global.u32 %a, [%y];")
        .assert_fault(Kind::Uninitialized, &["byte 0 of allocation 2", "never written"]);
    machine("add.u64 %y, %y, %o; st.global.u32 [%y], %t; ld.global.u32 %a, [%y];")
        .run()
        .expect("the bytes were written");
    machine("st.global.u8 [%y], %t; ld.global.u16 %a, [%y];")
        .assert_fault(Kind::Uninitialized, &["byte 1 of allocation 2"]);
    machine(".shared .align 4 .b8 s[64]; ld.shared.u32 %a, [s];")
        .assert_fault(Kind::Uninitialized, &["byte 0 of shared memory"]);
    machine("atom.global.add.u32 %a, [%y], %t;").assert_fault(Kind::Uninitialized, &["allocation 2"]);
}

#[test]
fn write_to_constant_memory_is_reported() {
    let text = module(1, ".reg .b64 %x; mov.u64 %x, c; st.global.u32 [%x], 1; ret;");
    let mut machine = Machine::new(&text.replace(".visible", ".const .u32 c = 5;\n.visible")).buffer(&[0; 4]);
    let (i, _) = machine
        .memory
        .find(machine.memory.regions()[0].base, 4)
        .expect("the constant is allocated");
    machine.memory.region_mut(i).read_only = true;
    machine.assert_fault(Kind::OutOfBounds, &["read-only"]);
}

const SHARED: &str = ".shared .align 4 .b8 s[512]; mov.u32 %a, s; mad.lo.u32 %b, %t, 4, %a;";

/// Creates a block of two warps.
fn block(body: &str) -> Machine {
    let mut machine = machine(&format!("{SHARED}\n{body}"));
    machine.threads = 64;
    machine
}

#[test]
fn race_between_warps_is_reported() {
    let other = "xor.b32 %c, %t, 32; mad.lo.u32 %c, %c, 4, %a;";
    block(&format!("st.shared.u32 [%b], %t; {other} ld.shared.u32 %v0, [%c];")).assert_fault(Kind::Uninitialized, &[]);
    // Write, barrier, then read and write without a barrier.
    let first = format!("st.shared.u32 [%b], %t; {other} bar.sync 0;");
    let low = "setp.lt.u32 %p, %t, 32;";
    block(&format!(
        "{first} {low} @%p ld.shared.u32 %v0, [%c]; @!%p st.shared.u32 [%b], %t;"
    ))
    .assert_fault(Kind::Race, &["write to", "thread 0 read it", "no barrier"]);
    block(&format!("{first} st.shared.u32 [%c], %t;"))
        .run()
        .expect("each word has one writer");
    block(&format!(
        "{first} {low} @%p st.shared.u32 [%c], %t; @!%p ld.shared.u32 %v0, [%b];"
    ))
    .assert_fault(Kind::Race, &["read of", "thread 0 wrote it", "no barrier"]);
    block(&format!(
        "{first} ld.shared.u32 %v0, [%c]; bar.sync 0; st.shared.u32 [%b], %t;"
    ))
    .run()
    .expect("a barrier orders the accesses");
    block("st.shared.u32 [%a], %t;").assert_fault(Kind::Race, &["write to", "thread 0 wrote it"]);
    // Different bytes of a word may have different writers.
    block("add.u32 %c, %a, %t; st.shared.u8 [%c], %t;")
        .run()
        .expect("each byte has one writer");
}

#[test]
fn race_between_lanes_is_reported() {
    let other = "xor.b32 %c, %t, 1; mad.lo.u32 %c, %c, 4, %a;";
    machine(&format!(
        "{SHARED} {other} st.shared.u32 [%b], %t; ld.shared.u32 %v0, [%c];"
    ))
    .assert_fault(Kind::Race, &["thread 1 wrote it"]);
    machine(&format!(
        "{SHARED} {other} st.shared.u32 [%b], %t; bar.warp.sync -1; ld.shared.u32 %v0, [%c];"
    ))
    .run()
    .expect("a barrier orders the accesses");
    let again = "bar.warp.sync -1; ld.shared.u32 %v0, [%c];";
    machine(&format!(
        "{SHARED} {other} st.shared.u32 [%b], %t; {again} st.shared.u32 [%b], %t;"
    ))
    .assert_fault(Kind::Race, &["read it"]);
    // Reads by many lanes, a warp barrier, then a write.
    let all = "st.shared.u32 [%b], %t; bar.warp.sync -1; ld.shared.u32 %v0, [%a]; bar.warp.sync -1; setp.eq.u32 %p, %t, 9; @%p st.shared.u32 [%a], %t;";
    machine(&format!("{SHARED} {all}"))
        .run()
        .expect("barriers order the accesses");
    machine(&format!("{SHARED} atom.shared.add.u32 %v0, [%b], %t;")).assert_fault(Kind::Uninitialized, &[]);
}

#[test]
fn divergent_barrier_is_reported() {
    let mut half = machine("setp.lt.u32 %p, %t, 32; @%p bar.sync 0;");
    half.threads = 64;
    half.assert_fault(Kind::Synchronization, &["warp 0 at barrier 0", "warps 1 ended"]);
    machine("setp.lt.u32 %p, %t, 7;\n@%p bra out;\nbar.sync 0;\nout:")
        .assert_fault(Kind::Synchronization, &["lanes 0xffffff80", "lanes 0x0000007f ended"]);
    machine("setp.lt.u32 %p, %t, 7; @%p bra out; bar.sync 1; bra end;\nout: bar.sync 2;\nend:")
        .assert_fault(Kind::Synchronization, &["0xffffff80", "0x0000007f"]);
    machine("bar.sync 0, 33;").assert_fault(Kind::Synchronization, &["found 33"]);
    machine("bar.sync 16;").assert_fault(Kind::Synchronization, &["expected 0 to 15"]);
}

#[test]
fn exchange_with_missing_lanes_is_reported() {
    let part = "setp.lt.u32 %p, %t, 7;\n@%p bra out;\n";
    machine(&format!(
        "{part}shfl.sync.idx.b32 %a, %t, 0, 31, -1; bra end;\nout: shfl.sync.idx.b32 %a, %t, 0, 31, 0x7f;\nend:"
    ))
    .assert_fault(Kind::Synchronization, &["from lane 0"]);
    machine(&format!("{part}shfl.sync.idx.b32 %a, %t, 0, 31, 0xffffff80;\nout:"))
        .assert_fault(Kind::Synchronization, &["from lane 0", "does not participate"]);
    machine("shfl.sync.idx.b32 %a, %t, 0, 31, 0x7fffffff;").assert_fault(Kind::Synchronization, &["0x7fffffff"]);
    machine("add.u32 %a, %t, 1; vote.sync.ballot.b32 %b, %p, %a;")
        .assert_fault(Kind::Synchronization, &["does not match"]);
    // Masks of the arrived lanes are valid, including exited lanes.
    machine(&format!("{part}shfl.sync.idx.b32 %a, %t, 9, 31, 0xffffff80;\nout:"))
        .run()
        .expect("all lanes have arrived");
    machine("setp.lt.u32 %p, %t, 7; @%p ret; vote.sync.ballot.b32 %a, %p, -1;")
        .run()
        .expect("exited lanes are not required");
}

#[test]
fn endless_warp_is_reported_as_hang() {
    machine("again: bra again;").assert_fault(Kind::Hang, &["10000 branches"]);
    machine("trap;").assert_fault(Kind::Trap, &["trap"]);
}

#[test]
fn faults_in_several_blocks_report_first_block() {
    let mut machine = machine(
        "mov.u32 %a, %ctaid.x; setp.lt.u32 %p, %a, 37; @%p ret; mul.wide.u32 %o, %a, 4096; add.u64 %x, %x, %o; st.global.u32 [%x], %t;",
    );
    (machine.blocks, machine.threads) = (300, 32);
    for workers in 1..4 {
        machine.workers = workers;
        assert_eq!(machine.assert_fault(Kind::OutOfBounds, &[]).block, [37, 0, 0]);
    }
}

#[test]
fn results_and_counts_are_independent_of_host_threads() {
    let body = "mov.u32 %a, %ctaid.x; mad.lo.u32 %b, %a, 3, %t; cvt.rn.f32.u32 %b, %b; div.rn.f32 %b, %b, 0f40400000; red.global.add.f32 [%x], %b; atom.global.add.u32 %c, [%x+4], 1;
mul.wide.u32 %o, %a, 4; add.u64 %y, %y, %o; st.global.u32 [%y], %c;";
    let mut results = Vec::new();
    for workers in [1, 2, 4] {
        let text = format!(
            ".reg .b32 %t, %a, %b, %c; .reg .b64 %x, %y, %o; mov.u32 %t, %tid.x; ld.param.u64 %x, [p0]; ld.param.u64 %y, [p1];\n{body}\nret;"
        );
        let mut machine = Machine::new(&module(2, &text)).buffer(&[0; 8]).unwritten(4 * 200);
        (machine.workers, machine.blocks, machine.threads) = (workers, 200, 32);
        let done = machine.run().expect("the kernel is correct");
        results.push((machine.bytes(0), machine.bytes(1), done.counts));
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn sectors_and_bank_conflicts_are_counted() {
    let counted = |body: &str| {
        let machine = Machine::new(&module(
            1,
            &format!(
                ".reg .b32 %t, %a, %b; .reg .b64 %x, %o; mov.u32 %t, %tid.x; ld.param.u64 %x, [p0];\n{body}\nret;"
            ),
        ))
        .buffer(&[0; 4096]);
        let counts = machine.run().expect("the kernel is correct").counts;
        counts[counts.len() - 3]
    };
    let moved = |body: &str| {
        let count = counted(body);
        (count.bytes, count.moved)
    };
    assert_eq!(
        moved("mul.wide.u32 %o, %t, 4; add.u64 %x, %x, %o; ld.global.u32 %a, [%x];"),
        (128, 4)
    );
    assert_eq!(
        moved("mul.wide.u32 %o, %t, 4; add.u64 %x, %x, %o; ld.global.u32 %a, [%x+16];"),
        (128, 5)
    );
    assert_eq!(
        moved("mul.wide.u32 %o, %t, 64; add.u64 %x, %x, %o; ld.global.u32 %a, [%x];"),
        (128, 32)
    );
    assert_eq!(moved("ld.global.u32 %a, [%x];"), (128, 1));
    assert_eq!(
        moved(
            "mul.wide.u32 %o, %t, 16; add.u64 %x, %x, %o; { .reg .b32 %v<4>; ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%x]; }"
        ),
        (512, 16)
    );
    let shared = |stride: u32, store: &str| {
        let count = counted(&format!(
            ".shared .align 16 .b8 s[4096]; mov.u32 %a, s; mad.lo.u32 %a, %t, {stride}, %a; {store};"
        ));
        (count.bytes, count.waves, count.moved)
    };
    let word = "st.shared.u32 [%a], %t";
    assert_eq!(shared(4, word), (128, 1, 0));
    assert_eq!(shared(8, word), (128, 1, 1));
    assert_eq!(shared(128, word), (128, 1, 31));
    assert_eq!(shared(132 - 4 * 20, word), (128, 1, 0));
    // Each wave of 16-byte accesses serves eight lanes.
    let four_words = "st.shared.v4.u32 [%a], {%t, %t, %t, %t}";
    assert_eq!(shared(16, four_words), (512, 4, 0));
    assert_eq!(shared(32, four_words), (512, 4, 4));
}

/// A kernel that is launched early waits for earlier kernels before it accesses global memory or ends.
#[test]
fn early_launch_without_wait_is_reported() {
    let early = |body: &str| {
        let text = format!(
            ".reg .b32 %t; .reg .b64 %x, %o; .reg .pred %p; mov.u32 %t, %tid.x; setp.lt.u32 %p, %t, 16;
ld.param.u64 %x, [p0]; mul.wide.u32 %o, %t, 4; add.u64 %x, %x, %o;\n{body}\nret;"
        );
        let mut machine = Machine::new(&module(1, &text).replace("sm_80", "sm_90")).buffer(&[0; 128]);
        machine.is_early = true;
        machine
    };
    let wait = "griddepcontrol.wait; griddepcontrol.launch_dependents;";
    let store = "st.global.u32 [%x], %t;";
    let waiting = early(&format!("{wait} {store}"));
    waiting.run().expect("the kernel waits first");
    assert_eq!(waiting.words(0), (0..32).collect::<Vec<_>>());
    for body in [format!("{store} {wait}"), store.to_owned()] {
        early(&body).assert_fault(Kind::Order, &["before `griddepcontrol.wait`"]);
    }
    // Threads 16 to 31 do not wait.
    let fault = early(&format!("@%p {wait} {store}")).assert_fault(Kind::Order, &["before `griddepcontrol.wait`"]);
    assert_eq!(fault.thread, Some(16));
    early("").assert_fault(Kind::Order, &["ended without `griddepcontrol.wait`"]);
    let mut in_order = early(store);
    in_order.is_early = false;
    in_order.run().expect("the launch starts after earlier kernels");
}
