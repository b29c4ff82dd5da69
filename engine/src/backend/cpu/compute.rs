//! Computing a plan: all threads compute each node together and wait for each other before the next where they have to.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::fuse::Fusion;
use super::ops::norm::{Sum, add_rms_norm};
use super::ops::{self, Fault, Stop, Task};
use super::plan::{CpuPlan, Planner};
use super::pool::{Abandoned, Stopped, ThreadPool, Worker};
use super::scratch::{Parts, Scratch};
use super::view::PlannedNode;
use super::{NAME, error};
use crate::backend::{Activity, Backend, BackendError, BackendParams, Device, GraphView, MemoryMap, Plan, Profile};
use crate::graph::{Graph, Op, TensorId};

/// Waiting for other threads.
const WAIT: Activity = Activity {
    name: "wait",
    weights: None,
};

/// Quantizing the activations of products.
const QUANTIZE: Activity = Activity {
    name: "quantize",
    weights: None,
};

/// The CPU's backend: a pool of threads and scratch memory.
pub(super) struct CpuBackend {
    device: Arc<dyn Device>,
    pool: Arc<ThreadPool>,
    n_threads: usize,
    scratch: Scratch,
    /// Quantized activations.
    quantized: Scratch,
    planner: Planner,
    profile: Option<Profile>,
}

impl CpuBackend {
    pub(super) fn new(device: Arc<dyn Device>, params: &BackendParams) -> Result<CpuBackend, BackendError> {
        let pool = match &params.thread_pool {
            Some(pool) => pool.clone(),
            None => Arc::new(ThreadPool::new(params.n_threads.max(params.n_threads_batch))?),
        };
        Ok(CpuBackend {
            device,
            n_threads: params.n_threads.clamp(1, pool.n_threads()),
            pool,
            scratch: Scratch::default(),
            quantized: Scratch::default(),
            planner: Planner::new(params.precision),
            profile: params.profile.clone(),
        })
    }

    fn make_room(&mut self, plan: &CpuPlan) -> Result<(), BackendError> {
        let n_threads = self.pool.n_threads();
        for (scratch, need) in [
            (&mut self.scratch, plan.need),
            (&mut self.quantized, plan.need_quantized),
        ] {
            if !scratch.ensure(n_threads, need.per_thread, need.shared) {
                return Err(BackendError::OutOfMemory {
                    buffer_type: "CPU".to_string(),
                    bytes: need
                        .per_thread
                        .saturating_mul(n_threads)
                        .saturating_add(need.shared)
                        .saturating_mul(size_of::<f32>()),
                });
            }
        }
        Ok(())
    }
}

impl Backend for CpuBackend {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> Result<Box<dyn Plan>, BackendError> {
        let mut plan = <dyn Plan>::recycle::<CpuPlan>(old);
        self.planner.plan(&mut plan, view, memory, self.pool.n_threads())?;
        self.make_room(&plan)?;
        Ok(plan)
    }

    fn run(
        &mut self,
        plan: &mut dyn Plan,
        graph: &Graph,
        memory: &mut MemoryMap,
        cancel: &AtomicBool,
    ) -> Result<(), BackendError> {
        let plan = plan.downcast_mut::<CpuPlan>(NAME)?;
        plan.check_fresh(graph, memory)?;
        // Room is there already unless another backend prepared the plan.
        self.make_room(plan)?;
        plan.nodes.iter_mut().for_each(PlannedNode::start);
        let walk = Walk {
            graph,
            nodes: &plan.nodes,
            parts: self.scratch.parts(),
            quantized: self.quantized.parts(),
            fault: Mutex::new(None),
            profile: self.profile.as_ref(),
        };
        let done = self.pool.run(self.n_threads, cancel, &|worker| walk.walk(worker));
        let fault = walk.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (done, fault) {
            (Ok(()), _) => Ok(()),
            (Err(Stopped::Panicked(said)), _) => Err(error(format!("a thread panicked: {said}"))),
            (Err(Stopped::Abandoned), Some((id, fault))) => Err(error(format!("{}: {fault}", graph.tensor(id).name))),
            (Err(Stopped::Abandoned), None) => Err(BackendError::Cancelled),
        }
    }

    fn set_threads(&mut self, n_threads: usize) {
        self.n_threads = n_threads.clamp(1, self.pool.n_threads());
    }
}

/// What the threads share while they compute.
struct Walk<'a> {
    graph: &'a Graph,
    nodes: &'a [PlannedNode],
    parts: Parts<'a>,
    quantized: Parts<'a>,
    /// The first that was found.
    fault: Mutex<Option<(TensorId, Fault)>>,
    profile: Option<&'a Profile>,
}

impl Walk<'_> {
    fn walk(&self, worker: Worker<'_>) -> Result<(), Abandoned> {
        let mut watch = self.profile.filter(|_| worker.ith == 0).map(Profile::watch);
        let mut rest = self.nodes;
        while let [node, after @ ..] = rest {
            worker.check()?;
            if node.barrier {
                worker.barrier()?;
                if let Some(watch) = &mut watch {
                    watch.done(WAIT);
                }
            }
            let (fused, after) = match (node.fusion, after) {
                (Some(fusion), [second, after @ ..]) => (Some((fusion, second)), after),
                _ => (None, after),
            };
            rest = after;
            if node.solo && worker.ith > 0 {
                continue;
            }
            let worker = if node.solo { worker.alone() } else { worker };
            match fused {
                Some((fusion, second)) => self.compute_fused(fusion, node, second, worker),
                None => self.compute(node, worker)?,
            }
            if let Some(watch) = &mut watch {
                watch.done(self.activity(node));
            }
        }
        Ok(())
    }

    fn activity(&self, node: &PlannedNode) -> Activity {
        let tensor = self.graph.tensor(node.id);
        let is_product = matches!(tensor.op, Op::MulMat | Op::MulMatId);
        let name = match node.fusion {
            _ if node.quantizes => return QUANTIZE,
            Some(Fusion::AddRmsNorm { .. }) => "add + rms_norm",
            None => tensor.op.name(),
        };
        let weights = is_product.then(|| self.graph.tensor(tensor.source(0)).ty);
        Activity { name, weights }
    }

    fn compute(&self, node: &PlannedNode, worker: Worker<'_>) -> Result<(), Abandoned> {
        if node.quantizes {
            self.quantize(node, worker);
            return Ok(());
        }
        match ops::run(self.task(node, worker)) {
            Ok(()) => Ok(()),
            Err(Stop::Abandoned) => Err(Abandoned),
            Err(Stop::Fault(fault)) => {
                let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert((node.id, fault));
                Err(worker.abandon())
            }
        }
    }

    fn quantize(&self, node: &PlannedNode, worker: Worker<'_>) {
        let Some(quantized) = node.activations else { return };
        let x = node.source(self.graph, 1);
        // SAFETY: each thread asks for its own part, and the slice of the node before is gone.
        let scratch = unsafe { self.parts.of_thread(worker.ith) };
        // SAFETY: rows in a thread's own part live as long as its task, and of that one there is none now. Rows that are shared are read by
        // products before this step, which a barrier stands behind, and after it.
        unsafe { quantized.fill(x, &self.quantized, scratch, worker, node.queue(worker)) }
    }

    fn compute_fused(&self, fusion: Fusion, first: &PlannedNode, second: &PlannedNode, worker: Worker<'_>) {
        let Fusion::AddRmsNorm { eps, stores_sum } = fusion;
        let sum = Sum {
            a: first.source(self.graph, 0),
            b: first.source(self.graph, 1),
            // SAFETY: as in `task`; both results lie apart, as found when the nodes were fused.
            target: stores_sum.then(|| unsafe { first.target(self.graph, worker) }),
        };
        add_rms_norm(self.task(second, worker), &sum, eps);
    }

    fn task<'a>(&'a self, node: &'a PlannedNode, worker: Worker<'a>) -> Task<'a> {
        Task {
            graph: self.graph,
            node: self.graph.tensor(node.id),
            planned: node,
            worker,
            queue: node.queue(worker),
            // SAFETY: asked once per thread and node. Threads have waited for each other after all nodes whose operands or results
            // are not to be touched while this one is computed, and will before the next such.
            target: unsafe { node.target(self.graph, worker) },
            // SAFETY: each thread asks for its own part, and the slice of the node before is gone.
            scratch: unsafe { self.parts.of_thread(worker.ith) },
            shared: self.parts.shared(),
            // SAFETY: the next step that quantizes comes after the task, for rows that are shared behind a barrier, and so does the product
            // after the step that quantized its rows.
            activations: node.activations.map(|q| unsafe { q.rows(&self.quantized, worker) }),
        }
    }
}
