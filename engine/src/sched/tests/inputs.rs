//! Only changed ranges of inputs are written and copied to other devices.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const N: usize = 1024;

/// A matmul on the GPU with an input `[4, N]` that is assigned to the CPU.
struct Product {
    lab: Lab,
    x: TensorId,
    y: TensorId,
    written: [Arc<AtomicUsize>; 2],
    queued: Arc<AtomicUsize>,
}

impl Product {
    fn new(with_queue: bool) -> Product {
        let queued = Arc::new(AtomicUsize::new(0));
        let (mut devices, mut written) = (Vec::new(), Vec::new());
        for (name, kind) in [("gpu", DeviceKind::Gpu), ("cpu", DeviceKind::Cpu)] {
            let mut memory = super::super::fake::FakeType::new(name, 32, usize::MAX);
            memory.host = kind == DeviceKind::Cpu;
            written.push(memory.written.clone());
            let mut device = FakeDevice::new(name, kind);
            device.memory = Arc::new(memory);
            device.queued = with_queue.then(|| queued.clone());
            devices.push(device);
        }
        let mut lab = Lab::with(devices);
        let w = lab.weight(GPU, "w");
        let x = lab.graph.input(GgmlType::F32, [4, N, 1, 1], "x");
        let y = lab.mul_mat(w, x, "y");
        lab.output(y);
        Product {
            lab,
            x,
            y,
            written: [written.remove(0), written.remove(0)],
            queued,
        }
    }

    /// Runs the graph with these values, checks the result, and returns the bytes written to the input and to
    /// its copy on the GPU.
    fn run(&mut self, s: &mut Scheduler, values: &[u8]) -> (usize, usize) {
        let graph = &mut self.lab.graph;
        s.alloc_graph(graph).unwrap();
        let counts = || [&self.written[CPU], &self.written[GPU]].map(|n| n.load(Ordering::Relaxed));
        let before = counts();
        s.set_input(graph, self.x, values).unwrap();
        let input = counts()[0] - before[0];
        s.compute(graph).unwrap();
        // The count excludes the bytes of the result.
        let copy = counts()[1] - before[1] - graph.tensor(self.y).nbytes();
        assert_eq!(read(s, graph, self.y), Product::expected(values));
        (input, copy)
    }

    /// Returns the result of a single device.
    fn expected(values: &[u8]) -> Vec<u8> {
        let mut lab = Lab::with(vec![FakeDevice::new("cpu", DeviceKind::Cpu)]);
        let w = lab.weight(0, "w");
        let x = lab.graph.input(GgmlType::F32, [4, N, 1, 1], "x");
        let y = lab.mul_mat(w, x, "y");
        lab.output(y);
        let mut s = lab.scheduler();
        s.alloc_graph(&mut lab.graph).unwrap();
        s.set_input(&lab.graph, x, values).unwrap();
        s.compute(&lab.graph).unwrap();
        read(&mut s, &lab.graph, y)
    }
}

#[test]
fn only_changed_ranges_are_written_and_copied() {
    for with_queue in [false, true] {
        let mut product = Product::new(with_queue);
        let mut s = product.lab.scheduler();
        let all = 16 * N;
        let mut values: Vec<u8> = (0..all).map(|i| (i * 7) as u8).collect();
        assert_eq!(product.run(&mut s, &values), (all, all));
        assert_eq!(product.run(&mut s, &values), (0, 0));
        values[5000] ^= 1;
        assert_eq!(product.run(&mut s, &values), (64, 64), "one piece");
        for i in [0, 3, 9000, 9030, all - 1] {
            values[i] ^= 1;
        }
        assert_eq!(
            product.run(&mut s, &values),
            (256, 256),
            "adjacent blocks form one range"
        );
        // More changes than the maximum number of ranges.
        (0..all).step_by(256).for_each(|i| values[i] ^= 1);
        let (input, copy) = product.run(&mut s, &values);
        assert_eq!(input, all / 4);
        assert!((all / 4..=all).contains(&copy), "{copy}");
        let queued = product.queued.load(Ordering::Relaxed);
        assert_eq!(queued, if with_queue { all + 64 + 256 + copy } else { 0 });
    }
}

#[test]
fn interleaved_graphs_do_not_mix_up_inputs() {
    let mut product = Product::new(true);
    let mut s = product.lab.scheduler();
    let all = 16 * N;
    let values: Vec<u8> = (0..all).map(|i| (i * 3) as u8).collect();
    let others: Vec<u8> = values.iter().map(|v| v ^ 255).collect();
    product.run(&mut s, &values);
    // A graph of equal structure uses the same locations.
    let mut same = product.lab.graph.clone();
    s.alloc_graph(&mut same).unwrap();
    s.set_input(&same, product.x, &others).unwrap();
    s.compute(&same).unwrap();
    assert_eq!(read(&mut s, &same, product.y), Product::expected(&others));
    assert_eq!(product.run(&mut s, &values), (all, all));
    // Data that was written but not computed has not been copied either.
    s.set_input(&product.lab.graph, product.x, &others).unwrap();
    assert_eq!(product.run(&mut s, &others), (0, all));
    // A graph of different structure uses other, overlapping locations.
    let mut other = Product::new(true);
    let twice = other.lab.scale(other.y, "twice");
    other.lab.output(twice);
    let graph = &mut other.lab.graph;
    s.alloc_graph(graph).unwrap();
    s.set_input(graph, other.x, &values).unwrap();
    s.compute(graph).unwrap();
    assert_eq!(product.run(&mut s, &others), (all, all));
}

/// If a node writes to a leaf, the caller's data is overwritten by a run, and copies are complete every time.
#[test]
fn leafs_written_by_nodes_are_copied_completely() {
    let mut lab = Lab::new();
    let (x, table) = (lab.input("x"), lab.input("table"));
    let rows = lab.graph.input(GgmlType::I64, [2, 1, 1, 1], "rows");
    let w = lab.weight(GPU, "w");
    let before = lab.mul_mat(w, table, "before");
    lab.graph.expand(before);
    let set = lab.graph.set_rows(table, x, rows).unwrap();
    lab.name(set, "set");
    lab.graph.expand(set);
    let after = lab.mul_mat(w, table, "after");
    let both = lab.add(before, after, "both");
    lab.output(both);
    let mut s = lab.scheduler();
    let graph = &mut lab.graph;
    let results = [(); 2].map(|()| {
        s.alloc_graph(graph).unwrap();
        for (input, value) in [(x, 3), (table, 5), (rows, 0)] {
            let data = vec![value; graph.tensor(input).nbytes()];
            s.set_input(graph, input, &data).unwrap();
        }
        s.compute(graph).unwrap();
        read(&mut s, graph, both)
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn results_are_read_through_the_queue() {
    for with_queue in [false, true] {
        let mut product = Product::new(with_queue);
        let mut s = product.lab.scheduler();
        let [first, second] = [3u8, 5].map(|k| (0..16 * N).map(|i| (i as u8).wrapping_mul(k)).collect::<Vec<u8>>());
        product.run(&mut s, &first);
        let pending = s.read_tensor_async(&product.lab.graph, product.y, 0, 16 * N).unwrap();
        assert_eq!(pending.is_some(), with_queue);
        // Another run must not change the result of the pending read.
        product.run(&mut s, &second);
        let mut out = vec![0; 16 * N];
        if let Some(pending) = pending {
            pending.wait(&mut out).unwrap();
            assert_eq!(out, Product::expected(&first));
        }
        assert!(s.read_tensor_async(&product.lab.graph, product.y, 1, 16 * N).is_err());
    }
}
