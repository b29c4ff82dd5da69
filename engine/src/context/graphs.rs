//! A small cache of built graphs, so that prompt processing and decode steps that alternate, or several numbers of tokens that do,
//! build nothing.

use crate::builder::{Adaptation, BuildError, BuildParams, BuildTables, Builder, CacheView, GraphPart, Inputs, PoolView};
use crate::graph::{Graph, TensorId};
use crate::model::Model;

/// Graphs that are kept. Each has tables for the largest graph, so that building any graph in any place takes no memory.
const N_GRAPHS: usize = 5;

/// What graphs are built from, apart from sizes.
#[derive(Clone, Copy)]
pub(super) struct GraphSource<'a> {
    pub model: &'a Model,
    pub view: &'a CacheView,
    pub adaptation: &'a Adaptation,
}

/// A graph, where its inputs and its result are, and what it was built for.
#[derive(Default)]
pub(super) struct BuiltGraph {
    pub graph: Graph,
    pub inputs: Inputs,
    pub result: Option<TensorId>,
    pub hidden: Option<TensorId>,
    /// For building.
    tables: BuildTables,
    /// What it was built for, along with `pools`; `None` if it is stale.
    params: Option<BuildParams>,
    pools: Vec<PoolView>,
    last_used: u64,
}

/// Built graphs, of which the one that was not used for longest gives way to a new one.
pub(super) struct GraphCache {
    graphs: Vec<BuiltGraph>,
    current: usize,
    n_uses: u64,
}

impl GraphCache {
    /// A cache of no graphs.
    pub fn new() -> GraphCache {
        GraphCache {
            graphs: (0..N_GRAPHS).map(|_| BuiltGraph::default()).collect(),
            current: 0,
            n_uses: 0,
        }
    }

    /// The graph chosen last.
    pub fn current(&self) -> &BuiltGraph {
        &self.graphs[self.current]
    }

    /// The same, for the scheduler to place.
    pub fn current_mut(&mut self) -> &mut BuiltGraph {
        &mut self.graphs[self.current]
    }

    /// The place of every graph, to have its tables grow.
    pub fn places(&mut self) -> impl Iterator<Item = &mut BuiltGraph> {
        self.graphs.iter_mut()
    }

    /// Chooses the graph of these sizes, building it if there is none; true if it was built.
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
    /// The graph of these sizes, in place of the one before.
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
        (self.result, self.hidden) = if is_encoder {
            (model.encode(&mut b).map(|result| b.output(result)), None)
        } else {
            let built = model.build(&mut b);
            (Some(built.result), built.hidden)
        };
        b.finish()?;
        self.params = Some(params);
        self.pools.clear();
        self.pools.extend_from_slice(&view.pools);
        Ok(())
    }

    /// Makes the graph stale: what it was built from has changed otherwise than in size.
    pub fn forget(&mut self) {
        self.params = None;
    }

    /// Slots and states of the memory are the same as long as a context lives: pools alone differ in how much of them is seen.
    fn is_for(&self, view: &CacheView, params: &BuildParams) -> bool {
        self.params.as_ref() == Some(params) && self.pools == view.pools
    }
}
