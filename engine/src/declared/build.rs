//! Builds graphs: evaluates the statements of a program in the order of generated code.

use std::sync::{Arc, Mutex};

use crate::builder::{AudioRules, BuildError, BuildGraph, Builder, ImageRules, MAX_NODES, MAX_STEPS};
use crate::graph::TensorId;
use crate::model::Base;

use super::arguments::{Args, Argument};
use super::operations::Operation;
use super::program::{Arg, Block, DeclaredTensor, Head, Kind, Operand, Program, Stmt, TensorExpr, WeightUse};
use super::scalar::{Expr, Scalar};
use super::scope::Scope;
use super::state::{Handle, Stored};

/// Maximum number of parameters of an operation.
const MAX_PARAMS: usize = 32;

/// Loaded program.
pub(super) struct Interpreted {
    program: Arc<Program>,
    base: Base,
    items: Vec<Stored>,
    globals: Vec<Handle>,
    /// Handles of each layer, by group.
    groups: Vec<Vec<Vec<Handle>>>,
    /// Variables of the last build. Each build reuses their memory.
    vars: Mutex<Vars>,
}

/// Values of the variables. A variable is a tensor or a scalar.
#[derive(Default)]
struct Vars {
    tensors: Vec<TensorId>,
    scalars: Vec<Scalar>,
}

impl Interpreted {
    pub fn new(
        program: Arc<Program>,
        base: Base,
        items: Vec<Stored>,
        globals: Vec<Handle>,
        groups: Vec<Vec<Vec<Handle>>>,
    ) -> Interpreted {
        Interpreted {
            program,
            base,
            items,
            globals,
            groups,
            vars: Mutex::default(),
        }
    }

    /// Runs `work` with the variables of a new build.
    fn with_run<'g, T>(&'g self, b: &mut Builder<'_>, work: impl FnOnce(&mut Run<'g>, &mut Builder<'_>) -> T) -> T {
        let mut vars = self
            .vars
            .try_lock()
            .map(|mut kept| std::mem::take(&mut *kept))
            .unwrap_or_default();
        vars.tensors.resize(self.program.n_vars, TensorId(0));
        vars.scalars.resize(self.program.n_vars, Scalar::Int(0));
        let mut run = Run {
            graph: self,
            vars,
            layer: &[],
            il: 0,
            n_steps: 0,
            is_over: false,
        };
        let result = work(&mut run, b);
        if let Ok(mut kept) = self.vars.try_lock() {
            *kept = run.vars;
        }
        result
    }

    /// Returns the scope outside of graphs.
    fn scope(&self) -> Scope<'_> {
        Scope {
            base: &self.base,
            items: &self.items,
            vars: &[],
            tensors: &self.program.tensors,
            globals: &self.globals,
            layer: &[],
            il: 0,
            file_rows: &[],
            reader: None,
        }
    }

    fn head<'g>(&'g self, b: &mut Builder<'_>, head: &'g Head, pooled: TensorId) -> TensorId {
        self.with_run(b, |run, b| {
            run.vars.tensors[head.pooled] = pooled;
            run.block(b, &head.block)
        })
    }
}

impl BuildGraph for Interpreted {
    fn build(&self, b: &mut Builder<'_>) -> TensorId {
        self.with_run(b, |run, b| run.block(b, &self.program.graph))
    }

    fn encode(&self, b: &mut Builder<'_>) -> Option<TensorId> {
        let encoder = self.program.encoder.as_ref()?;
        Some(self.with_run(b, |run, b| run.block(b, encoder)))
    }

    fn mtp(&self, b: &mut Builder<'_>) -> Option<TensorId> {
        let graph = self.program.mtp.as_ref()?;
        let il = self.base.n_layer();
        let layer = self.groups.first()?.get(il)?;
        b.begin_layer(il);
        Some(self.with_run(b, |run, b| {
            (run.layer, run.il) = (layer, il);
            run.block(b, graph)
        }))
    }

    fn image(&self) -> Option<ImageRules> {
        let rules = self.program.image.as_ref()?;
        Some(rules.of(&self.scope()))
    }

    fn audio(&self) -> Option<AudioRules> {
        let rules = self.program.audio.as_ref()?;
        Some(rules.of(&self.scope()))
    }

    fn embedding(&self, b: &mut Builder<'_>, pooled: TensorId) -> Option<TensorId> {
        let head = self.program.embedding.as_ref()?;
        Some(self.head(b, head, pooled))
    }

    fn rank(&self, b: &mut Builder<'_>, pooled: TensorId) -> Option<TensorId> {
        let head = self.program.rank.as_ref()?;
        Some(self.head(b, head, pooled))
    }
}

/// State of a build.
struct Run<'g> {
    graph: &'g Interpreted,
    vars: Vars,
    /// Handles of the current layer.
    layer: &'g [Handle],
    il: usize,
    n_steps: usize,
    /// The graph exceeded a limit, and the rest of the program is skipped.
    is_over: bool,
}

impl<'g> Run<'g> {
    fn scope(&self) -> Scope<'_> {
        Scope {
            vars: &self.vars.scalars,
            layer: self.layer,
            il: self.il,
            ..self.graph.scope()
        }
    }

    fn int(&self, expr: &Expr) -> usize {
        self.scope().int(expr)
    }

    /// Counts a step. Returns false if the graph exceeds a limit.
    fn goes_on(&mut self, b: &mut Builder<'_>) -> bool {
        self.n_steps += 1;
        let n_nodes = b.graph().len();
        if !self.is_over && (self.n_steps > MAX_STEPS || n_nodes > MAX_NODES) {
            self.is_over = true;
            b.fail(BuildError::TooLarge {
                n_nodes,
                n_steps: self.n_steps,
            });
            // The skipped values are `TensorId(0)`, so the graph must not be empty.
            b.positions();
        }
        !self.is_over
    }

    /// Evaluates the statements and the result of a block.
    fn block(&mut self, b: &mut Builder<'_>, block: &'g Block) -> TensorId {
        for stmt in &block.stmts {
            if !self.goes_on(b) {
                break;
            }
            self.stmt(b, stmt);
        }
        match &block.result {
            Some(value) => self.value(b, value),
            None => TensorId(0),
        }
    }

    fn stmt(&mut self, b: &mut Builder<'_>, stmt: &'g Stmt) {
        match stmt {
            Stmt::Tensor { var, name, value } => {
                let t = self.value(b, value);
                self.vars.tensors[*var] = t;
                b.name(t, name);
            }
            Stmt::Scalar { var, value } => self.vars.scalars[*var] = self.scope().eval(value),
            Stmt::If { cond, then, otherwise } => {
                if self.scope().bool(cond) {
                    self.block(b, then);
                } else if let Some(otherwise) = otherwise {
                    self.block(b, otherwise);
                }
            }
            Stmt::Layers {
                group,
                range,
                nested,
                body,
                carried,
            } => {
                let count = self.n_layers(*group);
                let layers = match range {
                    None if *nested => b.layers(0, count, count),
                    None => 0..count,
                    Some((from, to)) => b.layers(self.int(from), self.int(to), count),
                };
                for il in layers {
                    if !self.goes_on(b) {
                        break;
                    }
                    self.layer(b, *group, il, body, *carried);
                }
            }
            Stmt::Repeat { var, range, body } => {
                for n in b.rounds(self.int(&range.0), self.int(&range.1)) {
                    if !self.goes_on(b) {
                        break;
                    }
                    if let Some(var) = *var {
                        self.vars.scalars[var] = Scalar::Int(n);
                    }
                    self.block(b, body);
                }
            }
        }
    }

    fn n_layers(&self, group: usize) -> usize {
        let declared = &self.graph.program.groups[group];
        if declared.count.is_some() && !declared.tensors.is_empty() {
            self.graph.groups[group].len()
        } else {
            self.graph.base.n_layer()
        }
    }

    fn layer(&mut self, b: &mut Builder<'_>, group: usize, il: usize, body: &'g Block, carried: usize) {
        let (outer, outer_il) = (self.layer, self.il);
        self.layer = self.graph.groups[group].get(il).map_or(&[], |layer| &layer[..]);
        self.il = il;
        b.begin_layer(il);
        self.block(b, body);
        let x = b.end_layer(self.vars.tensors[carried]);
        self.vars.tensors[carried] = x;
        (self.layer, self.il) = (outer, outer_il);
    }

    fn handle(&self, tensor: usize) -> Handle {
        self.scope().handle(tensor)
    }

    /// Returns the handle of a tensor that the graph requires.
    fn present(&self, b: &mut Builder<'_>, tensor: usize) -> Handle {
        present(b, self.handle(tensor), &self.graph.program.tensors[tensor])
    }

    /// Adds the nodes of a value.
    fn value(&mut self, b: &mut Builder<'_>, value: &'g TensorExpr) -> TensorId {
        if !self.goes_on(b) {
            return TensorId(0);
        }
        match value {
            TensorExpr::Var(var) => self.vars.tensors[*var],
            TensorExpr::Embed(table) => match self.present(b, *table) {
                Handle::Embed(table) => b.embed(table),
                _ => mismatch(b),
            },
            TensorExpr::EmbedPositions(table, skipped) => {
                let table = self.present(b, *table);
                let skipped = skipped.as_ref().map_or(0, |n| self.int(n));
                match table {
                    Handle::Embed(table) => b.embed_positions(table, skipped),
                    _ => mismatch(b),
                }
            }
            TensorExpr::Encoded => b.encoded(),
            TensorExpr::Hidden => b.hidden_rows(),
            TensorExpr::Patches(width) => b.patches(self.int(width)),
            TensorExpr::Frames(width) => b.frames(self.int(width)),
            TensorExpr::Absent => b.absent(),
            TensorExpr::Linear(w, x) => self.linear(b, *w, x),
            TensorExpr::Weight(w) => match self.present(b, *w) {
                Handle::Vector(w) => b.weight(w),
                Handle::Norm(w) => b.weight(w),
                _ => mismatch(b),
            },
            TensorExpr::Op(op, args) => self.op(b, op, args),
            TensorExpr::Binary(op, x, y) => {
                let (x, y) = (self.value(b, x), self.value(b, y));
                op.build(b, x, y)
            }
            TensorExpr::Scale(x, factor) => {
                let x = self.value(b, x);
                b.scale(x, self.scope().float(factor))
            }
            TensorExpr::Divide(x, divisor) => {
                let x = self.value(b, x);
                b.scale(x, 1.0 / self.scope().float(divisor))
            }
            TensorExpr::Shift(x, term) => {
                let x = self.value(b, x);
                b.shift(x, self.scope().float(term))
            }
            TensorExpr::Glu(f, gate, up) => {
                let (gate, up) = (self.value(b, gate), self.value(b, up));
                b.glu(*f, gate, up)
            }
            TensorExpr::Slice(x, from, to) => {
                let x = self.value(b, x);
                let from = from.as_ref().map_or(0, |n| self.int(n));
                let to = match to {
                    Some(n) => self.int(n),
                    None => b.graph().tensor(x).ne[0],
                };
                b.slice(x, from, to)
            }
            TensorExpr::If(cond, then, otherwise) => {
                let taken = if self.scope().bool(cond) { then } else { otherwise };
                self.block(b, taken)
            }
            TensorExpr::Call(params, body) => self.call(b, params, body),
        }
    }

    fn linear(&mut self, b: &mut Builder<'_>, w: usize, x: &'g TensorExpr) -> TensorId {
        let x = self.value(b, x);
        match self.present(b, w) {
            Handle::Linear(w) => b.linear(w, x),
            Handle::PerHead(w) => b.per_head(w, x),
            Handle::Embed(table) => b.tied(table, x),
            _ => mismatch(b),
        }
    }

    /// Binds all parameters, then evaluates the body. The variables of each inlined call are distinct.
    fn call(&mut self, b: &mut Builder<'_>, params: &'g [(usize, Operand)], body: &'g Block) -> TensorId {
        for (var, operand) in params {
            match operand {
                Operand::Tensor(value) => self.vars.tensors[*var] = self.value(b, value),
                Operand::Scalar(expr) => self.vars.scalars[*var] = self.scope().eval(expr),
            }
        }
        self.block(b, body)
    }

    fn op(&mut self, b: &mut Builder<'_>, op: &'static Operation, args: &'g [Arg]) -> TensorId {
        let mut list = [Argument::Omitted; MAX_PARAMS];
        let list = match list.get_mut(..args.len()) {
            Some(list) => list,
            None => return mismatch(b),
        };
        for (argument, arg) in list.iter_mut().zip(args) {
            *argument = self.argument(b, arg);
        }
        if self.is_over {
            return TensorId(0);
        }
        let mut args = Args::new(list);
        let result = (op.build)(b, &mut args);
        if args.are_mismatched() {
            return mismatch(b);
        }
        result
    }

    fn argument(&mut self, b: &mut Builder<'_>, arg: &'g Arg) -> Argument<'g> {
        match arg {
            Arg::Omitted => Argument::Omitted,
            Arg::Tensor(value) => Argument::Tensor(self.value(b, value)),
            Arg::Weight(tensor, used) => Argument::Weight(match used {
                WeightUse::Optional => self.handle(*tensor),
                WeightUse::Required => self.present(b, *tensor),
                WeightUse::OfFirstLayer => self.of_first_layer(b, *tensor),
            }),
            Arg::Scalar(expr) => match self.scope().eval(expr) {
                Scalar::Int(n) => Argument::Int(n),
                Scalar::Float(x) => Argument::Float(x),
                Scalar::Bool(truth) => Argument::Bool(truth),
                Scalar::Text(_) | Scalar::List(_) => Argument::Omitted,
            },
            Arg::List(item) => Argument::List(self.graph.items[*item].list()),
            Arg::Activation(f) => Argument::Activation(*f),
            Arg::Word(variant) => Argument::Word(variant),
            Arg::Window(window, n, cond) => {
                let on = cond.as_ref().is_none_or(|c| self.scope().bool(c));
                Argument::Window(window(self.int(n), on))
            }
            Arg::If(cond, given) => {
                if self.scope().bool(cond) {
                    self.argument(b, given)
                } else {
                    Argument::Omitted
                }
            }
        }
    }

    /// Returns the handle of a tensor of the first layer.
    fn of_first_layer(&self, b: &mut Builder<'_>, tensor: usize) -> Handle {
        let declared = &self.graph.program.tensors[tensor];
        let owner = (self.graph.program.groups.iter()).position(|group| group.tensors.contains(&tensor));
        let first = owner.and_then(|group| self.graph.groups[group].first());
        let handle = first.and_then(|layer| layer.get(declared.slot));
        present(b, handle.copied().unwrap_or(Handle::Absent), declared)
    }
}

/// Returns the handle of a tensor that the graph requires. An absent tensor is an error of the graph.
fn present(b: &mut Builder<'_>, handle: Handle, tensor: &DeclaredTensor) -> Handle {
    if handle != Handle::Absent {
        return handle;
    }
    let gguf = tensor.gguf;
    match tensor.kind {
        Kind::Embed => Handle::Embed(b.present(&None, gguf)),
        Kind::Vector | Kind::Raw => Handle::Vector(b.present(&None, gguf)),
        Kind::Norm => Handle::Norm(b.present(&None, gguf)),
        Kind::Linear => Handle::Linear(b.present(&None, gguf)),
        Kind::Experts => Handle::Experts(b.present(&None, gguf)),
        Kind::PerHead => Handle::PerHead(b.present(&None, gguf)),
    }
}

/// Records that a program is inconsistent, which lowering prevents. Returns a tensor that exists in every graph.
fn mismatch(b: &mut Builder<'_>) -> TensorId {
    b.fail(BuildError::Inconsistent);
    b.positions()
}
