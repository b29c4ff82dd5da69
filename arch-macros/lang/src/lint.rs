//! What has a meaning and is most likely a slip all the same. `allow: no_residual;` in a declaration says that it is meant.

mod unknown_tensor;

use syn::Ident;

use crate::diag::{Errors, did_you_mean, one_of};
use crate::library::Library;
use crate::model::{Arch, Arg, Block, Named, Operand, ScalarOp, Stmt, Value, ValueKind, VarId};
use crate::source::{Range, SourceMap};

/// A kind of slip.
#[derive(Debug)]
pub struct Lint {
    /// Name behind `allow:`.
    pub name: &'static str,
    /// What it finds.
    pub doc: &'static str,
    find: fn(&Subject<'_>, &mut Vec<Finding>),
}

/// What is looked at.
struct Subject<'a> {
    arch: &'a Arch,
    graph: Graph<'a>,
    library: &'a dyn Library,
    sources: &'a SourceMap,
}

/// Where something was found, and what.
type Finding = (Range, String);

/// Every lint.
pub static LINTS: &[Lint] = &[
    Lint {
        name: "half_rotated",
        doc: "attention whose queries have rotary positions and whose keys have none, or the other way round",
        find: half_rotated,
    },
    Lint {
        name: "no_residual",
        doc: "layers that add nothing to what they are given",
        find: no_residual,
    },
    Lint {
        name: "unknown_tensor",
        doc: "a tensor whose name in files no other declaration knows, and which is nearly one that is known",
        find: unknown_tensor::find,
    },
];

/// Notes what the lints find that are not among `allowed`.
pub fn check(arch: &Arch, allowed: &[Ident], library: &dyn Library, errors: &mut Errors) {
    for name in allowed {
        if !LINTS.iter().any(|l| name == l.name) {
            let hint = did_you_mean(&name.to_string(), LINTS.iter().map(|l| l.name));
            let names = one_of(LINTS.iter().map(|l| l.name));
            errors.at(name, format!("expected {names}, found `{name}`{hint}"));
        }
    }
    let subject = Subject {
        arch,
        graph: Graph::new(arch),
        library,
        sources: &errors.sources,
    };
    let found = LINTS.iter().map(|lint| {
        let mut found = Vec::new();
        (lint.find)(&subject, &mut found);
        found
    });
    let found: Vec<Vec<Finding>> = found.collect();
    for (lint, found) in LINTS.iter().zip(found) {
        match allowed.iter().find(|name| *name == lint.name) {
            None => found.into_iter().for_each(|(at, message)| {
                let message = format!("{message} (if that is meant: `allow: {};`)", lint.name);
                errors.note(at, message, Vec::new());
            }),
            Some(name) if found.is_empty() => errors.at(name, "there is nothing to allow"),
            Some(_) => {}
        }
    }
}

/// Every value of a declaration.
struct Graph<'a> {
    /// What each variable is bound to or assigned anywhere.
    of_var: Vec<Vec<&'a Value>>,
    /// All values, those inside of others too.
    values: Vec<&'a Value>,
    /// The layer loops: their name, what they hand on and the number of their first value and of the first behind them.
    loops: Vec<(Named<usize>, VarId, std::ops::Range<usize>)>,
}

impl<'a> Graph<'a> {
    fn new(arch: &'a Arch) -> Graph<'a> {
        let mut graph = Graph {
            of_var: vec![Vec::new(); arch.vars.len()],
            values: Vec::new(),
            loops: Vec::new(),
        };
        let heads = [&arch.embedding, &arch.rank]
            .into_iter()
            .flatten()
            .map(|head| &head.block);
        for block in arch.encoder.iter().chain([&arch.graph]).chain(&arch.mtp).chain(heads) {
            graph.block(block);
        }
        graph
    }

    fn block(&mut self, block: &'a Block) {
        for stmt in &block.stmts {
            match stmt {
                Stmt::Tensor { var, value, .. } => {
                    self.of_var[var.0].push(value);
                    self.value(value);
                }
                Stmt::Scalar { .. } => {}
                Stmt::If { then, otherwise, .. } => {
                    self.block(then);
                    otherwise.iter().for_each(|b| self.block(b));
                }
                Stmt::Repeat { body, .. } => self.block(body),
                Stmt::Layers {
                    group, body, carried, ..
                } => {
                    let first = self.values.len();
                    self.block(body);
                    self.loops.push((*group, *carried, first..self.values.len()));
                }
            }
        }
        block.result.iter().for_each(|v| self.value(v));
    }

    fn value(&mut self, value: &'a Value) {
        self.values.push(value);
        for inner in operands(value) {
            self.value(inner);
        }
        match &value.kind {
            ValueKind::If(_, then, otherwise) => {
                self.block(then);
                self.block(otherwise);
            }
            ValueKind::Call(_, params, body) => {
                for (var, operand) in params {
                    if let Operand::Tensor(value) = operand {
                        self.of_var[var.0].push(value);
                        self.value(value);
                    }
                }
                self.block(body);
            }
            _ => {}
        }
    }

    /// The values that `value` is, whatever the conditions: the results of its branches, of a function, of a variable.
    fn forms(&self, value: &'a Value) -> Option<Vec<&'a Value>> {
        let results = |blocks: &[&'a Block]| blocks.iter().filter_map(|b| b.result.as_ref()).collect();
        match &value.kind {
            ValueKind::Var(var) => Some(self.of_var[var.0].clone()),
            ValueKind::If(_, then, otherwise) => Some(results(&[then, otherwise])),
            ValueKind::Call(_, _, body) => Some(results(&[body])),
            _ => None,
        }
    }

    /// True if `found` says so of `value`, or of what it is made of without a projection in between. `seen`: variables on the way.
    fn any(&self, value: &'a Value, seen: &mut Vec<VarId>, found: &dyn Fn(&Value) -> bool) -> bool {
        if found(value) {
            return true;
        }
        if let ValueKind::Var(var) = &value.kind {
            if seen.contains(&var.it) {
                return false;
            }
            seen.push(var.it);
        }
        let inner = match (self.forms(value), &value.kind) {
            (Some(forms), _) => forms,
            (None, ValueKind::Linear(..)) => Vec::new(),
            (None, _) => operands(value),
        };
        inner.into_iter().any(|v| self.any(v, seen, found))
    }
}

/// The tensors that an operation or operator is applied to.
fn operands(value: &Value) -> Vec<&Value> {
    match &value.kind {
        ValueKind::Linear(_, x)
        | ValueKind::Scale(x, _)
        | ValueKind::Divide(x, _)
        | ValueKind::Shift(x, _)
        | ValueKind::Slice(x, ..) => vec![x],
        ValueKind::Binary(_, a, b) | ValueKind::Glu(_, a, b) => vec![a, b],
        ValueKind::Op(_, args) => args.iter().filter_map(tensor_of).collect(),
        _ => Vec::new(),
    }
}

fn tensor_of(arg: &Arg) -> Option<&Value> {
    match arg {
        Arg::Tensor(value) => Some(value),
        _ => None,
    }
}

fn half_rotated(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let graph = &subject.graph;
    let rotates = |v: &Value| matches!(&v.kind, ValueKind::Op(op, _) if op.rotates);
    let is_rust = |v: &Value| matches!(v.kind, ValueKind::Rust(_));
    for value in &graph.values {
        let ValueKind::Op(op, args) = &value.kind else { continue };
        let ("attention", [Arg::Tensor(q), Arg::Tensor(k), ..]) = (op.name, &args[..]) else {
            continue;
        };
        let [q, k] = [q, k].map(|v| {
            let any = |f: &dyn Fn(&Value) -> bool| graph.any(v, &mut Vec::new(), f);
            // What Rust does is not known.
            any(&rotates)
                .then_some(true)
                .or_else(|| (!any(&is_rust)).then_some(false))
        });
        let message = match (q, k) {
            (Some(true), Some(false)) => "the queries of `attention` have rotary positions, its keys have none",
            (Some(false), Some(true)) => "the keys of `attention` have rotary positions, its queries have none",
            _ => continue,
        };
        found.push((op.at.into(), message.to_owned()));
    }
}

fn no_residual(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let graph = &subject.graph;
    for (group, carried, values) in &graph.loops {
        let is_carried = |v: &Value| match &v.kind {
            ValueKind::Var(var) => var.it == *carried,
            ValueKind::Rust(_) => true,
            _ => false,
        };
        let adds = |v: &&Value| match &v.kind {
            ValueKind::Binary(ScalarOp::Add, a, b) => [a, b]
                .into_iter()
                .any(|side| graph.any(side, &mut Vec::new(), &is_carried)),
            ValueKind::Rust(_) => true,
            _ => false,
        };
        if !graph.values[values.clone()].iter().any(adds) {
            let message = "these layers add nothing to what they are given: `x += …`".to_owned();
            found.push((group.at.into(), message));
        }
    }
}
