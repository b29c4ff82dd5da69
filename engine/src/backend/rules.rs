//! Requirements on nodes that all backends share, in addition to the [shape rules](crate::graph): operand
//! types and layouts must be supported.

use super::BackendError;
use crate::graph::{Graph, Layout, Op, Tensor, TensorId, rules};
use kernels::GgmlType;

/// Reason why a node cannot be computed.
pub(super) type Unsupported = &'static str;

/// Checks that the layouts of a node are supported. Weights of matmuls and tables of `get_rows` may have
/// layout `of_matrices`; everything else must be plain. Views always pass.
pub(super) fn layouts(graph: &Graph, id: TensorId, of_matrices: Layout) -> Result<(), Unsupported> {
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
        Err("an operand has an unsupported layout")
    }
}

/// Checks that a node can be computed. Leafs and views always pass.
pub(super) fn check(graph: &Graph, id: TensorId) -> Result<(), Unsupported> {
    rules::check(graph, id)?;
    let node = graph.tensor(id);
    if !node.op.computes() {
        return Ok(());
    }
    let types = node.sources().map(|s| graph.tensor(s).ty);
    let numbers = |ty: &GgmlType| !matches!(ty, GgmlType::I32 | GgmlType::I64);
    if !types.filter(numbers).all(kernels::can_dequantize) {
        return Err("an operand has an unsupported type");
    }
    if node.op == Op::SetRows && !kernels::can_quantize(node.ty) {
        return Err("rows cannot be converted to the type of the table");
    }
    Ok(())
}

/// Returns the error for a node that fails the check.
pub(super) fn unsupported(graph: &Graph, id: TensorId) -> BackendError {
    let node = graph.tensor(id);
    BackendError::Unsupported {
        op: node.op.name(),
        node: node.name.to_string(),
        ty: node.src[0].map_or(node.ty, |s| graph.tensor(s).ty),
    }
}
