//! Position dependence of cached keys, derived from the graph; determines how a context shift updates the
//! keys.

use crate::graph::{Graph, Op, ROPE_AXES, Rope, Tensor, TensorId};

use super::handles::{Vector, WeightId};

/// Dependence of a cached key on its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyPosition {
    /// Independent of the position. ALiBi and windows use the positions of cells.
    Free,
    /// Rotated by RoPE; a shift rotates each head further, from element `offset`.
    Rotated {
        /// Parameters of the applied RoPE.
        rope: Rope,
        /// Frequency divisors of the applied RoPE.
        factors: Option<Vector>,
        /// Number of elements before the rotated elements.
        offset: usize,
    },
    /// The key or its value depends on the position in a different way, such as learned positions, and cannot be
    /// shifted.
    Fixed,
}

/// Position dependence of a value in the graph.
#[derive(Clone, Copy, PartialEq, Debug)]
enum PositionDependence {
    None,
    Rotated { rope: TensorId, offset: usize },
    Other,
}

/// Position inputs of the graph: single axis, and all axes.
pub(super) type Positions = [Option<TensorId>; 2];

/// Source of the values.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueStorage {
    /// Values are stored in a separate cache.
    Stored(TensorId),
    /// Values are the leading `n` elements of each key head.
    InKeys(usize),
}

/// Returns the position dependence of keys `k` and values `v` of an attention call. Outputs of attention in
/// earlier layers count as independent of positions, because the scores of rotated queries and keys depend
/// only on distances.
pub(super) fn key_position(
    g: &Graph,
    positions: Positions,
    k: TensorId,
    v: ValueStorage,
    leafs: &[Option<TensorId>],
) -> KeyPosition {
    let n = match v {
        ValueStorage::Stored(v) => k.index().max(v.index()) + 1,
        ValueStorage::InKeys(_) => k.index() + 1,
    };
    let mut known = Vec::with_capacity(n);
    for index in 0..n {
        let id = TensorId(index as u32);
        known.push(if positions.contains(&Some(id)) {
            PositionDependence::Other
        } else {
            dependence(g, id, positions, &known)
        });
    }
    let of_values = match (v, known[k.index()]) {
        (ValueStorage::Stored(v), _) => known[v.index()],
        (ValueStorage::InKeys(n), PositionDependence::Rotated { offset, .. }) if offset >= n => {
            PositionDependence::None
        }
        (ValueStorage::InKeys(_), of_keys) => of_keys,
    };
    match (known[k.index()], of_values) {
        (PositionDependence::None, PositionDependence::None) => KeyPosition::Free,
        (PositionDependence::Rotated { rope, offset }, PositionDependence::None) => rotation(g, rope, offset, leafs),
        _ => KeyPosition::Fixed,
    }
}

/// Returns the rotation of a RoPE node whose frequency divisors are a weight. On the fourth axis, positions of images
/// are independent of the position in the sequence. Keys with a section for this axis are therefore fixed.
fn rotation(g: &Graph, node: TensorId, offset: usize, leafs: &[Option<TensorId>]) -> KeyPosition {
    let t = g.tensor(node);
    let Op::Rope(rope) = t.op else {
        return KeyPosition::Fixed;
    };
    if (0..rope.n_dims / 2).any(|pair| rope.axis(pair) == ROPE_AXES - 1) {
        return KeyPosition::Fixed;
    }
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

/// Returns the position dependence of a node, given the dependence of its operands.
fn dependence(g: &Graph, id: TensorId, positions: Positions, known: &[PositionDependence]) -> PositionDependence {
    let t = g.tensor(id);
    let of = |i: usize| t.src[i].map_or(PositionDependence::None, |s| known[s.index()]);
    match t.op {
        Op::Attention(_) => PositionDependence::None,
        Op::Rope(rope) => match of(0) {
            PositionDependence::None if rope.every == 1 && !rope.inverse && positions.contains(&t.src[1]) => {
                PositionDependence::Rotated { rope: id, offset: 0 }
            }
            _ => PositionDependence::Other,
        },
        Op::Concat { dim: 0 } => match (of(0), of(1)) {
            (PositionDependence::None, PositionDependence::Rotated { rope, offset }) => PositionDependence::Rotated {
                rope,
                offset: g.tensor(t.source(0)).ne[0] + offset,
            },
            (rotated @ PositionDependence::Rotated { .. }, PositionDependence::None) => rotated,
            (PositionDependence::None, PositionDependence::None) => PositionDependence::None,
            _ => PositionDependence::Other,
        },
        // These ops keep heads intact or commute with rotations.
        Op::Cont | Op::Repeat | Op::Reshape | Op::View | Op::Permute if keeps_heads(g, t) => of(0),
        Op::Scale { bias: 0.0, .. } | Op::L2Norm { .. } => of(0),
        Op::RmsNorm { .. } if t.src[1].is_none() => of(0),
        _ if t.sources().all(|s| known[s.index()] == PositionDependence::None) => PositionDependence::None,
        _ => PositionDependence::Other,
    }
}

/// Returns true if dimension 0 of the result is the whole dimension 0 of the operand.
fn keeps_heads(g: &Graph, t: &Tensor) -> bool {
    let x = g.tensor(t.source(0));
    t.ne[0] == x.ne[0] && t.nb[0] == x.nb[0]
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use super::*;
    use crate::graph::RopeKind;

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

    /// Returns the position dependence of keys that `make` derives from an input `[8, 2, 3]` and positions.
    fn of(make: impl Fn(&mut Graph, TensorId, TensorId) -> TensorId) -> KeyPosition {
        let mut g = Graph::new();
        let x = g.input(GgmlType::F32, [8, 2, 3, 1], "x");
        let p = g.input(GgmlType::I32, [3, 1, 1, 1], "positions");
        let k = make(&mut g, x, p);
        key_position(&g, [Some(p), None], k, ValueStorage::Stored(x), &[])
    }

    fn offset(position: KeyPosition) -> Option<usize> {
        match position {
            KeyPosition::Rotated { offset, .. } => Some(offset),
            _ => None,
        }
    }

    #[test]
    fn rope_is_recognized_as_rotation() {
        assert_eq!(of(|_, x, _| x), KeyPosition::Free);
        assert_eq!(offset(of(|g, x, p| g.rope(x, p, None, ROPE).unwrap())), Some(0));
        // A scale or a norm without weights commutes with the rotation; a norm with weights does not.
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

    /// Rows of images advance with the text along three axes, and have fixed numbers along the fourth axis of XD-RoPE.
    #[test]
    fn rotation_by_fourth_axis_is_fixed() {
        let of_sections = |sections| {
            let mut g = Graph::new();
            let x = g.input(GgmlType::F32, [8, 2, 3, 1], "x");
            let p = g.input(GgmlType::I32, [3, ROPE_AXES, 1, 1], "axes");
            let rope = Rope {
                kind: RopeKind::Mrope,
                n_dims: 8,
                sections,
                ..ROPE
            };
            let k = g.rope(x, p, None, rope).unwrap();
            key_position(&g, [None, Some(p)], k, ValueStorage::Stored(x), &[])
        };
        assert_eq!(offset(of_sections([2, 1, 1, 0])), Some(0));
        assert_eq!(of_sections([1, 1, 1, 1]), KeyPosition::Fixed);
    }

    #[test]
    fn partial_rotation_keeps_its_offset() {
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
        // A part of a rotated head is not recognized as rotated.
        let half = of(|g, x, p| {
            let y = g.rope(x, p, None, ROPE).unwrap();
            g.slice(y, 0, 4).unwrap()
        });
        assert_eq!(half, KeyPosition::Fixed);
    }

    #[test]
    fn position_use_outside_rope_is_fixed() {
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
            key_position(&g, [Some(p), None], x, ValueStorage::Stored(v), &[]),
            KeyPosition::Fixed,
            "values"
        );
        let k = g.concat(x, v, 0).unwrap();
        let with = |n| key_position(&g, [Some(p), None], k, ValueStorage::InKeys(n), &[]);
        assert_eq!(offset(with(8)), Some(8));
        assert_eq!(with(9), KeyPosition::Fixed, "values with a rotated part");
    }
}
