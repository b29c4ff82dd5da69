//! Tests of the allocator, one per rule: reuse, merging, in-place ops, views, several memories, chunks,
//! sizes.

use std::sync::atomic::Ordering;

use super::*;
use crate::sched::fake::FakeType;

fn memory(max_size: usize) -> Vec<Arc<dyn BufferType>> {
    vec![Arc::new(FakeType::new("A", 4, max_size))]
}

#[test]
fn ops_run_in_place_and_memory_is_reused() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let b = s.input(16);
    let x2 = s.add(a, b); // inputs are never overwritten
    let x3 = s.add(x2, b); // in place
    let x4 = s.repeat(x3, 32); // cannot run in place; frees x3 afterwards
    let x5 = s.repeat(x4, 16); // reuses the memory of x3
    let x6 = s.neg(x5);
    s.expand(x6);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [80]
    leaf     x0       0:0 [0..16)
    leaf     x1       0:0 [16..32)
    add      x2       0:0 [32..48)
    add      x3       0:0 [32..48) in place of x2
    repeat   x4       0:0 [48..80)
    repeat   x5       0:0 [32..48)
    unary    x6       0:0 [32..48) in place of x5
    ");
}

#[test]
fn tensor_with_later_reader_is_not_overwritten() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let x1 = s.neg(a);
    let x2 = s.neg(x1);
    let x3 = s.add(x2, x1);
    let x4 = s.add(x3, x3); // reads its operand twice, so not in place either
    s.expand(x4);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [48]
    leaf     x0       0:0 [0..16)
    unary    x1       0:0 [16..32)
    unary    x2       0:0 [32..48)
    add      x3       0:0 [32..48) in place of x2
    add      x4       0:0 [16..32)
    ");
}

/// A row of the norm may be stored in quantized form, and would then overwrite a different row of the sum's
/// operand.
#[test]
fn norm_of_sum_does_not_overlap_operands() {
    for apart in [true, false] {
        let mut s = Sketch::default();
        let a = s.input(16);
        let (x, y) = (s.neg(a), s.neg(a));
        let sum = s.add(x, y);
        let op = if apart { Op::RmsNorm { eps: 1e-5 } } else { Op::Repeat };
        let norm = s.op(op, 16, &[sum]);
        let both = s.add(norm, sum);
        s.expand(both);
        let text = s.plan_text(&memory(usize::MAX), |_| 0);
        let place_of = |name: &str| {
            text.lines()
                .find(|line| line.contains(name))
                .map(|line| line.contains("[32..48)"))
        };
        // The second operand, and the norm or another op.
        assert_eq!(place_of("x2"), Some(true), "{text}");
        assert_eq!(place_of("x4"), Some(!apart), "{text}");
    }
}

#[test]
fn outputs_keep_their_memory() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let x1 = s.neg(a);
    s.graph.tensor_mut(x1).flags.output = true;
    let x2 = s.view(x1, 16, 0);
    let x3 = s.neg(x2); // the view's owner is an output
    let x4 = s.neg(x3);
    let x5 = s.neg(x4);
    s.expand(x5);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [48]
    leaf     x0       0:0 [0..16)
    unary    x1       0:0 [16..32)
    view     x2       view of x1 + 0
    unary    x3       0:0 [32..48)
    unary    x4       0:0 [32..48) in place of x3
    unary    x5       0:0 [32..48) in place of x4
    ");
}

#[test]
fn view_marked_as_output_keeps_its_owner() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let x1 = s.neg(a);
    let x2 = s.view(x1, 8, 8);
    s.graph.tensor_mut(x2).flags.output = true;
    let x3 = s.neg(x2);
    let x4 = s.repeat(x3, 16);
    s.expand(x4);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [56]
    leaf     x0       0:0 [0..16)
    unary    x1       0:0 [16..32)
    view     x2       view of x1 + 8
    unary    x3       0:0 [32..40)
    repeat   x4       0:0 [40..56)
    ");
}

#[test]
fn results_without_readers_are_retained() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let x1 = s.neg(a);
    s.graph.expand(x1);
    let x2 = s.neg(a);
    let x3 = s.repeat(x2, 16);
    s.expand(x3);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [64]
    leaf     x0       0:0 [0..16)
    unary    x1       0:0 [16..32)
    unary    x2       0:0 [32..48)
    repeat   x3       0:0 [48..64)
    ");
}

#[test]
fn views_take_no_memory_and_extend_lifetime() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let b = s.input(16);
    let x2 = s.add(a, b);
    let x3 = s.view(x2, 16, 0);
    let x4 = s.view(x3, 16, 0); // view of a view
    let x5 = s.neg(x4); // reuses the memory of x2, through both views
    s.expand(x5);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [48]
    leaf     x0       0:0 [0..16)
    leaf     x1       0:0 [16..32)
    add      x2       0:0 [32..48)
    view     x3       view of x2 + 0
    view     x4       view of x2 + 0
    unary    x5       0:0 [32..48) in place of x2
    ");
}

#[test]
fn two_views_of_a_tensor_prevent_in_place() {
    let mut s = Sketch::default();
    let a = s.input(32);
    let x1 = s.repeat(a, 32);
    let gate = s.view(x1, 16, 0);
    let up = s.view(x1, 16, 16);
    let x4 = s.op(Op::Glu(Unary::Silu), 16, &[gate, up]);
    s.expand(x4);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [80]
    leaf     x0       0:0 [0..32)
    repeat   x1       0:0 [32..64)
    view     x2       view of x1 + 0
    view     x3       view of x1 + 16
    glu      x4       0:0 [64..80)
    ");
}

#[test]
fn view_inside_its_owner_is_not_overwritten() {
    let mut s = Sketch::default();
    let a = s.input(32);
    let x1 = s.repeat(a, 32);
    let x2 = s.view(x1, 16, 16);
    let x3 = s.neg(x2);
    s.expand(x3);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [80]
    leaf     x0       0:0 [0..32)
    repeat   x1       0:0 [32..64)
    view     x2       view of x1 + 16
    unary    x3       0:0 [64..80)
    ");
}

#[test]
fn smaller_in_place_result_frees_the_rest() {
    let mut s = Sketch::default();
    let a = s.input(32);
    let x1 = s.repeat(a, 32);
    let x2 = s.view(x1, 16, 0);
    let x3 = s.neg(x2); // x3 reuses the first half of x1
    let x4 = s.repeat(a, 16); // x4 reuses the second half of x1
    let x5 = s.add(x3, x4);
    s.expand(x5);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [64]
    leaf     x0       0:0 [0..32)
    repeat   x1       0:0 [32..64)
    view     x2       view of x1 + 0
    unary    x3       0:0 [32..48) in place of x1
    repeat   x4       0:0 [48..64)
    add      x5       0:0 [32..48) in place of x3
    ");
}

#[test]
fn adjacent_freed_tensors_merge() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let x1 = s.repeat(a, 16);
    let x2 = s.repeat(a, 16);
    let x3 = s.repeat(a, 16);
    let x4 = s.op(Op::Concat { dim: 0 }, 4, &[x1, x2]);
    let x5 = s.repeat(x4, 32); // reuses the memory of x1 and x2
    let x6 = s.op(Op::Concat { dim: 0 }, 4, &[x5, x3]);
    s.expand(x6);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [68]
    leaf     x0       0:0 [0..16)
    repeat   x1       0:0 [16..32)
    repeat   x2       0:0 [32..48)
    concat   x4       0:0 [48..52)
    repeat   x5       0:0 [16..48)
    repeat   x3       0:0 [48..64)
    concat   x6       0:0 [64..68)
    ");
}

#[test]
fn written_cache_is_external_and_its_writer_a_view() {
    let mut s = Sketch::default();
    let data = s.input(16);
    let rows = s.input(8);
    let home = BufferSlice {
        buffer: BufferId(7),
        offset: 64,
    };
    let cache = s.external(64, home);
    let x3 = s.neg(data);
    let x4 = s.op(Op::SetRows, 64, &[x3, cache, rows]);
    s.graph.tensor_mut(x4).view = Some((cache, 0));
    s.graph.expand(x4);
    let x5 = s.view(cache, 32, 0);
    let x6 = s.neg(x5); // not in place, because the cache is external
    s.expand(x6);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [56]
    leaf     x0       0:0 [0..16)
    leaf     x2       external
    leaf     x1       0:0 [16..24)
    unary    x3       0:0 [24..40)
    set_rows x4       view of x2 + 0
    view     x5       view of x2 + 0
    unary    x6       0:0 [24..56)
    ");
}

#[test]
fn memories_are_planned_separately() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let x1 = s.neg(a);
    let x2 = s.neg(x1); // not in place, because x2 is in different memory
    let x3 = s.neg(x2);
    let x4 = s.neg(x3);
    s.expand(x4);
    let types: [Arc<dyn BufferType>; 3] = [
        Arc::new(FakeType::new("A", 4, usize::MAX)),
        Arc::new(FakeType::new("B", 32, usize::MAX)),
        Arc::new(FakeType::new("A", 4, usize::MAX)),
    ];
    let place = [0, 0, 1, 1, 2];
    insta::assert_snapshot!(s.plan_text(&types, |id| place[id.index()]), @r"
    memory 0: A [32]
    memory 1: B [32]
    leaf     x0       0:0 [0..16)
    unary    x1       0:0 [16..32)
    unary    x2       1:0 [0..32)
    unary    x3       1:0 [0..32) in place of x2
    unary    x4       0:0 [16..32)
    ");
    let mut allocator = GraphAllocator::new(&types);
    allocator.plan(&s.graph, s.order(), |id| place[id.index()]).unwrap();
    assert_eq!(
        allocator.planned_sizes(),
        [32, 32, 0],
        "the third type equals the first"
    );
}

#[test]
fn copies_live_from_their_step_to_last_reader() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let x1 = s.neg(a);
    let copy = s.graph.insert_copy(x1);
    let x3 = s.neg(copy);
    let x4 = s.neg(x3);
    s.expand(x4);
    s.leafs = vec![a];
    s.steps = vec![
        AllocStep::Compute(x1),
        AllocStep::Copy { from: x1, to: copy },
        AllocStep::Compute(x3),
        AllocStep::Compute(x4),
    ];
    let types: [Arc<dyn BufferType>; 2] = [
        Arc::new(FakeType::new("A", 4, usize::MAX)),
        Arc::new(FakeType::new("B", 4, usize::MAX)),
    ];
    insta::assert_snapshot!(s.plan_text(&types, |id| usize::from(id > x1)), @r"
    memory 0: A [32]
    memory 1: B [16]
    leaf     x0       0:0 [0..16)
    unary    x1       0:0 [16..32)
    copy     x1       1:0 [0..16)
    unary    x3       1:0 [0..16) in place of x1
    unary    x4       1:0 [0..16) in place of x3
    ");
}

#[test]
fn chunks_respect_the_largest_buffer() {
    let mut s = Sketch::default();
    let x: Vec<_> = (0..3).map(|_| s.input(8)).collect();
    let x3 = s.add(x[0], x[1]);
    let x4 = s.add(x[1], x[2]);
    let x5 = s.add(x3, x[0]);
    let x6 = s.add(x4, x5);
    s.expand(x6);
    insta::assert_snapshot!(s.plan_text(&memory(16), |_| 0), @r"
    memory 0: A [16, 16, 8]
    leaf     x1       0:0 [0..8)
    leaf     x2       0:0 [8..16)
    leaf     x0       0:1 [0..8)
    add      x4       0:1 [8..16)
    add      x3       0:2 [0..8)
    add      x5       0:2 [0..8) in place of x3
    add      x6       0:1 [8..16) in place of x4
    ");
}

#[test]
fn tensor_larger_than_max_buffer_is_attempted() {
    let mut s = Sketch::default();
    let a = s.input(24);
    let x1 = s.repeat(a, 8);
    s.expand(x1);
    insta::assert_snapshot!(s.plan_text(&memory(16), |_| 0), @r"
    memory 0: A [24, 8]
    leaf     x0       0:0 [0..24)
    repeat   x1       0:1 [0..8)
    ");
}

#[test]
fn empty_tensors_get_an_address() {
    let mut s = Sketch::default();
    let a = s.input(0);
    let x1 = s.neg(a);
    s.expand(x1);
    insta::assert_snapshot!(s.plan_text(&memory(usize::MAX), |_| 0), @r"
    memory 0: A [8]
    leaf     x0       0:0 [0..4)
    unary    x1       0:0 [4..8)
    ");
}

#[test]
fn overflowing_sizes_are_rejected() {
    let mut s = Sketch::default();
    let a = s.graph.input(GgmlType::F32, [usize::MAX / 8, 1, 1, 1], "huge");
    s.graph.tensor_mut(a).ne = [usize::MAX / 2, 3, 1, 1];
    s.graph.tensor_mut(a).nb = [4, usize::MAX / 2, 4, 4];
    s.graph.expand(a);
    s.leafs = vec![a];
    let mut allocator = GraphAllocator::new(&memory(usize::MAX));
    let error = allocator.plan(&s.graph, s.order(), |_| 0).unwrap_err();
    assert!(
        matches!(&error, AllocError::TooLarge { tensor, .. } if tensor == "huge"),
        "{error}"
    );
}

#[test]
fn operand_outside_order_is_rejected() {
    let mut s = Sketch::default();
    let a = s.input(16);
    let x1 = s.neg(a);
    s.expand(x1);
    s.leafs.clear();
    let mut allocator = GraphAllocator::new(&memory(usize::MAX));
    let error = allocator.plan(&s.graph, s.order(), |_| 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot plan node x1: its operand x0 is computed later or missing"
    );
}

#[test]
fn out_of_memory_error_is_detailed_and_recoverable() {
    let ty = FakeType {
        limit: 40,
        ..FakeType::new("A", 4, usize::MAX)
    };
    let types: [Arc<dyn BufferType>; 1] = [Arc::new(ty)];
    let mut allocator = GraphAllocator::new(&types);
    let mut map = MemoryMap::default();
    let chain = |bytes: usize| {
        let mut s = Sketch::default();
        let a = s.input(bytes);
        let x = s.neg(a);
        s.expand(x);
        s
    };
    let mut small = chain(16);
    let big = chain(64);
    let (leafs, steps) = (small.leafs.clone(), small.steps.clone());
    let order = Order {
        leafs: &leafs,
        steps: &steps,
    };
    allocator.assign(&mut small.graph, order, |_| 0, &mut map).unwrap();
    let error = allocator.reserve(&big.graph, big.order(), |_| 0, &mut map).unwrap_err();
    assert_eq!(error.to_string(), "cannot allocate 128 bytes of A memory");
    assert_eq!(allocator.sizes(), [0], "the old buffer is released first");
    allocator.assign(&mut small.graph, order, |_| 0, &mut map).unwrap();
    assert_eq!(allocator.sizes(), [32]);
    let home = small.graph.home(TensorId(1)).unwrap();
    assert_eq!(map.get(home.buffer).unwrap().size(), 32);
}

#[test]
fn reserved_buffers_fit_smaller_graphs() {
    let ty = FakeType::new("A", 4, usize::MAX);
    let (allocated, n_buffers) = (ty.allocated.clone(), ty.n_buffers.clone());
    let types: [Arc<dyn BufferType>; 1] = [Arc::new(ty)];
    let mut allocator = GraphAllocator::new(&types);
    let mut map = MemoryMap::default();
    let build = |bytes: usize| {
        let mut s = Sketch::default();
        let a = s.input(bytes);
        let x1 = s.repeat(a, bytes);
        let x2 = s.neg(x1);
        s.expand(x2);
        s
    };
    let mut large = build(64);
    allocator.reserve(&large.graph, large.order(), |_| 0, &mut map).unwrap();
    assert_eq!(allocated.load(Ordering::Relaxed), 128);

    let mut small = build(16);
    assert!(allocator.fits(&small.graph, small.order(), |_| 0));
    for s in [&mut small, &mut large] {
        let (leafs, steps) = (s.leafs.clone(), s.steps.clone());
        let order = Order {
            leafs: &leafs,
            steps: &steps,
        };
        allocator.assign(&mut s.graph, order, |_| 0, &mut map).unwrap();
    }
    assert_eq!(small.graph.home(TensorId(1)), large.graph.home(TensorId(1)));
    assert_eq!(n_buffers.load(Ordering::Relaxed), 1);

    // A larger graph replaces the buffer under the same id.
    let larger = build(80);
    assert!(!allocator.fits(&larger.graph, larger.order(), |_| 0));
    allocator
        .reserve(&larger.graph, larger.order(), |_| 0, &mut map)
        .unwrap();
    assert_eq!(
        map.get(large.graph.home(TensorId(1)).unwrap().buffer).unwrap().size(),
        160
    );
    assert_eq!(allocator.sizes(), [160]);
}

#[test]
fn changed_graph_of_same_size_is_replanned() {
    let build = |second: bool| {
        let mut s = Sketch::default();
        let a = s.input(16);
        let x1 = s.neg(a);
        let x2 = s.neg(x1);
        // The second read of x1 rules out the reuse that the other graph allows.
        let x3 = s.add(x2, if second { x1 } else { a });
        s.expand(x3);
        s
    };
    let (one, two) = (build(false), build(true));
    let mut allocator = GraphAllocator::new(&memory(usize::MAX));
    allocator.plan(&one.graph, one.order(), |_| 0).unwrap();
    assert!(allocator.fits(&one.graph, one.order(), |_| 0));
    assert!(!allocator.fits(&two.graph, two.order(), |_| 0));
}

#[test]
fn same_total_in_other_chunks_grows_only_small_buffers() {
    let mut allocator = GraphAllocator::new(&memory(32));
    let mut map = MemoryMap::default();
    let build = |sizes: [usize; 2]| {
        let mut s = Sketch::default();
        let a = s.input(sizes[0]);
        let b = s.input(sizes[1]);
        let x2 = s.op(Op::Concat { dim: 0 }, 4, &[a, b]);
        s.expand(x2);
        s
    };
    let first = build([24, 16]);
    allocator.reserve(&first.graph, first.order(), |_| 0, &mut map).unwrap();
    assert_eq!(allocator.sizes(), [28 + 16]);
    let second = build([20, 20]);
    allocator
        .reserve(&second.graph, second.order(), |_| 0, &mut map)
        .unwrap();
    assert_eq!(allocator.sizes(), [28 + 20]);
}
