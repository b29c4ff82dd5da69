//! Looks into the graph while it is computed: prints name, op, shape, and the first values of every node of a prompt.
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

/// Values printed of each node.
const N_VALUES: usize = 4;

struct Printer;

impl Observer for Printer {
    fn wants(&mut self, graph: &Graph, node: TensorId) -> bool {
        // Views have no values of their own.
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

/// The value at the start of `bytes`, if it is of one of the types that are not stored in blocks.
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
