//! Prints every node of a prompt's graph during decode: name, op, type, shape, and the first values.
//!
//!     cargo run --release -p llama-engine --example eval_callback -- MODEL.gguf "Hello"

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;

use engine::context::{Batch, Context, ContextParams};
use engine::graph::{Graph, Op, TensorId};
use engine::model::{LoadParams, Model};
use engine::sched::Observer;
use kernels::GgmlType;

/// Number of values to print per node.
const N_VALUES: usize = 4;

struct Printer;

impl Observer for Printer {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        // Views share the values of their source.
        let op = graph.tensor(node).op;
        op != Op::None && !op.is_view()
    }

    fn show(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> ControlFlow<()> {
        let tensor = graph.tensor(node);
        let values: Vec<_> = (0..tensor.ne[0].min(N_VALUES))
            .filter_map(|i| value(tensor.ty, data.get(i * tensor.nb[0]..)?))
            .collect();
        println!(
            "{:<24} {:<12} {:<5} {:<20} [{}{}]",
            tensor.name.to_string(),
            tensor.op.name(),
            tensor.ty.to_string(),
            format!("{:?}", tensor.ne),
            values.join(", "),
            if tensor.nelements() > values.len() { ", ..." } else { "" },
        );
        ControlFlow::Continue(())
    }
}

/// Formats the first value in `bytes`, or returns `None` for block-quantized types.
fn value(ty: GgmlType, bytes: &[u8]) -> Option<String> {
    match ty {
        GgmlType::I32 => Some(i32::from_le_bytes(*bytes.first_chunk()?).to_string()),
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {
            let mut x = [0f32];
            kernels::dequantize_row(ty, bytes.get(..ty.block_bytes())?, &mut x);
            Some(format!("{:.4}", x[0]))
        }
        _ => None,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, prompt] = arguments.as_slice() else {
        return Err("usage: eval_callback MODEL.gguf PROMPT".into());
    };
    let model = Arc::new(Model::load(path, archs::ALL, &LoadParams::default())?);
    let params = ContextParams {
        n_ctx: 512,
        ..ContextParams::default()
    };
    let mut context = Context::new(model.clone(), &params)?;
    context.set_observer(Some(Box::new(Printer)));
    let mut batch = Batch::new();
    batch.push_prompt(&model.vocab().tokenize(prompt, true, true), 0, 0);
    Ok(context.decode(&batch)?)
}
