//! What runs graphs: the scheduler with its backends and buffers, the built graph, and the way of inputs and results.

use crate::backend::{BackendParams, Held, MemoryMap, Usage};
use crate::build::{Adaptation, BuildError, BuildParams, Builder, CacheView, Inputs};
use crate::graph::{BufferId, Graph, TensorId};
use crate::model::Model;
use crate::sched::{Observer, SchedError, SchedParams, Scheduler};

use super::inputs::{InputWriter, Staging, Ubatch};
use super::{ContextError, ContextParams, DecodeError};

/// What graphs are built from, apart from sizes.
#[derive(Clone, Copy)]
pub(super) struct GraphSource<'a> {
    pub model: &'a Model,
    pub view: &'a CacheView,
    pub adaptation: &'a Adaptation,
}

/// Builds graphs and computes them; see the module.
pub(super) struct GraphRunner {
    sched: Scheduler,
    built: BuiltGraph,
    staging: Staging,
}

/// The graph of the last ubatch, and what it was built for.
#[derive(Default)]
struct BuiltGraph {
    graph: Graph,
    leafs: Vec<Option<TensorId>>,
    inputs: Inputs,
    result: Option<TensorId>,
    /// `None` after anything that makes the graph stale.
    built_for: Option<(BuildParams, CacheView)>,
}

impl GraphRunner {
    /// A runner on the model's devices in order, the CPU last. The buffers of the model are registered first, so that the homes of
    /// its weights hold.
    pub fn new(model: &Model, params: &ContextParams) -> Result<GraphRunner, ContextError> {
        let backend_params = BackendParams {
            n_threads: params.n_threads,
            n_threads_batch: params.n_threads_batch,
        };
        let devices = &model.placement().devices;
        let backends = devices
            .iter()
            .map(|d| d.clone().backend(&backend_params))
            .collect::<Result<_, _>>()?;
        let mut sched = Scheduler::new(backends, MemoryMap::default(), SchedParams::default())?;
        for (i, buffer) in model.buffers().iter().enumerate() {
            let id = sched.register_buffer(buffer.clone(), Usage::Weights);
            assert_eq!(
                id,
                BufferId(i as u32),
                "the homes of the weights name the model's buffers by position"
            );
        }
        Ok(GraphRunner {
            sched,
            built: BuiltGraph::default(),
            staging: Staging::default(),
        })
    }

    /// Makes a buffer known, so that graphs can use it.
    pub fn register_buffer(&mut self, buffer: impl Into<Held>, usage: Usage) -> BufferId {
        self.sched.register_buffer(buffer, usage)
    }

    /// Every buffer that graphs use, for changing them while nothing is [under way](GraphRunner::synchronize).
    pub fn buffers_mut(&mut self) -> &mut MemoryMap {
        &mut self.sched.memory
    }

    /// Bytes held for intermediate results.
    pub fn n_bytes(&self) -> usize {
        self.sched.reserve_sizes().iter().sum()
    }

    /// Shows the nodes of every graph to an observer.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.sched.set_observer(observer);
    }

    /// Waits until all that was begun is done.
    pub fn synchronize(&mut self) -> Result<(), SchedError> {
        self.sched.synchronize()
    }

    /// Takes memory for the graph of these sizes.
    pub fn reserve(&mut self, source: GraphSource<'_>, params: BuildParams) -> Result<(), ContextError> {
        self.built.build(source, params)?;
        Ok(self.sched.reserve(&mut self.built.graph)?)
    }

    /// Takes memory for the inputs of ubatches of `n_tokens` of `n_seqs` sequences over lists of `n_cells`.
    pub fn reserve_inputs(&mut self, n_tokens: usize, n_seqs: usize, n_cells: usize) {
        self.staging.reserve(n_tokens, n_seqs, n_cells);
    }

    /// Builds and places the graph of these sizes; false if the last one serves.
    pub fn prepare(&mut self, source: GraphSource<'_>, params: BuildParams) -> Result<bool, DecodeError> {
        if self.built.serves(source, &params) {
            return Ok(false);
        }
        self.built.build(source, params)?;
        self.sched.alloc_graph(&mut self.built.graph)?;
        self.built.remember(source, params);
        Ok(true)
    }

    /// Fills the inputs of the prepared graph and computes it.
    pub fn run(&mut self, ubatch: Ubatch<'_>, n_threads: usize) -> Result<(), SchedError> {
        self.sched.set_threads(n_threads);
        let mut writer = InputWriter {
            sched: &mut self.sched,
            graph: &self.built.graph,
            staging: &mut self.staging,
        };
        writer.write(&self.built.inputs, ubatch)?;
        self.sched.compute(&self.built.graph)
    }

    /// Elements of a row of the prepared graph's result; `None` if it has no result.
    pub fn result_width(&self) -> Option<usize> {
        Some(self.built.graph.tensor(self.built.result?).ne[0])
    }

    /// Reads the first rows of the result.
    pub fn read_result(&mut self, rows: &mut [f32]) -> Result<(), SchedError> {
        let Some(result) = self.built.result else {
            return Ok(());
        };
        let bytes = bytemuck::cast_slice_mut(rows);
        self.sched.read_tensor(&self.built.graph, result, 0, bytes)
    }

    /// Computes a graph of the caller's with these inputs. The prepared graph must be prepared again afterwards, since both use the
    /// same memory.
    pub fn run_once(&mut self, graph: &mut Graph, inputs: &[(TensorId, &[u8])]) -> Result<(), SchedError> {
        self.built.built_for = None;
        self.sched.alloc_graph(graph)?;
        for &(id, values) in inputs {
            self.sched.set_input(graph, id, values)?;
        }
        self.sched.compute(graph)
    }
}

impl BuiltGraph {
    fn serves(&self, source: GraphSource<'_>, params: &BuildParams) -> bool {
        let built_for = self.built_for.as_ref();
        built_for.is_some_and(|(p, view)| (p, view) == (params, source.view))
    }

    fn build(&mut self, source: GraphSource<'_>, params: BuildParams) -> Result<(), BuildError> {
        self.built_for = None;
        let (model, view) = (source.model, source.view);
        let (graph, leafs, inputs) = (&mut self.graph, &mut self.leafs, &mut self.inputs);
        let b = if params.encoder || model.bidirectional() {
            Builder::over_batch(graph, model.leafs(), leafs, inputs, params)
        } else {
            Builder::over_cells(graph, model.leafs(), leafs, inputs, params, view)
        };
        let mut b = b.adapted(source.adaptation);
        self.result = if params.encoder {
            model.encode(&mut b).map(|result| b.output(result))
        } else {
            Some(model.build(&mut b))
        };
        b.finish()
    }

    fn remember(&mut self, source: GraphSource<'_>, params: BuildParams) {
        self.built_for = Some((params, source.view.clone()));
    }
}
