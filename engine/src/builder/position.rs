//! How cached keys depend on positions, derived from the graph: what a context shift must do to them.

use crate::graph::{Graph, Op, Rope, Tensor, TensorId};

use super::handles::{Vector, WeightId};

/// What a shift of its position must do to a cached key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyPosition {
    /// Nothing: the key does not depend on its position. ALiBi and windows use the positions of cells.
    Free,
    /// Rotate each head further, from element `offset` on.
    Rotated {
        /// The RoPE that was applied to it.
        rope: Rope,
        /// Frequency factors of that RoPE.
        factors: Option<Vector>,
        /// Elements before the rotated ones.
        offset: usize,
    },
    /// The key or its value depends on the position in another way, such as learned positions: it cannot be shifted.
    Fixed,
}

/// How a value of the graph depends on the positions of its tokens.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Dependence {
    None,
    Rotated { rope: TensorId, offset: usize },
    Other,
}

/// The graph's position inputs: one axis, and all axes.
pub(super) type Positions = [Option<TensorId>; 2];

/// Where the values are stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Values {
    /// In a cache of their own.
    Stored(TensorId),
    /// They are this many leading elements of the keys.
    InKeys(usize),
}

/// What attention with keys `k` and values `v` (or those that are the first elements of keys) has to do to both when positions shift. What a token has seen through attention in earlier
/// layers counts as free of positions: scores of rotated queries and keys depend on distances only.
pub(super) fn key_position(
    g: &Graph,
    positions: Positions,
    k: TensorId,
    v: Values,
    leafs: &[Option<TensorId>],
) -> KeyPosition {
    let n = match v {
        Values::Stored(v) => k.index().max(v.index()) + 1,
        Values::InKeys(_) => k.index() + 1,
    };
    let mut known = Vec::with_capacity(n);
    for index in 0..n {
        let id = TensorId(index as u32);
        known.push(if positions.contains(&Some(id)) {
            Dependence::Other
        } else {
            dependence(g, id, positions, &known)
        });
    }
    let of_values = match (v, known[k.index()]) {
        (Values::Stored(v), _) => known[v.index()],
        (Values::InKeys(n), Dependence::Rotated { offset, .. }) if offset >= n => Dependence::None,
        (Values::InKeys(_), of_keys) => of_keys,
    };
    match (known[k.index()], of_values) {
        (Dependence::None, Dependence::None) => KeyPosition::Free,
        (Dependence::Rotated { rope, offset }, Dependence::None) => rotation(g, rope, offset, leafs),
        _ => KeyPosition::Fixed,
    }
}

/// The rotation of a node, if its factors are a weight.
fn rotation(g: &Graph, node: TensorId, offset: usize, leafs: &[Option<TensorId>]) -> KeyPosition {
    let t = g.tensor(node);
    let Op::Rope(rope) = t.op else {
        return KeyPosition::Fixed;
    };
    let weight = |f: TensorId| {
        leafs
            .iter()
            .position(|&l| l == Some(f))
            .map(|i| Vector(WeightId(i as u32)))
    };
    let factors = t.src[2].map(weight);
    match factors {
        Some(None) => KeyPosition::Fixed,
        factors => KeyPosition::Rotated {
            rope,
            factors: factors.flatten(),
            offset,
        },
    }
}

/// How a node depends on positions, given how its operands do.
fn dependence(g: &Graph, id: TensorId, positions: Positions, known: &[Dependence]) -> Dependence {
    let t = g.tensor(id);
    let of = |i: usize| t.src[i].map_or(Dependence::None, |s| known[s.index()]);
    match t.op {
        Op::Attention(_) => Dependence::None,
        Op::Rope(rope) => match of(0) {
            Dependence::None if rope.every == 1 && !rope.inverse && positions.contains(&t.src[1]) => {
                Dependence::Rotated { rope: id, offset: 0 }
            }
            _ => Dependence::Other,
        },
        Op::Concat { dim: 0 } => match (of(0), of(1)) {
            (Dependence::None, Dependence::Rotated { rope, offset }) => Dependence::Rotated {
                rope,
                offset: g.tensor(t.source(0)).ne[0] + offset,
            },
            (rotated @ Dependence::Rotated { .. }, Dependence::None) => rotated,
            (Dependence::None, Dependence::None) => Dependence::None,
            _ => Dependence::Other,
        },
        // These keep heads unchanged or commute with rotations.
        Op::Cont | Op::Repeat | Op::Reshape | Op::View | Op::Permute if keeps_heads(g, t) => of(0),
        Op::Scale { bias: 0.0, .. } | Op::L2Norm { .. } => of(0),
        Op::RmsNorm { .. } if t.src[1].is_none() => of(0),
        _ if t.sources().all(|s| known[s.index()] == Dependence::None) => Dependence::None,
        _ => Dependence::Other,
    }
}

/// True if dimension 0 of the result is dimension 0 of the operand, whole.
fn keeps_heads(g: &Graph, t: &Tensor) -> bool {
    let x = g.tensor(t.source(0));
    t.ne[0] == x.ne[0] && t.nb[0] == x.nb[0]
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use super::*;
    use crate::graph::{ROPE_AXES, RopeKind};

    const ROPE: Rope = Rope {
        kind: RopeKind::Neox,
        sections: [0; ROPE_AXES],
        n_dims: 4,
        freq_base: 1e4,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        n_ctx_orig: 64,
        every: 1,
        inverse: false,
    };

    /// `[8, 2, 3]` keys and values, positions, and what `make` makes of the keys.
    fn of(make: impl Fn(&mut Graph, TensorId, TensorId) -> TensorId) -> KeyPosition {
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, [8, 2, 3, 1], "x");
        let p = g.input(GgmlType::I32, [3, 1, 1, 1], "positions");
        let k = make(&mut g, x, p);
        key_position(&g, [Some(p), None], k, Values::Stored(x), &[])
    }

    fn offset(position: KeyPosition) -> Option<usize> {
        match position {
            KeyPosition::Rotated { offset, .. } => Some(offset),
            _ => None,
        }
    }

    #[test]
    fn rotations_are_found() {
        assert_eq!(of(|_, x, _| x), KeyPosition::Free);
        assert_eq!(offset(of(|g, x, p| g.rope(x, p, None, ROPE).unwrap())), Some(0));
        // A scale and a norm without weights change nothing about it, a norm with weights does.
        let after = |weight: bool| {
            of(|g, x, p| {
                let w = g.input(GgmlType::F32, [8, 1, 1, 1], "w");
                let y = g.rope(x, p, None, ROPE).unwrap();
                let y = g.scale(y, 2.0, 0.0).unwrap();
                g.rms_norm(y, weight.then_some(w), 1e-5).unwrap()
            })
        };
        assert_eq!(offset(after(false)), Some(0));
        assert_eq!(after(true), KeyPosition::Fixed);
    }

    #[test]
    fn parts_of_heads_are_found() {
        let parts = |rotated_first: bool| {
            of(|g, x, p| {
                let (a, b) = (g.slice(x, 0, 4).unwrap(), g.slice(x, 4, 8).unwrap());
                let a = g.cont(a, [4, 2, 3, 1]).unwrap();
                let a = g.rope(a, p, None, ROPE).unwrap();
                let (a, b) = if rotated_first { (a, b) } else { (b, a) };
                g.concat(a, b, 0).unwrap()
            })
        };
        assert_eq!(offset(parts(true)), Some(0));
        assert_eq!(offset(parts(false)), Some(4));
        // Half of a rotated head is not known to be rotated.
        let half = of(|g, x, p| {
            let y = g.rope(x, p, None, ROPE).unwrap();
            g.slice(y, 0, 4).unwrap()
        });
        assert_eq!(half, KeyPosition::Fixed);
    }

    #[test]
    fn other_uses_of_positions_are_told_apart() {
        let learned = of(|g, x, p| {
            let table = g.input(GgmlType::F32, [8, 9, 1, 1], "table");
            let rows = g.get_rows(table, p).unwrap();
            let rows = g.reshape(rows, [8, 1, 3, 1]).unwrap();
            g.add(x, rows).unwrap()
        });
        assert_eq!(learned, KeyPosition::Fixed);
        let twice = of(|g, x, p| {
            let y = g.rope(x, p, None, ROPE).unwrap();
            g.rope(y, p, None, ROPE).unwrap()
        });
        assert_eq!(twice, KeyPosition::Fixed);
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, [8, 2, 3, 1], "x");
        let p = g.input(GgmlType::I32, [3, 1, 1, 1], "positions");
        let v = g.rope(x, p, None, ROPE).unwrap();
        assert_eq!(
            key_position(&g, [Some(p), None], x, Values::Stored(v), &[]),
            KeyPosition::Fixed,
            "values"
        );
        let k = g.concat(x, v, 0).unwrap();
        let with = |n| key_position(&g, [Some(p), None], k, Values::InKeys(n), &[]);
        assert_eq!(offset(with(8)), Some(8));
        assert_eq!(with(9), KeyPosition::Fixed, "values with a rotated part");
    }
}
