//! What is no PTX, or not known, is refused with its line and name.

use super::module;
use crate::decode::decode;
use crate::ptx::parse;
use std::collections::HashMap;

/// The complaint about a module.
fn complaint(text: &str) -> String {
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
        .expect("the module is wrong")
        .to_string()
}

#[track_caller]
fn refused(body: &str, words: &[&str]) {
    let text = complaint(&module(1, body));
    for word in words {
        assert!(text.contains(word), "`{text}` does not say `{word}`");
    }
}

#[test]
fn what_is_not_known_is_named_with_its_line() {
    let registers = ".reg .b32 %r<4>; .reg .b64 %l<2>; .reg .pred %p; .reg .b16 %h;\n";
    let refused = |body: &str, words: &[&str]| refused(&format!("{registers}{body}"), words);
    refused("frobnicate.u32 %r0, %r1;", &["line 7", "`frobnicate.u32` is unknown"]);
    refused("add.wobbly.u32 %r0, %r1, %r2;", &["`.wobbly`", "add.wobbly.u32"]);
    refused("add.u31 %r0, %r1, %r2;", &["add.u31"]);
    refused("add.u32 %r0, %r1;", &["add.u32", "2 operands"]);
    refused("add.u32 %r0, %r1, %nothing;", &["%nothing", "not declared"]);
    refused("add.u32 %r0, %r1, %l0;", &["%l0", "8 bytes where 4"]);
    refused("ld.global.strange.u32 %r0, [%l0];", &["`.strange`"]);
    refused("bra $nowhere;", &["$nowhere"]);
    refused(
        "mma.sync.aligned.m16n8k17.row.col.f32.f16.f16.f32 {%r0}, {%r0}, {%r0}, {%r0};",
        &["m16n8k17"],
    );
    refused("wgmma.fence.sync.aligned;", &["wgmma"]);
    refused("call (%r0), missing, (%r1);", &["missing"]);
    refused("@%r0 ret;", &["%r0", "no predicate"]);
    refused("setp.zz.u32 %p, %r0, %r1;", &["setp.zz.u32"]);
    refused("cp.async.ca.shared.global [%l0], [%l1], 5;", &["4, 8 or 16"]);
}

#[test]
fn broken_text_is_refused() {
    assert!(complaint("").contains("no `.target`"));
    assert!(complaint(".version 8.0\n.target sm_xx\n").contains("line 2: the target `sm_xx` is unknown"));
    assert!(complaint(".version 8.0\n.target sm_80\n.address_size 32\n").contains("64 bits"));
    assert!(complaint(".version 8.0\n.target sm_80\n.visible .entry k() { ret;").contains("ends too early"));
    assert!(complaint(".version 8.0\n.target sm_80\n.global .b8 x[2] = {1, 2, 3};").contains("more values"));
    assert!(complaint(".version 8.0\n.target sm_80\n.tex x;").contains("`.tex` is unknown"));
    assert!(complaint(".version 8.0\n.target sm_80\n.entry k() { add.u32 # ; }").contains("line 3: `#`"));
    let text = module(0, "ret;");
    for end in 0..text.len() {
        // No prefix of a module makes the parser panic.
        let _ = parse(&text[..end]);
    }
}

#[test]
fn names_of_inner_scopes_hide_outer_ones() {
    let body = ".reg .b32 %r; .reg .b64 %x; mov.u32 %r, 7;\n{ .reg .b32 %r; mov.u32 %r, 9; }\nld.param.u64 %x, [p0];\nst.global.u32 [%x], %r;\nret;";
    let machine = super::Machine::new(&module(1, body)).buffer(&[0; 4]);
    machine.run().expect("the kernel is right");
    assert_eq!(machine.words(0), [7]);
}

#[test]
fn functions_are_called_with_their_arguments() {
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
    machine.run().expect("the kernel is right");
    let expected: Vec<u32> = (0..32).map(|i| if i > 15 { 1 } else { 2 * i }).collect();
    assert_eq!(machine.words(0), expected);
}

#[test]
fn variables_have_their_values() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64
.const .align 4 .b8 bytes[8] = {1, 2, 3, 4, 255};\n.global .align 8 .u64 word = 0x0102030405060708;\n.const .f32 floats[2] = {0f3F800000, -2.5};
.visible .entry k(.param .u64 p0)
{ .reg .b32 %r<4>; .reg .b64 %x; .reg .f32 %f; ld.const.u32 %r0, [bytes]; ld.const.u32 %r1, [bytes+4]; ld.global.u32 %r2, [word+4];
ld.const.f32 %f, [floats+4]; ld.param.u64 %x, [p0]; st.global.v2.u32 [%x], {%r0, %r1}; st.global.u32 [%x+8], %r2; st.global.f32 [%x+12], %f; ret; }";
    let machine = super::Machine::new(text).buffer(&[0; 16]);
    machine.run().expect("the kernel is right");
    assert_eq!(machine.words(0), [0x0403_0201, 0xff, 0x0102_0304, (-2.5f32).to_bits()]);
}
