//! Cache of built graphs, so that alternating ubatch sizes (such as prefill and decode) do not rebuild them.

use crate::builder::{
    Adaptation, BuildError, BuildParams, BuildTables, Builder, CacheView, GraphPart, Inputs, PoolView,
};
use crate::graph::{Graph, TensorId};
use crate::model::Model;

/// Number of cached graphs with buffers for the largest graph, so that rebuilding never allocates.
const N_RESERVED: usize = 5;

/// Number of cached graphs on GPUs, where a new graph is also recorded. The buffers of further graphs grow when
/// the graphs are built.
const N_RECORDED: usize = 32;

/// Everything a graph is built from, except sizes.
#[derive(Clone, Copy)]
pub(super) struct GraphSource<'a> {
    pub model: &'a Model,
    pub view: &'a CacheView,
    pub adaptation: &'a Adaptation,
}

/// Built graph with its inputs, outputs, and build parameters.
#[derive(Default)]
pub(super) struct BuiltGraph {
    pub graph: Graph,
    pub inputs: Inputs,
    pub result: Option<TensorId>,
    pub hidden: Option<TensorId>,
    /// Buffers that are reused for building graphs.
    tables: BuildTables,
    /// Build parameters, valid together with `pools`; `None` if the graph is stale.
    params: Option<BuildParams>,
    pools: Vec<PoolView>,
    last_used: u64,
}

/// Cache of built graphs with LRU replacement.
pub(super) struct GraphCache {
    graphs: Vec<BuiltGraph>,
    current: usize,
    n_uses: u64,
}

impl GraphCache {
    /// Creates an empty cache, with more graphs if they are recorded.
    pub fn new(are_recorded: bool) -> GraphCache {
        let n = if are_recorded { N_RECORDED } else { N_RESERVED };
        GraphCache {
            graphs: (0..n).map(|_| BuiltGraph::default()).collect(),
            current: 0,
            n_uses: 0,
        }
    }

    /// Returns the selected graph.
    pub fn current(&self) -> &BuiltGraph {
        &self.graphs[self.current]
    }

    /// Returns the selected graph for allocation by the scheduler.
    pub fn current_mut(&mut self) -> &mut BuiltGraph {
        &mut self.graphs[self.current]
    }

    /// Iterates over the cache slots whose buffers are reserved.
    pub fn reserved(&mut self) -> impl Iterator<Item = &mut BuiltGraph> {
        self.graphs.iter_mut().take(N_RESERVED)
    }

    /// Marks all graphs as stale.
    pub fn forget(&mut self) {
        self.graphs.iter_mut().for_each(BuiltGraph::forget);
    }

    /// Selects the graph for these sizes, building it if necessary. Returns true if the graph was built.
    pub fn choose(&mut self, source: GraphSource<'_>, params: BuildParams) -> Result<bool, BuildError> {
        self.n_uses += 1;
        let found = self.graphs.iter().position(|g| g.is_for(source.view, &params));
        self.current = found.unwrap_or_else(|| self.least_recently_used());
        let graph = &mut self.graphs[self.current];
        graph.last_used = self.n_uses;
        if found.is_none() {
            graph.build(source, params)?;
        }
        Ok(found.is_none())
    }

    fn least_recently_used(&self) -> usize {
        let places = 0..self.graphs.len();
        places.min_by_key(|&i| self.graphs[i].last_used).unwrap_or(0)
    }
}

impl BuiltGraph {
    /// Builds a graph for these sizes in this slot.
    pub fn build(&mut self, source: GraphSource<'_>, params: BuildParams) -> Result<(), BuildError> {
        self.params = None;
        let (model, view) = (source.model, source.view);
        let (graph, tables, inputs) = (&mut self.graph, &mut self.tables, &mut self.inputs);
        let is_encoder = params.part == GraphPart::Encoder;
        let b = if is_encoder || model.bidirectional() {
            Builder::over_batch(graph, model.leafs(), tables, inputs, params)
        } else {
            Builder::over_cells(graph, model.leafs(), tables, inputs, params, view)
        };
        let mut b = b.adapted(source.adaptation);
        (self.result, self.hidden) = match params.part {
            GraphPart::Encoder => (model.encode(&mut b).map(|result| b.output(result)), None),
            GraphPart::Cross => {
                model.store_cross(&mut b);
                (None, None)
            }
            GraphPart::Graph | GraphPart::Mtp => {
                let built = model.build(&mut b);
                (Some(built.result), built.hidden)
            }
        };
        b.finish()?;
        self.params = Some(params);
        self.pools.clear();
        self.pools.extend_from_slice(&view.pools);
        Ok(())
    }

    /// Marks the graph as stale.
    fn forget(&mut self) {
        self.params = None;
    }

    /// Slots and states never change during the lifetime of a context; only the number of visible cells per
    /// pool does.
    fn is_for(&self, view: &CacheView, params: &BuildParams) -> bool {
        self.params.as_ref() == Some(params) && self.pools == view.pools
    }
}
