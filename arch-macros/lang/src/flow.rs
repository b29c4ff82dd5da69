//! Data flow of the graph: a list of values and their inputs, used to draw diagrams.

use std::collections::HashMap;

use crate::model::{Arch, Arg, Block, Operand, Scalar, ScalarKind, ScalarOp, Stmt, Value, ValueKind, VarId};
use crate::ops::{Given, OpSpec};
use crate::sym::Shape;

/// A value of a declared graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowNode {
    /// `name = operation weights`, or only the operation for an unnamed value.
    pub label: String,
    /// Symbolic shape.
    pub shape: String,
    /// True if the value is computed in the layer loop.
    pub in_layer: bool,
    /// Graph that contains the value.
    pub part: Part,
    /// Combined conditions of the enclosing branches; empty if the value is computed unconditionally.
    pub condition: String,
    /// Indices of the input nodes. The entry of the layer loop also lists the value carried over from the
    /// previous layer.
    pub inputs: Vec<usize>,
}

/// The graphs of a declaration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// `encoder { … }`
    Encoder,
    /// `graph { … }`
    Graph,
    /// `mtp { … }`
    Mtp,
}

/// Returns the nodes of a declaration's graph in the order of computation.
pub fn flow(arch: &Arch) -> Vec<FlowNode> {
    let mut f = Flow {
        arch,
        nodes: Vec::new(),
        of_var: vec![None; arch.vars.len()],
        in_layer: false,
        part: Part::Graph,
        conditions: Vec::new(),
        scalars: HashMap::new(),
        encoded: None,
        hidden: None,
    };
    if let Some(encoder) = &arch.encoder {
        f.part = Part::Encoder;
        f.encoded = f.block(encoder);
        f.part = Part::Graph;
        if let Some(node) = f.encoded {
            f.nodes[node].label = format!("encoded = {}", f.nodes[node].label);
        }
    }
    f.block(&arch.graph);
    f.name_result();
    if let Some(graph) = &arch.mtp {
        f.part = Part::Mtp;
        f.hidden = Some(f.push("hidden".to_owned(), Shape::embeddings().to_string(), Vec::new()));
        f.block(graph);
        f.name_result();
    }
    f.nodes
}

struct Flow<'a> {
    arch: &'a Arch,
    nodes: Vec<FlowNode>,
    of_var: Vec<Option<usize>>,
    in_layer: bool,
    part: Part,
    /// Conditions of the enclosing branches, outermost first.
    conditions: Vec<String>,
    /// Source text of the scalar arguments of functions, by parameter.
    scalars: HashMap<String, String>,
    /// Node index of the encoder's result.
    encoded: Option<usize>,
    /// Node of the hidden states that a multi-token prediction layer reads.
    hidden: Option<usize>,
}

impl Flow<'_> {
    fn push(&mut self, label: String, shape: String, inputs: Vec<usize>) -> usize {
        self.nodes.push(FlowNode {
            label,
            shape,
            in_layer: self.in_layer,
            part: self.part,
            condition: shortened(self.conditions.join(" && ")),
            inputs,
        });
        self.nodes.len() - 1
    }

    /// Labels the last node as the result, unless it has a name.
    fn name_result(&mut self) {
        if let Some(last) = self.nodes.last_mut()
            && !last.label.contains(" = ")
        {
            last.label = format!("result = {}", last.label);
        }
    }

    fn name(&self, var: VarId) -> String {
        self.arch.vars[var.0].name.to_string()
    }

    fn weight(&self, index: usize) -> String {
        self.arch.tensors[index].name.to_string()
    }

    fn block(&mut self, block: &Block) -> Option<usize> {
        for stmt in &block.stmts {
            self.stmt(stmt);
        }
        block.result.as_ref().and_then(|v| self.value(v))
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Scalar { .. } => {}
            Stmt::Tensor { var, value, .. } => {
                let before = self.nodes.len();
                let node = self.value(value);
                let name = self.name(var.it);
                if let Some(i) = node
                    && i >= before
                    && !self.nodes[i].label.contains(" = ")
                {
                    self.nodes[i].label = format!("{name} = {}", self.nodes[i].label);
                }
                self.of_var[var.0] = node;
            }
            Stmt::If { cond, then, .. } if cond.truth() == Some(true) => {
                self.block(then);
            }
            Stmt::If { cond, then, otherwise } => {
                let before = self.of_var.clone();
                self.branch(cond.text.clone(), then);
                let after_then = std::mem::replace(&mut self.of_var, before);
                if let Some(block) = otherwise {
                    self.branch(cond.negated_text(), block);
                }
                for (var, yes) in after_then.into_iter().enumerate() {
                    let no = self.of_var[var];
                    // Names bound inside a branch go out of scope at its end.
                    if let (Some(yes), Some(no)) = (yes, no)
                        && yes != no
                    {
                        let label = format!("{} = if {}", self.name(VarId(var)), cond.text);
                        let shape = self.nodes[yes].shape.clone();
                        self.of_var[var] = Some(self.push(label, shape, vec![yes, no]));
                    }
                }
            }
            Stmt::Layers { body, .. } => {
                let outer = std::mem::replace(&mut self.in_layer, true);
                self.repeated(body);
                self.in_layer = outer;
            }
            Stmt::Repeat { body, .. } => self.repeated(body),
        }
    }

    fn repeated(&mut self, body: &Block) {
        let mut assigned = Vec::new();
        collect_assigned(body, &mut assigned);
        let mut entries = Vec::new();
        for var in assigned {
            if let Some(outer) = self.of_var[var.0] {
                let of = if self.in_layer { "each layer" } else { "each repetition" };
                let (label, shape) = (format!("{} of {of}", self.name(var)), self.nodes[outer].shape.clone());
                let entry = self.push(label, shape, vec![outer]);
                self.of_var[var.0] = Some(entry);
                entries.push((var, entry));
            }
        }
        self.block(body);
        for (var, entry) in entries {
            if let Some(last) = self.of_var[var.0] {
                self.nodes[entry].inputs.push(last);
            }
        }
    }

    fn value(&mut self, value: &Value) -> Option<usize> {
        let shape = value.shape.to_string();
        let (label, inputs) = match &value.kind {
            ValueKind::Var(var) => return self.of_var[var.0],
            ValueKind::Encoded(_) => return self.encoded,
            ValueKind::Hidden(_) => return self.hidden,
            ValueKind::Absent => return None,
            ValueKind::Patches(..) => ("patches".to_owned(), vec![]),
            ValueKind::Frames(..) => ("frames".to_owned(), vec![]),
            ValueKind::Embed(w, by, skipped) => {
                let skipped = skipped.as_ref().map_or(String::new(), |s| format!(" + {}", s.text));
                (format!("{}[{}{skipped}]", self.weight(w.it), by.name()), vec![])
            }
            ValueKind::Linear(w, x) => (format!("linear {}", self.weight(w.it)), vec![self.value(x)]),
            ValueKind::Weight(w) => (self.weight(w.it), vec![]),
            ValueKind::Op(op, args) => self.op(op, args),
            ValueKind::Binary(op, a, b) => (binary_name(*op).to_string(), vec![self.value(a), self.value(b)]),
            ValueKind::Scale(x, s) => (format!("scale by {}", s.text), vec![self.value(x)]),
            ValueKind::Divide(x, s) => (format!("scale by 1 / {}", s.text), vec![self.value(x)]),
            ValueKind::Shift(x, s) => (format!("shift by {}", s.text), vec![self.value(x)]),
            ValueKind::Glu(act, gate, up) => (format!("gated {}", act.name), vec![self.value(gate), self.value(up)]),
            ValueKind::Slice(x, from, to) => {
                let text = |s: &Option<Scalar>| s.as_ref().map_or(String::new(), |s| s.text.clone());
                (format!("slice {}..{}", text(from), text(to)), vec![self.value(x)])
            }
            ValueKind::If(cond, then, otherwise) => (
                format!("if {}", cond.text),
                vec![
                    self.branch(cond.text.clone(), then),
                    self.branch(cond.negated_text(), otherwise),
                ],
            ),
            ValueKind::Call(_, params, body) => {
                for (var, operand) in params {
                    self.of_var[var.0] = match operand {
                        Operand::Tensor(value) => self.value(value),
                        Operand::Scalar(s) => {
                            let text = self.text(s);
                            self.scalars.insert(self.name(*var), text);
                            None
                        }
                    };
                }
                return self.block(body);
            }
            ValueKind::Rust(tokens) => {
                let inputs = self.mentioned(tokens.clone());
                ("rust!".to_string(), inputs)
            }
        };
        let mut known: Vec<usize> = Vec::new();
        for i in inputs.into_iter().flatten() {
            if !known.contains(&i) {
                known.push(i);
            }
        }
        Some(self.push(label, shape, known))
    }

    /// Returns the label of an operation, with its weights and named arguments, and its inputs.
    fn op(&mut self, op: &OpSpec, args: &[Arg]) -> (String, Vec<Option<usize>>) {
        let mut label = op.name.to_string();
        let mut inputs = Vec::new();
        for (param, arg) in op.params.iter().zip(args) {
            let by_name = !matches!(param.given, Given::Position | Given::OptionalPosition);
            let (condition, arg) = match arg {
                Arg::If(cond, given) => (format!(" if {}", self.text(cond)), &**given),
                arg => (String::new(), arg),
            };
            match arg {
                Arg::Tensor(v) => inputs.push(self.value(v)),
                Arg::Weight(w) => label += &format!(" {}{condition}", self.weight(w.it)),
                Arg::Window(kind, n, None) => label += &format!(" {}({}){condition}", kind.it, self.text(n)),
                Arg::Window(kind, n, Some(cond)) => {
                    label += &format!(" {}({}) if {}", kind.it, self.text(n), self.text(cond));
                }
                Arg::Scalar(s) if by_name => label += &format!(" {}={}{condition}", param.name, self.text(s)),
                Arg::Activation(op) => label += &format!(" {}", op.name),
                Arg::Word(word) => label += &format!(" {}", word.to_lowercase()),
                Arg::Scalar(_) | Arg::If(..) | Arg::Default => {}
            }
        }
        (label, inputs)
    }

    /// Returns the source text of a number; for a parameter of a function, the text of its argument.
    fn text(&self, s: &Scalar) -> String {
        match &s.kind {
            ScalarKind::ToFloat(inner) => self.text(inner),
            ScalarKind::Var(name) => self.scalars.get(&name.to_string()).unwrap_or(&s.text).clone(),
            _ => s.text.clone(),
        }
    }

    /// Adds the values of a block that is computed under a condition.
    fn branch(&mut self, condition: String, block: &Block) -> Option<usize> {
        self.conditions.push(condition);
        let result = self.block(block);
        self.conditions.pop();
        result
    }

    fn mentioned(&self, tokens: proc_macro2::TokenStream) -> Vec<Option<usize>> {
        let mut out = Vec::new();
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Group(g) => out.extend(self.mentioned(g.stream())),
                proc_macro2::TokenTree::Ident(name) => {
                    let var = self.arch.vars.iter().rposition(|v| name == v.name);
                    out.extend(var.map(|i| self.of_var[i]));
                }
                _ => {}
            }
        }
        out
    }
}

/// Maximum length of a condition in a drawing, in characters.
const MAX_CONDITION: usize = 2000;

fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_CONDITION) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns the name of an operator between tensors.
pub fn binary_name(op: ScalarOp) -> &'static str {
    match op {
        ScalarOp::Sub => "sub",
        ScalarOp::Mul => "mul",
        ScalarOp::Div => "div",
        _ => "add",
    }
}

/// Collects the variables that a block assigns to without binding them.
fn collect_assigned(block: &Block, out: &mut Vec<VarId>) {
    for stmt in &block.stmts {
        match stmt {
            Stmt::Tensor { var, is_let: false, .. } if !out.contains(var) => out.push(var.it),
            Stmt::If { then, otherwise, .. } => {
                collect_assigned(then, out);
                otherwise.iter().for_each(|b| collect_assigned(b, out));
            }
            Stmt::Layers { body, .. } | Stmt::Repeat { body, .. } => collect_assigned(body, out),
            _ => {}
        }
    }
}
