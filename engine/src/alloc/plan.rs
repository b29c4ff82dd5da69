//! Plans the location of every tensor of a graph by simulating the evaluation.
//!
//! Memory is owned by tensors that are not views; a tensor and its views form a *family*. A family's memory
//! is allocated when its owner is computed, and freed after the last step that reads any member, unless the
//! family is pinned. Leafs, inputs, outputs, and results without readers are pinned: they keep their memory
//! to the end, and nothing overlaps it.

use std::fmt::Write;
use std::sync::Arc;

use crate::backend::BufferType;
use crate::graph::{Graph, MAX_SRC, Op, Tensor, TensorId};

use super::AllocError;
use super::arena::{Arena, Block};

/// A step of a graph's evaluation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocStep {
    /// Computes a node, which reads its operands.
    Compute(TensorId),
    /// Copies the bytes of `from` to the leaf `to`, usually in other memory.
    Copy {
        /// Source tensor.
        from: TensorId,
        /// Destination tensor, allocated at this step unless it is one of the leafs of the [`Order`].
        to: TensorId,
    },
}

/// The input of a plan: leafs and evaluation order.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// Tensors to allocate before the first step and keep to the end. Views and externally allocated tensors
    /// are skipped.
    pub leafs: &'a [TensorId],
    /// Steps in evaluation order.
    pub steps: &'a [AllocStep],
}

/// Location of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Index of the memory, one per distinct buffer type.
    pub memory: usize,
    /// Index of the buffer within the memory.
    pub chunk: usize,
    /// Offset from the start of the buffer in bytes.
    pub offset: usize,
    /// Allocated size in bytes.
    pub size: usize,
    /// The tensor whose memory is reused because the op runs in place.
    pub in_place_of: Option<TensorId>,
}

impl Allocation {
    fn new(memory: usize, block: Block, in_place_of: Option<TensorId>) -> Allocation {
        let Block { chunk, offset, size } = block;
        Allocation {
            memory,
            chunk,
            offset,
            size,
            in_place_of,
        }
    }

    fn block(&self) -> Block {
        let &Allocation {
            chunk, offset, size, ..
        } = self;
        Block { chunk, offset, size }
    }
}

/// State of a tensor's memory, indexed by tensor.
#[derive(Clone, Copy, Default, Debug)]
struct MemoryState {
    /// Number of future reads of any member.
    reads: u32,
    pinned: bool,
    /// True from the allocation of the owner's memory until it is freed.
    live: bool,
    place: Option<Allocation>,
}

/// The role of a tensor's memory. A plan is only valid while the roles are unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MemoryKind {
    /// Memory outside the graph's buffers.
    External,
    /// Memory shared with the viewed tensor.
    View(TensorId),
    /// Allocated by the plan in the given memory.
    Planned(usize),
}

/// Assumptions of the plan about a step. Reads of pinned or external memory are omitted, since they are
/// always possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Assumption {
    id: TensorId,
    role: MemoryKind,
    input: bool,
    output: bool,
    reads: [Option<TensorId>; MAX_SRC],
}

/// A plan, and the tables for making the next plan without allocation.
#[derive(Clone, Debug, Default)]
pub struct AllocPlan {
    families: Vec<MemoryState>,
    /// True for tensors with a reader; indexed by tensor.
    consumed: Vec<bool>,
    arenas: Vec<Arena>,
    leafs: Vec<Assumption>,
    steps: Vec<Assumption>,
}

/// The kinds of memory in which a plan allocates tensors.
#[derive(Clone, Copy)]
pub(super) struct Memories<'a> {
    /// Distinct buffer types of the plan.
    pub types: &'a [Arc<dyn BufferType>],
    /// Returns the index of a tensor's memory.
    pub of: &'a dyn Fn(TensorId) -> usize,
}

/// Returns true if the first two steps are a sum and its norm.
///
/// A backend that fuses them may store a row of the norm in quantized form, at the offset of a different f32
/// row. The operands of the sum therefore stay allocated until the norm has been computed.
fn is_normed_next(graph: &Graph, steps: &[AllocStep]) -> bool {
    let &[AllocStep::Compute(sum), AllocStep::Compute(norm), ..] = steps else {
        return false;
    };
    let (a, b) = (graph.tensor(sum), graph.tensor(norm));
    a.op == Op::Add && matches!(b.op, Op::RmsNorm { .. }) && b.src[0] == Some(sum)
}

impl AllocPlan {
    pub(super) fn new<'a>(types: impl Iterator<Item = &'a dyn BufferType>) -> AllocPlan {
        AllocPlan {
            arenas: types.map(|t| Arena::new(t.alignment(), t.max_size())).collect(),
            ..AllocPlan::default()
        }
    }

    /// Returns the location of a tensor's own memory. Returns `None` for views, external tensors, and tensors
    /// outside the order.
    pub fn place(&self, id: TensorId) -> Option<Allocation> {
        self.families.get(id.index())?.place
    }

    /// Returns the required size of each buffer of a memory, in bytes.
    pub fn chunk_sizes(&self, memory: usize) -> impl Iterator<Item = usize> + '_ {
        self.arenas[memory].chunk_sizes()
    }

    /// Clears the plan.
    pub(super) fn clear(&mut self) {
        self.families.clear();
        self.leafs.clear();
        self.steps.clear();
        self.arenas.iter_mut().for_each(Arena::reset);
    }

    /// Plans the memory of `graph`.
    pub(super) fn make(&mut self, graph: &Graph, order: Order<'_>, memories: &Memories<'_>) -> Result<(), AllocError> {
        self.clear();
        self.families.resize(graph.len(), MemoryState::default());
        self.consumed.clear();
        self.consumed.resize(graph.len(), false);
        self.count_reads(graph, order);
        for &leaf in order.leafs {
            self.place_early(graph, leaf, memories)?;
        }
        for &step in order.steps {
            if let AllocStep::Compute(node) = step
                && graph.tensor(node).flags.input
            {
                self.place_early(graph, node, memories)?;
            }
        }
        let mut open_step = None;
        for (i, &step) in order.steps.iter().enumerate() {
            self.play(graph, step, memories)?;
            if let Some(open_step) = open_step.take() {
                self.reads_done(graph, open_step);
            }
            if is_normed_next(graph, &order.steps[i..]) {
                open_step = Some(step);
            } else {
                self.reads_done(graph, step);
            }
        }
        self.note_assumptions(graph, order, memories);
        Ok(())
    }

    /// Returns true if the plan is also valid for this graph. Its tensors then have the same roles and readers in the
    /// same order, and no tensor is larger.
    pub(super) fn fits(&self, graph: &Graph, order: Order<'_>, memories: &Memories<'_>) -> bool {
        let fits = |planned: &Assumption, now: Assumption| {
            *planned == now && self.size_fits(graph, now.id, memories) && self.still_in_place(graph, now.id)
        };
        order.leafs.len() == self.leafs.len()
            && order.steps.len() == self.steps.len()
            && (order.leafs.iter().zip(&self.leafs)).all(|(&id, a)| fits(a, self.assume(graph, id, &[], memories)))
            && (order.steps.iter().zip(&self.steps)).all(|(&s, a)| fits(a, self.assume_step(graph, s, memories)))
    }

    fn count_reads(&mut self, graph: &Graph, order: Order<'_>) {
        for &leaf in order.leafs {
            self.families[leaf.index()].pinned = true;
        }
        for &step in order.steps {
            let id = target(step);
            let tensor = graph.tensor(id);
            for_each_read(graph, step, |read| {
                self.families[graph.memory_owner(read).index()].reads += 1;
                self.consumed[read.index()] = true;
            });
            if tensor.flags.output || tensor.flags.input {
                self.families[graph.memory_owner(id).index()].pinned = true;
            }
        }
        for &step in order.steps {
            let id = target(step);
            if !self.consumed[id.index()] {
                self.families[graph.memory_owner(id).index()].pinned = true;
            }
        }
    }

    /// Allocates memory before the first step, so that no other tensor overlaps it.
    fn place_early(&mut self, graph: &Graph, id: TensorId, memories: &Memories<'_>) -> Result<(), AllocError> {
        let MemoryKind::Planned(memory) = role(graph, id, memories) else {
            return Ok(());
        };
        if self.families[id.index()].place.is_none() {
            self.allocate(graph, id, memory, memories.types)?;
        }
        Ok(())
    }

    fn play(&mut self, graph: &Graph, step: AllocStep, memories: &Memories<'_>) -> Result<(), AllocError> {
        let id = target(step);
        let mut missing = None;
        for_each_read(graph, step, |read| {
            let owner = graph.memory_owner(read);
            if !graph.is_external(owner) && !self.families[owner.index()].live {
                missing = Some(read);
            }
        });
        if let Some(read) = missing {
            return Err(AllocError::NotInOrder {
                node: graph.tensor(id).name.to_string(),
                operand: graph.tensor(read).name.to_string(),
            });
        }
        if let MemoryKind::Planned(memory) = role(graph, id, memories)
            && self.families[id.index()].place.is_none()
        {
            let size = alloc_size(graph.tensor(id), &*memories.types[memory])?;
            match self.in_place_candidate(graph, step, memory, size) {
                Some(owner) => self.reuse_in_place(id, owner, size),
                None => self.allocate(graph, id, memory, memories.types)?,
            }
        }
        Ok(())
    }

    /// Marks the step's reads as done, so that memory without further readers can be reused.
    fn reads_done(&mut self, graph: &Graph, step: AllocStep) {
        for_each_read(graph, step, |read| self.read_done(graph.memory_owner(read)));
    }

    fn allocate(
        &mut self,
        graph: &Graph,
        id: TensorId,
        memory: usize,
        types: &[Arc<dyn BufferType>],
    ) -> Result<(), AllocError> {
        let tensor = graph.tensor(id);
        let size = alloc_size(tensor, &*types[memory])?;
        let block = self.arenas[memory]
            .allocate(size)
            .ok_or_else(|| AllocError::too_large(tensor))?;
        let family = &mut self.families[id.index()];
        family.place = Some(Allocation::new(memory, block, None));
        family.live = true;
        Ok(())
    }

    /// Returns the owner of the memory that the node can overwrite in place: the memory of its first operand, if it
    /// has no other readers.
    fn in_place_candidate(&self, graph: &Graph, step: AllocStep, memory: usize, size: usize) -> Option<TensorId> {
        let AllocStep::Compute(node) = step else {
            return None;
        };
        let operand = in_place_operand(graph, node)?;
        let owner = graph.memory_owner(operand);
        let family = &self.families[owner.index()];
        let place = family.place?;
        let free_after_this_step = family.live && !family.pinned && family.reads == 1;
        if free_after_this_step && place.memory == memory && place.size >= size {
            Some(owner)
        } else {
            None
        }
    }

    fn reuse_in_place(&mut self, node: TensorId, owner: TensorId, size: usize) {
        let family = &mut self.families[owner.index()];
        family.live = false;
        if let Some(place) = family.place {
            let block = self.arenas[place.memory].shrink(place.block(), size);
            let family = &mut self.families[node.index()];
            family.place = Some(Allocation::new(place.memory, block, Some(owner)));
            family.live = true;
        }
    }

    fn read_done(&mut self, owner: TensorId) {
        let family = &mut self.families[owner.index()];
        family.reads -= 1;
        if family.reads == 0
            && family.live
            && !family.pinned
            && let Some(place) = family.place
        {
            family.live = false;
            self.arenas[place.memory].free(place.block());
        }
    }

    fn note_assumptions(&mut self, graph: &Graph, order: Order<'_>, memories: &Memories<'_>) {
        for &leaf in order.leafs {
            self.leafs.push(self.assume(graph, leaf, &[], memories));
        }
        for &step in order.steps {
            self.steps.push(self.assume_step(graph, step, memories));
        }
    }

    fn assume_step(&self, graph: &Graph, step: AllocStep, memories: &Memories<'_>) -> Assumption {
        match step {
            AllocStep::Compute(id) => self.assume(graph, id, &graph.tensor(id).src, memories),
            AllocStep::Copy { from, to } => self.assume(graph, to, &[Some(from)], memories),
        }
    }

    fn assume(
        &self,
        graph: &Graph,
        id: TensorId,
        operands: &[Option<TensorId>],
        memories: &Memories<'_>,
    ) -> Assumption {
        let tensor = graph.tensor(id);
        let mut reads = [None; MAX_SRC];
        for (read, &operand) in reads.iter_mut().zip(operands) {
            let owner = operand.map(|operand| graph.memory_owner(operand));
            *read = owner.filter(|owner| self.is_reusable(*owner));
        }
        Assumption {
            id,
            role: role(graph, id, memories),
            input: tensor.flags.input,
            output: tensor.flags.output,
            reads,
        }
    }

    fn is_reusable(&self, owner: TensorId) -> bool {
        // A tensor that the plan has not seen counts as reusable. Reading it is then reported as a difference from the
        // plan.
        (self.families.get(owner.index())).is_none_or(|f| f.place.is_some() && !f.pinned)
    }

    fn size_fits(&self, graph: &Graph, id: TensorId, memories: &Memories<'_>) -> bool {
        self.place(id).is_none_or(|place| {
            alloc_size(graph.tensor(id), &*memories.types[place.memory]).is_ok_and(|size| size <= place.size)
        })
    }

    fn still_in_place(&self, graph: &Graph, id: TensorId) -> bool {
        let was = self.place(id).and_then(|place| place.in_place_of);
        was.is_none_or(|owner| in_place_operand(graph, id).is_some_and(|o| graph.memory_owner(o) == owner))
    }

    /// Formats the plan with one line per leaf and step: `memory:chunk [start..end)`.
    pub(super) fn describe(&self, graph: &Graph, order: Order<'_>, types: &[Arc<dyn BufferType>]) -> String {
        let mut text = String::new();
        for (memory, ty) in types.iter().enumerate() {
            let sizes: Vec<_> = self.chunk_sizes(memory).collect();
            let _ = writeln!(text, "memory {memory}: {} {sizes:?}", ty.name());
        }
        for &leaf in order.leafs {
            self.describe_one(&mut text, graph, leaf, "leaf");
        }
        for &step in order.steps {
            match step {
                AllocStep::Compute(id) => self.describe_one(&mut text, graph, id, graph.tensor(id).op.name()),
                AllocStep::Copy { to, .. } => self.describe_one(&mut text, graph, to, "copy"),
            }
        }
        text
    }

    fn describe_one(&self, text: &mut String, graph: &Graph, id: TensorId, what: &str) {
        let tensor = graph.tensor(id);
        let _ = write!(text, "{what:<8} {:<8} ", tensor.name.to_string());
        let _ = match (tensor.view, self.place(id)) {
            (Some((owner, offset)), _) => writeln!(text, "view of {} + {offset}", graph.tensor(owner).name),
            (None, None) => writeln!(text, "external"),
            (None, Some(place)) => {
                let end = place.offset + place.size;
                let _ = write!(text, "{}:{} [{}..{end})", place.memory, place.chunk, place.offset);
                match place.in_place_of {
                    Some(owner) => writeln!(text, " in place of {}", graph.tensor(owner).name),
                    None => writeln!(text),
                }
            }
        };
    }
}

/// Returns the tensor that a step writes.
fn target(step: AllocStep) -> TensorId {
    match step {
        AllocStep::Compute(id) => id,
        AllocStep::Copy { to, .. } => to,
    }
}

/// Calls `f` for every read of a step. A view additionally reads its owner, so that the memory outlives the
/// last view.
fn for_each_read(graph: &Graph, step: AllocStep, mut f: impl FnMut(TensorId)) {
    match step {
        AllocStep::Copy { from, .. } => f(from),
        AllocStep::Compute(id) => {
            let tensor = graph.tensor(id);
            tensor.sources().for_each(&mut f);
            if let Some((owner, _)) = tensor.view {
                f(owner);
            }
        }
    }
}

fn role(graph: &Graph, id: TensorId, memories: &Memories<'_>) -> MemoryKind {
    match graph.tensor(id).view {
        Some((owner, _)) => MemoryKind::View(owner),
        None if graph.is_external(id) => MemoryKind::External,
        None => MemoryKind::Planned((memories.of)(id)),
    }
}

/// Returns the operand that the node's op could overwrite in place, judging by op and layout alone.
fn in_place_operand(graph: &Graph, node: TensorId) -> Option<TensorId> {
    let tensor = graph.tensor(node);
    if !tensor.op.can_run_in_place() {
        return None;
    }
    let operand = tensor.src[0]?;
    let source = graph.tensor(operand);
    let same_layout = source.ty == tensor.ty && source.ne == tensor.ne && source.nb == tensor.nb;
    let at_start = source.view.is_none_or(|(_, offset)| offset == 0);
    if same_layout && at_start { Some(operand) } else { None }
}

fn alloc_size(tensor: &Tensor, ty: &dyn BufferType) -> Result<usize, AllocError> {
    if tensor.checked_nbytes().is_none() {
        return Err(AllocError::too_large(tensor));
    }
    Ok(ty.alloc_size(tensor))
}
