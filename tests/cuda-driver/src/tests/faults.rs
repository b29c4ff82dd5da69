//! Each kind of fault is found, and reported where it happens; what is right is not.

use super::{Machine, module};
use crate::exec::fault::Kind;

/// Two parameters, an index in `%t`, addresses in `%x` and `%y`.
fn machine(body: &str) -> Machine {
    let text = format!(
        ".reg .b32 %t, %a, %b, %c; .reg .b64 %x, %y, %o; .reg .pred %p, %q; .reg .b32 %v<4>;
mov.u32 %t, %tid.x; ld.param.u64 %x, [p0]; ld.param.u64 %y, [p1]; mul.wide.u32 %o, %t, 4;\n{body}\nret;"
    );
    Machine::new(&module(2, &text)).buffer(&[0; 128]).unwritten(128)
}

#[test]
fn accesses_outside_of_allocations() {
    let fault = machine("add.u64 %x, %x, %o;\nst.global.u32 [%x+4], %t;")
        .fails(Kind::OutOfBounds, &["4 bytes at byte 128", "allocation 1", "128 bytes"]);
    assert_eq!((fault.line, fault.thread, fault.block), (9, Some(31), [0, 0, 0]));
    machine("ld.global.u32 %a, [%x+-4];").fails(Kind::OutOfBounds, &["read of 4 bytes", "4 bytes before allocation 1"]);
    // Half inside.
    machine("ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%x+128];").fails(Kind::OutOfBounds, &["16 bytes at byte 128"]);
    machine("mov.u64 %x, 64; ld.global.u32 %a, [%x];").fails(Kind::OutOfBounds, &["0x40", "no address of a device"]);
    machine("ld.param.u32 %a, [p1+8];").fails(Kind::OutOfBounds, &["parameters, which have 16"]);
    let shared = ".shared .align 4 .b8 s[64]; mov.u32 %a, s; mad.lo.u32 %a, %t, 4, %a; st.shared.u32 [%a], %t;";
    machine(shared).fails(Kind::OutOfBounds, &["4 bytes at 64 of shared memory, which has 64"]);
    let local = ".local .align 4 .b8 l[8]; mov.u64 %o, l; st.local.u32 [%o+8], %t;";
    machine(local).fails(Kind::OutOfBounds, &["local memory, which has 8"]);
}

#[test]
fn dynamic_shared_memory_has_the_size_of_the_launch() {
    let text = module(
        2,
        ".reg .b32 %t, %a; mov.u32 %t, %tid.x; mov.u32 %a, dyn; mad.lo.u32 %a, %t, 4, %a; st.shared.u32 [%a], %t; ret;",
    );
    let text = text.replace(".visible", ".extern .shared .align 16 .b8 dyn[];\n.visible");
    let mut machine = Machine::new(&text).buffer(&[0; 4]).buffer(&[0; 4]);
    machine.dynamic_shared = 124;
    machine.fails(Kind::OutOfBounds, &["which has 124 bytes"]);
    machine.dynamic_shared = 128;
    machine.run().expect("there is room");
}

#[test]
fn accesses_to_freed_memory() {
    let mut machine = machine("ld.global.u32 %a, [%x];");
    let (at, _) = machine.buffers[0];
    assert!(machine.memory.free(at) && !machine.memory.free(at));
    machine.fails(Kind::OutOfBounds, &["is freed", "allocation 1"]);
    // The address is not given away again.
    let again = machine.memory.allocate(128, "allocation").expect("there is memory");
    assert!(again > at);
    machine.fails(Kind::OutOfBounds, &["is freed"]);
}

#[test]
fn accesses_that_are_not_aligned() {
    machine("ld.global.u32 %a, [%x+2];").fails(Kind::Misaligned, &["4 bytes"]);
    machine("ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%x+8];").fails(Kind::Misaligned, &["16 bytes"]);
    machine(".shared .align 8 .b8 s[64]; mov.u32 %a, s; st.shared.u32 [%a+1], %t;")
        .fails(Kind::Misaligned, &["4 bytes"]);
}

#[test]
fn reads_of_memory_that_nobody_wrote() {
    machine("add.u64 %y, %y, %o; ld.global.u32 %a, [%y];")
        .fails(Kind::Uninitialized, &["byte 0 of allocation 2", "never written"]);
    machine("add.u64 %y, %y, %o; st.global.u32 [%y], %t; ld.global.u32 %a, [%y];")
        .run()
        .expect("it is written");
    machine("st.global.u8 [%y], %t; ld.global.u16 %a, [%y];").fails(Kind::Uninitialized, &["byte 1 of allocation 2"]);
    machine(".shared .align 4 .b8 s[64]; ld.shared.u32 %a, [s];")
        .fails(Kind::Uninitialized, &["byte 0 of shared memory"]);
    machine("atom.global.add.u32 %a, [%y], %t;").fails(Kind::Uninitialized, &["allocation 2"]);
}

#[test]
fn writes_to_constants() {
    let text = module(1, ".reg .b64 %x; mov.u64 %x, c; st.global.u32 [%x], 1; ret;");
    let mut machine = Machine::new(&text.replace(".visible", ".const .u32 c = 5;\n.visible")).buffer(&[0; 4]);
    let (i, _) = machine
        .memory
        .find(machine.memory.regions()[0].base, 4)
        .expect("the constant is there");
    machine.memory.region_mut(i).read_only = true;
    machine.fails(Kind::OutOfBounds, &["only read"]);
}

const SHARED: &str = ".shared .align 4 .b8 s[512]; mov.u32 %a, s; mad.lo.u32 %b, %t, 4, %a;";

/// A block of two warps.
fn block(body: &str) -> Machine {
    let mut machine = machine(&format!("{SHARED}\n{body}"));
    machine.threads = 64;
    machine
}

#[test]
fn races_between_warps() {
    let other = "xor.b32 %c, %t, 32; mad.lo.u32 %c, %c, 4, %a;";
    block(&format!("st.shared.u32 [%b], %t; {other} ld.shared.u32 %v0, [%c];")).fails(Kind::Uninitialized, &[]);
    // Written in the block's first phase, then read and written without a barrier.
    let first = format!("st.shared.u32 [%b], %t; {other} bar.sync 0;");
    let low = "setp.lt.u32 %p, %t, 32;";
    block(&format!(
        "{first} {low} @%p ld.shared.u32 %v0, [%c]; @!%p st.shared.u32 [%b], %t;"
    ))
    .fails(Kind::Race, &["write to", "thread 0 read it", "no barrier"]);
    block(&format!("{first} st.shared.u32 [%c], %t;"))
        .run()
        .expect("each word has one writer");
    block(&format!(
        "{first} {low} @%p st.shared.u32 [%c], %t; @!%p ld.shared.u32 %v0, [%b];"
    ))
    .fails(Kind::Race, &["read of", "thread 0 wrote it", "no barrier"]);
    block(&format!(
        "{first} ld.shared.u32 %v0, [%c]; bar.sync 0; st.shared.u32 [%b], %t;"
    ))
    .run()
    .expect("there is a barrier");
    block("st.shared.u32 [%a], %t;").fails(Kind::Race, &["write to", "thread 0 wrote it"]);
    // Bytes of one word are different places.
    block("add.u32 %c, %a, %t; st.shared.u8 [%c], %t;")
        .run()
        .expect("each byte has one writer");
}

#[test]
fn races_between_lanes() {
    let other = "xor.b32 %c, %t, 1; mad.lo.u32 %c, %c, 4, %a;";
    machine(&format!(
        "{SHARED} {other} st.shared.u32 [%b], %t; ld.shared.u32 %v0, [%c];"
    ))
    .fails(Kind::Race, &["thread 1 wrote it"]);
    machine(&format!(
        "{SHARED} {other} st.shared.u32 [%b], %t; bar.warp.sync -1; ld.shared.u32 %v0, [%c];"
    ))
    .run()
    .expect("there is a barrier");
    let again = "bar.warp.sync -1; ld.shared.u32 %v0, [%c];";
    machine(&format!(
        "{SHARED} {other} st.shared.u32 [%b], %t; {again} st.shared.u32 [%b], %t;"
    ))
    .fails(Kind::Race, &["read it"]);
    // Reads of many lanes, then a barrier of the warp, then a write.
    let all = "st.shared.u32 [%b], %t; bar.warp.sync -1; ld.shared.u32 %v0, [%a]; bar.warp.sync -1; setp.eq.u32 %p, %t, 9; @%p st.shared.u32 [%a], %t;";
    machine(&format!("{SHARED} {all}")).run().expect("there are barriers");
    machine(&format!("{SHARED} atom.shared.add.u32 %v0, [%b], %t;")).fails(Kind::Uninitialized, &[]);
}

#[test]
fn barriers_that_not_all_come_to() {
    let mut half = machine("setp.lt.u32 %p, %t, 32; @%p bar.sync 0;");
    half.threads = 64;
    half.fails(Kind::Synchronization, &["warp 0 at barrier 0", "warps 1 ended"]);
    machine("setp.lt.u32 %p, %t, 7;\n@%p bra out;\nbar.sync 0;\nout:")
        .fails(Kind::Synchronization, &["lanes 0xffffff80", "lanes 0x0000007f ended"]);
    machine("setp.lt.u32 %p, %t, 7; @%p bra out; bar.sync 1; bra end;\nout: bar.sync 2;\nend:")
        .fails(Kind::Synchronization, &["0xffffff80", "0x0000007f"]);
    machine("bar.sync 0, 33;").fails(Kind::Synchronization, &["33 threads"]);
    machine("bar.sync 16;").fails(Kind::Synchronization, &["there are 16"]);
}

#[test]
fn exchanges_with_lanes_that_are_not_there() {
    let part = "setp.lt.u32 %p, %t, 7;\n@%p bra out;\n";
    machine(&format!(
        "{part}shfl.sync.idx.b32 %a, %t, 0, 31, -1; bra end;\nout: shfl.sync.idx.b32 %a, %t, 0, 31, 0x7f;\nend:"
    ))
    .fails(Kind::Synchronization, &["from lane 0"]);
    machine(&format!("{part}shfl.sync.idx.b32 %a, %t, 0, 31, 0xffffff80;\nout:"))
        .fails(Kind::Synchronization, &["from lane 0", "takes no part"]);
    machine("shfl.sync.idx.b32 %a, %t, 0, 31, 0x7fffffff;").fails(Kind::Synchronization, &["0x7fffffff"]);
    machine("add.u32 %a, %t, 1; vote.sync.ballot.b32 %b, %p, %a;").fails(Kind::Synchronization, &["does not fit"]);
    // A mask of those that are there is right, and so is one of lanes that ended.
    machine(&format!("{part}shfl.sync.idx.b32 %a, %t, 9, 31, 0xffffff80;\nout:"))
        .run()
        .expect("all have come");
    machine("setp.lt.u32 %p, %t, 7; @%p ret; vote.sync.ballot.b32 %a, %p, -1;")
        .run()
        .expect("lanes that ended are not waited for");
}

#[test]
fn warps_that_do_not_end() {
    machine("again: bra again;").fails(Kind::Hang, &["10000 branches"]);
    machine("trap;").fails(Kind::Trap, &["trap"]);
}

#[test]
fn the_fault_of_the_first_block_is_told() {
    let mut machine = machine(
        "mov.u32 %a, %ctaid.x; setp.lt.u32 %p, %a, 37; @%p ret; mul.wide.u32 %o, %a, 4096; add.u64 %x, %x, %o; st.global.u32 [%x], %t;",
    );
    (machine.blocks, machine.threads) = (300, 32);
    for workers in 1..4 {
        machine.workers = workers;
        assert_eq!(machine.fails(Kind::OutOfBounds, &[]).block, [37, 0, 0]);
    }
}

#[test]
fn results_and_counts_do_not_depend_on_threads() {
    let body = "mov.u32 %a, %ctaid.x; mad.lo.u32 %b, %a, 3, %t; cvt.rn.f32.u32 %b, %b; div.rn.f32 %b, %b, 0f40400000; red.global.add.f32 [%x], %b; atom.global.add.u32 %c, [%x+4], 1;
mul.wide.u32 %o, %a, 4; add.u64 %y, %y, %o; st.global.u32 [%y], %c;";
    let mut results = Vec::new();
    for workers in [1, 2, 4] {
        let text = format!(
            ".reg .b32 %t, %a, %b, %c; .reg .b64 %x, %y, %o; mov.u32 %t, %tid.x; ld.param.u64 %x, [p0]; ld.param.u64 %y, [p1];\n{body}\nret;"
        );
        let mut machine = Machine::new(&module(2, &text)).buffer(&[0; 8]).unwritten(4 * 200);
        (machine.workers, machine.blocks, machine.threads) = (workers, 200, 32);
        let done = machine.run().expect("the kernel is right");
        results.push((machine.bytes(0), machine.bytes(1), done.counts));
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn sectors_and_conflicts_are_counted() {
    let counted = |body: &str| {
        let machine = Machine::new(&module(
            1,
            &format!(
                ".reg .b32 %t, %a, %b; .reg .b64 %x, %o; mov.u32 %t, %tid.x; ld.param.u64 %x, [p0];\n{body}\nret;"
            ),
        ))
        .buffer(&[0; 4096]);
        let counts = machine.run().expect("the kernel is right").counts;
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
    // Eight lanes at a time.
    let four_words = "st.shared.v4.u32 [%a], {%t, %t, %t, %t}";
    assert_eq!(shared(16, four_words), (512, 4, 0));
    assert_eq!(shared(32, four_words), (512, 4, 4));
}
