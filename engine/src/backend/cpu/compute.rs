//! Computing a plan: threads go through its phases, take what they find to do in each, and wait for each other in between.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::activations::{Origin, QuantizedRows, Room};
use super::ahead::Cursor;
use super::fuse::Fusion;
use super::ops::gated::{Products, products_glu};
use super::ops::mul_mat::product_add;
use super::ops::norm::{RmsNorm, Sum, add_rms_norm};
use super::ops::{self, Fault, Stop, Task};
use super::phases::Piece;
use super::plan::{CpuPlan, Phase, Planner};
use super::pool::{Abandoned, Stopped, ThreadPool, Worker};
use super::queue::{Share, WorkQueue};
use super::scratch::{Parts, Scratch};
use super::view::{NodePart, PlannedNode};
use super::{NAME, error};
use crate::backend::profile::Watch;
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

/// Computing the norm of activations, and quantizing it.
const NORM_QUANTIZE: Activity = Activity {
    name: "rms_norm + quantize",
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
        plan.start();
        let walk = Walk {
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
    plan: &'a CpuPlan,
    parts: Parts<'a>,
    quantized: Parts<'a>,
    /// The first that was found.
    fault: Mutex<Option<(TensorId, Fault)>>,
    profile: Option<&'a Profile>,
}

/// A thread on its way through the phases.
struct Thread<'a> {
    worker: Worker<'a>,
    /// Number of the activations that are in the thread's own memory.
    activations: Option<u32>,
    ahead: Cursor,
    watch: Option<Watch<'a>>,
}

impl Thread<'_> {
    fn done(&mut self, activity: Activity) {
        if let Some(watch) = &mut self.watch {
            watch.done(activity);
        }
    }
}

/// How a thread comes to the end of what it does in a phase.
enum End {
    /// Nothing is left to take.
    Nothing,
    /// Its place is another thread's.
    TakenOver,
}

impl Walk<'_> {
    fn walk(&self, worker: Worker<'_>) -> Result<(), Abandoned> {
        let mut thread = Thread {
            worker,
            activations: None,
            ahead: Cursor::default(),
            watch: self.profile.filter(|_| worker.ith == 0).map(Profile::watch),
        };
        let share = Share {
            ith: worker.ith,
            nth: worker.nth,
        };
        let mut place = worker.enter()?;
        while let Some(phase) = self.plan.phases.get(place.phase) {
            let end = self.phase(phase, place.piece, &mut thread)?;
            place = match end {
                End::Nothing => {
                    let mut ahead = self.plan.ahead.after(place.phase, &mut thread.ahead, share);
                    worker.next(place.phase, || ahead.fetch_some())?
                }
                End::TakenOver => worker.enter()?,
            };
            thread.done(WAIT);
        }
        Ok(())
    }

    /// Computes what a phase has for this thread, from the start or from a piece on that was taken over.
    fn phase(&self, phase: &Phase, piece: Option<Piece>, thread: &mut Thread<'_>) -> Result<End, Abandoned> {
        let mut solo = piece.as_ref().is_some_and(|piece| piece.solo);
        let mut at = piece.as_ref().map_or(phase.nodes.start, |piece| piece.node);
        let mut piece = piece.map(|piece| piece.range);
        while at < phase.nodes.end {
            thread.worker.check()?;
            let node = &self.plan.nodes[at];
            if !node.solo || solo || phase.take_solo() {
                solo |= node.solo;
                let queue = self.queue(at, solo, piece.take(), thread.worker);
                match self.node(at, &queue, thread) {
                    Ok(()) => {}
                    Err(Stop::TakenOver) => return Ok(End::TakenOver),
                    Err(Stop::Abandoned) => return Err(Abandoned),
                    Err(Stop::Fault(fault)) => {
                        let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert((node.id, fault));
                        return Err(thread.worker.abandon());
                    }
                }
                thread.done(self.activity(node));
            }
            at += node.fusion.map_or(1, |fusion| fusion.n_nodes());
        }
        Ok(End::Nothing)
    }

    /// The pieces of work on node `at`, with a piece to begin with. `solo`: this thread computes the small nodes of the phase.
    fn queue<'a>(
        &'a self,
        at: usize,
        solo: bool,
        first: Option<std::ops::Range<usize>>,
        worker: Worker<'a>,
    ) -> WorkQueue<'a> {
        let node = &self.plan.nodes[at];
        let piece = Piece {
            node: at,
            range: 0..0,
            solo,
        };
        WorkQueue {
            taken: self.plan.taken.of(at),
            worker,
            nth: if node.solo { 1 } else { worker.nth },
            offered: (node.offers && worker.nth > 1).then_some(piece),
            first: Cell::new(first),
        }
    }

    fn activity(&self, node: &PlannedNode) -> Activity {
        let tensor = self.graph.tensor(node.id);
        let is_product = matches!(tensor.op, Op::MulMat | Op::MulMatId);
        let name = match (node.fusion, node.part) {
            (_, NodePart::Quantize) => return QUANTIZE,
            (_, NodePart::Merge) => "attention merge",
            (Some(Fusion::AddRmsNorm { .. }), _) => "add + rms_norm",
            (Some(Fusion::ProductAdd { .. }), _) => "mul_mat + add",
            (Some(Fusion::ProductsGlu { .. }), _) => "mul_mat + glu",
            (None, _) => tensor.op.name(),
        };
        let weights = is_product.then(|| self.graph.tensor(tensor.source(0)).ty);
        Activity { name, weights }
    }

    /// Computes what of node `at`, and of one that is fused with it, this thread can take.
    fn node(&self, at: usize, queue: &WorkQueue<'_>, thread: &mut Thread<'_>) -> Result<(), Stop> {
        let node = &self.plan.nodes[at];
        if node.part == NodePart::Quantize {
            self.quantize(node, queue, thread);
            return Ok(());
        }
        self.quantize_own(node, thread);
        if node.solo {
            return self.share(at, queue, Share::WHOLE, thread);
        }
        let nth = thread.worker.nth;
        if node.part == NodePart::Merge || ops::takes_pieces(self.graph.tensor(node.id).op) {
            return self.share(at, queue, Share { ith: 0, nth }, thread);
        }
        // Shares are taken as pieces are: a thread that has no core takes none.
        while let Some(ith) = queue.take(nth) {
            self.share(at, queue, Share { ith, nth }, thread)?;
        }
        Ok(())
    }

    /// Quantizes rows for all threads.
    fn quantize(&self, node: &PlannedNode, queue: &WorkQueue<'_>, thread: &Thread<'_>) {
        let Some(quantized) = node.activations else { return };
        // SAFETY: each thread asks for its own part, and the slice of the node before is gone.
        let scratch = unsafe { self.parts.of_thread(thread.worker.ith) };
        // SAFETY: products read the rows in other phases than this one, as the planner saw to it.
        unsafe { quantized.fill_shared(node.source(self.graph, 1), &self.quantized, scratch, queue) }
    }

    /// Quantizes the activations of a product for this thread alone, unless it has them.
    fn quantize_own(&self, node: &PlannedNode, thread: &mut Thread<'_>) {
        let number = Some(node.activations_number);
        let Some(quantized) = node.activations.filter(|q| q.room == Room::Own) else {
            return;
        };
        if thread.activations == number {
            return;
        }
        let ith = thread.worker.ith;
        // SAFETY: each thread asks for its own part, and the slice of the node before is gone.
        let scratch = unsafe { self.parts.of_thread(ith) };
        let (from, activity) = match node.norm {
            Some(norm) => (Origin::Norm(self.norm(norm)), NORM_QUANTIZE),
            None => (Origin::Stored(node.source(self.graph, 1)), QUANTIZE),
        };
        // SAFETY: rows in a thread's own part live as long as its task, and of that one there is none now.
        unsafe { quantized.fill_own(&from, &self.quantized, scratch, ith) };
        thread.activations = number;
        thread.done(activity);
    }

    /// A norm that every thread computes for itself, in phases of products that read it.
    fn norm(&self, i: usize) -> RmsNorm<'_> {
        let node = &self.plan.norms[i];
        let tensor = self.graph.tensor(node.id);
        let Op::RmsNorm { eps } = tensor.op else {
            unreachable!("of norms only such are computed so");
        };
        RmsNorm {
            x: node.source(self.graph, 0),
            weight: tensor.src[1].map(|_| node.source(self.graph, 1)),
            eps,
        }
    }

    /// Computes a share of a node, and of one that is fused with it.
    fn share(&self, at: usize, queue: &WorkQueue<'_>, share: Share, thread: &Thread<'_>) -> Result<(), Stop> {
        let node = &self.plan.nodes[at];
        match node.fusion {
            None => return ops::run(self.task(node, queue, share, thread)),
            Some(Fusion::AddRmsNorm { eps, stores_sum }) => {
                let sum = Sum {
                    a: node.source(self.graph, 0),
                    b: node.source(self.graph, 1),
                    // SAFETY: as in `task`; both results lie apart, as found when the nodes were fused.
                    target: stores_sum.then(|| unsafe { node.target(self.graph, share) }),
                };
                let norm = &self.plan.nodes[at + 1];
                add_rms_norm(self.task(norm, queue, share, thread), &sum, eps);
            }
            Some(Fusion::ProductAdd { other }) => {
                let sum = &self.plan.nodes[at + 1];
                let operands = [node.source(self.graph, 0), sum.source(self.graph, other)];
                let x = self
                    .activations(node, thread)
                    .expect("products are fused whose activations are quantized");
                product_add(self.task(sum, queue, share, thread), operands, x)?;
            }
            Some(Fusion::ProductsGlu { f, gate_is_first }) => {
                let [gate, up] = if gate_is_first { [0, 1] } else { [1, 0] };
                let weights = |i: usize| self.plan.nodes[at + i].source(self.graph, 0);
                let products = Products {
                    gate: weights(gate),
                    up: weights(up),
                    x: self
                        .activations(node, thread)
                        .expect("products are fused whose activations are quantized"),
                    is_of_few: node.activations.is_some_and(|q| q.room == Room::Own),
                    x_ne: node.source(self.graph, 1).ne(),
                    ids: (self.graph.tensor(node.id).op == Op::MulMatId).then(|| node.source(self.graph, 2)),
                };
                return products_glu(self.task(&self.plan.nodes[at + 2], queue, share, thread), &products, f);
            }
        }
        Ok(())
    }

    /// The activations of a product, if it has them in another form than f32.
    fn activations<'a>(&'a self, node: &'a PlannedNode, thread: &Thread<'a>) -> Option<QuantizedRows<'a>> {
        let quantized = node.activations?;
        let x = node.source(self.graph, 1);
        // SAFETY: the thread quantizes rows of its own between tasks only, and rows that are shared, or stored as the operand, are written in other phases.
        Some(unsafe { quantized.rows(&x, &self.quantized, thread.worker.ith) })
    }

    fn task<'a>(
        &'a self,
        node: &'a PlannedNode,
        queue: &'a WorkQueue<'a>,
        share: Share,
        thread: &Thread<'a>,
    ) -> Task<'a> {
        let ith = thread.worker.ith;
        Task {
            graph: self.graph,
            node: self.graph.tensor(node.id),
            planned: node,
            share,
            queue,
            // SAFETY: asked once per share and node, which one thread takes; or by several threads that share the work on the node by
            // pieces. All that was to be done with its operands and its result before was done in earlier phases, and what comes after is in
            // later ones: those begin when nobody is in this phase any more. A thread whose piece was taken over touches neither.
            target: unsafe { node.target(self.graph, share) },
            // SAFETY: each thread asks for its own part, and the slice of the task before is gone.
            scratch: unsafe { self.parts.of_thread(ith) },
            shared: self.parts.shared(),
            activations: self.activations(node, thread),
        }
    }
}

#[cfg(test)]
mod tests;
