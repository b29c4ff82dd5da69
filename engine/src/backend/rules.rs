//! What backends ask of a node beyond the [shape rules](crate::graph): that the types of its operands can be read and written.

use super::BackendError;
use crate::graph::{Graph, Op, TensorId, rules};
use kernels::GgmlType;

/// Why a node cannot be computed.
pub(super) type Flaw = &'static str;

/// Nothing, or what keeps a backend that reads plain layouts only from computing this node. Views compute nothing and pass.
pub(super) fn plain_operands(graph: &Graph, id: TensorId) -> Result<(), Flaw> {
    let node = graph.tensor(id);
    let all_plain = node.layout.is_plain() && node.sources().all(|s| graph.tensor(s).layout.is_plain());
    if all_plain || node.op.is_view() {
        Ok(())
    } else {
        Err("operands that are not repacked")
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
