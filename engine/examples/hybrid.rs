//! Computes one graph on two backends: `y = w1 (w0 x + b0) + b1`. The first step runs on the `reference`
//! device, the second on the CPU, because each step runs where its weights are. Prints the splits, the
//! location of each tensor, and the result.
//!
//!     cargo run --release -p llama-engine --example hybrid

use engine::backend::{BackendParams, MemoryMap, Usage, device};
use engine::graph::{BufferSlice, Flags, Graph, Name};
use engine::sched::{SchedParams, Scheduler};
use kernels::GgmlType;

const N: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let params = BackendParams::new(2);
    let devices: Vec<_> = ["reference", "cpu"].into_iter().filter_map(device).collect();
    let mut backends = Vec::new();
    for device in &devices {
        backends.push(device.clone().backend(&params)?);
    }
    let mut sched = Scheduler::new(backends, MemoryMap::default(), SchedParams::default())?;

    // Allocates the weights `[N, N]` and biases `[N]` of each step on its device.
    let mut graph = Graph::new();
    let names = [("w0", "b0", "mul_mat0", "y0"), ("w1", "b1", "mul_mat1", "y1")];
    let mut stored = |graph: &mut Graph, step: usize, name: &'static str, ne: [usize; 4], values: &[f32]| {
        let mut buffer = devices[step].buffer_type().allocate(4 * values.len())?;
        buffer.write(0, bytemuck::cast_slice(values))?;
        let home = BufferSlice {
            buffer: sched.register_buffer(buffer, Usage::Weights),
            offset: 0,
        };
        let flags = Flags {
            weight: true,
            ..Flags::default()
        };
        let name = Name {
            base: name,
            layer: None,
        };
        Ok::<_, engine::backend::BackendError>(graph.external(GgmlType::F32, ne, name, home, flags))
    };
    let x = graph.input(GgmlType::F32, [N, 1, 1, 1], "x");
    let mut y = x;
    for (step, (w, b, product, sum)) in names.into_iter().enumerate() {
        // The weight matrix is twice the identity, and the bias is constant.
        let doubling: Vec<f32> = (0..N * N).map(|i| if i % (N + 1) == 0 { 2.0 } else { 0.0 }).collect();
        let w = stored(&mut graph, step, w, [N, N, 1, 1], &doubling)?;
        let b = stored(&mut graph, step, b, [N, 1, 1, 1], &[step as f32 + 1.0; N])?;
        let wy = graph.mul_mat(w, y)?;
        y = graph.add(wy, b)?;
        graph.tensor_mut(wy).name.base = product;
        graph.tensor_mut(y).name.base = sum;
    }
    graph.tensor_mut(y).flags.output = true;
    graph.expand(y);

    sched.alloc_graph(&mut graph)?;
    print!("{}\n{}\n", sched.describe(&graph), sched.describe_memory(&graph));

    sched.set_input(&graph, x, bytemuck::cast_slice(&[0f32, 1.0, 2.0, 3.0]))?;
    sched.compute(&graph)?;
    let mut result = [0f32; N];
    sched.read_tensor(&graph, y, 0, bytemuck::cast_slice_mut(&mut result))?;
    println!("y1 = {result:?}");
    Ok(())
}
