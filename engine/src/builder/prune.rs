//! Restricts a graph to its output rows. The selection of output tokens moves from the result back through
//! the graph while every op processes tokens independently. In the last layer, only attention then computes
//! all tokens.
//!
//! Other engines write this selection into each model by hand; this rewrite works on any graph.

use kernels::GgmlType;

use crate::graph::{Graph, Op, ShapeError, Tensor, TensorId, contiguous_strides};

/// Per-tensor tables of the rewrite. Capacity is reused between graphs.
#[derive(Clone, Default, Debug)]
pub struct Pruning {
    /// Number of readers of each tensor.
    n_readers: Vec<u32>,
    n_rewritten: Vec<u32>,
    token_dims: Vec<TokenDim>,
    /// Replacement of each tensor, by tensor id.
    renamed: Vec<Option<TensorId>>,
}

/// Resets a table to `n` default values.
fn cleared<T: Clone + Default>(table: &mut Vec<T>, n: usize) -> &mut [T] {
    table.clear();
    table.resize(n, T::default());
    table
}

/// Rewrites the graph so that `result [n, n_tokens]` contains only the rows `ids` (i32 `[n_outputs]`), and
/// returns the new result. If given, `whole` is still computed for all tokens. Obsolete nodes stay in the
/// arena but are unreachable from the result.
pub fn keep_output_rows(
    tables: &mut Pruning,
    g: &mut Graph,
    result: TensorId,
    ids: TensorId,
    n_tokens: usize,
    whole: Option<TensorId>,
) -> Result<TensorId, ShapeError> {
    let n_outputs = g.tensor(ids).ne[0];
    row_wise_tail(tables, g, result, n_tokens, whole);
    let Pruning {
        token_dims, renamed, ..
    } = tables;
    let renamed = cleared(renamed, g.len());
    for index in 0..token_dims.len() {
        let id = TensorId(index as u32);
        let (Some(dim), Some(_)) = (token_dims[index].dim, token_dims[index].rewrite) else {
            continue;
        };
        let mut t = g.tensor(id).clone();
        for i in 0..t.src.len() {
            let Some(src) = t.src[i] else { break };
            let known = &token_dims[src.index()];
            // Sources without a token dimension (weights, broadcast rows) are unchanged.
            let Some(src_dim) = known.dim else { continue };
            if renamed[src.index()].is_none() {
                renamed[src.index()] = Some(select_rows(g, src, src_dim, ids)?);
            }
            t.src[i] = renamed[src.index()];
        }
        renamed[index] = Some(match t.op {
            Op::Permute => {
                let order = order_of(g.tensor(g.tensor(id).source(0)), &t);
                let new = g.permute(t.source(0), order)?;
                g.tensor_mut(new).name = t.name;
                new
            }
            _ => push_narrowed(g, t, dim, n_outputs),
        });
    }
    match renamed[result.index()] {
        Some(new) => Ok(new),
        None => select_rows(g, result, 1, ids),
    }
}

/// Token dimension of a tensor, and whether its node is computed for the output tokens only.
#[derive(Clone, Copy, Default, Debug)]
struct TokenDim {
    dim: Option<usize>,
    rewrite: Option<()>,
}

/// Finds, walking back from the result, the nodes that lead to the result only through row-wise ops.
fn row_wise_tail(tables: &mut Pruning, g: &Graph, result: TensorId, n_tokens: usize, whole: Option<TensorId>) {
    let n = result.index() + 1;
    let n_readers = cleared(&mut tables.n_readers, n);
    let n_rewritten = cleared(&mut tables.n_rewritten, n);
    let known = cleared(&mut tables.token_dims, n);
    for index in 0..n {
        for src in g.tensor(TensorId(index as u32)).sources() {
            n_readers[src.index()] += 1;
        }
    }
    known[result.index()].dim = Some(1);
    n_readers[result.index()] = 0;
    // Tensors in `whole` have an additional reader that needs all rows.
    whole.iter().for_each(|whole| n_readers[whole.index()] += 1);
    for index in (0..n).rev() {
        let Some(dim) = known[index].dim else { continue };
        if n_rewritten[index] != n_readers[index] {
            continue;
        }
        let t = g.tensor(TensorId(index as u32));
        let Some(source_dims) = source_token_dims(g, t, dim, n_tokens) else {
            continue;
        };
        let agrees = t
            .sources()
            .zip(source_dims)
            .all(|(s, d)| known[s.index()].dim.is_none() || d == known[s.index()].dim);
        if !agrees {
            continue;
        }
        known[index].rewrite = Some(());
        for (src, d) in t.sources().zip(source_dims) {
            n_rewritten[src.index()] += 1;
            if d.is_some() {
                known[src.index()].dim = d;
            }
        }
    }
}

/// Returns the token dimension of the leading operands (`None`: no tokens) of a row-wise op whose result has
/// tokens in dimension `dim`. Returns `None` if the op is not row-wise or cannot be narrowed.
fn source_token_dims(g: &Graph, t: &Tensor, dim: usize, n_tokens: usize) -> Option<[Option<usize>; 3]> {
    let src = |i: usize| t.src[i].map(|s| g.tensor(s));
    let one = [Some(dim), None, None];
    match t.op {
        Op::Scale { .. } | Op::Unary(_) | Op::Clamp { .. } | Op::IntDiv { .. } | Op::Cast => Some(one),
        Op::RmsNorm { .. }
        | Op::Norm { .. }
        | Op::L2Norm { .. }
        | Op::Sinkhorn { .. }
        | Op::SoftMax { .. }
        | Op::SumRows
        | Op::TopK { .. }
        | Op::TopMask { .. }
            if dim > 0 =>
        {
            Some(one)
        }
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Glu(_) => {
            // An operand broadcast over tokens is a constant row; partial broadcasts cannot be narrowed.
            let b = src(1)?.ne[dim];
            match b {
                1 => Some(one),
                b if b == n_tokens => Some([Some(dim), Some(dim), None]),
                _ => None,
            }
        }
        Op::MulMat if dim == 1 && src(0)?.flags.weight => Some([None, Some(1), None]),
        Op::Permute => {
            let order = order_of(src(0)?, t);
            order
                .iter()
                .position(|&to| to == dim)
                .map(|from| [Some(from), None, None])
        }
        Op::MulMatId | Op::AddId if dim == 2 => match t.op {
            Op::MulMatId => Some([None, Some(2), Some(1)]),
            _ => Some([Some(2), None, Some(1)]),
        },
        Op::GetRows if dim == 2 && src(0)?.ne[2] == n_tokens => Some([Some(2), Some(1), None]),
        Op::Concat { dim: joined } if usize::from(joined) != dim => Some([Some(dim), Some(dim), None]),
        Op::Cont | Op::Reshape => reshaped_dim(src(0)?, t, dim, n_tokens).map(|d| [Some(d), None, None]),
        Op::View => sliced_dim(src(0)?, t, dim, n_tokens).map(|d| [Some(d), None, None]),
        _ => None,
    }
}

/// Returns the dimension of `from` that corresponds to `dim` of its reshaped form `to`: the inner dimensions
/// have equal sizes.
fn reshaped_dim(from: &Tensor, to: &Tensor, dim: usize, n_tokens: usize) -> Option<usize> {
    let inner: usize = to.ne[..dim].iter().product();
    (0..4).find(|&d| from.ne[d] == n_tokens && from.ne[..d].iter().product::<usize>() == inner)
}

/// Reconstructs the order of an [`Op::Permute`]. Dimensions of equal size and stride are interchangeable.
fn order_of(from: &Tensor, to: &Tensor) -> [usize; 4] {
    let mut taken = [false; 4];
    std::array::from_fn(|d| {
        let same = |&i: &usize| !taken[i] && to.ne[i] == from.ne[d] && to.nb[i] == from.nb[d];
        let i = (0..4).find(same).unwrap_or(d);
        taken[i] = true;
        i
    })
}

/// Returns the dimension of `from` that corresponds to `dim` of its view `to`. Tokens must be outermost, so
/// that no stride depends on their number.
fn sliced_dim(from: &Tensor, to: &Tensor, dim: usize, n_tokens: usize) -> Option<usize> {
    (0..4).find(|&d| {
        from.ne[d] == n_tokens
            && from.nb[d] == to.nb[dim]
            && from.ne[d + 1..].iter().all(|&n| n == 1)
            && to.ne[dim + 1..].iter().all(|&n| n == 1)
    })
}

/// Selects the rows `ids` of a tensor with tokens in `dim`.
fn select_rows(g: &mut Graph, x: TensorId, dim: usize, ids: TensorId) -> Result<TensorId, ShapeError> {
    let t = g.tensor(x);
    let (mut ne, ty, name) = (t.ne, t.ty, t.name);
    let ints = ty == GgmlType::I32 && t.is_contiguous();
    if ty != GgmlType::F32 && !ints {
        let expected = "f32 or contiguous i32 values".to_owned();
        return Err(ShapeError {
            op: format!("selecting rows of {name}"),
            expected,
            found: ty.to_string(),
        });
    }
    if ne[dim + 1..].iter().any(|&n| n > 1) {
        return select_inner_rows(g, x, dim, ids);
    }
    let inner: usize = ne[..dim].iter().product();
    let x = if g.tensor(x).is_contiguous() { x } else { g.cont(x, ne)? };
    let flat = if dim == 1 {
        x
    } else {
        g.reshape(x, [inner, ne[dim], 1, 1])?
    };
    let kept = g.get_rows(flat, ids)?;
    g.tensor_mut(kept).name = name;
    if dim == 1 {
        return Ok(kept);
    }
    ne[dim] = g.tensor(ids).ne[0];
    g.reshape(kept, ne)
}

/// Like [`select_rows`], for tokens that are not the outermost dimension: swaps the two dimensions, and swaps them back
/// afterwards.
fn select_inner_rows(g: &mut Graph, x: TensorId, dim: usize, ids: TensorId) -> Result<TensorId, ShapeError> {
    let mut swapped = [0, 1, 2, 3];
    swapped.swap(dim, 3);
    let name = g.tensor(x).name;
    let outermost = g.permute(x, swapped)?;
    let kept = select_rows(g, outermost, 3, ids)?;
    let kept = g.permute(kept, swapped)?;
    g.tensor_mut(kept).name = name;
    Ok(kept)
}

/// Adds `t`, whose sources were already replaced, with `n` tokens in dimension `dim`.
fn push_narrowed(g: &mut Graph, mut t: Tensor, dim: usize, n: usize) -> TensorId {
    t.ne[dim] = n;
    match t.view {
        None => t.nb = contiguous_strides(t.ty, t.ne),
        Some((old_owner, old_offset)) => {
            // Offsets remain valid: tokens are outermost, or (for a reshape) the view starts where its source
            // does.
            let source = t.source(0);
            let (owner, base) = g.tensor(source).view.unwrap_or((source, 0));
            let offset = if t.op == Op::Reshape { base } else { old_offset };
            debug_assert!(owner != old_owner || offset == old_offset);
            t.view = Some((owner, offset));
            if t.op == Op::Reshape {
                t.nb = contiguous_strides(t.ty, t.ne);
            }
        }
    }
    g.push(t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Flags, Name, Unary};

    fn weight(g: &mut Graph, ne: [usize; 4]) -> TensorId {
        let w = g.input(GgmlType::F32, ne, "w");
        g.tensor_mut(w).flags = Flags {
            weight: true,
            ..Flags::default()
        };
        w
    }

    #[test]
    fn selection_moves_back_to_last_token_mixing_op() {
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, [8, 5, 1, 1], "x");
        let mixed = g.input(GgmlType::F32, [8, 5, 1, 1], "mixed");
        let w = weight(&mut g, [8, 3, 1, 1]);
        let sum = g.add(mixed, x).unwrap();
        let norm = g.rms_norm(sum, None, 1e-5).unwrap();
        let result = g.mul_mat(w, norm).unwrap();
        let ids = g.input(GgmlType::I32, [2, 1, 1, 1], "ids");
        let kept = keep_output_rows(&mut Pruning::default(), &mut g, result, ids, 5, None).unwrap();
        g.expand(kept);
        let ops: Vec<_> = g
            .nodes()
            .iter()
            .map(|&n| (g.tensor(n).op.name(), g.tensor(n).ne[1]))
            .collect();
        assert_eq!(
            ops,
            [
                ("get_rows", 2),
                ("get_rows", 2),
                ("add", 2),
                ("rms_norm", 2),
                ("mul_mat", 2)
            ]
        );
    }

    #[test]
    fn shared_value_is_selected_not_narrowed() {
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, [8, 5, 1, 1], "x");
        let a = g.unary(Unary::Silu, x).unwrap();
        let cache = g.input(GgmlType::F32, [8, 16, 1, 1], "cache");
        let cells = g.input(GgmlType::I64, [5, 1, 1, 1], "cells");
        let stored = g.set_rows(cache, a, cells).unwrap();
        let b = g.scale(a, 2.0, 0.0).unwrap();
        let ids = g.input(GgmlType::I32, [1, 1, 1, 1], "ids");
        let kept = keep_output_rows(&mut Pruning::default(), &mut g, b, ids, 5, None).unwrap();
        g.expand(stored);
        g.expand(kept);
        let ops: Vec<_> = g
            .nodes()
            .iter()
            .map(|&n| (g.tensor(n).op.name(), g.tensor(n).ne[1]))
            .collect();
        assert_eq!(ops, [("unary", 5), ("set_rows", 16), ("get_rows", 1), ("scale", 1)]);
    }

    #[test]
    fn views_and_reshapes_are_narrowed() {
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, [4, 3, 5, 1], "x");
        let nb = g.tensor(x).nb;
        let part = g.view(x, [4, 5, 1, 1], [nb[0], nb[2], nb[3], nb[3]], nb[1]).unwrap();
        let y = g.scale(part, 2.0, 0.0).unwrap();
        let y = g.reshape(y, [2, 2, 5, 1]).unwrap();
        let y = g.reshape(y, [4, 5, 1, 1]).unwrap();
        let ids = g.input(GgmlType::I32, [2, 1, 1, 1], "ids");
        let kept = keep_output_rows(&mut Pruning::default(), &mut g, y, ids, 5, None).unwrap();
        g.expand(kept);
        assert_eq!(g.tensor(kept).ne, [4, 2, 1, 1]);
        let view = g
            .nodes()
            .iter()
            .find(|&&n| g.tensor(n).op == Op::View)
            .copied()
            .unwrap();
        assert_eq!(g.tensor(view).ne, [4, 2, 1, 1]);
        assert_eq!(g.tensor(view).view.unwrap().1, nb[1]);
        assert_ne!(g.tensor(g.memory_owner(view)).op, Op::None, "view of the selected rows");
        let _ = Name::default();
    }
}
