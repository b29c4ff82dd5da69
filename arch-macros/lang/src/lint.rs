//! Lints: well-formed code that is most likely a mistake. A finding is an error.

mod duplicate_name;
mod unknown_key;
mod unknown_tensor;

use std::collections::HashSet;

use crate::diag::Errors;
use crate::library::Library;
use crate::model::{Arch, Arg, Block, Named, Operand, ScalarOp, Stmt, Value, ValueKind, VarId};
use crate::source::{Range, SourceMap};

/// Declaration that the lints check.
struct Subject<'a> {
    arch: &'a Arch,
    graph: Graph<'a>,
    library: &'a dyn Library,
    sources: &'a SourceMap,
}

/// Location and message of a lint finding.
type Finding = (Range, String);

/// All lints. Each adds its findings to a list.
const LINTS: [fn(&Subject<'_>, &mut Vec<Finding>); 5] = [
    half_rotated,
    no_residual,
    unknown_tensor::find,
    unknown_key::find,
    duplicate_name::find,
];

/// Runs all lints and records their findings as errors.
pub fn check(arch: &Arch, library: &dyn Library, errors: &mut Errors) {
    let subject = Subject {
        arch,
        graph: Graph::new(arch),
        library,
        sources: &errors.sources,
    };
    let mut found = Vec::new();
    for lint in LINTS {
        lint(&subject, &mut found);
    }
    for (at, message) in found {
        errors.at_range(at, message);
    }
}

/// Index of the values in a declaration's graphs.
struct Graph<'a> {
    /// Values that each variable is bound to or assigned.
    of_var: Vec<Vec<&'a Value>>,
    /// All values, including nested ones.
    values: Vec<&'a Value>,
    /// Layer loops: name, loop-carried value, and range of value indices.
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

    /// Returns the possible values of `value` under any condition: results of branches, of functions, and of
    /// variables.
    fn forms(&self, value: &'a Value) -> Option<Vec<&'a Value>> {
        let results = |blocks: &[&'a Block]| blocks.iter().filter_map(|b| b.result.as_ref()).collect();
        match &value.kind {
            ValueKind::Var(var) => Some(self.of_var[var.0].clone()),
            ValueKind::If(_, then, otherwise) => Some(results(&[then, otherwise])),
            ValueKind::Call(_, _, body) => Some(results(&[body])),
            _ => None,
        }
    }

    /// Returns true if `found` holds for `value` or for an operand reachable without passing a projection.
    /// `seen` has the visited variables, from which no such operand is reachable.
    fn any(&self, value: &'a Value, seen: &mut HashSet<usize>, found: &dyn Fn(&Value) -> bool) -> bool {
        if found(value) {
            return true;
        }
        if let ValueKind::Var(var) = &value.kind
            && !seen.insert(var.it.0)
        {
            return false;
        }
        let inner = match (self.forms(value), &value.kind) {
            (Some(forms), _) => forms,
            (None, ValueKind::Linear(..)) => Vec::new(),
            (None, _) => operands(value),
        };
        inner.into_iter().any(|v| self.any(v, seen, found))
    }
}

/// Returns the tensors that an operation or operator is applied to.
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

/// Finds attention that rotates its queries but not its keys, or the reverse.
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
            let any = |f: &dyn Fn(&Value) -> bool| graph.any(v, &mut HashSet::new(), f);
            // `rust!` code may have any effect.
            any(&rotates)
                .then_some(true)
                .or_else(|| (!any(&is_rust)).then_some(false))
        });
        let message = match (q, k) {
            (Some(true), Some(false)) => "`attention` rotates its queries but not its keys",
            (Some(false), Some(true)) => "`attention` rotates its keys but not its queries",
            _ => continue,
        };
        found.push((op.at.into(), message.to_owned()));
    }
}

/// Finds layers that never add to their input.
fn no_residual(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let graph = &subject.graph;
    for (group, carried, values) in &graph.loops {
        // A single layer may change the shape of its input.
        let count = subject.arch.groups[group.it].count.as_ref();
        if count.is_some_and(|count| count.dim.as_constant() == Some(1)) {
            continue;
        }
        let is_carried = |v: &Value| match &v.kind {
            ValueKind::Var(var) => var.it == *carried,
            ValueKind::Rust(_) => true,
            _ => false,
        };
        let mut seen = HashSet::new();
        let adds = |v: &&'_ Value| match &v.kind {
            ValueKind::Binary(ScalarOp::Add, a, b) => {
                [a, b].into_iter().any(|side| graph.any(side, &mut seen, &is_carried))
            }
            ValueKind::Rust(_) => true,
            // Features are concatenated to the result.
            ValueKind::Op(op, _) => op.name == "beside",
            _ => false,
        };
        if !graph.values[values.clone()].iter().any(adds) {
            let message = "these layers never add to their input; expected `x += …`".to_owned();
            found.push((group.at.into(), message));
        }
    }
}
