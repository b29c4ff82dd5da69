//! The data that a scheduler stores for each prepared graph.

use std::sync::Weak;

use crate::backend::{Backend, GraphView, MemoryMap, Plan};
use crate::graph::{Graph, TensorId, Uses};

use super::inputs::GraphSlot;
use super::split::Splits;
use super::{BackendId, Result};

/// The state for which a schedule is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Prepared {
    /// [`Graph::version`]
    pub graph: u64,
    /// [`MemoryMap::stamp`]
    pub memory: u64,
    /// Counter that is incremented with every change of the user's assignments.
    pub assignments: u64,
}

/// The assignment, splits, and plans of a graph. If the graph is changed or rebuilt, its schedule is reused
/// for its allocated tables.
#[derive(Default)]
pub(super) struct Schedule {
    /// [`Graph::identity`]
    graph: Weak<()>,
    /// The state for which the graph was prepared.
    prepared: Option<Prepared>,
    pub of: Vec<Option<BackendId>>,
    pub splits: Splits,
    /// Plans by split, with the backend of each plan. Plans beyond the last split are retained for graphs
    /// with more splits.
    plans: Vec<(BackendId, Option<Box<dyn Plan>>)>,
    /// [`GraphAllocator::plan_number`](crate::alloc::GraphAllocator::plan_number) under which the graph's
    /// tensors were placed.
    pub memory_plan: u64,
}

impl Schedule {
    /// Returns the backend of a tensor.
    pub fn backend_of(&self, id: TensorId) -> Option<BackendId> {
        self.of.get(id.index()).copied().flatten()
    }

    /// Returns the identity of the memory of the graph's inputs.
    pub fn inputs_at(&self, graph: &Graph, memory: &MemoryMap) -> GraphSlot {
        GraphSlot {
            plan: self.memory_plan,
            buffers: memory.stamp(),
            writer: if self.splits.writes_leafs() {
                Some(graph.version())
            } else {
                None
            },
        }
    }

    /// Returns the allocator's memory type for a tensor: the type of its backend.
    pub fn type_of(&self) -> impl Fn(TensorId) -> usize + '_ {
        |id| self.of[id.index()].map_or(0, BackendId::index)
    }

    /// Returns true if the graph was prepared for exactly this state.
    pub fn is_for(&self, now: Prepared) -> bool {
        self.prepared == Some(now)
    }

    /// Records the state for which the graph is prepared; `None` if it is no longer prepared.
    pub fn set_prepared(&mut self, now: Option<Prepared>) {
        self.prepared = now;
    }

    /// Counts the readers of all tensors, including copies to other backends.
    pub fn count_uses(&self, graph: &Graph, uses: &mut Uses) {
        uses.count(graph, self.splits.inputs.iter().map(|input| input.from));
    }

    /// Prepares each split on its backend.
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
            let old = plan.take();
            let old = if *backend == split.backend { old } else { None };
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

    /// Returns the plan of a split of a prepared graph.
    pub fn plan(&mut self, split: usize) -> Option<&mut dyn Plan> {
        self.plans.get_mut(split)?.1.as_deref_mut()
    }
}

/// The schedules of all prepared graphs that still exist.
pub(super) struct Schedules {
    /// Schedules of graphs; never empty. An entry may belong to no graph, and taking a schedule leaves an
    /// empty entry.
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
    /// Returns the schedule of a graph, or `None` if the graph was never prepared.
    pub fn find(&self, graph: &Graph) -> Option<&Schedule> {
        Some(&self.all[self.position(graph)?])
    }

    /// Returns the schedule that was taken out last.
    pub fn last(&self) -> &Schedule {
        &self.all[self.last]
    }

    /// Takes out the schedule of a graph, or a new schedule if none exists.
    pub fn take(&mut self, graph: &Graph) -> Schedule {
        self.last = self.position(graph).unwrap_or_else(|| self.add(graph));
        std::mem::take(&mut self.all[self.last])
    }

    /// Puts back the schedule that was taken last.
    pub fn restore(&mut self, schedule: Schedule) {
        self.all[self.last] = schedule;
    }

    fn position(&self, graph: &Graph) -> Option<usize> {
        let identity = graph.identity();
        self.all.iter().position(|s| s.graph.ptr_eq(&identity))
    }

    /// Adds an entry for a graph, reusing the entry of a dropped graph if possible.
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
