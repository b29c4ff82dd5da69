//! Recurrences. Threads take lanes from the queue and process all tokens of a lane in order.

use std::ops::Range;

use kernels::{recurrent, rows};

use super::compress::Compress;
use super::lane_step::LaneStep;
use super::linear_attention::{self, Heads};
use super::task::{KernelError, Task, row_number};
use super::wkv;
use crate::backend::cpu::scratch::{ScratchSize, take};
use crate::backend::cpu::view::{Source, States, Target};
use crate::graph::{Graph, Lanes, MAX_SRC, Recurrence, Tensor};

/// Index of the recurrence's first own operand, after the states and the two cell lists.
const FIRST: usize = 3;

/// Size in floats of the states to process together, small enough for the L1 cache.
const BLOCK: usize = 8192;

fn lanes_of(graph: &Graph, node: &Tensor, recurrence: Recurrence) -> Lanes {
    let mut ne = [[0; 4]; MAX_SRC];
    let n = node.sources().count() - FIRST;
    for (ne, source) in ne.iter_mut().zip(node.sources().skip(FIRST)) {
        *ne = graph.tensor(source).ne;
    }
    recurrence
        .lanes(&ne[..n])
        .expect("the operands were checked by ops::check")
}

/// Returns the scratch memory per thread.
pub(super) fn scratch_size(graph: &Graph, node: &Tensor, recurrence: Recurrence) -> ScratchSize {
    let per_thread = match recurrence {
        Recurrence::ShortConv { .. }
        | Recurrence::TokenShift
        | Recurrence::Wkv6
        | Recurrence::Wkv7
        | Recurrence::Compress { .. } => 0,
        Recurrence::SsmScan => graph.tensor(node.source(FIRST + 3)).ne[0],
        Recurrence::LinearAttention(_) => {
            linear_attention::scratch_size(graph.tensor(node.source(FIRST)).ne[0], node.ne[0])
        }
    };
    ScratchSize { per_thread, shared: 0 }
}

pub(super) fn recur(task: Task<'_>, recurrence: Recurrence) -> Result<(), KernelError> {
    let op = |i: usize| task.source(FIRST + i);
    let walk = CellOrder {
        lanes: lanes_of(task.graph, task.node, recurrence),
        states: task.planned.memory.states(task.graph),
        from: task.source(1).list(),
        to: task.source(2).list(),
    };
    match recurrence {
        Recurrence::ShortConv { dilation } => {
            let op = ShortConv {
                x: op(0),
                weight: op(1),
                dilation,
            };
            walk.run(task, |step| op.step(step))
        }
        Recurrence::LinearAttention(p) => {
            let optional = |i: usize| task.optional(FIRST + i);
            let op = Heads::new(p, [op(0), op(1), op(2)], [optional(3), optional(4)]);
            walk.run(task, |step| op.step(step))
        }
        Recurrence::SsmScan => {
            let op = SsmScan::new([op(0), op(1), op(2), op(3), op(4)]);
            walk.run(task, |step| op.step(step))
        }
        Recurrence::TokenShift => {
            let x = op(0);
            walk.run(task, |step| token_shift(x, step))
        }
        Recurrence::Wkv6 => {
            let op = wkv::Wkv6([op(0), op(1), op(2), op(3), op(4)]);
            walk.run(task, |step| op.step(step))
        }
        Recurrence::Wkv7 => {
            let op = wkv::Wkv7([op(0), op(1), op(2), op(3), op(4), op(5)]);
            walk.run(task, |step| op.step(step))
        }
        Recurrence::Compress { overlap } => {
            let op = Compress::new([op(0), op(1), op(2)], overlap);
            walk.run(task, |step| op.step(step))
        }
    }
}

/// The cells that the state of each token is read from and written to.
struct CellOrder<'a> {
    lanes: Lanes,
    states: States<'a>,
    from: &'a [i32],
    to: &'a [i32],
}

impl CellOrder<'_> {
    /// Processes all tokens for some lanes at a time, so that their states stay in the cache.
    fn run(&self, task: Task<'_>, step: impl Fn(LaneStep<'_>)) -> Result<(), KernelError> {
        let Lanes { n, state, .. } = self.lanes;
        let (target, scratch) = (task.target, task.scratch);
        while let Some(lanes) = task.queue.take_some(n, (BLOCK / state).max(1)) {
            for t in 0..self.from.len() {
                self.token(t, lanes.clone(), &target, scratch, &step)?;
            }
        }
        Ok(())
    }

    /// Processes token `t` for a range of lanes.
    fn token(
        &self,
        t: usize,
        lanes: Range<usize>,
        target: &Target<'_>,
        scratch: &mut [f32],
        step: &impl Fn(LaneStep<'_>),
    ) -> Result<(), KernelError> {
        let Lanes { n, state, out, .. } = self.lanes;
        let part = lanes.start * state..lanes.end * state;
        let to = row_number(self.to[t], self.states.n_cells())?;
        // SAFETY: the queue gave these lanes to this thread, and only this thread accesses their states and
        // results. The slices end with the step. The slice of the source cell, a different cell, ends before.
        let (now, out) = unsafe {
            let now = self.states.part(to, part.clone());
            if self.from[t] < 0 {
                now.fill(0.0);
            } else {
                let from = row_number(self.from[t], self.states.n_cells())?;
                if from != to {
                    now.copy_from_slice(self.states.part(from, part));
                }
            }
            let start = t * n * out;
            (now, target.part(start + lanes.start * out..start + lanes.end * out))
        };
        step(LaneStep {
            t,
            lanes,
            state: now,
            out,
            scratch,
        });
        Ok(())
    }
}

/// Implements [`Recurrence::TokenShift`].
fn token_shift(x: Source<'_>, step: LaneStep<'_>) {
    let at = step.t * x.ne()[0] + step.lanes.start;
    step.out.copy_from_slice(step.state);
    step.state.copy_from_slice(x.floats(at, step.lanes.len()));
}

/// Implements [`Recurrence::ShortConv`].
struct ShortConv<'a> {
    x: Source<'a>,
    weight: Source<'a>,
    dilation: usize,
}

impl ShortConv<'_> {
    fn step(&self, step: LaneStep<'_>) {
        let (c, k) = (self.x.ne()[0], self.weight.ne()[0]);
        let (first, n) = (step.lanes.start, step.lanes.len());
        let x = self.x.floats(step.t * c + first, n);
        let weights = self.weight.floats(first * k, n * k);
        match (k, self.dilation) {
            (3, 1) => return convolve::<2>(x, weights, step.state, step.out),
            (4, 1) => return convolve::<3>(x, weights, step.state, step.out),
            _ => {}
        }
        let past = (k - 1) * self.dilation;
        let each = step.state.chunks_exact_mut(past).zip(weights.chunks_exact(k));
        for ((s, w), (&x, y)) in each.zip(x.iter().zip(step.out)) {
            let mut sum = 0.0;
            for (j, w) in w[..k - 1].iter().enumerate() {
                sum += s[j * self.dilation] * w;
            }
            *y = sum + x * w[k - 1];
            s.copy_within(1.., 0);
            s[past - 1] = x;
        }
    }
}

/// Computes one step of a convolution over `PAST` earlier tokens and the current token.
///
/// The order of operations is the same as in the generic version. With a constant length, the compiler keeps each
/// channel in registers.
fn convolve<const PAST: usize>(x: &[f32], weights: &[f32], state: &mut [f32], out: &mut [f32]) {
    let (states, _) = state.as_chunks_mut::<PAST>();
    let each = states.iter_mut().zip(weights.chunks_exact(PAST + 1));
    for ((s, w), (&x, y)) in each.zip(x.iter().zip(out)) {
        let mut sum = 0.0;
        for j in 0..PAST {
            sum += s[j] * w[j];
        }
        *y = sum + x * w[PAST];
        s.rotate_left(1);
        s[PAST - 1] = x;
    }
}

/// Implements [`Recurrence::SsmScan`].
struct SsmScan<'a> {
    x: Source<'a>,
    dt: Source<'a>,
    a: Source<'a>,
    b: Source<'a>,
    c: Source<'a>,
    /// Head size, number of heads, state size per element, number of groups.
    p: usize,
    h: usize,
    n: usize,
    g: usize,
}

impl<'a> SsmScan<'a> {
    fn new([x, dt, a, b, c]: [Source<'a>; 5]) -> Self {
        let ([p, h, ..], [n, g, ..]) = (x.ne(), b.ne());
        SsmScan {
            x,
            dt,
            a,
            b,
            c,
            p,
            h,
            n,
            g,
        }
    }

    fn step(&self, step: LaneStep<'_>) {
        if self.p == 1 && self.g == 1 && self.a.ne()[0] == self.n {
            self.channels(step);
        } else {
            self.heads(step);
        }
    }

    /// Processes heads of one element, with a decay per element of the state.
    fn channels(&self, step: LaneStep<'_>) {
        let (h, n, first, m) = (self.h, self.n, step.lanes.start, step.lanes.len());
        let [x, dt] = [self.x, self.dt].map(|s| s.floats(step.t * h + first, m));
        let [b, c] = [self.b, self.c].map(|s| s.floats(step.t * n, n));
        let a = self.a.floats(first * n, m * n);
        recurrent::scan_channels(dt, a, x, b, c, step.state, step.out);
    }

    fn heads(&self, step: LaneStep<'_>) {
        let &SsmScan { p, h, n, g, .. } = self;
        let (t, n_a) = (step.t, self.a.ne()[0]);
        let mut scratch = step.scratch;
        let decays = take(&mut scratch, n);
        let heads = step.state.chunks_exact_mut(n * p).zip(step.out.chunks_exact_mut(p));
        for ((state, y), head) in heads.zip(step.lanes) {
            let group = t * g + head / (h / g);
            let (b, c) = (self.b.floats(group * n, n), self.c.floats(group * n, n));
            let x = self.x.floats((t * h + head) * p, p);
            let dt = self.dt.floats(t * h + head, 1)[0];
            let a = self.a.floats(head * n_a, n_a);
            if n_a == 1 {
                decays.fill((dt * a[0]).exp());
            } else {
                decays.copy_from_slice(a);
                rows::scale_in_place(decays, dt, 0.0);
                rows::exp_in_place(decays);
            }
            recurrent::scan(decays, dt, x, b, c, state, y);
        }
    }
}
