//! Tests of graph computation: results, observers, cancellation, queues, errors.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::backend::{Buffer, GraphView, Plan};
use crate::sched::fake::FakeType;

/// Builds three steps on two devices. The result must not depend on the devices.
fn three_steps(first: usize, second: usize) -> (Lab, TensorId) {
    let mut lab = Lab::new();
    let x = lab.input("x");
    let (w0, w1) = (lab.weight(first, "w0"), lab.weight(second, "w1"));
    let a = lab.mul_mat(w0, x, "a");
    let b = lab.add(a, x, "b");
    let c = lab.mul_mat(w1, b, "c");
    let d = lab.add(c, a, "d");
    let e = lab.mul_mat(w0, d, "e");
    lab.output(e);
    (lab, e)
}

#[test]
fn results_do_not_depend_on_devices() {
    let (mut cpu, out) = three_steps(CPU, CPU);
    let mut s = cpu.scheduler();
    let expected = cpu.compute(&mut s, out);
    assert!(expected.iter().any(|&b| b != 0));
    for (first, second, n_splits) in [(GPU, GPU, 1), (GPU, CPU, 3), (CPU, GPU, 3)] {
        let (mut lab, out) = three_steps(first, second);
        let mut s = lab.scheduler();
        assert_eq!(lab.compute(&mut s, out), expected);
        assert_eq!(s.n_splits(), n_splits);
        let log = lab.devices.iter().map(|d| d.log.lock().unwrap().len()).sum::<usize>();
        assert_eq!(log, n_splits);
    }
}

#[test]
fn prepared_graph_is_not_processed_again_until_changed() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    gpu.supports = Box::new(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        true
    });
    let mut lab = Lab::with(vec![gpu, FakeDevice::new("cpu", DeviceKind::Cpu)]);
    let x = lab.input("x");
    let w = lab.weight(GPU, "w");
    let a = lab.mul_mat(w, x, "a");
    lab.output(a);
    let mut s = lab.scheduler();
    let first = lab.compute(&mut s, a);
    let n = asked.load(Ordering::Relaxed);
    assert!(n > 0);
    assert_eq!(lab.compute(&mut s, a), first);
    assert_eq!(asked.load(Ordering::Relaxed), n);

    let b = lab.scale(a, "b");
    lab.output(b);
    assert!(matches!(s.compute(&lab.graph), Err(SchedError::NotAllocated)));
    lab.compute(&mut s, b);
    assert!(asked.load(Ordering::Relaxed) > n);
}

#[test]
fn two_graphs_alternate() {
    let (mut one, out_one) = three_steps(GPU, CPU);
    let mut s = one.scheduler();
    let expected = one.compute(&mut s, out_one);
    // The same scheduler computes a second graph.
    let mut two = Graph::new();
    std::mem::swap(&mut two, &mut one.graph);
    let x = one.input("x");
    let y = one.scale(x, "y");
    one.output(y);
    one.compute(&mut s, y);
    fill_inputs(&mut s, &two);
    s.compute(&two).unwrap();
    assert_eq!(read(&mut s, &two, out_one), expected);
    std::mem::swap(&mut two, &mut one.graph);
    assert_eq!(one.compute(&mut s, out_one), expected);
}

#[test]
fn unallocated_tensors_and_wrong_sizes_are_rejected() {
    let (mut lab, out) = three_steps(GPU, CPU);
    let unused = lab.input("unused");
    let mut s = lab.scheduler();
    assert!(matches!(s.compute(&lab.graph), Err(SchedError::NotAllocated)));
    s.alloc_graph(&mut lab.graph).unwrap();
    let error = s.set_input(&lab.graph, unused, &[0; 32]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot access tensor unused: it is not part of the allocated graph"
    );
    let error = s.set_input(&lab.graph, TensorId(0), &[0; 31]).unwrap_err();
    assert_eq!(error.to_string(), "cannot access tensor x: expected 32 bytes, found 31");
    let error = s.read_tensor(&lab.graph, out, 16, &mut [0; 17]).unwrap_err();
    assert_eq!(error.to_string(), "cannot access tensor e: expected 32 bytes, found 33");
    s.write_tensor(&lab.graph, TensorId(0), 28, &[1; 4]).unwrap();
    let mut back = [0; 8];
    s.read_tensor(&lab.graph, TensorId(0), 24, &mut back).unwrap();
    assert_eq!(back[4..], [1; 4]);
}

#[test]
fn scheduler_recovers_from_out_of_memory() {
    let (mut lab, out) = three_steps(GPU, CPU);
    let ty = FakeType {
        limit: 64,
        ..FakeType::new("gpu", 32, usize::MAX)
    };
    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    gpu.memory = Arc::new(ty);
    lab.devices[GPU] = Arc::new(gpu);
    let mut s = lab.scheduler();
    let error = s.alloc_graph(&mut lab.graph).unwrap_err();
    assert_eq!(error.to_string(), "cannot allocate 96 bytes of gpu memory");
    assert!(matches!(s.compute(&lab.graph), Err(SchedError::NotAllocated)));
    let (mut small, _) = three_steps(CPU, CPU);
    small.stored.clear();
    let x = small.input("x");
    let y = small.scale(x, "y");
    small.graph.reset_order();
    small.output(y);
    s.alloc_graph(&mut small.graph).unwrap();
    assert!(lab.graph.home(out).is_none());
}

#[test]
fn reserved_sizes_are_reported_without_allocation() {
    let (mut lab, _) = three_steps(GPU, CPU);
    let mut s = lab.scheduler();
    let measured = s.measure(&mut lab.graph).unwrap();
    assert_eq!(s.reserve_sizes(), [0, 0]);
    s.reserve(&mut lab.graph).unwrap();
    assert_eq!(s.reserve_sizes(), measured);
    assert!(measured.iter().all(|&n| n > 0));
    let mut graph = lab.graph.clone();
    s.alloc_graph(&mut graph).unwrap();
    assert_eq!(s.reserve_sizes(), measured);
}

/// Names and data of observed nodes.
type Seen = Arc<Mutex<Vec<(&'static str, Vec<u8>)>>>;

/// Observes some nodes and stores their data.
struct Watch {
    wanted: &'static [&'static str],
    stop_at: &'static str,
    seen: Seen,
}

impl Observer for Watch {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        self.wanted.contains(&graph.tensor(node).name.base)
    }

    fn show(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> ControlFlow<()> {
        let name = graph.tensor(node).name.base;
        self.seen.lock().unwrap().push((name, data.to_vec()));
        if name == self.stop_at {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[test]
fn observer_sees_requested_nodes_and_can_stop() {
    let (mut lab, out) = three_steps(GPU, CPU);
    let mut s = lab.scheduler();
    let expected = lab.compute(&mut s, out);
    lab.devices.iter().for_each(|d| d.log.lock().unwrap().clear());
    let seen = Seen::default();
    s.set_observer(Some(Box::new(Watch {
        wanted: &["a", "e"],
        stop_at: "",
        seen: seen.clone(),
    })));
    assert_eq!(lab.compute(&mut s, out), expected);
    let shown: Vec<_> = seen.lock().unwrap().drain(..).collect();
    assert_eq!(shown.iter().map(|(n, _)| *n).collect::<Vec<_>>(), ["a", "e"]);
    assert_eq!(shown[1].1, expected);
    // The first split is computed in two parts, so that `a` is shown before `b` is computed.
    let log = lab.devices[GPU].log.lock().unwrap().clone();
    assert_eq!(log, ["gpu: 1 from a", "gpu: 1 from b", "gpu: 2 from d"]);

    s.set_observer(Some(Box::new(Watch {
        wanted: &["c"],
        stop_at: "c",
        seen: seen.clone(),
    })));
    let stopped = s.compute(&lab.graph).unwrap_err();
    assert!(matches!(stopped, SchedError::Backend(BackendError::Cancelled)));
    s.set_observer(None);
    assert_eq!(lab.compute(&mut s, out), expected);
}

/// The cancellation flag is set while a node is computed. That node must be the last, at any position in its
/// split. The caller clears the flag immediately; still no further node runs, and the next computation is
/// complete again.
#[test]
fn cancellation_takes_effect_within_a_node() {
    let (mut lab, out) = three_steps(GPU, CPU);
    let mut s = lab.scheduler();
    let expected = lab.compute(&mut s, out);
    for stop_at in ["a", "b", "c", "d"] {
        let cancel = Arc::new(AtomicBool::new(false));
        let computed = Arc::new(Mutex::new(Vec::new()));
        let (mut lab, out) = three_steps(GPU, CPU);
        let devices = lab.devices.iter_mut().map(|device| {
            let (cancel, computed) = (cancel.clone(), computed.clone());
            let device = Arc::get_mut(device).unwrap();
            device.computed = Arc::new(move |graph, node| {
                let name = graph.tensor(node).name.base;
                computed.lock().unwrap().push(name);
                if name == stop_at {
                    cancel.store(true, Ordering::Relaxed);
                }
            });
        });
        devices.for_each(drop);
        let mut s = lab.scheduler();
        s.set_cancel(Some(cancel.clone()));
        s.alloc_graph(&mut lab.graph).unwrap();
        fill_inputs(&mut s, &lab.graph);
        let error = s.compute(&lab.graph).unwrap_err();
        assert!(matches!(error, SchedError::Backend(BackendError::Cancelled)));
        assert_eq!(computed.lock().unwrap().last(), Some(&stop_at));
        cancel.store(false, Ordering::Relaxed);
        s.set_cancel(None);
        assert_eq!(lab.compute(&mut s, out), expected);
    }
}

/// Cancellation also ends an observed graph, which is computed in pieces.
#[test]
fn cancellation_ends_observed_graphs() {
    let (mut lab, out) = three_steps(GPU, CPU);
    let mut s = lab.scheduler();
    let expected = lab.compute(&mut s, out);
    let cancel = Arc::new(AtomicBool::new(true));
    let seen = Seen::default();
    s.set_observer(Some(Box::new(Watch {
        wanted: &["a"],
        stop_at: "",
        seen: seen.clone(),
    })));
    s.set_cancel(Some(cancel.clone()));
    assert!(matches!(
        s.compute(&lab.graph),
        Err(SchedError::Backend(BackendError::Cancelled))
    ));
    assert!(seen.lock().unwrap().is_empty());
    cancel.store(false, Ordering::Relaxed);
    assert_eq!(lab.compute(&mut s, out), expected);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

/// Each split is prepared once per version of its graph, and several graphs stay prepared at the same time.
#[test]
fn plans_stay_with_their_graphs() {
    let (mut one, out_one) = three_steps(GPU, CPU);
    let prepared = |lab: &Lab| -> usize { lab.devices.iter().map(|d| d.n_prepared.load(Ordering::Relaxed)).sum() };
    let mut s = one.scheduler();
    let expected = one.compute(&mut s, out_one);
    assert_eq!(prepared(&one), 3);
    let mut two = Graph::new();
    let x = two.input(GgmlType::F32, [4, 2, 1, 1], "x");
    let y = two.scale(x, 2.0, 0.0).unwrap();
    two.expand(y);
    s.alloc_graph(&mut two).unwrap();
    assert_eq!(prepared(&one), 4);
    for _ in 0..3 {
        fill_inputs(&mut s, &two);
        s.compute(&two).unwrap();
        assert_eq!(one.compute(&mut s, out_one), expected);
    }
    assert_eq!(prepared(&one), 4);
    // Changes to one graph do not affect the second graph, but moved memory does.
    two.tensor_mut(y).flags.output = true;
    assert!(matches!(s.compute(&two), Err(SchedError::NotAllocated)));
    s.alloc_graph(&mut two).unwrap();
    s.compute(&one.graph).unwrap();
    assert_eq!(prepared(&one), 5);
    let mut large = Graph::new();
    let x = large.input(GgmlType::F32, [4, 200, 1, 1], "x");
    let y = large.scale(x, 2.0, 0.0).unwrap();
    large.expand(y);
    s.alloc_graph(&mut large).unwrap();
    assert!(matches!(s.compute(&one.graph), Err(SchedError::NotAllocated)));
    assert_eq!(one.compute(&mut s, out_one), expected);
}

/// Only the experts named by the ids are copied from host memory to the device.
#[test]
fn only_used_experts_are_copied() {
    let mut gpu = FakeDevice::new("gpu", DeviceKind::Gpu);
    gpu.offloads = Box::new(is_mul_mat);
    let mut lab = Lab::with(vec![gpu, FakeDevice::new("cpu", DeviceKind::Cpu)]);
    lab.op_offload = true;
    let x = lab.graph.input(GgmlType::F32, [4, 1, 2, 1], "x");
    let ids = lab.graph.input(GgmlType::I32, [2, 2, 1, 1], "ids");
    let experts = lab.experts(CPU, 8, "experts");
    let y = lab.graph.mul_mat_id(experts, x, ids).unwrap();
    lab.name(y, "y");
    lab.output(y);
    let mut s = lab.scheduler();
    s.alloc_graph(&mut lab.graph).unwrap();
    let chosen = [1i32, 2, 7, 1];
    s.set_input(&lab.graph, ids, bytemuck::cast_slice(&chosen)).unwrap();
    s.compute(&lab.graph).unwrap();

    let copy = lab.graph.tensor(y).source(0);
    assert_ne!(copy, experts);
    let (original, copied) = (read(&mut s, &lab.graph, experts), read(&mut s, &lab.graph, copy));
    let expert_bytes = 64;
    for e in 0..8 {
        let range = e * expert_bytes..(e + 1) * expert_bytes;
        // Expert 3 is the padding after experts 1 and 2.
        let expected = if [1, 2, 3, 7].contains(&e) {
            &original[range.clone()]
        } else {
            &[0; 64]
        };
        assert_eq!(copied[range], *expected, "expert {e}");
    }
}

/// Wraps a fake backend as an asynchronous backend and logs the calls.
struct Queueing {
    inner: Box<dyn Backend>,
    notes: Arc<Mutex<Vec<String>>>,
    accepts_copies: bool,
}

impl Queueing {
    fn name(&self) -> &'static str {
        if self.inner.device().name() == "gpu" {
            "gpu"
        } else {
            "cpu"
        }
    }

    fn note(&self, what: &str) {
        self.notes.lock().unwrap().push(format!("{} {what}", self.name()));
    }
}

impl Backend for Queueing {
    fn device(&self) -> &Arc<dyn Device> {
        self.inner.device()
    }

    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> std::result::Result<Box<dyn Plan>, BackendError> {
        self.inner.prepare(view, memory, old)
    }

    fn run(
        &mut self,
        plan: &mut dyn Plan,
        graph: &Graph,
        memory: &mut MemoryMap,
        cancel: &AtomicBool,
    ) -> std::result::Result<(), BackendError> {
        self.note("computes");
        self.inner.run(plan, graph, memory, cancel)
    }

    fn synchronize(&mut self) -> std::result::Result<(), BackendError> {
        self.note("synchronizes");
        Ok(())
    }

    fn copy_from_async(
        &mut self,
        source: &mut dyn Backend,
        from: (&dyn Buffer, usize),
        to: (&mut dyn Buffer, usize),
        len: usize,
    ) -> std::result::Result<bool, BackendError> {
        if self.accepts_copies {
            self.note(&format!("queues a copy from {}", source.device().name()));
            let mut bytes = vec![0; len];
            from.0.read(from.1, &mut bytes)?;
            to.0.write(to.1, &bytes)?;
        }
        Ok(self.accepts_copies)
    }
}

#[test]
fn asynchronous_backends_are_synchronized_and_copy_in_queue() {
    let (mut expected_lab, out) = three_steps(CPU, CPU);
    let mut s = expected_lab.scheduler();
    let expected = expected_lab.compute(&mut s, out);
    for accepts_copies in [false, true] {
        let (mut lab, out) = three_steps(GPU, CPU);
        let notes = Arc::new(Mutex::new(Vec::new()));
        let backends = lab.devices.iter().map(|d| {
            Box::new(Queueing {
                inner: d.clone().backend(&Lab::params()).unwrap(),
                notes: notes.clone(),
                accepts_copies,
            }) as Box<dyn Backend>
        });
        let params = SchedParams { op_offload: false };
        let mut s = Scheduler::new(backends.collect(), lab.memory(), params).unwrap();
        s.alloc_graph(&mut lab.graph).unwrap();
        fill_inputs(&mut s, &lab.graph);
        notes.lock().unwrap().clear();
        s.compute(&lab.graph).unwrap();
        let text = notes.lock().unwrap().join("\n");
        assert_eq!(read(&mut s, &lab.graph, out), expected);
        if accepts_copies {
            insta::assert_snapshot!(text, @r"
            gpu synchronizes
            gpu computes
            cpu queues a copy from gpu
            cpu computes
            gpu queues a copy from cpu
            gpu computes
            ")
        } else {
            insta::assert_snapshot!(text, @r"
            gpu synchronizes
            gpu computes
            cpu synchronizes
            gpu synchronizes
            cpu computes
            gpu synchronizes
            cpu synchronizes
            gpu computes
            ")
        }
    }
}

/// Two backends share a memory. The second backend may reuse memory that the first has freed, so the second
/// must wait.
#[test]
fn splits_wait_for_backends_with_shared_memory() {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let mut blas = FakeDevice::new("gpu", DeviceKind::Accel);
    let cpu = FakeDevice::new("cpu", DeviceKind::Cpu);
    blas.memory = cpu.memory.clone();
    blas.supports = Box::new(is_mul_mat);
    let mut lab = Lab::with(vec![blas, cpu]);
    let x = lab.input("x");
    let w = lab.weight(1, "w");
    let a = lab.mul_mat(w, x, "a");
    let b = lab.scale(a, "b");
    lab.output(b);
    let backends = lab.devices.iter().map(|d| {
        Box::new(Queueing {
            inner: d.clone().backend(&Lab::params()).unwrap(),
            notes: notes.clone(),
            accepts_copies: false,
        }) as Box<dyn Backend>
    });
    let mut s = Scheduler::new(backends.collect(), lab.memory(), SchedParams::default()).unwrap();
    s.alloc_graph(&mut lab.graph).unwrap();
    notes.lock().unwrap().clear();
    s.compute(&lab.graph).unwrap();
    let text = notes.lock().unwrap().join("\n");
    insta::assert_snapshot!(text, @r"
    gpu computes
    gpu synchronizes
    cpu computes
    ");
}
