//! Cross attention: a decoder attends to the encoder output. A separate graph computes the keys and values of the
//! output once.

use kernels::GgmlType;

use crate::graph::{Flags, Name, PAGE, TensorId};

use super::attention::table_inputs;
use super::caches::Cache;
use super::inputs::CellLists;
use super::{AttentionArgs, BuildGraph, Builder, CrossSpec, EncodedInputs, GraphPart};

impl Builder<'_> {
    /// Computes cross attention of `q [dk, n_head, T]` to the encoder output, `k [dk, n_head_kv, T_encoded]`
    /// and `v [dv, n_head_kv, T_encoded]`: `[dv * n_head, T]`. A token attends to all encoded positions of
    /// its sequence. A decoder reads the stored keys and values and does not compute `k` and `v`.
    pub fn cross_attention(&mut self, q: TensorId, k: TensorId, v: TensorId, args: AttentionArgs) -> TensorId {
        let [k, v] = self.cross_rows([k, v]);
        let (n, n_tables) = (self.params.n_encoded, self.n_tables());
        let (g, inputs) = (&mut *self.g, &mut self.inputs.encoded);
        let positions = *inputs
            .positions
            .get_or_insert_with(|| g.input(GgmlType::I32, [n, 1, 1, 1], "encoded_positions"));
        let tables = *inputs
            .tables
            .get_or_insert_with(|| table_inputs(g, n_tables, n.div_ceil(PAGE)));
        let cells = CellLists {
            positions,
            tables,
            compressed_from: None,
        };
        self.attend_to(q, [k, v], cells, AttentionArgs { causal: false, ..args })
    }

    /// Adds the graph that stores the keys and values of all cross attention calls. The other nodes of the main graph
    /// are not computed.
    pub fn store_cross(&mut self, graph: &dyn BuildGraph) {
        graph.build(self);
        self.g.gather();
        let leafs = self.g.leafs();
        let is_read = |id: &TensorId| leafs.contains(id);
        let EncodedInputs { rows, cells, .. } = self.inputs.encoded;
        let mut scales = std::mem::take(&mut self.inputs.adapter_scales);
        scales.iter_mut().for_each(|scale| *scale = scale.filter(is_read));
        self.inputs.clear(0);
        self.inputs.adapter_scales = scales;
        self.inputs.encoded = EncodedInputs {
            rows: rows.filter(is_read),
            cells: cells.filter(is_read),
            ..EncodedInputs::default()
        };
    }

    /// Removes inputs that only the computation of stored keys and values reads.
    pub(super) fn drop_unread_encoded(&mut self) {
        let leafs = self.g.leafs();
        self.inputs.encoded.rows = self.inputs.encoded.rows.filter(|id| leafs.contains(id));
    }

    /// Returns the operands of a call: the stored keys and values, if the context has them.
    fn cross_rows(&mut self, [k, v]: [TensorId; 2]) -> [TensorId; 2] {
        let call = self.n_cross;
        self.n_cross += 1;
        let ne = [k, v].map(|x| self.g.tensor(x).ne);
        let spec = CrossSpec {
            layer: self.layer.unwrap_or(0) as usize,
            k_row: ne[0][0] * ne[0][1],
            v_row: ne[1][0] * ne[1][1],
            n_head_kv: ne[0][1],
        };
        let (slot, n_rows) = match &mut self.cache {
            Cache::Batch => return [k, v],
            Cache::Probe(specs) => {
                specs.cross.push(spec);
                return [k, v];
            }
            Cache::Cells(view) => (view.cross[call], view.n_cross_rows),
        };
        let n = self.params.n_encoded;
        let operands = [
            (k, "cross_k", slot.type_k, slot.k, spec.k_row),
            (v, "cross_v", slot.type_v, slot.v, spec.v_row),
        ];
        operands.map(|(x, base, ty, home, row)| {
            let name = Name {
                base,
                layer: self.layer,
            };
            let stored = self.g.external(ty, [row, n_rows, 1, 1], name, home, Flags::default());
            if self.params.part == GraphPart::Cross {
                self.write_cross(stored, x);
                return x;
            }
            let [head, n_head, ..] = self.g.tensor(x).ne;
            self.heads_of_rows(stored, [head, n_head, n], x)
        })
    }

    /// Appends the write of `x [head, n_head, T_encoded]` to the evaluation order.
    fn write_cross(&mut self, stored: TensorId, x: TensorId) {
        let n = self.params.n_encoded;
        let g = &mut *self.g;
        let cells = *self
            .inputs
            .encoded
            .cells
            .get_or_insert_with(|| g.input(GgmlType::I64, [n, 1, 1, 1], "encoded_cells"));
        let flat = self.merge(x);
        let written = self.g.set_rows(stored, flat, cells);
        let written = self.ok(written, x);
        self.g.expand(written);
    }
}
