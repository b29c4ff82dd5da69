//! The probe: builds the graphs of a model once to determine their requirements.

use std::path::Path;

use crate::builder::{
    BatchMedia, BuildError, BuildGraph, BuildParams, BuildTables, Builder, GraphOutput, GraphPart, Inputs, MemorySpecs,
    RowCount, WeightLeaf,
};
use crate::graph::{BufferId, BufferSlice, Graph, Layout, Name, Op, TensorId, Unary};

use super::placement::PlacementNeeds;
use super::{Architecture, Base, MediaUse, ModelError, TableRow};

/// Builds the graph once without memory to determine its requirements and to validate all shapes.
pub(super) fn probe(
    arch: &'static Architecture,
    base: &Base,
    graph: &dyn BuildGraph,
    rows: &[TableRow],
    path: &Path,
) -> Result<PlacementNeeds, ModelError> {
    let leafs = leafs_of(rows);
    let params = BuildParams {
        causal: !arch.bidirectional,
        ..arch.build_params(base, graph)
    };
    let graph_error = |source| ModelError::Graph {
        path: path.to_owned(),
        source,
    };
    // Also validates the shapes after pooling; models without hidden states only return logits.
    let embedding = GraphOutput::Embedding {
        n_means: 1,
        rank: false,
    };
    let params = BuildParams {
        output: embedding,
        ..params
    };
    match needs(arch, graph, &leafs, params) {
        Ok(_) | Err(BuildError::NoHidden) => {}
        Err(e) => return Err(graph_error(e)),
    }
    let params = BuildParams {
        output: GraphOutput::Result,
        ..params
    };
    let has_mtp = base.n_layer_loaded() > base.n_layer();
    let mut all = total_needs(arch, graph, &leafs, params, has_mtp).map_err(graph_error)?;
    if let Some(rules) = graph.image() {
        let mut of_small = [None; 4];
        for (n_rows, grid) in of_small.iter_mut().zip(RowCount::small_images(&rules)) {
            let n_tokens = rules.n_columns(grid.n_patches());
            let params = BuildParams {
                n_tokens,
                n_outputs: n_tokens,
                n_encoded: n_tokens,
                grid,
                ..params
            };
            *n_rows = needs(arch, graph, &leafs, params).ok().map(|needs| needs.result[1]);
        }
        all.row_count = RowCount::of_graphs(&rules, all.result[1], of_small);
    }
    Ok(all)
}

/// Returns leafs without memory. Nothing is computed, so weights need only shapes.
fn leafs_of(rows: &[TableRow]) -> Vec<WeightLeaf> {
    let nowhere = BufferSlice {
        buffer: BufferId(0),
        offset: 0,
    };
    let leaf = |r: &TableRow| WeightLeaf {
        ty: r.stored_type(),
        ne: r.ne,
        home: nowhere,
        layout: Layout::Plain,
        name: Name {
            base: r.base,
            layer: r.layer,
        },
        parts: Vec::new(),
        value: None,
    };
    rows.iter().map(leaf).collect()
}

/// Returns the elementwise functions that the graph of a model applies, with repetitions. A graph with errors returns
/// none.
pub fn graph_functions(
    arch: &'static Architecture,
    base: &Base,
    graph: &dyn BuildGraph,
    rows: &[TableRow],
) -> Vec<Unary> {
    let params = BuildParams {
        causal: !arch.bidirectional,
        output: GraphOutput::Result,
        ..arch.build_params(base, graph)
    };
    let (mut g, leafs) = (Graph::new(), leafs_of(rows));
    let (mut tables, mut inputs, mut memory) = (BuildTables::default(), Inputs::default(), MemorySpecs::default());
    let mut b = Builder::probe(&mut g, &leafs, &mut tables, &mut inputs, params, &mut memory);
    b.whole(arch.results(), graph);
    if b.finish().is_err() {
        return Vec::new();
    }
    let functions = g.ids().filter_map(|id| match g.tensor(id).op {
        Op::Unary(function) | Op::Glu(function) => Some(function),
        _ => None,
    });
    functions.collect()
}

/// Returns the combined requirements of all graphs of an architecture.
fn total_needs(
    arch: &Architecture,
    graph: &dyn BuildGraph,
    leafs: &[WeightLeaf],
    params: BuildParams,
    has_mtp: bool,
) -> Result<PlacementNeeds, BuildError> {
    let mut all = needs(arch, graph, leafs, params)?;
    // An encoder has no cache but uses weights.
    let encoder = BuildParams {
        part: GraphPart::Encoder,
        causal: false,
        ..params
    };
    all.use_also(&needs(arch, graph, leafs, encoder)?);
    if arch.media_use != MediaUse::None {
        let media = BatchMedia::Some;
        all.use_also(&needs(arch, graph, leafs, BuildParams { media, ..params })?);
    }
    // The KV cache of an MTP layer belongs to a separate context.
    if has_mtp {
        let part = GraphPart::Mtp;
        all.use_also(&needs(arch, graph, leafs, BuildParams { part, ..params })?);
    }
    Ok(all)
}

/// Returns the requirements of a graph; empty for the encoder graph of a model without encoder.
pub(super) fn needs(
    arch: &Architecture,
    graph: &dyn BuildGraph,
    leafs: &[WeightLeaf],
    params: BuildParams,
) -> Result<PlacementNeeds, BuildError> {
    let mut g = Graph::new();
    let (mut tables, mut inputs, mut memory) = (BuildTables::default(), Inputs::default(), MemorySpecs::default());
    let mut b = Builder::probe(&mut g, leafs, &mut tables, &mut inputs, params, &mut memory);
    let result = match params.part {
        GraphPart::Encoder => graph.encode(&mut b),
        GraphPart::Graph | GraphPart::Cross | GraphPart::Mtp => Some(b.whole(arch.results(), graph).result),
    };
    b.finish()?;
    let result = result.map_or([0; 4], |result| g.tensor(result).ne);
    Ok(PlacementNeeds {
        memory,
        max_positions: inputs.max_positions,
        max_side: inputs.max_side,
        max_encoded: inputs.max_encoded,
        frame_width: inputs.frames.map(|frames| g.tensor(frames).ne[0]),
        // A probe creates separate leaves for weights in plain matmuls.
        divisible: tables.leafs.iter().map(Option::is_none).collect(),
        read_by_rows: read_by_rows(&g, &tables.leafs),
        result: [result[0], result[1]],
        row_count: RowCount::fixed(result[1]),
        n_features: inputs.features.iter().map(|&(part, _)| part).max().unwrap_or(0),
    })
}

/// Returns, for every weight, whether only matmuls and row lookups read the weight, as a whole and as their
/// matrix or table. `leafs` has an entry for each weight with uses other than plain matmuls.
fn read_by_rows(g: &Graph, leafs: &[Option<TensorId>]) -> Vec<bool> {
    let mut otherwise = vec![false; g.len()];
    for id in g.ids() {
        let t = g.tensor(id);
        let reads_rows = matches!(t.op, Op::MulMat | Op::MulMatId | Op::GetRows);
        for (i, source) in t.sources().enumerate() {
            // These ops read the rows of their first operand.
            otherwise[source.index()] |= !reads_rows || i != 0;
        }
    }
    leafs
        .iter()
        .map(|leaf| leaf.is_none_or(|leaf| !otherwise[leaf.index()]))
        .collect()
}
