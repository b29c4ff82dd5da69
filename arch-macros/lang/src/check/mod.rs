//! Syntax tree to checked declaration. Every fault is noted under its token and checking goes on; a value that could not be
//! understood is left out of later checks, so that one slip gives one message.

mod blame;
mod call;
mod decl;
mod expr;
mod facts;
mod function;
mod graph;
mod needs;

use proc_macro2::{Ident, Span};
use quote::ToTokens;

use crate::ast::{Decl, Function};
use crate::builtins::{self, Ty};
use crate::diag::{Errors, did_you_mean};
use crate::model::{Arch, Group, Scalar, Tensor, Var, VarId};
use crate::sym::{Dim, Shape};

use facts::Fact;

/// Checks a declaration; `None` if there were faults.
pub fn check(decl: &Decl, errors: &mut Errors) -> Option<Arch> {
    let before = errors.len();
    let arch = Checker::new(errors).arch(decl);
    arch.filter(|_| errors.len() == before)
}

/// Where an expression stands, which decides what it may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// `hparams`: per-layer values make the result per-layer.
    Hparams,
    /// `tensors`, outside the layer block.
    Tensors,
    /// The layer block of `tensors`.
    LayerTensors,
    /// `graph`, outside the loop.
    Graph,
    /// The layer loop.
    Loop,
}

impl Place {
    fn is_graph(self) -> bool {
        matches!(self, Place::Graph | Place::Loop)
    }
}

/// A name of `hparams`.
struct HparamSym {
    name: Ident,
    /// `None` if its declaration is faulty.
    ty: Option<Ty>,
    per_layer: bool,
    /// Defined by an expression: its value as a size.
    dim: Option<Dim>,
    used: bool,
    /// Used by the graph.
    kept: bool,
}

/// A declared tensor while it is checked.
struct TensorSym {
    tensor: Tensor,
    facts: Vec<Fact>,
    /// Its sizes could not be understood.
    broken: bool,
    used: bool,
}

/// What a `let` of the graph is bound to.
#[derive(Clone)]
enum Bound {
    Tensor(Shape),
    Scalar(Scalar),
    /// Its value could not be understood.
    Broken,
}

struct VarSym {
    name: Ident,
    bound: Bound,
    used: bool,
    assigned: bool,
}

struct Checker<'e> {
    errors: &'e mut Errors,
    rope: Option<crate::model::RopeKind>,
    hparams: Vec<HparamSym>,
    groups: Vec<Group>,
    /// The group of layers that the place belongs to.
    group: Option<usize>,
    tensors: Vec<TensorSym>,
    vars: Vec<VarSym>,
    /// Names in scope, innermost last.
    scopes: Vec<Vec<(String, VarId)>>,
    /// The declaration has an encoder, whose result is known here.
    encoded: bool,
    /// The graph under way is that of a layer of multi-token prediction.
    in_mtp: bool,
    /// Conditions known to hold where the checker is.
    facts: Vec<Fact>,
    place: Place,
    /// Conditions of tensors and what was known where they were used, as far as reported.
    wrong_ifs: Vec<(Vec<Fact>, Vec<Fact>)>,
    /// Unknown names reported already, and operations that the declaration does not allow.
    unknown_names: Vec<String>,
    /// Variables that the innermost loop assigns to, in order.
    assigned_in_loop: Vec<VarId>,
    functions: Vec<Function>,
    /// Functions called anywhere.
    called: Vec<String>,
    /// Functions that the checker is inside of, outermost first.
    inside: Vec<String>,
    /// The checker only tries what a function takes.
    trying: bool,
}

impl<'e> Checker<'e> {
    fn new(errors: &'e mut Errors) -> Checker<'e> {
        Checker {
            errors,
            rope: None,
            hparams: Vec::new(),
            groups: vec![Group {
                name: Ident::new("layer", Span::call_site()),
                prefix: "blk".to_string(),
                count: None,
            }],
            group: None,
            tensors: Vec::new(),
            vars: Vec::new(),
            scopes: Vec::new(),
            encoded: false,
            in_mtp: false,
            facts: Vec::new(),
            place: Place::Hparams,
            wrong_ifs: Vec::new(),
            unknown_names: Vec::new(),
            assigned_in_loop: Vec::new(),
            functions: Vec::new(),
            called: Vec::new(),
            inside: Vec::new(),
            trying: false,
        }
    }

    /// Notes a fault; `None`, so that callers can return it.
    fn fault<T>(&mut self, at: impl ToTokens, message: impl Into<String>) -> Option<T> {
        self.errors.at(at, message);
        None
    }

    fn find_hparam(&self, name: &str) -> Option<usize> {
        self.hparams.iter().position(|h| h.name == name)
    }

    /// The tensor of this name, of several the one that can be used here: groups of layers may share names.
    fn find_tensor(&self, name: &str) -> Option<usize> {
        let named = || (0..self.tensors.len()).filter(|&i| self.tensors[i].tensor.name == name);
        let usable = |&i: &usize| self.tensors[i].tensor.group.is_none_or(|g| self.group == Some(g));
        named().find(usable).or_else(|| named().next())
    }

    fn find_group(&self, name: &Ident) -> Option<usize> {
        self.groups.iter().position(|g| g.name == *name)
    }

    fn find_var(&self, name: &str) -> Option<VarId> {
        self.scopes
            .iter()
            .rev()
            .flat_map(|s| s.iter().rev())
            .find(|(n, _)| n == name)
            .map(|&(_, id)| id)
    }

    /// Notes that a hyper-parameter is used here.
    fn use_hparam(&mut self, index: usize) {
        let graph = self.place.is_graph();
        let h = &mut self.hparams[index];
        h.used = true;
        h.kept |= graph;
    }

    /// Notes that a tensor is used here and checks that it exists here. `or_absent`: the use is content with an absent one.
    fn use_tensor(&mut self, index: usize, at: &Ident, or_absent: bool) -> Option<()> {
        self.tensors[index].used = true;
        let sym = &self.tensors[index];
        self.allow_group(sym.tensor.group, at)?;
        let sym = &self.tensors[index];
        let name = &sym.tensor.name;
        let known = |f: &Fact| self.facts.contains(f);
        if or_absent || known(&facts::presence(name)) || known(&facts::anything()) {
            return Some(());
        }
        if !sym.facts.iter().all(known) {
            let message = format!(
                "`{name}` exists only {}: use it under the same `if`",
                sym.tensor.condition_words()
            );
            // One wrong `if` takes many tensors with it: the first one tells.
            let situation = (sym.facts.clone(), self.facts.clone());
            if self.wrong_ifs.contains(&situation) {
                return None;
            }
            self.wrong_ifs.push(situation);
            return self.fault(at, message);
        }
        if sym.tensor.optional {
            let message = format!("`{name}` is optional: say what happens without it: `if has({name}) {{ … }}`");
            return self.fault(at, message);
        }
        Some(())
    }

    /// Checks that a tensor of this group can be used here.
    fn allow_group(&mut self, group: Option<usize>, at: &Ident) -> Option<()> {
        match group {
            Some(g) if self.place != Place::Loop || self.group != Some(g) => {
                let message = format!(
                    "`{at}` belongs to a layer: it can be used inside `for {}` only",
                    self.groups[g].name
                );
                self.fault(at, message)
            }
            _ => Some(()),
        }
    }

    /// Checks that `name` can become the name of a hyper-parameter, a tensor or a value of the graph.
    fn can_name(&mut self, name: &Ident) -> bool {
        let text = name.to_string();
        let taken = if builtins::builtin(&text).is_some() {
            "is built in".to_string()
        } else if let Some(why) = builtins::reserved(&text) {
            format!("is reserved: it names {why}")
        } else if self.find_hparam(&text).is_some() {
            "is already the name of a hyper-parameter".to_string()
        } else if self.find_group(name).is_some() {
            "is already the name of a group of layers".to_string()
        } else if self.find_tensor(&text).is_some_and(|i| self.shares_names(i)) {
            "is already the name of a tensor".to_string()
        } else {
            return true;
        };
        self.errors.at(name, format!("`{text}` {taken}"));
        false
    }

    /// False for a tensor of another group of layers than the one being declared.
    fn shares_names(&self, tensor: usize) -> bool {
        let group = self.tensors[tensor].tensor.group;
        self.place != Place::LayerTensors || group.is_none() || group == self.group
    }

    /// Complains about a name that means nothing here, with the nearest that does.
    fn unknown<T>(&mut self, name: &Ident, what: &str, candidates: Vec<String>) -> Option<T> {
        let text = name.to_string();
        let hint = did_you_mean(&text, candidates.iter().map(String::as_str));
        if let Some(near) = crate::diag::nearest(&text, candidates.iter().map(String::as_str)) {
            // The slip is reported here; it should not be reported again as something unused.
            let (tensor, hparam, var) = (self.find_tensor(near), self.find_hparam(near), self.find_var(near));
            if let Some(i) = var {
                self.vars[i.0].used = true;
            } else if let Some(i) = tensor {
                self.tensors[i].used = true;
            } else if let Some(i) = hparam {
                self.use_hparam(i);
            }
        }
        if self.unknown_names.contains(&text) {
            return None;
        }
        let message = format!("no {what} is called `{text}`{hint}");
        self.unknown_names.push(text);
        self.fault(name, message)
    }

    /// Names that an expression could have meant.
    fn value_names(&self) -> Vec<String> {
        let mut names: Vec<String> = builtins::BUILTINS.iter().map(|b| b.name.to_string()).collect();
        names.extend(self.hparams.iter().map(|h| h.name.to_string()));
        if self.place.is_graph() {
            names.extend(self.scopes.iter().flatten().map(|(n, _)| n.clone()));
            names.extend(self.tensors.iter().map(|t| t.tensor.name.to_string()));
        }
        names
    }

    fn finished_vars(&mut self) -> Vec<Var> {
        self.vars
            .drain(..)
            .map(|v| Var {
                name: v.name,
                assigned: v.assigned,
            })
            .collect()
    }
}
