//! What backends ask of a node beyond the [shape rules](crate::graph): that the types of its operands can be read and written.

use super::BackendError;
use crate::graph::{Graph, Layout, Op, Tensor, TensorId, rules};
use kernels::GgmlType;

/// Why a node cannot be computed.
pub(super) type Flaw = &'static str;

/// Nothing, or what keeps a backend from computing this node whose matrices of products and tables of look-ups may have the layout `of_matrices`,
/// while everything else is plain. Views compute nothing and pass.
pub(super) fn layouts(graph: &Graph, id: TensorId, of_matrices: Layout) -> Result<(), Flaw> {
    let node = graph.tensor(id);
    if node.op.is_view() {
        return Ok(());
    }
    let reads_rows = matches!(node.op, Op::MulMat | Op::MulMatId | Op::GetRows);
    let is_matrix = |t: &Tensor| t.view.is_none() && t.layout == of_matrices && t.layout.accepts(t.ty, t.ne);
    let can_be_read = |(i, source)| {
        let t = graph.tensor(source);
        t.layout.is_plain() || (reads_rows && i == 0 && is_matrix(t))
    };
    if node.layout.is_plain() && node.sources().enumerate().all(can_be_read) {
        Ok(())
    } else {
        Err("operands in layouts that can be read")
    }
}

/// Nothing, or why no backend could compute this node. Leafs and views need no computing and pass.
pub(super) fn check(graph: &Graph, id: TensorId) -> Result<(), Flaw> {
    rules::check(graph, id)?;
    let node = graph.tensor(id);
    if !node.op.computes() {
        return Ok(());
    }
    let types = node.sources().map(|s| graph.tensor(s).ty);
    let numbers = |ty: &GgmlType| !matches!(ty, GgmlType::I32 | GgmlType::I64);
    if !types.filter(numbers).all(kernels::can_dequantize) {
        return Err("operands of types that can be read");
    }
    if node.op == Op::SetRows && !kernels::can_quantize(node.ty) {
        return Err("a table of a type that rows can be stored in");
    }
    Ok(())
}

/// The error for a node that fails the check.
pub(super) fn unsupported(graph: &Graph, id: TensorId) -> BackendError {
    let node = graph.tensor(id);
    BackendError::Unsupported {
        op: node.op.name(),
        node: node.name.to_string(),
        ty: node.src[0].map_or(node.ty, |s| graph.tensor(s).ty),
    }
}
