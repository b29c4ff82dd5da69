//! Executes a plan: the threads compute the nodes of each phase together and wait for each other between
//! phases.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::activations::{QuantizedRows, RowSource, Storage};
use super::error::{NAME, error};
use super::ops::gated::{Products, matmul_glu};
use super::ops::mul_mat::matmul_add;
use super::ops::norm::{RmsNorm, Sum, add_rms_norm};
use super::ops::{self, KernelError, NodeExit, Task};
use super::phases::{Abandoned, Chunk};
use super::plan::{CpuPlan, Fusion, NodePart, Phase, PlannedNode};
use super::planner::Planner;
use super::pool::{Stopped, ThreadPool, Worker};
use super::queue::{WorkQueue, WorkShare};
use super::scratch::{Parts, Scratch};
use super::weight_prefetch::Cursor;
use crate::backend::profile::RunTimer;
use crate::backend::{Activity, Backend, BackendError, BackendParams, Device, GraphView, MemoryMap, Plan, Profile};
use crate::graph::{Graph, Op, TensorId};

/// Profiler activity: waiting at a barrier.
const WAIT: Activity = Activity {
    name: "wait",
    weights: None,
};

/// Profiler activity: quantizing the activations of a matmul.
const QUANTIZE: Activity = Activity {
    name: "quantize",
    weights: None,
};

/// Recomputing an RMS norm and quantizing its result.
const NORM_QUANTIZE: Activity = Activity {
    name: "rms_norm + quantize",
    weights: None,
};

/// The CPU backend: a thread pool and scratch memory.
pub(super) struct CpuBackend {
    device: Arc<dyn Device>,
    pool: Arc<ThreadPool>,
    n_threads: usize,
    scratch: Scratch,
    /// Scratch memory for quantized activations.
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
        let homes = pool.homes().clone();
        Ok(CpuBackend {
            device,
            n_threads: params.n_threads.clamp(1, pool.n_threads()),
            pool,
            scratch: Scratch::new(homes.clone(), false),
            quantized: Scratch::new(homes.clone(), true),
            planner: Planner::new(params.precision, homes.n_nodes()),
            profile: params.profile.clone(),
        })
    }

    fn ensure_scratch(&mut self, plan: &CpuPlan) -> Result<(), BackendError> {
        let n_threads = self.pool.n_threads();
        for (scratch, scratch_size) in [
            (&mut self.scratch, plan.scratch_size),
            (&mut self.quantized, plan.quantized_scratch_size),
        ] {
            if !scratch.ensure(scratch_size) {
                return Err(BackendError::OutOfMemory {
                    buffer_type: "CPU".to_string(),
                    bytes: scratch_size
                        .per_thread
                        .saturating_mul(n_threads)
                        .saturating_add(scratch_size.shared)
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
        self.planner.plan(&mut plan, view, memory, self.pool.groups())?;
        self.ensure_scratch(&plan)?;
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
        // `prepare` has already allocated the memory, unless another backend prepared the plan.
        self.ensure_scratch(plan)?;
        plan.start();
        let walk = PlanRun {
            graph,
            plan,
            parts: self.scratch.parts(),
            quantized: self.quantized.parts(),
            fault: Mutex::new(None),
            profile: self.profile.as_ref(),
        };
        let done = self.pool.run(self.n_threads, cancel, &|worker| walk.walk(worker));
        let fault = walk.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (done, fault) {
            (Ok(()), _) => Ok(()),
            (Err(Stopped::Panicked(said)), _) => Err(error(format!("a worker thread panicked: {said}"))),
            (Err(Stopped::Abandoned), Some((id, fault))) => Err(error(format!("{}: {fault}", graph.tensor(id).name))),
            (Err(Stopped::Abandoned), None) => Err(BackendError::Cancelled),
        }
    }

    fn set_threads(&mut self, n_threads: usize) {
        self.n_threads = n_threads.clamp(1, self.pool.n_threads());
    }
}

/// State that all threads share while they execute a plan.
struct PlanRun<'a> {
    graph: &'a Graph,
    plan: &'a CpuPlan,
    parts: Parts<'a>,
    quantized: Parts<'a>,
    /// The first error that a thread reported.
    fault: Mutex<Option<(TensorId, KernelError)>>,
    profile: Option<&'a Profile>,
}

/// State of a thread that executes a plan.
struct Thread<'a> {
    worker: Worker<'a>,
    /// Version of the quantized activations in this thread's scratch buffer.
    activations: Option<u32>,
    ahead: Cursor,
    watch: Option<RunTimer<'a>>,
}

impl Thread<'_> {
    fn done(&mut self, activity: Activity) {
        if let Some(watch) = &mut self.watch {
            watch.done(activity);
        }
    }
}

/// Reason why a thread stops working on a phase.
enum PhaseEnd {
    /// All work of the phase has been taken.
    Nothing,
    /// Another thread has stolen the rest of this thread's work.
    Stolen,
}

impl PlanRun<'_> {
    fn walk(&self, worker: Worker<'_>) -> Result<(), Abandoned> {
        let mut thread = Thread {
            worker,
            activations: None,
            ahead: Cursor::default(),
            watch: match self.profile {
                Some(profile) if worker.ith == 0 => Some(profile.watch()),
                _ => None,
            },
        };
        let share = WorkShare {
            ith: worker.ith,
            nth: worker.nth,
        };
        let mut place = worker.enter()?;
        while let Some(phase) = self.plan.phases.get(place.membership.phase) {
            let end = self.phase(phase, place.membership.counter, place.piece, &mut thread)?;
            place = match end {
                PhaseEnd::Nothing => {
                    let phase = place.membership.phase;
                    let mut ahead = self.plan.ahead.after(phase, &mut thread.ahead, share);
                    worker.next(place.membership, || ahead.fetch_some())?
                }
                PhaseEnd::Stolen => worker.enter()?,
            };
            thread.done(WAIT);
        }
        Ok(())
    }

    /// Computes this thread's part of a phase, starting at `piece` if that was stolen from another thread.
    /// `counter` counts the thread; see [`Membership`](super::phases::Membership).
    fn phase(
        &self,
        phase: &Phase,
        counter: u8,
        piece: Option<Chunk>,
        thread: &mut Thread<'_>,
    ) -> Result<PhaseEnd, Abandoned> {
        let mut solo = piece.as_ref().is_some_and(|piece| piece.solo);
        let mut at = piece.as_ref().map_or(phase.nodes.start, |piece| piece.node);
        let mut piece = piece.map(|piece| piece.range);
        while at < phase.nodes.end {
            thread.worker.check()?;
            let node = &self.plan.nodes[at];
            if !node.solo || solo || phase.take_solo() {
                solo |= node.solo;
                let template = Chunk {
                    node: at,
                    range: 0..0,
                    solo,
                    counter,
                };
                let queue = self.queue(template, piece.take(), thread.worker);
                match self.node(at, &queue, thread) {
                    Ok(()) => {}
                    Err(NodeExit::Stolen) => return Ok(PhaseEnd::Stolen),
                    Err(NodeExit::Abandoned) => return Err(Abandoned),
                    Err(NodeExit::KernelError(fault)) => {
                        let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert((node.memory.id, fault));
                        return Err(thread.worker.abandon());
                    }
                }
                thread.done(self.activity(node));
            }
            at += node.fusion.map_or(1, |fusion| fusion.n_nodes());
        }
        Ok(PhaseEnd::Nothing)
    }

    /// Returns the work queue of a node, with an optional first range to compute. `chunk` is the template for chunks
    /// to offer.
    fn queue<'a>(&'a self, chunk: Chunk, first: Option<std::ops::Range<usize>>, worker: Worker<'a>) -> WorkQueue<'a> {
        let node = &self.plan.nodes[chunk.node];
        WorkQueue {
            taken: self.plan.taken.of(chunk.node),
            worker,
            nth: if node.solo { 1 } else { worker.nth },
            offered: if node.offers && worker.nth > 1 {
                Some(chunk)
            } else {
                None
            },
            first: Cell::new(first),
        }
    }

    fn activity(&self, node: &PlannedNode) -> Activity {
        let tensor = self.graph.tensor(node.memory.id);
        let is_product = matches!(tensor.op, Op::MulMat | Op::MulMatId);
        let name = match (node.fusion, node.part) {
            (_, NodePart::Quantize) => return QUANTIZE,
            (_, NodePart::Merge) => "attention merge",
            (Some(Fusion::AddRmsNorm { .. }), _) => "add + rms_norm",
            (Some(Fusion::MatmulAdd { .. }), _) => "mul_mat + add",
            (Some(Fusion::MatmulGlu { .. }), _) => "mul_mat + glu",
            (None, _) => tensor.op.name(),
        };
        let weights = if is_product {
            Some(self.graph.tensor(tensor.source(0)).ty)
        } else {
            None
        };
        Activity { name, weights }
    }

    /// Computes this thread's part of node `at` and of the nodes fused with it.
    fn node(&self, at: usize, queue: &WorkQueue<'_>, thread: &mut Thread<'_>) -> Result<(), NodeExit> {
        let node = &self.plan.nodes[at];
        if node.part == NodePart::Quantize {
            self.quantize(node, queue, thread);
            return Ok(());
        }
        self.quantize_own(node, thread);
        if node.solo {
            return self.share(at, queue, WorkShare::WHOLE, thread);
        }
        let nth = thread.worker.nth;
        if node.part == NodePart::Merge || ops::takes_pieces(self.graph.tensor(node.memory.id).op) {
            return self.share(at, queue, WorkShare { ith: 0, nth }, thread);
        }
        // Shares are taken from the queue, so that a descheduled thread does not hold up a share.
        while let Some(ith) = queue.take(nth) {
            self.share(at, queue, WorkShare { ith, nth }, thread)?;
        }
        Ok(())
    }

    /// Quantizes this thread's part of the rows into the shared buffer.
    fn quantize(&self, node: &PlannedNode, queue: &WorkQueue<'_>, thread: &Thread<'_>) {
        let Some(quantized) = node.activations else { return };
        // SAFETY: each thread only accesses its own part, and the slice of the previous node has been
        // dropped.
        let scratch = unsafe { self.parts.of_thread(thread.worker.ith) };
        // SAFETY: the planner adds a barrier between this phase and the matmuls that read the rows
        // (`Access::shared_activations`).
        unsafe { quantized.fill_shared(node.memory.source(self.graph, 1), &self.quantized, scratch, queue) }
    }

    /// Quantizes the activations of a matmul into this thread's scratch buffer, unless the buffer already
    /// holds them.
    fn quantize_own(&self, node: &PlannedNode, thread: &mut Thread<'_>) {
        let number = Some(node.activations_number);
        let Some(quantized) = node.activations else { return };
        if quantized.storage != Storage::PerThread || thread.activations == number {
            return;
        }
        let ith = thread.worker.ith;
        // SAFETY: each thread only accesses its own part, and the slice of the previous node has been
        // dropped.
        let scratch = unsafe { self.parts.of_thread(ith) };
        let (norm, stored);
        let (from, activity): (&dyn RowSource, _) = if let Some(i) = node.norm {
            norm = self.norm(i);
            (&norm, NORM_QUANTIZE)
        } else {
            stored = node.memory.source(self.graph, 1);
            (&stored, QUANTIZE)
        };
        // SAFETY: references to this thread's part live as long as its `Task`, and no `Task` exists between
        // nodes.
        unsafe { quantized.fill_own(from, &self.quantized, scratch, ith) };
        thread.activations = number;
        thread.done(activity);
    }

    /// Returns norm `i` of the plan, which every thread recomputes in the phases of the matmuls that read it.
    fn norm(&self, i: usize) -> RmsNorm<'_> {
        let node = &self.plan.norms[i];
        let tensor = self.graph.tensor(node.memory.id);
        let Op::RmsNorm { eps } = tensor.op else {
            unreachable!("the planner only recomputes RMS norms");
        };
        RmsNorm {
            x: node.memory.source(self.graph, 0),
            weight: tensor.src[1].map(|_| node.memory.source(self.graph, 1)),
            eps,
        }
    }

    /// Computes a share of node `at` and of the nodes fused with it.
    fn share(&self, at: usize, queue: &WorkQueue<'_>, share: WorkShare, thread: &Thread<'_>) -> Result<(), NodeExit> {
        let node = &self.plan.nodes[at];
        match node.fusion {
            None => return ops::run(self.task(node, queue, share, thread)),
            Some(Fusion::AddRmsNorm { eps, stores_sum }) => {
                let sum = Sum {
                    a: node.memory.source(self.graph, 0),
                    b: node.memory.source(self.graph, 1),
                    target: if stores_sum {
                        // SAFETY: each thread writes its own rows of both results, which do not overlap
                        // (checked in `FusionContext::add_rms_norm`).
                        Some(unsafe { node.memory.target(self.graph, share) })
                    } else {
                        None
                    },
                };
                let norm = &self.plan.nodes[at + 1];
                add_rms_norm(self.task(norm, queue, share, thread), &sum, eps);
            }
            Some(Fusion::MatmulAdd { other }) => {
                let sum = &self.plan.nodes[at + 1];
                let operands = [node.memory.source(self.graph, 0), sum.memory.source(self.graph, other)];
                let x = self
                    .activations(node, thread)
                    .expect("only matmuls with quantized activations are fused");
                matmul_add(self.task(sum, queue, share, thread), operands, x)?;
            }
            Some(Fusion::MatmulGlu { f, gate_is_first }) => {
                let [gate, up] = if gate_is_first { [0, 1] } else { [1, 0] };
                let weights = |i: usize| self.plan.nodes[at + i].memory.source(self.graph, 0);
                let products = Products {
                    gate: weights(gate),
                    up: weights(up),
                    x: self
                        .activations(node, thread)
                        .expect("only matmuls with quantized activations are fused"),
                    is_skinny: node.activations.is_some_and(|q| q.storage == Storage::PerThread),
                    x_ne: node.memory.source(self.graph, 1).ne(),
                    ids: match self.graph.tensor(node.memory.id).op {
                        Op::MulMatId => Some(node.memory.source(self.graph, 2)),
                        _ => None,
                    },
                };
                return matmul_glu(self.task(&self.plan.nodes[at + 2], queue, share, thread), &products, f);
            }
        }
        Ok(())
    }

    /// Returns the quantized activations of a matmul, or `None` if the matmul reads f32.
    fn activations<'a>(&'a self, node: &'a PlannedNode, thread: &Thread<'a>) -> Option<QuantizedRows<'a>> {
        let quantized = node.activations?;
        let x = node.memory.source(self.graph, 1);
        // SAFETY: a thread quantizes into its own buffer only between tasks. Shared rows and rows stored in
        // place are written in an earlier phase.
        Some(unsafe { quantized.rows(&x, &self.quantized, thread.worker.ith) })
    }

    fn task<'a>(
        &'a self,
        node: &'a PlannedNode,
        queue: &'a WorkQueue<'a>,
        share: WorkShare,
        thread: &Thread<'a>,
    ) -> Task<'a> {
        let ith = thread.worker.ith;
        Task {
            graph: self.graph,
            node: self.graph.tensor(node.memory.id),
            planned: node,
            share,
            queue,
            // SAFETY: each share of a node is taken by one thread, or several threads share the node by
            // disjoint chunks. Earlier accesses to the operands and the result are in earlier phases, and later
            // accesses in later phases. These start only after every thread has left this phase. A thread whose chunk
            // was stolen accesses neither the operands nor the result.
            target: unsafe { node.memory.target(self.graph, share) },
            // SAFETY: each thread only accesses its own part, and the slice of the previous task has been
            // dropped.
            scratch: unsafe { self.parts.of_thread(ith) },
            shared: self.parts.shared(),
            activations: self.activations(node, thread),
        }
    }
}

#[cfg(test)]
mod tests;
