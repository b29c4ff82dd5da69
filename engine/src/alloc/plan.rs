//! Where every tensor of a graph will lie: offsets and sizes, found by playing the evaluation through without computing.
//!
//! Memory is owned by tensors that are not views; a tensor and its views are one *family*. A family's memory is taken when
//! its owner is computed and given back after the last step that reads any of its members, unless it is pinned: leafs,
//! inputs, outputs, and results that no step reads keep their memory to the end, and nothing else ever overlaps it.

use std::fmt::Write;
use std::sync::Arc;

use crate::backend::BufferType;
use crate::graph::{Graph, MAX_SRC, Op, Tensor, TensorId};

use super::AllocError;
use super::arena::{Arena, Block};

/// One thing that happens while a graph is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A node is computed; it reads its operands.
    Compute(TensorId),
    /// The bytes of `from` are copied to the leaf `to`, usually in other memory.
    Copy {
        /// Read.
        from: TensorId,
        /// Takes memory at this step, unless it is among the leafs of the [`Order`].
        to: TensorId,
    },
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// Placed before the first step and kept to the end. Those with an external home, and views, are passed over.
    pub leafs: &'a [TensorId],
    /// In the order in which they will be carried out.
    pub steps: &'a [Step],
}

/// Where one tensor lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of the memory, one per distinct buffer type.
    pub memory: usize,
    /// Which of the memory's buffers.
    pub chunk: usize,
    /// Bytes from the start of the buffer.
    pub offset: usize,
    /// Bytes set aside.
    pub size: usize,
    /// The tensor whose memory was taken over because the op runs in place.
    pub in_place_of: Option<TensorId>,
}

impl Place {
    fn new(memory: usize, block: Block, in_place_of: Option<TensorId>) -> Place {
        let Block { chunk, offset, size } = block;
        Place {
            memory,
            chunk,
            offset,
            size,
            in_place_of,
        }
    }

    fn block(&self) -> Block {
        let &Place {
            chunk, offset, size, ..
        } = self;
        Block { chunk, offset, size }
    }
}

/// State of a tensor's memory, indexed by tensor.
#[derive(Clone, Copy, Default, Debug)]
struct Family {
    /// Reads of any member still to come.
    reads: u32,
    pinned: bool,
    /// The owner's memory is taken and not yet given back.
    live: bool,
    place: Option<Place>,
}

/// What kind of memory a tensor has; if this changes, so does the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Has a home of its own before the graph.
    External,
    /// Shares the memory of another tensor.
    View(TensorId),
    /// Is placed by the plan, in this memory.
    Planned(usize),
}

/// What the plan took for granted about a step. Reads of pinned or external memory are left out: they are always possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Assumption {
    id: TensorId,
    role: Role,
    input: bool,
    output: bool,
    reads: [Option<TensorId>; MAX_SRC],
}

/// A plan, and the tables needed to make the next one without taking memory.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    families: Vec<Family>,
    /// Has a reader; indexed by tensor.
    consumed: Vec<bool>,
    arenas: Vec<Arena>,
    leafs: Vec<Assumption>,
    steps: Vec<Assumption>,
}

/// The memories a plan places tensors in.
#[derive(Clone, Copy)]
pub(super) struct Memories<'a> {
    /// Distinct buffer types.
    pub types: &'a [Arc<dyn BufferType>],
    /// Index of the memory of a tensor.
    pub of: &'a dyn Fn(TensorId) -> usize,
}

/// True if the first of these steps is a sum and the second its norm. A backend that computes both row by row may store a row of the norm in another form, over
/// other rows of whatever lies there: so operands of the sum are kept until the norm has its memory.
fn is_normed_next(graph: &Graph, steps: &[Step]) -> bool {
    let &[Step::Compute(sum), Step::Compute(norm), ..] = steps else {
        return false;
    };
    let (a, b) = (graph.tensor(sum), graph.tensor(norm));
    a.op == Op::Add && matches!(b.op, Op::RmsNorm { .. }) && b.src[0] == Some(sum)
}

impl Plan {
    pub(super) fn new<'a>(types: impl Iterator<Item = &'a dyn BufferType>) -> Plan {
        Plan {
            arenas: types.map(|t| Arena::new(t.alignment(), t.max_size())).collect(),
            ..Plan::default()
        }
    }

    /// Where a tensor's own memory lies; `None` for views, external tensors and those the order does not contain.
    pub fn place(&self, id: TensorId) -> Option<Place> {
        self.families.get(id.index())?.place
    }

    /// Bytes that each buffer of a memory must hold.
    pub fn chunk_sizes(&self, memory: usize) -> impl Iterator<Item = usize> + '_ {
        self.arenas[memory].chunk_sizes()
    }

    /// Forgets what was planned.
    pub(super) fn clear(&mut self) {
        self.families.clear();
        self.leafs.clear();
        self.steps.clear();
        self.arenas.iter_mut().for_each(Arena::reset);
    }

    /// Plans anew.
    pub(super) fn make(&mut self, graph: &Graph, order: Order<'_>, memories: &Memories<'_>) -> Result<(), AllocError> {
        self.clear();
        self.families.resize(graph.len(), Family::default());
        self.consumed.clear();
        self.consumed.resize(graph.len(), false);
        self.count_reads(graph, order);
        for &leaf in order.leafs {
            self.place_early(graph, leaf, memories)?;
        }
        for &step in order.steps {
            if let Step::Compute(node) = step
                && graph.tensor(node).flags.input
            {
                self.place_early(graph, node, memories)?;
            }
        }
        let mut held = None;
        for (i, &step) in order.steps.iter().enumerate() {
            self.play(graph, step, memories)?;
            if let Some(held) = held.take() {
                self.reads_done(graph, held);
            }
            if is_normed_next(graph, &order.steps[i..]) {
                held = Some(step);
            } else {
                self.reads_done(graph, step);
            }
        }
        self.note_assumptions(graph, order, memories);
        Ok(())
    }

    /// True if the plan serves this graph too: the same tensors read one another in the same order and none is larger.
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

    /// Takes memory before the first step, so that it overlaps nothing.
    fn place_early(&mut self, graph: &Graph, id: TensorId, memories: &Memories<'_>) -> Result<(), AllocError> {
        let Role::Planned(memory) = role(graph, id, memories) else {
            return Ok(());
        };
        if self.families[id.index()].place.is_none() {
            self.allocate(graph, id, memory, memories.types)?;
        }
        Ok(())
    }

    fn play(&mut self, graph: &Graph, step: Step, memories: &Memories<'_>) -> Result<(), AllocError> {
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
        if let Role::Planned(memory) = role(graph, id, memories)
            && self.families[id.index()].place.is_none()
        {
            let size = alloc_size(graph.tensor(id), &*memories.types[memory])?;
            match self.in_place_candidate(graph, step, memory, size) {
                Some(owner) => self.take_over(id, owner, size),
                None => self.allocate(graph, id, memory, memories.types)?,
            }
        }
        Ok(())
    }

    /// What the step reads may be overwritten by others, if nobody else needs it.
    fn reads_done(&mut self, graph: &Graph, step: Step) {
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
        family.place = Some(Place::new(memory, block, None));
        family.live = true;
        Ok(())
    }

    /// The owner of memory that the node may write its result to: that of its first operand, if nothing else needs it.
    fn in_place_candidate(&self, graph: &Graph, step: Step, memory: usize, size: usize) -> Option<TensorId> {
        let Step::Compute(node) = step else {
            return None;
        };
        let operand = in_place_operand(graph, node)?;
        let owner = graph.memory_owner(operand);
        let family = &self.families[owner.index()];
        let place = family.place?;
        let free_after_this_step = family.live && !family.pinned && family.reads == 1;
        (free_after_this_step && place.memory == memory && place.size >= size).then_some(owner)
    }

    fn take_over(&mut self, node: TensorId, owner: TensorId, size: usize) {
        let family = &mut self.families[owner.index()];
        family.live = false;
        if let Some(place) = family.place {
            let block = self.arenas[place.memory].shrink(place.block(), size);
            let family = &mut self.families[node.index()];
            family.place = Some(Place::new(place.memory, block, Some(owner)));
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

    fn assume_step(&self, graph: &Graph, step: Step, memories: &Memories<'_>) -> Assumption {
        match step {
            Step::Compute(id) => self.assume(graph, id, &graph.tensor(id).src, memories),
            Step::Copy { from, to } => self.assume(graph, to, &[Some(from)], memories),
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
        // A tensor the plan never saw counts as reusable, so that reading it differs from what was planned.
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

    /// The plan in readable form, one line per leaf and step: `memory:chunk [start..end)`.
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
                Step::Compute(id) => self.describe_one(&mut text, graph, id, graph.tensor(id).op.name()),
                Step::Copy { to, .. } => self.describe_one(&mut text, graph, to, "copy"),
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

/// The tensor whose bytes a step writes.
fn target(step: Step) -> TensorId {
    match step {
        Step::Compute(id) => id,
        Step::Copy { to, .. } => to,
    }
}

/// Every read of a step. A view reads its owner once more than its operands say, so that memory outlives its last view.
fn for_each_read(graph: &Graph, step: Step, mut f: impl FnMut(TensorId)) {
    match step {
        Step::Copy { from, .. } => f(from),
        Step::Compute(id) => {
            let tensor = graph.tensor(id);
            tensor.sources().for_each(&mut f);
            if let Some((owner, _)) = tensor.view {
                f(owner);
            }
        }
    }
}

fn role(graph: &Graph, id: TensorId, memories: &Memories<'_>) -> Role {
    match graph.tensor(id).view {
        Some((owner, _)) => Role::View(owner),
        None if graph.is_external(id) => Role::External,
        None => Role::Planned((memories.of)(id)),
    }
}

/// The operand whose memory the node's op could write to, going by op and layout alone.
fn in_place_operand(graph: &Graph, node: TensorId) -> Option<TensorId> {
    let tensor = graph.tensor(node);
    if !tensor.op.can_run_in_place() {
        return None;
    }
    let operand = tensor.src[0]?;
    let source = graph.tensor(operand);
    let same_layout = source.ty == tensor.ty && source.ne == tensor.ne && source.nb == tensor.nb;
    let at_start = source.view.is_none_or(|(_, offset)| offset == 0);
    (same_layout && at_start).then_some(operand)
}

fn alloc_size(tensor: &Tensor, ty: &dyn BufferType) -> Result<usize, AllocError> {
    if tensor.checked_nbytes().is_none() {
        return Err(AllocError::too_large(tensor));
    }
    Ok(ty.alloc_size(tensor))
}
