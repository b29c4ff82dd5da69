//! Passes 1 to 4, one test per rule.

use super::*;

#[test]
fn ops_are_assigned_to_weights_and_inputs_to_last_backend() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let (w0, w1) = (lab.weight(GPU, "w0"), lab.weight(CPU, "w1"));
    let a = lab.mul_mat(w0, x, "a");
    let b = lab.scale(a, "b");
    let c = lab.mul_mat(w1, b, "c");
    lab.output(c);
    assert_eq!(lab.after_pass(1), "w1:cpu w0:gpu x:cpu a:gpu b:- c:cpu");
}

#[test]
fn cache_writers_and_views_stay_on_its_device() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let rows = lab.graph.input(GgmlType::I64, [2, 1, 1, 1], "rows");
    let cache = lab.cache(CPU, 8, "cache");
    let set = lab.graph.set_rows(cache, x, rows).unwrap();
    lab.name(set, "set");
    let v = lab.view(cache, "v");
    lab.output(set);
    lab.output(v);
    assert_eq!(lab.after_pass(1), "x:cpu cache:cpu rows:cpu set:cpu v:cpu");
}

#[test]
fn shared_memory_is_assigned_to_better_backend() {
    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    gpu.reads = vec!["cpu"];
    gpu.supports = not_named(&["b"]);
    let mut lab = Lab::with(vec![gpu, FakeDevice::new("cpu", DeviceKind::Cpu)]);
    let x = lab.input("x");
    let w = lab.weight(CPU, "w");
    let a = lab.mul_mat(w, x, "a");
    let b = lab.mul_mat(w, a, "b"); // the GPU does not support this matmul
    lab.output(b);
    assert_eq!(lab.after_pass(1), "w:gpu x:cpu a:gpu b:cpu");
}

#[test]
fn small_rope_weights_do_not_determine_backend() {
    let mut lab = Lab::new();
    let x = lab.graph.input(GgmlType::F32, [4, 1, 2, 1], "x");
    let pos = lab.graph.input(GgmlType::I32, [2, 1, 1, 1], "pos");
    let factors = lab.weight(CPU, "factors");
    let rope = crate::graph::Rope::unscaled(crate::graph::RopeKind::Norm, 4, 1e4);
    let r = lab.graph.rope(x, pos, Some(factors), rope).unwrap();
    lab.name(r, "r");
    lab.output(r);
    assert_eq!(lab.after_pass(1), "x:cpu pos:cpu factors:cpu r:-");
}

#[test]
fn large_ops_on_host_weights_are_offloaded_if_enabled() {
    let build = |op_offload: bool| {
        let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
        gpu.offloads = Box::new(|g, id| is_mul_mat(g, id) && g.tensor(id).ne[1] >= 2);
        let mut lab = Lab::with(vec![gpu, FakeDevice::new("cpu", DeviceKind::Cpu)]);
        lab.op_offload = op_offload;
        let x = lab.input("x");
        let w = lab.weight(CPU, "w");
        let a = lab.mul_mat(w, x, "a");
        let one = lab.graph.input(GgmlType::F32, [4, 1, 1, 1], "one");
        let b = lab.mul_mat(w, one, "b");
        lab.output(a);
        lab.output(b);
        lab.after_pass(1)
    };
    assert_eq!(build(true), "w:cpu x:cpu one:cpu a:gpu b:cpu");
    assert_eq!(build(false), "w:cpu x:cpu one:cpu a:cpu b:cpu");
}

#[test]
fn memory_without_backend_is_rejected() {
    let mut lab = Lab::new();
    let stranger = FakeDevice::new("npu", DeviceKind::Gpu);
    lab.devices.push(Arc::new(stranger));
    let x = lab.input("x");
    let w = lab.weight(2, "w");
    let a = lab.mul_mat(w, x, "a");
    lab.output(a);
    lab.devices.pop();
    let error = lab.scheduler().alloc_graph(&mut lab.graph).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot assign w to a backend: none supports leaf with npu memory"
    );
}

#[test]
fn better_backends_spread_first() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let (w0, w1) = (lab.weight(GPU, "w0"), lab.weight(CPU, "w1"));
    let before = lab.scale(x, "before");
    let a = lab.mul_mat(w0, before, "a");
    let b = lab.scale(a, "b");
    let c = lab.mul_mat(w1, b, "c");
    let d = lab.scale(c, "d");
    lab.output(d);
    // `before` is assigned by the upward sweep and `b` by the downward sweep. `d` comes after the CPU, which
    // spreads later.
    assert_eq!(
        lab.after_pass(2),
        "w1:cpu w0:gpu x:cpu before:gpu a:gpu b:gpu c:cpu d:cpu"
    );
}

#[test]
fn unsupported_op_does_not_stop_expansion() {
    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    gpu.supports = not_named(&["b"]);
    let mut lab = Lab::with(vec![gpu, FakeDevice::new("cpu", DeviceKind::Cpu)]);
    let x = lab.input("x");
    let w0 = lab.weight(GPU, "w0");
    let a = lab.mul_mat(w0, x, "a");
    let b = lab.scale(a, "b");
    let c = lab.scale(b, "c");
    lab.output(c);
    assert_eq!(lab.after_pass(2), "w0:gpu x:cpu a:gpu b:- c:gpu");
    assert_eq!(lab.after_pass(3), "w0:gpu x:cpu a:gpu b:cpu c:gpu");
}

#[test]
fn views_are_skipped_by_expansion() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let w0 = lab.weight(GPU, "w0");
    let a = lab.mul_mat(w0, x, "a");
    let v = lab.view(a, "v");
    let b = lab.scale(v, "b");
    lab.output(b);
    assert_eq!(lab.after_pass(3), "w0:gpu x:cpu a:gpu v:- b:gpu");
    assert_eq!(lab.after_pass(4), "w0:gpu x:cpu a:gpu v:gpu b:gpu");
}

#[test]
fn writer_of_a_tensor_follows_the_tensor() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let rows = lab.graph.input(GgmlType::I64, [2, 1, 1, 1], "rows");
    let state = lab.input("state");
    let w0 = lab.weight(GPU, "w0");
    let a = lab.mul_mat(w0, x, "a");
    let set = lab.graph.set_rows(state, a, rows).unwrap();
    lab.name(set, "set");
    let b = lab.mul_mat(w0, set, "b");
    lab.output(b);
    // The running backend of the sweep is the GPU, but the node writes to memory of the CPU.
    let last = lab.after_pass(4);
    assert_eq!(last, "w0:gpu x:cpu state:cpu rows:cpu a:gpu set:cpu b:gpu");
}

#[test]
fn nodes_are_upgraded_to_backend_of_same_memory() {
    let mut blas = FakeDevice::new("blas", DeviceKind::Accel);
    let cpu = FakeDevice::new("cpu", DeviceKind::Cpu);
    blas.memory = cpu.memory.clone();
    blas.supports = Box::new(is_mul_mat);
    let mut lab = Lab::with(vec![FakeDevice::new("gpu", DeviceKind::Gpu), blas, cpu]);
    lab.user.push((TensorId(4), BackendId(2)));
    let x = lab.input("x");
    let w = lab.weight(2, "w");
    let g = lab.weight(0, "g");
    let a = lab.scale(x, "a");
    let b = lab.mul_mat(w, a, "b"); // assigned to the CPU by the user, then improved
    let c = lab.mul_mat(g, b, "c");
    let d = lab.scale(c, "d");
    lab.output(d);
    assert_eq!(lab.after_pass(1), "g:gpu w:blas x:cpu a:- b:cpu c:gpu d:-");
    assert_eq!(lab.after_pass(3), "g:gpu w:blas x:cpu a:cpu b:blas c:gpu d:gpu");
}

#[test]
fn leftovers_are_assigned_by_usable_operands() {
    let mut left = FakeDevice::new("left", DeviceKind::Gpu);
    left.supports = not_named(&["mix"]);
    let mut right = FakeDevice::new("right", DeviceKind::Gpu);
    right.reads = vec!["left"];
    let mut lab = Lab::with(vec![left, right, FakeDevice::new("cpu", DeviceKind::Cpu)]);
    let x = lab.input("x");
    let (w0, w1) = (lab.weight(0, "w0"), lab.weight(1, "w1"));
    let a = lab.mul_mat(w0, x, "a");
    let mix = lab.add(a, a, "mix");
    let b = lab.mul_mat(w0, mix, "b");
    let c = lab.mul_mat(w1, b, "c");
    lab.output(c);
    assert_eq!(lab.after_pass(2), "w1:right w0:left x:cpu a:left mix:- b:left c:right");
    assert_eq!(
        lab.after_pass(3),
        "w1:right w0:left x:cpu a:left mix:right b:left c:right"
    );
}

#[test]
fn op_without_backend_is_rejected() {
    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    let mut cpu = FakeDevice::new("cpu", DeviceKind::Cpu);
    gpu.supports = not_named(&["b"]);
    cpu.supports = not_named(&["b"]);
    let mut lab = Lab::with(vec![gpu, cpu]);
    let x = lab.input("x");
    let b = lab.scale(x, "b");
    lab.output(b);
    let error = lab.scheduler().alloc_graph(&mut lab.graph).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no backend supports scale (b) with an operand of type f32"
    );
}

#[test]
fn user_assignment_has_priority_if_supported() {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let w0 = lab.weight(GPU, "w0");
    let a = lab.mul_mat(w0, x, "a");
    let b = lab.scale(a, "b");
    lab.output(b);
    lab.user.push((b, BackendId(CPU as u8)));
    assert_eq!(lab.after_pass(4), "w0:gpu x:cpu a:gpu b:cpu");
    let mut s = lab.scheduler();
    s.alloc_graph(&mut lab.graph).unwrap();
    assert_eq!((s.n_splits(), s.backend_of(b)), (2, Some(BackendId(1))));
    s.reset();
    s.alloc_graph(&mut lab.graph).unwrap();
    assert_eq!((s.n_splits(), s.backend_of(b)), (1, Some(BackendId(0))));
    assert!(matches!(
        s.set_backend(b, BackendId(2)),
        Err(SchedError::BackendOutOfRange { index: 2, count: 2 })
    ));

    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    gpu.supports = not_named(&["b"]);
    lab.devices[GPU] = Arc::new(gpu);
    lab.user = vec![(b, BackendId(GPU as u8))];
    assert!(lab.scheduler().alloc_graph(&mut lab.graph).is_err());
}

#[test]
fn number_of_backends_is_limited() {
    let many: Vec<_> = (0..MAX_BACKENDS + 1)
        .map(|_| Arc::new(FakeDevice::new("cpu", DeviceKind::Cpu)))
        .map(|d| d.backend(&Lab::params()).unwrap())
        .collect();
    for backends in [Vec::new(), many] {
        let n = backends.len();
        let made = Scheduler::new(backends, MemoryMap::default(), SchedParams::default());
        assert!(matches!(made, Err(SchedError::BackendCount(found)) if found == n));
    }
}
