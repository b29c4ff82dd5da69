//! Ops that compute each element from the elements at the same position.

use bytemuck::{Pod, Zeroable};

use super::super::kernel::{ELEMENTWISE, Kernel, Value};
use super::arguments::TensorArg;
use super::task::Task;
use super::unplanned::{Unplanned, size};
use crate::graph::{Op, Unary};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    a: TensorArg,
    b: TensorArg,
    y: TensorArg,
    c: [f32; 2],
    n: u32,
    padding: u32,
}

pub(super) fn plan(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let kernel = |name, op| Kernel::new(&ELEMENTWISE, name).with("OP", Value::Word(op));
    let (kernel, c) = match task.node.op {
        Op::Add => (kernel("binary", "add"), [0.0; 2]),
        Op::Sub => (kernel("binary", "sub"), [0.0; 2]),
        Op::Mul => (kernel("binary", "mul"), [0.0; 2]),
        Op::Div => (kernel("binary", "div"), [0.0; 2]),
        Op::Glu(f) => (kernel("binary", function(f)).with_int("GATED", 1), [0.0; 2]),
        Op::Unary(f) => (kernel("unary", function(f)), [0.0; 2]),
        Op::Scale { scale, bias } => (kernel("unary", "scale").with_int("CONSTANTS", 1), [scale, bias]),
        Op::Clamp { min, max } => (kernel("unary", "clamp").with_int("CONSTANTS", 1), [min, max]),
        Op::Repeat => (kernel("unary", "repeat").with_int("CONSTANTS", 1), [0.0; 2]),
        _ => return Err("not an element-wise op".into()),
    };
    let kernel = if task.has(1) {
        kernel.with_type("B", task.operand(1).ty)
    } else {
        kernel
    };
    let params = Params {
        a: task.source(0)?,
        b: task.source_or_none(1)?,
        y: task.result()?,
        c,
        n: size(task.node.nelements())?,
        padding: 0,
    };
    task.for_each(kernel, params.n, &params)
}

/// Returns the name of the function in `unary.cuh`.
pub(super) fn function(f: Unary) -> &'static str {
    match f {
        Unary::Neg => "neg",
        Unary::Abs => "abs_of",
        Unary::Sqr => "sqr",
        Unary::Sqrt => "sqrt_of",
        Unary::Exp => "exp_of",
        Unary::Tanh => "tanh_of",
        Unary::Sigmoid => "sigmoid",
        Unary::Relu => "relu",
        Unary::ReluSqr => "relu_sqr",
        Unary::Silu => "silu",
        Unary::Gelu => "gelu",
        Unary::GeluErf => "gelu_erf",
        Unary::GeluQuick => "gelu_quick",
        Unary::Softplus => "softplus",
    }
}
