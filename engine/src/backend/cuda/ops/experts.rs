//! Mixtures of experts: selection of experts with their weights, and weighted sums of their results.

use bytemuck::{Pod, Zeroable};

use super::super::kernel::{Kernel, ROUTER, Value};
use super::arguments::TensorArg;
use super::task::{THREADS, Task};
use super::unplanned::{Unplanned, size};
use crate::graph::TensorId;

/// Maximum number of experts, and of experts per token.
pub(in super::super) const MAX_EXPERTS: usize = 1024;
pub(in super::super) const MAX_USED: usize = 32;

/// Threads per block. A warp selects the experts of a token.
const ROUTE_THREADS: u32 = 128;

/// Function of all logits of a token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) enum Gate {
    None,
    /// Softmax of the logits times a factor.
    Softmax(f32),
    Sigmoid,
    SqrtSoftplus,
}

/// Selection of experts by their logits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct Routing {
    pub(in super::super) logits: TensorId,
    pub(in super::super) gate: Gate,
    /// Bias added for the selection only.
    pub(in super::super) bias: Option<TensorId>,
    /// The result with the selected experts.
    pub(in super::super) ids: TensorId,
    /// Factor of a softmax over the selected experts.
    pub(in super::super) softmax: Option<f32>,
    /// Bounds of the sum that divides the weights.
    pub(in super::super) sum: Option<[f32; 2]>,
    /// Factor and offset of the weights.
    pub(in super::super) scale: [f32; 2],
    /// The result with the weights, `[n_used, T]` or with dimensions of 1 before or between.
    pub(in super::super) weights: TensorId,
}

/// Weighted sum of the results of a token's experts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct WeightedSum {
    /// The product of results and weights.
    pub(in super::super) product: TensorId,
    pub(in super::super) result: TensorId,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RouteParams {
    logits: TensorArg,
    bias: TensorArg,
    ids: TensorArg,
    weights: TensorArg,
    all_scale: f32,
    used_scale: f32,
    sum: [f32; 2],
    scale: [f32; 2],
    n_used: i32,
    n_tokens: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SumParams {
    x: TensorArg,
    weights: TensorArg,
    y: TensorArg,
}

/// Plans the selection of experts. The task's node is the selection.
pub(super) fn route(task: &mut Task<'_>, routing: &Routing) -> Result<(), Unplanned> {
    let arg = |task: &mut Task<'_>, id: TensorId, written: bool| {
        TensorArg::new(task.graph.tensor(id), task.target.address(id, written)?)
    };
    let (logits, ids) = (arg(task, routing.logits, false)?, arg(task, routing.ids, true)?);
    let weights = TensorArg {
        nb: [4, 4 * i64::from(ids.ne[0]), 0, 0],
        ne: ids.ne,
        ..arg(task, routing.weights, true)?
    };
    let (gate, all_scale) = match routing.gate {
        Gate::None => ("NO_GATE", 1.0),
        Gate::Softmax(scale) => ("SOFTMAX_OF_ALL", scale),
        Gate::Sigmoid => ("SIGMOID", 1.0),
        Gate::SqrtSoftplus => ("SQRT_SOFTPLUS", 1.0),
    };
    let params = RouteParams {
        logits,
        bias: routing
            .bias
            .map_or(Ok(TensorArg::NONE), |bias| arg(task, bias, false))?,
        ids,
        weights,
        all_scale,
        used_scale: routing.softmax.unwrap_or(1.0),
        sum: routing.sum.unwrap_or_default(),
        scale: routing.scale,
        n_used: ids.ne[0],
        n_tokens: ids.ne[1],
    };
    let kernel = Kernel::new(&ROUTER, "route")
        .with_int("VALUES", i64::from(logits.ne[0].unsigned_abs().div_ceil(32)))
        .with("GATE", Value::Word(gate))
        .with_int("BIAS", routing.bias.is_some().into())
        .with_int("SOFTMAX", routing.softmax.is_some().into())
        .with_int("NORMALIZES", routing.sum.is_some().into());
    let n_threads = size(32 * ids.ne[1] as usize)?;
    task.launch(
        kernel,
        [n_threads.div_ceil(ROUTE_THREADS), 1, 1],
        ROUTE_THREADS,
        &params,
    )
}

/// Plans a weighted sum. The task's node is the product.
pub(super) fn weighted_sum(task: &mut Task<'_>, sum: &WeightedSum) -> Result<(), Unplanned> {
    let result = task.graph.tensor(sum.result);
    let params = SumParams {
        x: task.source(0)?,
        weights: task.source(1)?,
        y: TensorArg::new(result, task.target.address(sum.result, true)?)?,
    };
    let n_blocks = size(result.nelements())?.div_ceil(THREADS);
    task.launch(Kernel::new(&ROUTER, "weighted_sum"), [n_blocks, 1, 1], THREADS, &params)
}
