//! What a scheduler keeps of each graph that it prepared.

use std::sync::Weak;

use crate::backend::{Backend, GraphView, MemoryMap, Plan};
use crate::graph::{Graph, TensorId, Uses};

use super::inputs::Place;
use super::split::Splits;
use super::{BackendId, Result};

/// What has to be the same for a schedule to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Prepared {
    /// [`Graph::version`]
    pub graph: u64,
    /// [`MemoryMap::stamp`]
    pub memory: u64,
    /// Goes up when the user assigns a tensor, or takes assignments back.
    pub assignments: u64,
}

/// Where and how one graph is computed. It stays with the graph when that is changed or built anew, for the memory it holds.
#[derive(Default)]
pub(super) struct Schedule {
    /// [`Graph::identity`]
    graph: Weak<()>,
    /// What the graph was when it was prepared, and what it was prepared for.
    prepared: Option<Prepared>,
    pub of: Vec<Option<BackendId>>,
    pub splits: Splits,
    /// By split, and the backend whose plan it is. Those beyond the last split are kept for graphs with more.
    plans: Vec<(BackendId, Option<Box<dyn Plan>>)>,
    /// [`GraphAllocator::plan_number`](crate::alloc::GraphAllocator::plan_number) of the homes of its tensors.
    pub memory_plan: u64,
}

impl Schedule {
    /// The backend of a tensor.
    pub fn backend_of(&self, id: TensorId) -> Option<BackendId> {
        self.of.get(id.index()).copied().flatten()
    }

    /// Where the inputs of its graph lie.
    pub fn inputs_at(&self, graph: &Graph, memory: &MemoryMap) -> Place {
        Place {
            plan: self.memory_plan,
            buffers: memory.stamp(),
            writer: self.splits.writes_leafs().then(|| graph.version()),
        }
    }

    /// Which type of memory the allocator takes for a tensor: that of its backend.
    pub fn type_of(&self) -> impl Fn(TensorId) -> usize + '_ {
        |id| self.of[id.index()].map_or(0, BackendId::index)
    }

    /// True if the graph is prepared, is as it was then, and so is what it was prepared for.
    pub fn is_for(&self, now: Prepared) -> bool {
        self.prepared == Some(now)
    }

    /// Notes what the graph is prepared for; `None`: it is not any more.
    pub fn set_prepared(&mut self, now: Option<Prepared>) {
        self.prepared = now;
    }

    /// Counts the readers of all tensors, copies to other backends among them.
    pub fn count_uses(&self, graph: &Graph, uses: &mut Uses) {
        uses.count(graph, self.splits.inputs.iter().map(|input| input.from));
    }

    /// Has each split's backend prepare it.
    pub fn prepare(
        &mut self,
        graph: &Graph,
        uses: &Uses,
        memory: &MemoryMap,
        backends: &mut [Box<dyn Backend>],
    ) -> Result<()> {
        for (i, split) in self.splits.splits.iter().enumerate() {
            if i == self.plans.len() {
                self.plans.push((split.backend, None));
            }
            let (backend, plan) = &mut self.plans[i];
            let old = plan.take().filter(|_| *backend == split.backend);
            *backend = split.backend;
            let view = GraphView {
                graph,
                nodes: &graph.nodes()[split.nodes.clone()],
                uses,
            };
            *plan = Some(backends[split.backend.index()].prepare(&view, memory, old)?);
        }
        Ok(())
    }

    /// The plan of a split of a prepared graph.
    pub fn plan(&mut self, split: usize) -> Option<&mut dyn Plan> {
        self.plans.get_mut(split)?.1.as_deref_mut()
    }
}

/// The schedules of all graphs that were prepared and exist still.
pub(super) struct Schedules {
    /// At least one, which may be of no graph. Empty where a schedule is taken out.
    all: Vec<Schedule>,
    last: usize,
}

impl Default for Schedules {
    fn default() -> Schedules {
        Schedules {
            all: vec![Schedule::default()],
            last: 0,
        }
    }
}

impl Schedules {
    /// The schedule of a graph, if it was ever prepared.
    pub fn find(&self, graph: &Graph) -> Option<&Schedule> {
        Some(&self.all[self.position(graph)?])
    }

    /// The schedule taken out last.
    pub fn last(&self) -> &Schedule {
        &self.all[self.last]
    }

    /// Takes the schedule of a graph out, a new one if there is none, and makes it the last one.
    pub fn take(&mut self, graph: &Graph) -> Schedule {
        self.last = self.position(graph).unwrap_or_else(|| self.add(graph));
        std::mem::take(&mut self.all[self.last])
    }

    /// Puts back what was taken out last.
    pub fn put_back(&mut self, schedule: Schedule) {
        self.all[self.last] = schedule;
    }

    fn position(&self, graph: &Graph) -> Option<usize> {
        let identity = graph.identity();
        self.all.iter().position(|s| s.graph.ptr_eq(&identity))
    }

    /// Takes over the place of a graph that is gone.
    fn add(&mut self, graph: &Graph) -> usize {
        let gone = self.all.iter().position(|s| s.graph.strong_count() == 0);
        let i = gone.unwrap_or_else(|| {
            self.all.push(Schedule::default());
            self.all.len() - 1
        });
        self.all[i].graph = graph.identity();
        i
    }
}
