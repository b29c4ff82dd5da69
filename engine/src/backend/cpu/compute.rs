//! Walking a graph: all members compute each node together and meet before the next where they have to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::meetings::{Access, Meetings};
use super::ops::{self, Fault, Stop, Task};
use super::pool::{Abandoned, Member, Pool};
use super::scratch::{Parts, Scratch};
use super::view::Step;
use crate::backend::{Backend, BackendError, BackendParams, Device, MemoryMap, rules};
use crate::graph::{Graph, MAX_SRC, Op, TensorId};

/// The CPU's backend: a pool of threads and scratch memory.
pub(super) struct CpuBackend {
    device: Arc<dyn Device>,
    pool: Pool,
    n_threads: usize,
    scratch: Scratch,
    steps: Vec<Step>,
    meetings: Meetings,
    accesses: Vec<Access>,
}

impl CpuBackend {
    pub(super) fn new(device: Arc<dyn Device>, params: &BackendParams) -> Result<CpuBackend, BackendError> {
        let n = params.n_threads.max(params.n_threads_batch);
        let pool = Pool::new(n).map_err(|e| error(format!("cannot start {n} threads: {e}")))?;
        Ok(CpuBackend {
            device,
            pool,
            n_threads: params.n_threads.max(1),
            scratch: Scratch::default(),
            steps: Vec::new(),
            meetings: Meetings::new(),
            // The result, the operands and shared scratch memory.
            accesses: Vec::with_capacity(MAX_SRC + 2),
        })
    }

    /// Checks every node and finds its operands. After this, only numbers of rows and experts can be wrong.
    fn prepare(&mut self, graph: &Graph, nodes: &[TensorId], memory: &MemoryMap) -> Result<(), BackendError> {
        self.expect_steps(nodes.len());
        let mut need = ops::Need::default();
        for &id in nodes {
            if computes_nothing(graph, id) {
                continue;
            }
            ops::check(graph, id).map_err(|_| rules::unsupported(graph, id))?;
            let of_node = ops::need(graph, id, self.n_threads);
            need = need.max(of_node);
            let mut step = Step::new(graph, memory, id, &mut self.accesses)?;
            if of_node.shared > 0 {
                self.accesses.push(Access::SHARED_SCRATCH);
            }
            step.solo = self.n_threads == 1 || ops::is_small(graph, id);
            step.meet = self.n_threads > 1 && self.meetings.before(&self.accesses, step.solo);
            self.steps.push(step);
        }
        self.make_room(need, self.n_threads)
    }

    fn expect_steps(&mut self, n: usize) {
        self.steps.clear();
        self.steps.reserve(n);
        self.meetings.start();
    }

    fn make_room(&mut self, need: ops::Need, n_members: usize) -> Result<(), BackendError> {
        if self.scratch.ensure(n_members, need.per_member, need.shared) {
            return Ok(());
        }
        Err(BackendError::OutOfMemory {
            buffer_type: "CPU".to_string(),
            bytes: need
                .per_member
                .saturating_mul(n_members)
                .saturating_add(need.shared)
                .saturating_mul(4),
        })
    }
}

impl Backend for CpuBackend {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn reserve(&mut self, graph: &Graph, nodes: &[TensorId]) -> Result<(), BackendError> {
        let n = self.pool.len();
        let computed = nodes
            .iter()
            .filter(|&&id| !computes_nothing(graph, id) && ops::check(graph, id).is_ok());
        let need = computed.fold(ops::Need::default(), |need, &id| need.max(ops::need(graph, id, n)));
        self.expect_steps(nodes.len());
        self.make_room(need, n)
    }

    fn compute(&mut self, graph: &Graph, nodes: &[TensorId], memory: &mut MemoryMap) -> Result<(), BackendError> {
        self.prepare(graph, nodes, memory)?;
        let walk = Walk {
            graph,
            steps: &self.steps,
            parts: self.scratch.parts(),
            faulty: AtomicUsize::new(usize::MAX),
            fault: Mutex::new(None),
        };
        let done = self.pool.run(self.n_threads, &|member| walk.walk(member));
        done.map_err(|panic| error(format!("a thread panicked: {panic}")))?;
        let fault = walk.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        match fault {
            None => Ok(()),
            Some((id, fault)) => Err(error(format!("{}: {fault}", graph.tensor(id).name))),
        }
    }

    fn set_threads(&mut self, n_threads: usize) {
        self.n_threads = n_threads.clamp(1, self.pool.len());
    }
}

/// What the members of the team share while they compute.
struct Walk<'a> {
    graph: &'a Graph,
    steps: &'a [Step],
    parts: Parts<'a>,
    /// The first step in which a fault was found. Looked at after meetings and compared with the step before, so that all members
    /// stop at the same meeting: a quick one may find a fault in the next step before a slow one has looked.
    faulty: AtomicUsize,
    fault: Mutex<Option<(TensorId, Fault)>>,
}

impl Walk<'_> {
    fn walk(&self, member: Member<'_>) -> Result<(), Abandoned> {
        for (i, step) in self.steps.iter().enumerate() {
            if step.meet {
                member.meet()?;
                if self.faulty.load(Ordering::Acquire) < i {
                    break;
                }
            }
            if step.solo && member.ith > 0 {
                continue;
            }
            let member = if step.solo { member.alone() } else { member };
            let task = Task {
                graph: self.graph,
                node: self.graph.tensor(step.id),
                step,
                member,
                // SAFETY: asked once per member and step. Members have met after all steps whose operands or results are not
                // to be touched during this one, and will meet before the next such.
                target: unsafe { step.target(self.graph, member) },
                // SAFETY: each member asks for its own part, and the slice of the step before is gone.
                scratch: unsafe { self.parts.member(member.ith) },
                shared: self.parts.shared(),
            };
            match ops::run(task) {
                Ok(()) => {}
                Err(Stop::Abandoned) => return Err(Abandoned),
                Err(Stop::Fault(fault)) => self.report(i, step.id, fault),
            }
        }
        Ok(())
    }

    fn report(&self, i: usize, id: TensorId, fault: Fault) {
        let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some((id, fault));
            self.faulty.store(i, Ordering::Release);
        }
    }
}

fn computes_nothing(graph: &Graph, id: TensorId) -> bool {
    let node = graph.tensor(id);
    node.op == Op::None || node.op.is_view() || node.ne.contains(&0)
}

fn error(message: String) -> BackendError {
    BackendError::Device {
        device: super::NAME.to_string(),
        message,
    }
}
