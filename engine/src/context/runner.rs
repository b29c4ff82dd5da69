//! Graph execution: scheduler with backends and buffers, cached graphs, and the transfer of inputs and
//! results.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::backend::{BackendParams, BufferRef, MemoryMap, PendingRead, Profile, Usage};
use crate::builder::BuildParams;
use crate::graph::{BufferId, Graph, TensorId};
use crate::model::Model;
use crate::sched::{Observer, SchedError, SchedParams, Scheduler};

use super::graphs::{BuiltGraph, GraphCache, GraphSource};
use super::inputs::{InputWriter, Staging, Ubatch};
use super::padding::runs_on_gpus;
use super::{ContextError, ContextParams, DecodeError};

/// Builds and computes graphs.
pub(super) struct GraphRunner {
    sched: Scheduler,
    graphs: GraphCache,
    staging: Staging,
    profile: Option<Profile>,
}

impl GraphRunner {
    /// Creates a runner on the model's devices, with the CPU last. The buffers of the model are registered
    /// first, so that the buffer ids of its weights stay valid.
    pub fn new(model: &Model, params: &ContextParams) -> Result<GraphRunner, ContextError> {
        let backend_params = BackendParams {
            n_threads: params.n_threads,
            n_threads_batch: params.n_threads_batch,
            thread_pool: params.thread_pool.clone(),
            precision: params.precision,
            profile: params.profile.clone(),
        };
        let devices = &model.placement().devices;
        let backends = devices
            .iter()
            .map(|d| d.clone().backend(&backend_params))
            .collect::<Result<_, _>>()?;
        let sched_params = SchedParams {
            op_offload: model.placement().offloads_ops(),
        };
        let mut sched = Scheduler::new(backends, MemoryMap::default(), sched_params)?;
        for (i, buffer) in model.buffers().iter().enumerate() {
            let id = sched.register_buffer(buffer.clone(), Usage::Weights);
            assert_eq!(
                id,
                BufferId(i as u32),
                "weight leaves refer to the model's buffers by index"
            );
        }
        Ok(GraphRunner {
            sched,
            graphs: GraphCache::new(runs_on_gpus(model)),
            staging: Staging::default(),
            profile: params.profile.clone(),
        })
    }

    /// Registers a buffer for use by graphs.
    pub fn register_buffer(&mut self, buffer: impl Into<BufferRef>, usage: Usage) -> BufferId {
        self.sched.register_buffer(buffer, usage)
    }

    /// Returns all buffers used by graphs. Only modify them after [`GraphRunner::synchronize`].
    pub fn buffers_mut(&mut self) -> &mut MemoryMap {
        &mut self.sched.memory
    }

    /// Returns the size of the compute buffers in bytes.
    pub fn n_bytes(&self) -> usize {
        self.sched.reserve_sizes().iter().sum()
    }

    /// Sets an observer for the nodes of every graph.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.sched.set_observer(observer);
    }

    /// Sets a cancellation flag for computations.
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.sched.set_cancel(flag);
    }

    /// Waits for all pending computations.
    pub fn synchronize(&mut self) -> Result<(), SchedError> {
        self.sched.synchronize()
    }

    /// Reserves memory for graphs of these sizes and drops all cached graphs. The last sizes should be the
    /// largest.
    pub fn reserve(&mut self, source: GraphSource<'_>, sizes: &[BuildParams]) -> Result<(), ContextError> {
        for place in self.graphs.reserved() {
            for &params in sizes {
                place.build(source, params)?;
                self.sched.reserve(&mut place.graph)?;
                self.sched.alloc_graph(&mut place.graph)?;
            }
        }
        self.graphs.forget();
        Ok(())
    }

    /// Reserves memory for the inputs of ubatches of `n_tokens` tokens in `n_seqs` sequences over lists of
    /// `n_cells` cells.
    pub fn reserve_inputs(&mut self, n_tokens: usize, n_seqs: usize, n_cells: usize) {
        self.staging.reserve(n_tokens, n_seqs, n_cells);
    }

    /// Reserves memory for the inputs of ubatches of `n_tokens` tokens with media rows of `width` values.
    pub fn reserve_media(&mut self, n_tokens: usize, width: usize) {
        self.staging.reserve_media(n_tokens, width);
    }

    /// Prepares the graph for these sizes, which is built unless it is cached.
    pub fn prepare(&mut self, source: GraphSource<'_>, params: BuildParams) -> Result<PreparedGraph<'_>, DecodeError> {
        let (graphs, sched) = (&mut self.graphs, &mut self.sched);
        let was_built = timed(self.profile.as_ref(), "graph", || {
            let built = graphs.choose(source, params)?;
            sched.alloc_graph(&mut graphs.current_mut().graph)?;
            Ok::<bool, DecodeError>(built)
        })?;
        Ok(PreparedGraph {
            runner: self,
            was_built,
        })
    }

    /// Computes a temporary graph with these inputs, in the compute buffers shared with all graphs. The next
    /// graph must be prepared again.
    pub fn run_once(&mut self, graph: &mut Graph, inputs: &[(TensorId, &[u8])]) -> Result<(), SchedError> {
        self.sched.alloc_graph(graph)?;
        for &(id, values) in inputs {
            self.sched.set_input(graph, id, values)?;
        }
        self.sched.compute(graph)
    }
}

/// Graph that is allocated and can be computed once.
pub(super) struct PreparedGraph<'a> {
    runner: &'a mut GraphRunner,
    /// Whether the graph was built, and not found in the cache.
    pub was_built: bool,
}

impl<'a> PreparedGraph<'a> {
    /// Fills the inputs and computes the graph.
    pub fn run(self, ubatch: Ubatch<'_>, n_threads: usize) -> Result<ComputedGraph<'a>, SchedError> {
        let runner = self.runner;
        let BuiltGraph { graph, inputs, .. } = runner.graphs.current();
        runner.sched.set_threads(n_threads);
        let mut writer = InputWriter {
            sched: &mut runner.sched,
            graph,
            staging: &mut runner.staging,
        };
        timed(runner.profile.as_ref(), "inputs", || writer.write(inputs, ubatch))?;
        runner.sched.compute(graph)?;
        Ok(ComputedGraph { runner })
    }
}

/// Graph that was computed. Its results can be read until the next graph is prepared.
pub(super) struct ComputedGraph<'a> {
    runner: &'a mut GraphRunner,
}

impl ComputedGraph<'_> {
    /// Returns the row width of the result; `None` without a result.
    pub fn result_width(&self) -> Option<usize> {
        let BuiltGraph { graph, result, .. } = self.runner.graphs.current();
        Some(graph.tensor((*result)?).ne[0])
    }

    /// Reads the leading rows of the result. Returns a pending read if the transfer is asynchronous.
    pub fn read_result(&mut self, rows: &mut [f32]) -> Result<Option<Box<dyn PendingRead>>, SchedError> {
        self.read(self.runner.graphs.current().result, 0, rows)
    }

    /// Reads the leading hidden states to `rows`, `[n_embd, n]`. Returns a pending read if the transfer is
    /// asynchronous.
    pub fn read_hidden(&mut self, rows: &mut [f32]) -> Result<Option<Box<dyn PendingRead>>, SchedError> {
        self.read(self.runner.graphs.current().hidden, 0, rows)
    }

    /// Reads one row of the result. Returns a pending read if the transfer is asynchronous.
    pub fn read_result_row(
        &mut self,
        row: usize,
        values: &mut [f32],
    ) -> Result<Option<Box<dyn PendingRead>>, SchedError> {
        let offset = row * size_of_val(values);
        self.read(self.runner.graphs.current().result, offset, values)
    }

    /// Starts a search for the `k` largest values of each of the leading rows of the result. Returns `None` if the
    /// device does not support this.
    pub fn read_best(&mut self, n_rows: usize, k: usize) -> Result<Option<Box<dyn PendingRead>>, SchedError> {
        let GraphRunner {
            sched, graphs, profile, ..
        } = &mut *self.runner;
        let BuiltGraph { graph, result, .. } = graphs.current();
        let Some(result) = *result else { return Ok(None) };
        timed(profile.as_ref(), "results", || {
            sched.read_best_async(graph, result, n_rows, k)
        })
    }

    fn read(
        &mut self,
        from: Option<TensorId>,
        offset: usize,
        rows: &mut [f32],
    ) -> Result<Option<Box<dyn PendingRead>>, SchedError> {
        let Some(from) = from else { return Ok(None) };
        let GraphRunner {
            sched, graphs, profile, ..
        } = &mut *self.runner;
        let graph = &graphs.current().graph;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(rows);
        timed(profile.as_ref(), "results", || {
            let pending = sched.read_tensor_async(graph, from, offset, bytes.len())?;
            if pending.is_none() {
                sched.read_tensor(graph, from, offset, bytes)?;
            }
            Ok(pending)
        })
    }
}

/// Runs `work` and records its time in the profile, if present.
fn timed<T>(profile: Option<&Profile>, name: &'static str, work: impl FnOnce() -> T) -> T {
    match profile {
        Some(profile) => profile.during(name, work),
        None => work(),
    }
}
