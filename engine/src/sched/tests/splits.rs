//! Passes 5 and 6: split boundaries, copies, and the order for the allocator.

use super::*;

#[test]
fn one_backend_is_one_split() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let w = lab.weight(CPU, "w");
    let a = lab.mul_mat(w, x, "a");
    let b = lab.add(a, x, "b");
    lab.output(b);
    insta::assert_snapshot!(lab.splits(), @r"
    split 0: cpu
      a = mul_mat(w, x)
      b = add(a, x)
    ");
}

#[test]
fn splits_begin_at_backend_changes() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let (w0, w1) = (lab.weight(GPU, "w0"), lab.weight(CPU, "w1"));
    let a = lab.mul_mat(w0, x, "a");
    let b = lab.add(a, x, "b"); // the input is copied once
    let c = lab.mul_mat(w1, b, "c");
    let d = lab.add(c, a, "d");
    let e = lab.mul_mat(w0, d, "e");
    let f = lab.add(e, x, "f"); // the third split reuses the copy
    lab.output(f);
    insta::assert_snapshot!(lab.splits(), @r"
    split 0: gpu, copies x (32 B)
      a = mul_mat(w0, gpu#x)
      b = add(a, gpu#x)
    split 1: cpu, copies b (32 B)
      c = mul_mat(w1, cpu#b)
    split 2: gpu, copies c (32 B)
      d = add(gpu#c, a)
      e = mul_mat(w0, d)
      f = add(e, gpu#x)
    ");
}

#[test]
fn views_are_copied_without_their_owner() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let (w0, w1) = (lab.weight(GPU, "w0"), lab.weight(CPU, "w1"));
    let a = lab.mul_mat(w0, x, "a");
    let v = lab.graph.slice(a, 0, 4).unwrap();
    lab.name(v, "v");
    let b = lab.mul_mat(w1, v, "b");
    lab.output(b);
    insta::assert_snapshot!(lab.splits(), @r"
    split 0: gpu, copies x (32 B)
      a = mul_mat(w0, gpu#x)
    split 1: cpu, copies v (32 B)
      b = mul_mat(w1, cpu#v)
    ");
}

#[test]
fn readable_memory_is_not_copied() {
    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    gpu.reads = vec!["cpu"];
    let mut lab = Lab::with(vec![gpu, FakeDevice::new("cpu", DeviceKind::Cpu)]);
    let x = lab.input("x");
    let w0 = lab.weight(GPU, "w0");
    let a = lab.mul_mat(w0, x, "a");
    lab.output(a);
    insta::assert_snapshot!(lab.splits(), @r"
    split 0: gpu
      a = mul_mat(w0, x)
    ");
}

/// Offloaded weights share memory between splits.
#[test]
fn weight_to_copy_starts_split_unless_already_copied() {
    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    gpu.offloads = Box::new(is_mul_mat);
    let mut lab = Lab::with(vec![gpu, FakeDevice::new("cpu", DeviceKind::Cpu)]);
    lab.op_offload = true;
    let x = lab.input("x");
    let (w0, w1) = (lab.weight(CPU, "w0"), lab.weight(CPU, "w1"));
    let a = lab.mul_mat(w0, x, "a");
    let b = lab.mul_mat(w1, a, "b");
    let c = lab.mul_mat(w0, b, "c"); // the copy still exists, so no new split starts
    lab.output(c);
    let mut s = lab.scheduler();
    s.alloc_graph(&mut lab.graph).unwrap();
    insta::assert_snapshot!(s.describe(&lab.graph), @r"
    split 0: gpu, copies w0 (64 B), x (32 B)
      a = mul_mat(gpu#w0, gpu#x)
    split 1: gpu, copies w1 (64 B)
      b = mul_mat(gpu#w1, a)
      c = mul_mat(gpu#w0, b)
    ");
    insta::assert_snapshot!(s.describe_memory(&lab.graph), @r"
    memory 0: gpu [224]
    memory 1: cpu [32]
    leaf     x        0:0 [0..32)
    leaf     w0       external
    leaf     w1       external
    leaf     x        1:0 [0..32)
    copy     w0       0:0 [32..96)
    copy     x        0:0 [0..32)
    mul_mat  a        0:0 [96..128)
    copy     w1       0:0 [128..192)
    mul_mat  b        0:0 [192..224)
    mul_mat  c        0:0 [96..128)
    ");
}

#[test]
fn copy_is_refreshed_after_write_to_original() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let rows = lab.graph.input(GgmlType::I64, [2, 1, 1, 1], "rows");
    let cache = lab.cache(CPU, 2, "cache");
    let w0 = lab.weight(GPU, "w0");
    let a = lab.mul_mat(w0, cache, "a");
    lab.graph.expand(a);
    let set = lab.graph.set_rows(cache, x, rows).unwrap();
    lab.name(set, "set");
    lab.graph.expand(set);
    let b = lab.mul_mat(w0, cache, "b");
    let c = lab.add(a, b, "c");
    lab.output(c);
    insta::assert_snapshot!(lab.splits(), @r"
    split 0: gpu, copies cache (32 B)
      a = mul_mat(w0, gpu#cache)
    split 1: cpu
      set = set_rows(x, cache, rows)
    split 2: gpu, copies cache (32 B)
      b = mul_mat(w0, gpu#cache)
      c = add(a, b)
    ");
}

#[test]
fn graph_of_only_views_is_one_empty_split() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let v = lab.view(x, "v");
    lab.output(v);
    insta::assert_snapshot!(lab.splits(), @"split 0: cpu");
    let mut s = lab.scheduler();
    let bytes = lab.compute(&mut s, v);
    assert_eq!(bytes, read(&mut s, &lab.graph, x));
}

#[test]
fn splitting_twice_gives_the_same_graph() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let (w0, w1) = (lab.weight(GPU, "w0"), lab.weight(CPU, "w1"));
    let a = lab.mul_mat(w0, x, "a");
    let b = lab.mul_mat(w1, a, "b");
    lab.output(b);
    let first = lab.splits();
    let (len, tensors) = (lab.graph.len(), lab.graph.clone());
    assert_eq!(lab.splits(), first);
    assert_eq!(lab.graph.len(), len);
    assert!(lab.graph.ids().all(|id| lab.graph.tensor(id) == tensors.tensor(id)));

    // Nodes that were added after the copies stay intact.
    let c = lab.mul_mat(w0, b, "c");
    lab.output(c);
    insta::assert_snapshot!(lab.splits(), @r"
    split 0: gpu, copies x (32 B)
      a = mul_mat(w0, gpu#x)
    split 1: cpu, copies a (32 B)
      b = mul_mat(w1, cpu#a)
    split 2: gpu, copies b (32 B)
      c = mul_mat(w0, gpu#b)
    ");
}
