//! Warps with different roles: `mbarrier`, bulk copies, and `setmaxnreg`.

use super::{Machine, hopper_module, le, module};
use crate::decode::decode;
use crate::exec::fault::Kind;
use crate::ptx::parse;
use std::collections::HashMap;

const INIT_FENCE: &str = "fence.mbarrier_init.release.cluster;\n";
const WAIT_FREE: &str = "FREE: mbarrier.try_wait.parity.shared::cta.b64 %q, [%e], %x; @!%q bra FREE;\n";
const WAIT_FULL: &str = "FULL: mbarrier.try_wait.parity.shared::cta.b64 %q, [%f], %w; @!%q bra FULL;\n";
const EXPECT: &str = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%f], 128;\n";
const COPY: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%p], 128, [%f];\n";
const SYNC_STORES: &str = "bar.warp.sync -1;\n";
const SYNC_READS: &str = "bar.warp.sync 0xffffffff;\n";
const RELEASE: &str = "@%l mbarrier.arrive.shared::cta.b64 _, [%e];\n";

/// Returns a kernel of two warps. The first fills two stages in shared memory four times: half of a stage by a bulk
/// copy, and half by stores. The second adds both halves. Barriers at 512 and 520 end when a stage is full, and
/// barriers at 528 and 536 when it is free.
fn pipeline() -> String {
    let body = format!(
        ".shared .align 128 .b8 s[544];
.reg .b32 %t, %i, %s, %a, %e, %f, %v, %n, %x, %w, %k; .reg .b64 %p, %o, %g; .reg .pred %q, %l, %c;
mov.u32 %t, %tid.x; and.b32 %i, %t, 31; setp.eq.u32 %l, %i, 0; setp.lt.u32 %c, %t, 32; mov.u32 %k, 0;
ld.param.u64 %p, [p0]; ld.param.u64 %g, [p1]; mul.wide.u32 %o, %i, 4; add.u64 %g, %g, %o;
setp.ne.u32 %q, %t, 0; @%q bra READY;
mbarrier.init.shared::cta.b64 [s+512], 2; mbarrier.init.shared::cta.b64 [s+520], 2;
mbarrier.init.shared::cta.b64 [s+528], 1; mbarrier.init.shared::cta.b64 [s+536], 1;
{INIT_FENCE}READY: bar.sync 0;
NEXT: mov.u32 %s, s; and.b32 %n, %k, 1; mad.lo.u32 %f, %n, 8, %s; add.u32 %f, %f, 512; add.u32 %e, %f, 16;
mad.lo.u32 %s, %n, 256, %s; mad.lo.u32 %a, %i, 4, %s; shr.u32 %w, %k, 1; and.b32 %w, %w, 1; xor.b32 %x, %w, 1;
@!%c bra CONSUME;
{WAIT_FREE}@!%l bra STORE;
{EXPECT}{COPY}STORE: add.u32 %v, %k, 100; st.shared.b32 [%a+128], %v;
{SYNC_STORES}@%l mbarrier.arrive.shared::cta.b64 _, [%f];
add.u64 %p, %p, 128; bra LAST;
CONSUME:
{WAIT_FULL}ld.shared.b32 %n, [%a]; ld.shared.b32 %v, [%a+128]; add.u32 %v, %v, %n;
{SYNC_READS}{RELEASE}st.global.b32 [%g], %v; add.u64 %g, %g, 128;
LAST: add.u32 %k, %k, 1; setp.lt.u32 %q, %k, 4; @%q bra NEXT;
ret;"
    );
    hopper_module(2, &body)
}

fn machine(text: &str) -> Machine {
    let words: Vec<u32> = (0..128).collect();
    let mut machine = Machine::new(text).buffer(&le(&words)).unwritten(512);
    machine.threads = 64;
    machine
}

/// Checks the fault of the kernel after a replacement.
#[track_caller]
fn check(from: &str, to: &str, kind: Kind, words: &[&str]) {
    let text = pipeline();
    assert_eq!(text.matches(from).count(), 1, "{from}");
    machine(&text.replace(from, to)).assert_fault(kind, words);
}

#[test]
fn warps_with_different_roles_exchange_stages() {
    let machine = machine(&pipeline());
    let done = machine.run().unwrap_or_else(|fault| panic!("{}", fault.description));
    let expected: Vec<u32> = (0..128).map(|i| i + 100 + i / 32).collect();
    assert_eq!(machine.words(1), expected);
    // Two copies in sequence: the second pair of stages waits for the first.
    assert!((1100..1700).contains(&done.latency.longest), "{:?}", done.latency);
}

#[test]
fn access_of_stage_without_its_barrier_is_a_race() {
    check(WAIT_FULL, "", Kind::Race, &["a bulk copy to it is not complete"]);
    let early_copy = format!("@%l {COPY}{WAIT_FREE}");
    let text = pipeline().replace(COPY, "").replace(WAIT_FREE, &early_copy);
    machine(&text).assert_fault(Kind::Race, &["write to byte 0", "a bulk copy"]);
    check(WAIT_FREE, "", Kind::Synchronization, &["exceed its count"]);
    // The arrival of a lane orders the accesses of other lanes only after a synchronization.
    check(SYNC_STORES, "", Kind::Race, &["read of byte", "wrote it"]);
    check(SYNC_READS, "", Kind::Race, &["write to byte", "read it"]);
}

#[test]
fn release_before_read_is_a_race() {
    let read = "ld.shared.b32 %n, [%a]; ld.shared.b32 %v, [%a+128]; add.u32 %v, %v, %n;\n";
    let text = pipeline();
    let late = text.replace(RELEASE, "").replace(read, &format!("{RELEASE}{read}"));
    machine(&late).assert_fault(Kind::Race, &["write to byte", "read it"]);
}

#[test]
fn missing_arrival_is_a_deadlock() {
    let words = ["deadlock", "warp 0 at the `mbarrier` at 528", "1 of 1 arrivals"];
    check(RELEASE, "", Kind::Synchronization, &words);
    let words = ["deadlock", "warp 1 at the `mbarrier` at 512", "0 bytes"];
    check("[s+512], 2", "[s+512], 3", Kind::Synchronization, &words);
    let words = ["deadlock", "64 bytes"];
    check(EXPECT, &EXPECT.replace("128", "192"), Kind::Synchronization, &words);
}

#[test]
fn barriers_must_be_initialized_and_visible() {
    let init = "mbarrier.init.shared::cta.b64 [s+512], 2;";
    check(
        init,
        "",
        Kind::Synchronization,
        &["byte 512", "not an initialized `mbarrier`"],
    );
    check(INIT_FENCE, "", Kind::Race, &["no `fence.mbarrier_init`"]);
    check(
        "READY: bar.sync 0;",
        "READY:",
        Kind::Race,
        &["read of byte 5", "thread 0 wrote it"],
    );
    check(
        "[s+512], 2",
        "[s+512], 0",
        Kind::Synchronization,
        &["expected 1 to", "found 0"],
    );
    check("[s+512], 2", "[s+514], 2", Kind::Misaligned, &["multiple of 8"]);
    let twice = format!("{init} {init}");
    check(init, &twice, Kind::Synchronization, &["belongs to an `mbarrier`"]);
    let with_load = format!("{WAIT_FULL}ld.shared.b32 %v, [s+512];\n");
    check(
        WAIT_FULL,
        &with_load,
        Kind::Synchronization,
        &["byte 512", "belongs to an `mbarrier`"],
    );
    let ended = format!("mbarrier.inval.shared::cta.b64 [s+528];\n{INIT_FENCE}");
    check(
        INIT_FENCE,
        &ended,
        Kind::Synchronization,
        &["byte 528", "not an initialized"],
    );
}

#[test]
fn arrivals_and_bytes_must_match_expectations() {
    check("[s+512], 2", "[s+512], 1", Kind::Synchronization, &["exceed its count"]);
    check(
        EXPECT,
        &EXPECT.replace("128", "64"),
        Kind::Synchronization,
        &["a bulk copy of 128 bytes exceeds"],
    );
    let many = EXPECT.replace("128", "0x100000");
    check(EXPECT, &many, Kind::Synchronization, &["expects 1048576 bytes"]);
    // The phase ends without the bytes, and nobody waits for the copy.
    let text = pipeline().replace(EXPECT, "mbarrier.arrive.shared::cta.b64 _, [%f];\n");
    machine(&text).assert_fault(Kind::Synchronization, &["a bulk copy of 128 bytes exceeds"]);
}

#[test]
fn block_must_wait_for_its_copies() {
    let once = "LAST: ret; add.u32 %k, %k, 1;";
    let text = pipeline()
        .replace("LAST: add.u32 %k, %k, 1;", once)
        .replace(WAIT_FULL, "bra LAST;\n");
    machine(&text).assert_fault(Kind::Synchronization, &["ended before 1 bulk copies"]);
}

#[test]
fn bulk_copies_need_aligned_operands() {
    for (from, to) in [
        ("[%s], [%p], 128", "[%s], [%p], 120"),
        ("[%s], [%p], 128", "[%s+8], [%p], 128"),
        ("[%s], [%p], 128", "[%s], [%p+4], 128"),
        ("[%s], [%p], 128", "[%s], [%p], 0"),
    ] {
        check(from, to, Kind::Misaligned, &["bulk copy", "multiples of 16"]);
    }
    check(
        "[%s], [%p], 128",
        "[%s], [%p+512], 128",
        Kind::OutOfBounds,
        &["read of"],
    );
    check(
        "[%s], [%p], 128",
        "[%s+4096], [%p], 128",
        Kind::OutOfBounds,
        &["shared memory has 544 bytes"],
    );
}

/// A bulk copy may overwrite stores only after `fence.proxy.async`.
#[test]
fn bulk_copy_over_unpublished_store_is_a_race() {
    let stored = format!("{INIT_FENCE}READY: st.shared.b32 [s], %t; ");
    let text = pipeline().replace("st.shared.b32 [s], %t", "nop");
    let text = text.replace(&format!("{INIT_FENCE}READY: "), &stored);
    let text = text.replace("st.shared.b32 [s], %t;", "@%l st.shared.b32 [s], %t; bar.sync 0;");
    let text = text.replace("@%l st.shared", "setp.eq.u32 %q, %t, 0; @%q st.shared");
    machine(&text).assert_fault(
        Kind::Race,
        &["a bulk copy writes byte 0", "without `fence.proxy.async`"],
    );
    let published = text.replace("%t; bar.sync 0;", "%t; fence.proxy.async.shared::cta; bar.sync 0;");
    let machine = machine(&published);
    machine.run().unwrap_or_else(|fault| panic!("{}", fault.description));
}

/// Returns a kernel of three groups of four warps. The first group and the other two request these registers.
fn registers(first: &str, others: &str) -> Machine {
    let body = format!(
        ".reg .b32 %t; .reg .pred %q; mov.u32 %t, %tid.x; setp.ge.u32 %q, %t, 128; @%q bra OTHERS;
{first}
ret; OTHERS:
{others}
ret;"
    );
    let text = hopper_module(0, &body).replace("k()\n", "k() .maxntid 384, 1, 1\n");
    let mut machine = Machine::new(&text);
    machine.threads = 384;
    machine
}

fn change(name: &str, n: u32) -> String {
    format!("setmaxnreg.{name}.sync.aligned.u32 {n};")
}

/// A thread of 384 can have 168 of 65,536 registers.
#[test]
fn registers_move_between_groups_of_warps() {
    let run = |first: &str, others: &str| registers(first, others).run().map(|_| ());
    assert_eq!(run(&change("inc", 184), &change("dec", 160)), Ok(()));
    assert_eq!(run(&change("dec", 40), ""), Ok(()));
    let fault = |first: &str, others: &str, words: &[&str]| {
        registers(first, others).assert_fault(Kind::Synchronization, words);
    };
    fault(
        &change("inc", 192),
        &change("dec", 160),
        &["never ends", "64512 registers", "request 65536"],
    );
    fault(&change("inc", 40), "", &["setmaxnreg.inc", "at least 168", "found 40"]);
    fault(&change("dec", 176), "", &["setmaxnreg.dec", "at most 168", "found 176"]);
    let some = format!("setp.lt.u32 %q, %t, 32; @%q bra END; {} END:", change("dec", 40));
    fault(&some, "", &["all four warps", "warps 0 to 3"]);
    let unbounded = hopper_module(0, &format!("{} ret;", change("dec", 40)));
    Machine::new(&unbounded).assert_fault(Kind::Synchronization, &["no maximum number of threads"]);
}

#[test]
fn instructions_need_compute_capability_9() {
    let load = |target: &str, body: &str| {
        let declared = format!(".reg .pred %q; .reg .b64 %l; .shared .b8 s[64];\n{body}");
        let text = module(1, &declared).replace("sm_80", target);
        let parsed = parse(&text).expect("the syntax is valid");
        let kernel = decode(&parsed, &parsed.functions[0], &HashMap::new());
        kernel.map(|_| ()).map_err(|error| error.to_string())
    };
    let copy = COPY.replace("%s", "s").replace("%f", "s").replace("%p", "%l");
    let of_90 = [
        "mbarrier.try_wait.parity.shared::cta.b64 %q, [s], 0;",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 16;",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], 16;",
        "fence.proxy.async.shared::cta;",
        INIT_FENCE,
        &copy,
    ];
    for body in of_90 {
        let error = load("sm_80", body).expect_err(body);
        assert!(error.contains("needs sm_90, but the target is sm_80"), "{error}");
        assert_eq!(load("sm_90", body), Ok(()), "{body}");
    }
    let error = load("sm_90", &change("inc", 40)).expect_err("the target is not specific");
    assert!(error.contains("needs sm_90a, but the target is sm_90"), "{error}");
    for n in [16, 41, 264] {
        let error = load("sm_90a", &change("inc", n)).expect_err("the number is invalid");
        assert!(error.contains("a multiple of 8 from 24 to 256"), "{error}");
    }
    for body in [
        "mbarrier.arrive.shared::cta.b64 %l, [s];",
        "mbarrier.test_wait.shared::cta.b64 %q, [s], %l;",
    ] {
        let error = load("sm_90", body).expect_err(body);
        assert!(error.contains("upported") || error.contains("unknown"), "{error}");
    }
}
