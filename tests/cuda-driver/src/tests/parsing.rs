//! Invalid or unsupported PTX is rejected with line and name.

use super::{hopper_module, module};
use crate::decode::decode;
use crate::ptx::parse;
use std::collections::HashMap;

/// Returns the error of a module.
fn load_error(text: &str) -> String {
    let module = match parse(text) {
        Ok(module) => module,
        Err(error) => return error.to_string(),
    };
    let entry = module
        .functions
        .iter()
        .find(|f| f.is_entry)
        .expect("the module has a kernel");
    decode(&module, entry, &HashMap::new())
        .err()
        .expect("the module is invalid")
        .to_string()
}

#[track_caller]
fn assert_rejected(body: &str, words: &[&str]) {
    let text = load_error(&module(1, body));
    for word in words {
        assert!(text.contains(word), "expected `{word}` in `{text}`");
    }
}

#[test]
fn unknown_syntax_is_reported_with_line() {
    let registers = ".reg .b32 %r<4>; .reg .b64 %l<2>; .reg .pred %p; .reg .b16 %h;\n";
    let assert_rejected = |body: &str, words: &[&str]| assert_rejected(&format!("{registers}{body}"), words);
    assert_rejected(
        "frobnicate.u32 %r0, %r1;",
        &["line 7", "unknown instruction `frobnicate.u32`"],
    );
    assert_rejected("add.wobbly.u32 %r0, %r1, %r2;", &["`.wobbly`", "add.wobbly.u32"]);
    assert_rejected("add.u31 %r0, %r1, %r2;", &["add.u31"]);
    assert_rejected("add.u32 %r0, %r1;", &["add.u32", "expected 3 operands, found 2"]);
    assert_rejected("add.u32 %r0, %r1, %nothing;", &["%nothing", "not declared"]);
    assert_rejected("add.u32 %r0, %r1, %l0;", &["%l0", "expected 4 bytes, found 8"]);
    assert_rejected("ld.global.strange.u32 %r0, [%l0];", &["`.strange`"]);
    assert_rejected("bra $nowhere;", &["$nowhere"]);
    assert_rejected(
        "mma.sync.aligned.m16n8k17.row.col.f32.f16.f16.f32 {%r0}, {%r0}, {%r0}, {%r0};",
        &["m16n8k17"],
    );
    let product = "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%r0}, %l0, %l1, %p, 1, 1, 0, 0;";
    assert_rejected(product, &["m64n12k16", "needs sm_90"]);
    let error = load_error(&hopper_module(1, &format!("{registers}{product}")));
    assert!(
        error.contains("m64n12k16") && error.contains("not supported"),
        "{error}"
    );
    assert_rejected("tcgen05.commit;", &["tcgen05"]);
    assert_rejected("call (%r0), missing, (%r1);", &["missing"]);
    assert_rejected("@%r0 ret;", &["%r0", "not a predicate"]);
    assert_rejected("setp.zz.u32 %p, %r0, %r1;", &["setp.zz.u32"]);
    assert_rejected("cp.async.ca.shared.global [%l0], [%l1], 5;", &["4, 8, or 16"]);
}

#[test]
fn malformed_module_is_rejected() {
    assert!(load_error("").contains("no `.target`"));
    assert!(load_error(".version 8.0\n.target sm_xx\n").contains("line 2: unknown target `sm_xx`"));
    assert!(load_error(".version 8.0\n.target sm_80\n.address_size 32\n").contains("expected 64"));
    assert!(load_error(".version 8.0\n.target sm_80\n.visible .entry k() { ret;").contains("unexpected end"));
    assert!(load_error(".version 8.0\n.target sm_80\n.global .b8 x[2] = {1, 2, 3};").contains("more initial values"));
    assert!(load_error(".version 8.0\n.target sm_80\n.tex x;").contains("unknown directive `.tex`"));
    assert!(
        load_error(".version 8.0\n.target sm_80\n.entry k() { add.u32 # ; }")
            .contains("line 3: unexpected character `#`")
    );
    let text = module(0, "ret;");
    for end in 0..text.len() {
        // Truncated modules must not make the parser panic.
        let _ = parse(&text[..end]);
    }
}

#[test]
fn inner_scope_shadows_outer_names() {
    let body = ".reg .b32 %r; .reg .b64 %x; mov.u32 %r, 7;\n{ .reg .b32 %r; mov.u32 %r, 9; }\nld.param.u64 %x, [p0];\nst.global.u32 [%x], %r;\nret;";
    let machine = super::Machine::new(&module(1, body)).buffer(&[0; 4]);
    machine.run().expect("the kernel is correct");
    assert_eq!(machine.words(0), [7]);
}

#[test]
fn call_passes_arguments_and_results() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64
.func (.param .b32 out) twice(.param .b32 in)
{ .reg .b32 %r; .reg .pred %p; ld.param.u32 %r, [in]; setp.gt.u32 %p, %r, 15; @%p bra big;
add.u32 %r, %r, %r; st.param.b32 [out], %r; ret;\nbig: st.param.b32 [out], 1; ret; }
.visible .entry k(.param .u64 p0)
{ .reg .b32 %r<3>; .reg .b64 %x<3>;
mov.u32 %r0, %tid.x;
{ .param .b32 a; st.param.b32 [a], %r0; .param .b32 b; call.uni (b), twice, (a); ld.param.b32 %r1, [b]; }
ld.param.u64 %x0, [p0]; mul.wide.u32 %x1, %r0, 4; add.u64 %x2, %x0, %x1; st.global.u32 [%x2], %r1; ret; }";
    let machine = super::Machine::new(text).buffer(&[0; 128]);
    machine.run().expect("the kernel is correct");
    let expected: Vec<u32> = (0..32).map(|i| if i > 15 { 1 } else { 2 * i }).collect();
    assert_eq!(machine.words(0), expected);
}

#[test]
fn variables_are_initialized() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64
.const .align 4 .b8 bytes[8] = {1, 2, 3, 4, 255};\n.global .align 8 .u64 word = 0x0102030405060708;\n.const .f32 floats[2] = {0f3F800000, -2.5};
.visible .entry k(.param .u64 p0)
{ .reg .b32 %r<4>; .reg .b64 %x; .reg .f32 %f; ld.const.u32 %r0, [bytes]; ld.const.u32 %r1, [bytes+4]; ld.global.u32 %r2, [word+4];
ld.const.f32 %f, [floats+4]; ld.param.u64 %x, [p0]; st.global.v2.u32 [%x], {%r0, %r1}; st.global.u32 [%x+8], %r2; st.global.f32 [%x+12], %f; ret; }";
    let machine = super::Machine::new(text).buffer(&[0; 16]);
    machine.run().expect("the kernel is correct");
    assert_eq!(machine.words(0), [0x0403_0201, 0xff, 0x0102_0304, (-2.5f32).to_bits()]);
}

/// Instructions need the compute capability that the PTX ISA states for them.
#[test]
fn instructions_that_the_target_lacks_are_rejected() {
    let registers = ".reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %l<2>;\n";
    let load = |target: &str, body: &str| {
        let text = module(1, &format!("{registers}{body}")).replace("sm_80", target);
        let parsed = parse(&text).expect("the syntax is valid");
        decode(&parsed, &parsed.functions[0], &HashMap::new())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let of_80 = [
        "cp.async.commit_group;",
        "redux.sync.min.u32 %r0, %r1, -1;",
        "cvt.rn.f16x2.f32 %r0, %f0, %f1;",
        "cvt.rn.bf16x2.f32 %r0, %f0, %f1;",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1}, {%r2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%r0, %r1, %r2, %r3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r0, %r1, %r2, %r3};",
    ];
    for body in of_80 {
        assert_eq!(load("sm_80", body), Ok(()), "{body}");
        let error = load("sm_75", body).expect_err(body);
        assert!(error.contains("needs sm_80, but the target is sm_75"), "{error}");
    }
    let of_75 = [
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1}, {%r2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%r0, %r1}, {%r2}, {%r3}, {%r0, %r1};",
        "cvt.rn.f16.f32 %h, %f0;",
    ];
    for body in of_75 {
        let body = format!(".reg .b16 %h;\n{body}");
        assert_eq!(load("sm_75", &body), Ok(()), "{body}");
    }
}
