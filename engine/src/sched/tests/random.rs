//! Random graphs on random devices compute the same results as a single device that never reuses memory.

use proptest::prelude::*;

use super::*;

/// A node or leaf to append to the graph. Numbers select existing tensors.
#[derive(Clone, Debug)]
enum Piece {
    Weight(usize),
    MulMat(usize, usize),
    Add(usize, usize),
    Scale(usize),
    View(usize),
    Rows(usize),
}

fn piece() -> impl Strategy<Value = Piece> {
    let n = 0..1000usize;
    prop_oneof![
        2 => n.clone().prop_map(Piece::Weight),
        4 => (n.clone(), n.clone()).prop_map(|(a, b)| Piece::MulMat(a, b)),
        4 => (n.clone(), n.clone()).prop_map(|(a, b)| Piece::Add(a, b)),
        2 => n.clone().prop_map(Piece::Scale),
        2 => n.clone().prop_map(Piece::View),
        1 => n.prop_map(Piece::Rows),
    ]
}

/// Returns devices that may or may not read each other's memory, and that lack some ops.
fn devices(kind: usize) -> Vec<FakeDevice> {
    let mut fast = FakeDevice::new("fast", DeviceKind::Gpu);
    fast.supports = Box::new(|g, id| g.tensor(id).op != Op::Add || id.0 % 3 != 0);
    fast.offloads = Box::new(|g, id| is_mul_mat(g, id) && id.0 % 2 == 0);
    let mut slow = FakeDevice::new("slow", DeviceKind::Gpu);
    slow.supports = Box::new(|_, id| id.0 % 5 != 0);
    let cpu = FakeDevice::new("cpu", DeviceKind::Cpu);
    if kind % 2 == 1 {
        slow.reads = vec!["fast"];
    }
    if kind / 2 % 2 == 1 {
        slow.memory = cpu.memory.clone();
    }
    vec![fast, slow, cpu]
}

/// Builds the graph and returns the tensors to compare. `on` seeds the placement of weights; `None` places
/// all weights on the last device.
fn build(lab: &mut Lab, pieces: &[Piece], on: Option<usize>, keep_all: bool) -> Vec<TensorId> {
    let last = lab.devices.len() - 1;
    let mut activations = vec![lab.input("x"), lab.input("y")];
    let mut weights = vec![lab.weight(last, "w")];
    let cache = lab.cache(last, 2, "cache");
    let rows = lab.graph.input(GgmlType::I64, [2, 1, 1, 1], "rows");
    for p in pieces {
        let pick = |of: &[TensorId], i: usize| of[i % of.len()];
        let made = match *p {
            Piece::Weight(i) => {
                let device = on.map_or(last, |seed| (seed + i) % (last + 1));
                weights.push(lab.weight(device, "w"));
                continue;
            }
            Piece::MulMat(w, x) => lab.mul_mat(pick(&weights, w), pick(&activations, x), "mul_mat"),
            Piece::Add(a, b) => lab.add(pick(&activations, a), pick(&activations, b), "add"),
            Piece::Scale(a) => lab.scale(pick(&activations, a), "scale"),
            Piece::View(a) => {
                let a = pick(&activations, a);
                lab.graph.reshape(a, [4, 2, 1, 1]).unwrap()
            }
            Piece::Rows(a) => {
                let set = lab.graph.set_rows(cache, pick(&activations, a), rows).unwrap();
                lab.graph.expand(set);
                set
            }
        };
        activations.push(made);
    }
    let outputs: Vec<TensorId> = activations
        .into_iter()
        .skip(2)
        .step_by(if keep_all { 1 } else { 3 })
        .collect();
    outputs.iter().for_each(|&id| lab.output(id));
    outputs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn results_match_one_device_without_reuse(
        pieces in prop::collection::vec(piece(), 1..30),
        kind in 0..4usize,
        seed in 0..3usize,
        op_offload: bool,
    ) {
        let mut one = Lab::with(vec![FakeDevice::new("cpu", DeviceKind::Cpu)]);
        let outputs = build(&mut one, &pieces, None, true);
        let mut s = one.scheduler();
        s.alloc_graph(&mut one.graph).unwrap();
        fill_inputs(&mut s, &one.graph);
        s.compute(&one.graph).unwrap();
        // The cache is overwritten repeatedly, so only its last state can be compared.
        let last_write = outputs.iter().rev().find(|&&id| one.graph.tensor(id).op == Op::SetRows).copied();
        let comparable = |id: TensorId| one.graph.memory_owner(id) == id || Some(id) == last_write;
        let expected: Vec<_> = outputs.iter().map(|&id| read(&mut s, &one.graph, id)).collect();

        let mut many = Lab::with(devices(kind));
        let kept = build(&mut many, &pieces, Some(seed), false);
        let mut s = many.scheduler_with(SchedParams { op_offload });
        // Several rounds: leftovers in memory must not affect the next round.
        for round in 0..3 {
            many.graph.tensor_mut(TensorId(0));
            s.alloc_graph(&mut many.graph).unwrap();
            fill_inputs(&mut s, &many.graph);
            s.compute(&many.graph).unwrap();
            if round > 0 && last_write.is_some() {
                // This round reads the cache contents of the previous round.
                break;
            }
            for &id in kept.iter().filter(|&&id| comparable(id)) {
                let at = outputs.iter().position(|&o| o == id).expect("both graphs have the same ids");
                prop_assert_eq!(&read(&mut s, &many.graph, id), &expected[at]);
            }
        }
    }
}
