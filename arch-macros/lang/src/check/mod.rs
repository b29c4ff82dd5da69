//! Checks a syntax tree and lowers it to a declaration. Errors are recorded with the span of their token, and
//! checking continues. Invalid values are exempt from further checks, so one mistake produces one error.

mod audio;
mod call;
mod checkpoint;
mod decl;
mod expr;
mod facts;
mod function;
mod graph;
mod list;
mod media;
mod models;
mod needs;
mod parameters;
mod rust;
mod scopes;
mod tiles;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use proc_macro2::{Ident, Span};
use quote::ToTokens;

use crate::ast::Decl;
use crate::builtins::{self, Epsilon, Ty};
use crate::diag::Errors;
use crate::model::{Arch, Group, Scalar, Tensor, Var, VarId};
use crate::names::Names;
use crate::sym::{Dim, Multiple, Shape};

use facts::Fact;
use function::FunctionList;
use scopes::{Known, Scopes};

/// Checks a declaration. Returns `None` if it has errors.
pub fn check(decl: &Decl, errors: &mut Errors) -> Option<Arch> {
    let before = errors.len();
    let arch = Checker::new(errors).arch(decl);
    let mut arch = if errors.len() == before { arch? } else { return None };
    arch.checkpoints = checkpoint::checkpoints(decl, &arch, errors);
    (errors.len() == before).then_some(arch)
}

pub use checkpoint::inherited as inherited_checkpoints;

/// Context of an expression, which determines the names that it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The `hparams` section. Per-layer values make a result per-layer.
    Hparams,
    /// The `tensors` section, outside layer blocks.
    Tensors,
    /// A layer block of the `tensors` section.
    LayerTensors,
    /// A graph, outside the layer loop.
    Graph,
    /// The body of the layer loop.
    Loop,
}

impl Place {
    fn is_graph(self) -> bool {
        matches!(self, Place::Graph | Place::Loop)
    }
}

/// A symbol of the `hparams` section.
struct HparamSym {
    name: Ident,
    /// Type, or `None` if the declaration is invalid.
    ty: Option<Ty>,
    per_layer: bool,
    /// Value as a size, if an expression defines the symbol.
    dim: Option<Dim>,
    /// GGUF key of the value; `None` for a derived value.
    key: Option<String>,
    /// True for an epsilon that the declaration reads without declaring it.
    implicit: bool,
    used: bool,
    /// True if the graph uses the symbol.
    kept: bool,
}

impl HparamSym {
    /// Returns an unused symbol without a key.
    fn new(name: Ident, ty: Option<Ty>) -> HparamSym {
        HparamSym {
            name,
            ty,
            per_layer: false,
            dim: None,
            key: None,
            implicit: false,
            used: false,
            kept: false,
        }
    }
}

/// A model of the `models` section.
struct ModelSym {
    name: syn::LitStr,
    /// Condition, or `None` if it is invalid.
    cond: Option<Scalar>,
    used: bool,
}

/// A declared tensor during checking.
struct TensorSym {
    tensor: Tensor,
    facts: Vec<Fact>,
    /// True if the sizes are invalid.
    broken: bool,
    used: bool,
}

/// Value that a `let` of the graph binds.
#[derive(Clone)]
enum Bound {
    Tensor(Shape),
    Scalar(Scalar),
    /// A value with an error that was already reported.
    Broken,
}

struct VarSym {
    name: Ident,
    bound: Bound,
    used: bool,
    assigned: bool,
    /// Condition of a value that `if` without `else` defines.
    condition: Option<Condition>,
}

/// Condition under which a value exists.
#[derive(Clone)]
struct Condition {
    facts: Vec<Fact>,
    text: String,
}

struct Checker<'e> {
    errors: &'e mut Errors,
    rope: Option<crate::model::RopeKind>,
    models: Vec<ModelSym>,
    model_names: Names,
    hparams: Vec<HparamSym>,
    hparam_names: Names,
    groups: Vec<Group>,
    /// Group of layers of the current context.
    group: Option<usize>,
    tensors: Vec<TensorSym>,
    /// Tensors by name, the first of each group of layers.
    tensor_names: Names,
    /// Tensors by GGUF name.
    gguf_names: Names,
    vars: Vec<VarSym>,
    scopes: Scopes,
    /// True if the encoder's result is available.
    encoded: bool,
    /// True while the `mtp` graph is checked.
    in_mtp: bool,
    /// Facts that hold in the current context.
    facts: Known,
    /// Sizes that a `check` makes multiples of others.
    multiples: Vec<Multiple>,
    place: Place,
    /// Reported pairs of a tensor's conditions and the facts at its use.
    wrong_ifs: HashSet<(Vec<Fact>, Vec<Fact>)>,
    /// Names already reported as unknown, and operations already reported as unavailable.
    unknown_names: HashSet<String>,
    /// Variables that the innermost loop assigns to, in order.
    assigned_in_loop: Vec<VarId>,
    /// Numbers of enclosing branches and functions of the body of a loop over a group of one layer. There, values may
    /// change their shapes.
    single: Option<[usize; 2]>,
    functions: FunctionList,
    /// Named parameters of the functions that forward theirs.
    taken: RefCell<HashMap<String, Vec<String>>>,
    /// Functions whose bodies were mentioned after an invalid call.
    mentioned: HashSet<String>,
    /// Names of all called functions.
    called: HashSet<String>,
    /// Functions being checked, outermost first.
    inside: Vec<String>,
    /// Number of nested expressions, conditions, and loops being checked.
    depth: usize,
    /// Number of branches of the current body that enclose the code being checked.
    n_blocks: usize,
    /// An enclosing expression of the same scope is being checked.
    in_expr: bool,
    /// Number of tokens of all inlined functions.
    n_inlined: usize,
    /// The audio preprocessing.
    audio: audio::AudioScope,
    /// The parts of an `encoder!`, and the graph's treatment of media rows.
    media: media::MediaScope,
    /// True after a call of an undeclared name. Items that only the intended callee uses are then not reported
    /// as unused.
    unknown_callee: bool,
}

impl<'e> Checker<'e> {
    fn new(errors: &'e mut Errors) -> Checker<'e> {
        Checker {
            errors,
            rope: None,
            models: Vec::new(),
            model_names: Names::default(),
            hparams: Vec::new(),
            hparam_names: Names::default(),
            groups: vec![Group {
                name: Ident::new("layer", Span::call_site()),
                prefix: "blk".to_string(),
                count: None,
            }],
            group: None,
            tensors: Vec::new(),
            tensor_names: Names::default(),
            gguf_names: Names::default(),
            vars: Vec::new(),
            scopes: Scopes::default(),
            encoded: false,
            in_mtp: false,
            facts: Known::default(),
            multiples: Vec::new(),
            place: Place::Hparams,
            wrong_ifs: HashSet::new(),
            unknown_names: HashSet::new(),
            assigned_in_loop: Vec::new(),
            single: None,
            functions: FunctionList::default(),
            taken: RefCell::default(),
            mentioned: HashSet::new(),
            called: HashSet::new(),
            inside: Vec::new(),
            depth: 0,
            n_blocks: 0,
            in_expr: false,
            n_inlined: 0,
            audio: audio::AudioScope::default(),
            media: media::MediaScope::default(),
            unknown_callee: false,
        }
    }

    /// Records an error and returns `None`.
    fn error<T>(&mut self, at: impl ToTokens, message: impl Into<String>) -> Option<T> {
        self.errors.at(at, message);
        None
    }

    fn find_hparam(&self, name: &str) -> Option<usize> {
        self.hparam_names.first(name)
    }

    /// Finds the tensor named `name`. If several groups of layers share the name, returns the tensor usable
    /// in the current context.
    fn find_tensor(&self, name: &str) -> Option<usize> {
        let named = self.tensor_names.all(name);
        let usable = |i: &usize| self.tensors[*i].tensor.group.is_none_or(|g| self.group == Some(g));
        named.iter().copied().find(usable).or_else(|| named.first().copied())
    }

    fn find_group(&self, name: &Ident) -> Option<usize> {
        self.groups.iter().position(|g| g.name == *name)
    }

    fn find_var(&self, name: &str) -> Option<VarId> {
        self.scopes.find(name)
    }

    /// Returns the hyperparameter that reads the key of an epsilon. Without one, declares it.
    fn epsilon(&mut self, epsilon: &Epsilon) -> usize {
        let reads = |h: &HparamSym| h.key.as_deref() == Some(epsilon.key);
        self.hparams.iter().position(reads).unwrap_or_else(|| {
            self.hparam_names.add(epsilon.name, self.hparams.len());
            self.hparams.push(HparamSym {
                key: Some(epsilon.key.to_owned()),
                implicit: true,
                used: true,
                ..HparamSym::new(Ident::new(epsilon.name, Span::call_site()), Some(Ty::Float))
            });
            self.hparams.len() - 1
        })
    }

    /// Marks a hyperparameter as used.
    fn use_hparam(&mut self, index: usize) {
        let graph = self.place.is_graph();
        let h = &mut self.hparams[index];
        h.used = true;
        h.kept |= graph;
    }

    /// Marks a tensor as used and checks that it is present. `or_absent`: the use accepts an absent tensor.
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
                "`{name}` exists only {}; use it under the same condition",
                sym.tensor.condition_words()
            );
            // One wrong condition affects many tensors; report only the first.
            let situation = (sym.facts.clone(), self.facts.all().to_vec());
            if !self.wrong_ifs.insert(situation) {
                return None;
            }
            return self.error(at, message);
        }
        if sym.tensor.optional {
            let message = format!("`{name}` is optional; check it with `if has({name}) {{ … }}`");
            return self.error(at, message);
        }
        Some(())
    }

    /// Checks that a value of the graph exists in the current context.
    fn exists(&mut self, var: VarId, at: &Ident) -> Option<()> {
        let known = |f: &Fact| self.facts.contains(f) || self.facts.contains(&facts::anything());
        match &self.vars[var.0].condition {
            Some(condition) if !condition.facts.iter().all(known) => {
                let text = condition.text.clone();
                // One wrong condition affects many uses; report only the first.
                self.vars[var.0].condition = None;
                self.error(
                    at,
                    format!(
                        "`{at}` exists only if `{text}`; use it under the same condition, or add `else` to its `let`"
                    ),
                )
            }
            _ => Some(()),
        }
    }

    /// Checks that a tensor of this group can be used in the current context.
    fn allow_group(&mut self, group: Option<usize>, at: &Ident) -> Option<()> {
        match group {
            Some(g) if self.place != Place::Loop || self.group != Some(g) => {
                let message = format!("`{at}` belongs to a layer; use it inside `for {}`", self.groups[g].name);
                self.error(at, message)
            }
            _ => Some(()),
        }
    }

    /// Checks that `name` is free for a hyperparameter, tensor, or value.
    fn can_name(&mut self, name: &Ident) -> bool {
        let text = name.to_string();
        let taken = if builtins::builtin(&text).is_some() || builtins::epsilon(&text).is_some() {
            "is a built-in symbol".to_string()
        } else if let Some(why) = builtins::reserved(&text) {
            format!("is reserved for {why}")
        } else if self.find_hparam(&text).is_some() {
            "is already the name of a hyperparameter".to_string()
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

    /// Returns false for a tensor of a different group of layers.
    fn shares_names(&self, tensor: usize) -> bool {
        let group = self.tensors[tensor].tensor.group;
        self.place != Place::LayerTensors || group.is_none() || group == self.group
    }

    /// Reports an unknown name and suggests the nearest known name.
    fn unknown<T>(&mut self, name: &Ident, what: &str, candidates: impl FnOnce(&Self) -> Vec<String>) -> Option<T> {
        let text = name.to_string();
        if self.unknown_names.contains(&text) {
            return None;
        }
        let mut hint = String::new();
        if let Some(near) = self.errors.nearest(&text, || candidates(self)) {
            hint = format!("; did you mean `{near}`?");
            // Mark the suggested item as used, so that it is not also reported as unused.
            let (tensor, hparam, var) = (self.find_tensor(&near), self.find_hparam(&near), self.find_var(&near));
            if let Some(i) = var {
                self.vars[i.0].used = true;
            } else if let Some(i) = tensor {
                self.tensors[i].used = true;
            } else if let Some(i) = hparam {
                self.use_hparam(i);
            }
        }
        let message = format!("no {what} named `{text}`{hint}");
        self.unknown_names.insert(text);
        self.error(name, message)
    }

    /// Returns all names valid in an expression.
    fn value_names(&self) -> Vec<String> {
        let mut names: Vec<String> = builtins::BUILTINS.iter().map(|b| b.name.to_string()).collect();
        names.extend(builtins::EPSILONS.iter().map(|e| e.name.to_string()));
        names.extend(self.hparams.iter().map(|h| h.name.to_string()));
        if self.place.is_graph() {
            names.extend(self.scopes.names());
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
