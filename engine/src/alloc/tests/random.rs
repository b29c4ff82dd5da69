//! Random graphs, checked without any knowledge of lifetimes.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::sched::fake::FakeType;

/// Simulates the order with a tag per byte that identifies the owner of the data.
///
/// Panics if a step reads a byte of another tensor, or if an input or output does not survive to the end.
pub(super) fn check(sketch: &Sketch, plan: &AllocPlan) {
    let graph = &sketch.graph;
    let mut bytes: HashMap<(usize, usize, usize), TensorId> = HashMap::new();
    let write = |bytes: &mut HashMap<_, _>, id: TensorId| {
        if graph.tensor(id).view.is_none() && !graph.is_external(id) {
            let p = plan
                .place(id)
                .unwrap_or_else(|| panic!("{} has no location", graph.tensor(id).name));
            assert!(p.size >= graph.tensor(id).nbytes());
            let end = p.offset + p.size;
            let chunk = plan.chunk_sizes(p.memory).nth(p.chunk).expect("the chunk exists");
            assert!(end <= chunk, "{} ends at {end} of {chunk}", graph.tensor(id).name);
            (p.offset..end).for_each(|i| _ = bytes.insert((p.memory, p.chunk, i), id));
        }
    };
    let verify = |bytes: &HashMap<_, _>, id: TensorId, when: &str| {
        let owner = graph.memory_owner(id);
        if graph.is_external(owner) {
            return;
        }
        let p = plan.place(owner).expect("every owner has a location");
        let start = p.offset + graph.tensor(id).view.map_or(0, |(_, o)| o);
        for i in start..start + graph.tensor(id).nbytes() {
            let found = bytes.get(&(p.memory, p.chunk, i));
            assert_eq!(found, Some(&owner), "byte {i} of {} {when}", graph.tensor(id).name);
        }
    };
    sketch.leafs.iter().for_each(|&leaf| write(&mut bytes, leaf));
    for &step in &sketch.steps {
        match step {
            AllocStep::Compute(id) => {
                graph.tensor(id).sources().for_each(|s| verify(&bytes, s, "is read"));
                write(&mut bytes, id);
            }
            AllocStep::Copy { from, to } => {
                verify(&bytes, from, "is copied");
                if !sketch.leafs.contains(&to) {
                    write(&mut bytes, to);
                }
            }
        }
    }
    for &leaf in &sketch.leafs {
        verify(&bytes, leaf, "at the end");
    }
    for &id in graph.nodes() {
        if graph.tensor(id).flags.output {
            verify(&bytes, id, "at the end");
        }
    }
}

/// A node or leaf to append to a random graph. Numbers select existing tensors.
#[derive(Clone, Debug)]
enum Piece {
    Input(usize),
    External(usize),
    Add(usize, usize),
    Neg(usize),
    Repeat(usize, usize),
    View(usize, usize, usize),
    SetRows(usize, usize),
    Output(usize),
    /// A copy as inserted by the scheduler, followed by a node that reads it.
    Copy(usize),
}

fn piece() -> impl Strategy<Value = Piece> {
    let n = 0..1000usize;
    let bytes = (0..40usize).prop_map(|w| 4 * w);
    prop_oneof![
        1 => bytes.clone().prop_map(Piece::Input),
        1 => bytes.clone().prop_map(Piece::External),
        4 => (n.clone(), n.clone()).prop_map(|(a, b)| Piece::Add(a, b)),
        4 => n.clone().prop_map(Piece::Neg),
        3 => (n.clone(), bytes).prop_map(|(a, b)| Piece::Repeat(a, b)),
        3 => (n.clone(), n.clone(), n.clone()).prop_map(|(a, b, c)| Piece::View(a, b, c)),
        1 => (n.clone(), n.clone()).prop_map(|(a, b)| Piece::SetRows(a, b)),
        1 => n.clone().prop_map(Piece::Output),
        1 => n.prop_map(Piece::Copy),
    ]
}

fn build(pieces: &[Piece]) -> Sketch {
    let mut s = Sketch::default();
    s.input(64);
    let mut copies = Vec::new();
    let mut uses = Vec::new();
    for p in pieces {
        let pick = |s: &Sketch, i: usize| {
            let mut id = TensorId((i % s.graph.len()) as u32);
            while copies.contains(&id) {
                id = TensorId(id.0 - 1);
            }
            id
        };
        match *p {
            Piece::Input(bytes) => _ = s.input(bytes),
            Piece::External(bytes) => {
                let home = BufferSlice {
                    buffer: BufferId(1_000_000),
                    offset: 0,
                };
                s.external(bytes, home);
            }
            Piece::Add(a, b) => _ = s.add(pick(&s, a), pick(&s, b)),
            Piece::Neg(a) => _ = s.neg(pick(&s, a)),
            Piece::Repeat(a, bytes) => _ = s.repeat(pick(&s, a), bytes),
            Piece::View(a, at, len) => {
                let a = pick(&s, a);
                let words = s.graph.tensor(a).nbytes() / 4;
                let at = at % (words + 1);
                let len = len % (words - at + 1);
                s.view(a, 4 * len, 4 * at);
            }
            Piece::SetRows(data, into) => {
                let (data, into) = (pick(&s, data), pick(&s, into));
                let bytes = s.graph.tensor(into).nbytes();
                let id = s.op(Op::SetRows, bytes, &[data, into]);
                let base = s.graph.tensor(into).view.map_or(0, |(_, o)| o);
                s.graph.tensor_mut(id).view = Some((s.graph.memory_owner(into), base));
            }
            Piece::Output(a) => {
                let a = pick(&s, a);
                s.graph.tensor_mut(a).flags.output = true;
            }
            Piece::Copy(a) => {
                let from = pick(&s, a);
                let to = s.graph.insert_copy(from);
                let user = s.neg(to);
                copies.push(to);
                uses.push((user, AllocStep::Copy { from, to }));
            }
        }
    }
    let all: Vec<TensorId> = s.graph.ids().collect();
    all.into_iter().for_each(|id| s.graph.expand(id));
    s.leafs = s
        .graph
        .leafs()
        .iter()
        .copied()
        .filter(|l| !copies.contains(l))
        .collect();
    for &node in s.graph.nodes() {
        s.steps
            .extend(uses.iter().filter(|(user, _)| *user == node).map(|(_, step)| *step));
        s.steps.push(AllocStep::Compute(node));
    }
    s
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_live_tensors_overlap(
        pieces in prop::collection::vec(piece(), 1..40),
        max_size in prop_oneof![Just(usize::MAX), 64..400usize],
        alignment in prop_oneof![Just(1usize), Just(4), Just(32)],
        n_types in 1..3usize,
    ) {
        let sketch = build(&pieces);
        let types: Vec<Arc<dyn BufferType>> = ["A", "B"][..n_types]
            .iter()
            .map(|&name| Arc::new(FakeType::new(name, alignment, max_size)) as _)
            .collect();
        let type_of = |id: TensorId| (id.0 as usize / 3) % n_types;
        let mut allocator = GraphAllocator::new(&types);
        allocator.plan(&sketch.graph, sketch.order(), type_of).unwrap();
        check(&sketch, &allocator.plan);
        for id in sketch.graph.ids() {
            if let Some(place) = allocator.plan.place(id) {
                prop_assert!(place.offset.is_multiple_of(alignment));
                prop_assert_eq!(place.memory, type_of(id));
            }
        }
        prop_assert!(allocator.fits(&sketch.graph, sketch.order(), type_of));
    }

    /// If a plan reports that it fits another graph, it must be correct for that graph.
    #[test]
    fn plan_that_fits_another_graph_is_correct(
        pieces in prop::collection::vec(piece(), 1..12),
        change in (0..12usize, piece()),
    ) {
        let types: [Arc<dyn BufferType>; 1] = [Arc::new(FakeType::new("A", 4, usize::MAX))];
        let mut allocator = GraphAllocator::new(&types);
        let first = build(&pieces);
        allocator.plan(&first.graph, first.order(), |_| 0).unwrap();
        let mut pieces = pieces;
        let at = change.0 % pieces.len();
        pieces[at] = change.1;
        let second = build(&pieces);
        if allocator.fits(&second.graph, second.order(), |_| 0) {
            check(&second, &allocator.plan);
        }
    }
}
