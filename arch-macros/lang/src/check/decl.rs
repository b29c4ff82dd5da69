//! Checks a declaration: name, rope, hyperparameters, tensors, test sizes, and unused items.

use std::collections::{BTreeSet, HashSet};

use proc_macro2::{Ident, Span};
use syn::{Expr, Lit};

use super::expr::literal_truth;
use super::{Checker, HparamSym, ModelSym, Place, TensorSym, facts};
use crate::ast::{Decl, GroupDecl, HparamItem, Instead, RankHead, TensorDecl, TensorItem, Test};
use crate::builtins::{self, BUILTINS, Ty};
use crate::diag::{did_you_mean, one_of};
use crate::limits::{MAX_BLOCKS, MAX_FORMS, MAX_GROUPS, MAX_MULTIPLES};
use crate::model::{Arch, Block, Group, Hparam, Kind, Named, Read, RopeKind, Scalar, Tensor, TestSize};
use crate::ops;
use crate::source::{Origin, SourceMap};
use crate::sym::{Dim, Shape};
use crate::words;

/// A GGUF name that an `ignore` item lists.
struct Ignored {
    name: syn::LitStr,
    group: Option<usize>,
    /// Conditions that hold at the `ignore` item.
    facts: Vec<facts::Fact>,
}

impl Checker<'_> {
    pub(super) fn arch(mut self, decl: &Decl) -> Option<Arch> {
        let name = self.name_line(decl);
        let rope = self.rope_line(decl);
        self.rope = rope.map(|(kind, _)| kind);
        let bidirectional = self.attention_line(decl);
        let embeddings = self.result_line(decl);
        self.model_block(&decl.models);
        let hparams = self.hparam_block(&decl.hparams);
        self.needed_hparams(&decl.needs);
        let audio = decl.audio.as_ref().map(|audio| self.audio(audio));
        let media = decl.media.as_ref().map(|media| self.media(media, audio.is_some()));
        let mut ignored = Vec::new();
        self.place = Place::Tensors;
        self.tensor_block(&decl.tensors, &[], &mut ignored);
        self.ignored_twice(&ignored);
        if decl.tensors.is_empty() {
            self.errors
                .at_span(Span::call_site(), "the declaration has no `tensors { … }`");
        }
        self.declare_functions(&decl.functions);
        self.needed_tensors_and_functions(&decl.needs);
        self.audio.is_open = audio.is_some();
        let encoder = decl.encoder.as_ref().map(|graph| self.graph(graph, true));
        self.audio.is_open &= media.is_some();
        self.encoded = encoder.is_some();
        let graph = self.main_graph(decl, embeddings);
        self.layer_function(decl);
        let mtp = decl.mtp.as_ref().map(|g| self.mtp(g));
        let embedding = decl.embedding.as_ref().map(|g| self.embedding_head(g));
        let rank = decl.rank.as_ref();
        let rank = rank.map(|r| (self.rank_head(&r.graph), self.rank_pooling(r)));
        let (rank, rank_pooling) = rank.unzip();
        let test = self.test_block(decl);
        self.unused(decl);
        let ignored = ignored.iter().map(|i| (i.name.value(), i.group.is_some())).collect();
        let (vars, functions) = (self.finished_vars(), self.function_names());
        let tensors = self.tensors.drain(..).map(|t| t.tensor).collect();
        Some(Arch {
            name: name?,
            name_span: decl.name.as_ref().map_or_else(Span::call_site, |n| n.span()),
            ancestors: Vec::new(),
            fragments: Vec::new(),
            rope: rope?.0,
            rope_with_sections: rope?.1,
            bidirectional: bidirectional?,
            embeddings: embeddings?,
            hparams: self.kept(hparams),
            models: whole_models(self.models)?,
            groups: self.groups,
            tensors,
            ignored,
            vars,
            functions,
            encoder: encoder.map_or(Some(None), |e| e.map(Some))?,
            graph: graph?,
            mtp: whole(mtp)?,
            embedding: whole(embedding)?,
            rank: whole(rank)?,
            rank_pooling: whole(rank_pooling)?.flatten(),
            checkpoints: Vec::new(),
            test,
            audio: whole(audio)?,
            media: whole(media)?,
            media_use: self.media.used,
        })
    }

    /// Checks the graph, which also determines the default of `result:`.
    fn main_graph(&mut self, decl: &Decl, embeddings: Option<bool>) -> Option<Block> {
        let Some(graph) = &decl.graph else {
            self.errors
                .at_span(Span::call_site(), "the declaration has no `graph { … }`");
            return None;
        };
        let graph = self.graph(graph, false);
        if let (Some(block), Some(word), Some(true)) = (&graph, &decl.result, embeddings)
            && let Some(result) = &block.result
            && result.shape.same(&Shape::embeddings())
        {
            self.errors.at(
                word,
                "`result: embeddings` has no effect: the graph already returns embeddings",
            );
        }
        graph
    }

    /// Adds the epsilons that the declaration does not declare, and marks each hyperparameter that the graph
    /// reads.
    fn kept(&self, hparams: Vec<Hparam>) -> Vec<Hparam> {
        let implicit = self.hparams.iter().filter(|sym| sym.implicit);
        let implicit = implicit.map(|sym| Hparam::Key {
            name: sym.name.clone(),
            read: Read::One(Ty::Float),
            key: sym.key.clone().unwrap_or_default(),
            default: None,
            at_least: None,
            kept: false,
        });
        let mut all: Vec<Hparam> = implicit.chain(hparams).collect();
        for item in &mut all {
            if let Hparam::Key { name, kept, .. } | Hparam::Let { name, kept, .. } = item {
                let named = self.hparam_names.all(&name.to_string());
                *kept = named.first().is_some_and(|&i| self.hparams[i].kept);
            }
        }
        all
    }

    fn name_line(&mut self, decl: &Decl) -> Option<String> {
        let Some(lit) = &decl.name else {
            self.errors
                .at_span(Span::call_site(), "the declaration has no `name: \"…\";`");
            return None;
        };
        let name = lit.value();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return self.error(
                lit,
                "architecture names may contain only ASCII letters, digits, `-`, `_`, and `.`",
            );
        }
        Some(name)
    }

    /// Looks up a keyword in a table.
    pub(super) fn choice<T: Copy>(&mut self, word: &Ident, table: &[(&'static str, T)]) -> Option<T> {
        let found = table.iter().find(|(name, _)| word == name);
        found.map(|&(_, value)| value).or_else(|| {
            let names = || table.iter().map(|&(name, _)| name);
            let hint = did_you_mean(&word.to_string(), names());
            self.error(word, format!("expected {}, found `{word}`{hint}", one_of(names())))
        })
    }

    /// Returns true if the result excludes the output projection.
    fn result_line(&mut self, decl: &Decl) -> Option<bool> {
        match &decl.result {
            Some(word) => self.choice(word, &words::RESULT),
            None => Some(false),
        }
    }

    fn rank_pooling(&mut self, rank: &RankHead) -> Option<Option<&'static str>> {
        match &rank.pooling {
            Some(word) => self.choice(word, &words::POOLING).map(Some),
            None => Some(None),
        }
    }

    /// Returns true if tokens attend to later tokens.
    fn attention_line(&mut self, decl: &Decl) -> Option<bool> {
        match &decl.attention {
            Some(word) => self.choice(word, &words::ATTENTION),
            None => Some(false),
        }
    }

    fn rope_line(&mut self, decl: &Decl) -> Option<(RopeKind, Option<RopeKind>)> {
        let Some((kind, with_sections)) = &decl.rope else {
            let at = decl.name.as_ref().map_or_else(Span::call_site, |n| n.span());
            self.errors
                .at_span(at, "missing `rope`; add `rope: norm;`, `rope: neox;`, or `rope: none;`");
            return None;
        };
        let kind = self.choice(kind, &RopeKind::ALL);
        let Some(word) = with_sections else {
            return Some((kind?, None));
        };
        let (kind, with_sections) = (kind?, self.choice(word, &RopeKind::ALL)?);
        if kind.has_axes() || kind == RopeKind::None || !with_sections.has_axes() {
            return self.error(
                word,
                "`or` must be followed by `mrope` or `imrope`, as in `rope: norm or mrope;`",
            );
        }
        Some((kind, Some(with_sections)))
    }

    fn hparam_block(&mut self, items: &[HparamItem]) -> Vec<Hparam> {
        let mut out = Vec::new();
        let mut keys = HashSet::new();
        for item in items {
            match item {
                HparamItem::Key { key, .. } => {
                    if !keys.insert(key.value()) {
                        self.errors.at(key, format!("key {:?} is read twice", key.value()));
                    }
                    out.extend(self.hparam_key(item));
                }
                HparamItem::Let { name, value } => {
                    let value = self.let_value(value);
                    let dim = value.as_ref().filter(|v| v.ty == Ty::Int).map(|v| v.dim.clone());
                    let per_layer = value.as_ref().is_some_and(|v| v.per_layer);
                    self.declare_hparam(HparamSym {
                        per_layer,
                        dim,
                        ..HparamSym::new(name.clone(), value.as_ref().map(|v| v.ty))
                    });
                    out.extend(value.map(|value| Hparam::Let {
                        name: name.clone(),
                        value,
                        kept: false,
                    }));
                }
                // `Without` items were removed when the declarations were merged.
                HparamItem::Without(_) | HparamItem::WithoutCheck(_) => {}
                HparamItem::Check { cond, text, only_warns } => {
                    let cond = self.scalar_of(cond, Ty::Bool);
                    if !only_warns && self.multiples.len() < MAX_MULTIPLES {
                        cond.iter().for_each(|c| facts::multiples(c, &mut self.multiples));
                    }
                    out.extend(cond.map(|cond| Hparam::Check {
                        cond,
                        text: text.value(),
                        only_warns: *only_warns,
                    }));
                }
            }
        }
        out
    }

    /// Checks a value that is read from a key.
    fn hparam_key(&mut self, item: &HparamItem) -> Option<Hparam> {
        let HparamItem::Key {
            name,
            ty,
            list,
            at_least,
            key,
            default,
        } = item
        else {
            return None;
        };
        let read = match at_least {
            Some(_) => self.list_type(ty, default.as_ref()),
            None => self.hparam_type(ty, *list),
        };
        let default = match default {
            Some(expr) => self.default(read, expr).map(Some),
            None => Some(None),
        };
        let at_least = match at_least {
            Some(n) => self.scalar_of(n, Ty::Int).map(Some),
            None => Some(None),
        };
        self.declare_hparam(HparamSym {
            per_layer: !matches!(read, Some(Read::One(_) | Read::List)),
            key: Some(key.value()),
            ..HparamSym::new(name.clone(), read.map(Read::ty))
        });
        Some(Hparam::Key {
            name: name.clone(),
            read: read?,
            key: key.value(),
            default: default?,
            at_least: at_least?,
            kept: false,
        })
    }

    fn declare_hparam(&mut self, sym: HparamSym) {
        // An epsilon may be declared under its own name, for example to give it a default.
        let text = sym.name.to_string();
        let is_epsilon = builtins::epsilon(&text).is_some_and(|e| sym.key.as_deref() == Some(e.key));
        // The clash is reported here. The first declaration shadows the second, so no further errors follow.
        let free = (is_epsilon && self.find_hparam(&text).is_none()) || self.can_name(&sym.name);
        self.hparam_names.add(&text, self.hparams.len());
        self.hparams.push(HparamSym { used: !free, ..sym });
    }

    fn hparam_type(&mut self, ty: &Ident, list: bool) -> Option<Read> {
        let text = ty.to_string();
        let scalar = match text.as_str() {
            "usize" => Ty::Int,
            "f32" => Ty::Float,
            "bool" => Ty::Bool,
            "string" if !list => Ty::Str,
            "string" => return self.error(ty, "lists of strings are not supported"),
            "pattern" if !list => return Some(Read::Pattern),
            "dense_first" if !list => return Some(Read::DenseFirst),
            "listed" if !list => return Some(Read::Listed),
            _ => {
                let hint = did_you_mean(&text, words::TYPES);
                let types = words::TYPES.join("`, `");
                let message = format!("expected `{types}` or a list such as `[usize]`, found `{text}`{hint}");
                return self.error(ty, message);
            }
        };
        Some(if list {
            Read::PerLayer(scalar)
        } else {
            Read::One(scalar)
        })
    }

    /// Checks the type `[usize; n..]`.
    fn list_type(&mut self, ty: &Ident, default: Option<&Expr>) -> Option<Read> {
        if ty != "usize" {
            return self.error(ty, format!("a list `[usize; n..]` must hold integers, found `{ty}`"));
        }
        if let Some(default) = default {
            return self.error(
                default,
                "a list cannot have a default; use `0..` if the key may be absent",
            );
        }
        Some(Read::List)
    }

    fn default(&mut self, read: Option<Read>, expr: &Expr) -> Option<Scalar> {
        let Some(read) = read else {
            self.scalar(expr);
            return None;
        };
        let is_period = matches!(read, Read::Pattern | Read::DenseFirst);
        let ty = if is_period { Ty::Int } else { read.ty() };
        let value = self.scalar_of(expr, ty)?;
        if value.per_layer && !matches!(read, Read::PerLayer(_)) {
            return self.error(
                expr,
                format!(
                    "the default differs by layer but the value does not; declare the value as `[{}]`",
                    ty.name()
                ),
            );
        }
        Some(value)
    }

    fn tensor_block(&mut self, items: &[TensorItem], conditions: &[(Scalar, bool)], ignored: &mut Vec<Ignored>) {
        for item in items {
            match item {
                TensorItem::Tensor(decl) => self.tensor_decl(decl, conditions),
                TensorItem::Layer { span, group, items } => {
                    if !conditions.is_empty() {
                        self.errors
                            .at_span(*span, "`layer` blocks must be at the top level of `tensors`");
                    }
                    self.group = Some(group.as_ref().map_or(0, |g| self.layer_group(g)));
                    self.place = Place::LayerTensors;
                    self.tensor_block(items, conditions, ignored);
                    self.place = Place::Tensors;
                    self.group = None;
                }
                // `Without` and `Use` items were resolved when the declarations were merged.
                TensorItem::Without(_) | TensorItem::Use(_) => {}
                TensorItem::Ignore(names) => {
                    let known = known(conditions);
                    ignored.extend(names.iter().map(|n| Ignored {
                        name: n.clone(),
                        group: self.group,
                        facts: known.clone(),
                    }));
                }
                TensorItem::If { cond, then, otherwise } if literal_truth(cond).is_some() => {
                    let taken = if literal_truth(cond) == Some(true) {
                        then
                    } else {
                        otherwise
                    };
                    self.tensor_block(taken, conditions, ignored);
                }
                TensorItem::If { cond, .. } if conditions.len() >= MAX_BLOCKS => {
                    self.errors.at(cond, "these conditions are nested too deeply");
                }
                TensorItem::If { cond, then, otherwise } => {
                    let cond = self.scalar_of(cond, Ty::Bool);
                    for (items, truth) in [(then, true), (otherwise, false)] {
                        let mut inner = conditions.to_vec();
                        inner.extend(cond.clone().map(|c| (c, truth)));
                        self.tensor_block(items, &inner, ignored);
                    }
                }
            }
        }
    }

    /// Declares a named group of layers.
    fn layer_group(&mut self, decl: &GroupDecl) -> usize {
        if self.groups.len() > MAX_GROUPS {
            return MAX_GROUPS;
        }
        if self.groups.len() == MAX_GROUPS {
            let message = format!("a declaration has at most {MAX_GROUPS} groups of layers");
            self.errors.at(&decl.name, message);
        }
        self.can_name(&decl.name);
        let count = self.scalar_of(&decl.count, Ty::Int);
        self.groups.push(Group {
            name: decl.name.clone(),
            prefix: decl.prefix.value(),
            // A group with `n_layer` layers can use the per-layer hyperparameters, like `layer`.
            count: count.filter(|c| c.dim != Dim::symbol("n_layer")),
        });
        self.groups.len() - 1
    }

    fn tensor_decl(&mut self, decl: &TensorDecl, conditions: &[(Scalar, bool)]) {
        let mut named = self.can_name(&decl.name);
        if named && ops::find(&decl.name.to_string()).is_some() {
            self.errors
                .at(&decl.name, format!("`{}` is the name of an operation", decl.name));
            named = false;
        }
        let kind = self.choice(&decl.kind, &Kind::ALL);
        let sizes = self.tensor_sizes(decl, kind);
        let (tied_to, other_name) = match &decl.instead {
            Some(Instead::Tensor(to)) => (Some(to), None),
            Some(Instead::Name(name)) => (None, Some(name.value())),
            None => (None, None),
        };
        let tie = tied_to.and_then(|to| self.tie(decl, to, kind, sizes.as_deref()));
        let broken = sizes.is_none() || (tied_to.is_some() && tie.is_none());
        let sizes = sizes.unwrap_or_default();
        let tensor = Tensor {
            name: decl.name.clone(),
            kind: Named::new(kind.unwrap_or(Kind::Linear), decl.kind.span()),
            gguf: decl.gguf.value(),
            dims: sizes.iter().map(|s| s.dim.clone()).collect(),
            shape_text: shape_text(kind, &sizes),
            sizes,
            optional: decl.optional && tied_to.is_none(),
            tie,
            other_name,
            or_more: decl.dims.or_more,
            group: self.group,
            conditions: conditions.to_vec(),
        };
        let known = known(conditions);
        self.gguf_twice(decl, &tensor, &known);
        self.add_names(&tensor);
        self.tensors.push(TensorSym {
            tensor,
            facts: known,
            broken,
            used: !named,
        });
    }

    /// Returns the sizes if all are valid and their number matches the kind.
    fn tensor_sizes(&mut self, decl: &TensorDecl, kind: Option<Kind>) -> Option<Vec<Scalar>> {
        let dims = &decl.dims;
        let exprs: Vec<&Expr> = dims.first.iter().chain(&dims.output).chain(&dims.count).collect();
        let sizes: Vec<_> = exprs.into_iter().map(|e| self.scalar_of(e, Ty::Int)).collect();
        let sizes = sizes.into_iter().collect::<Option<Vec<_>>>();
        let kind = kind?;
        if dims.or_more && (kind != Kind::Embed || decl.optional) {
            self.errors.at_span(
                dims.span,
                "only a required `embed` tensor may have more rows than declared (`n..`)",
            );
            return None;
        }
        let (arrow, count, n) = (dims.output.is_some(), dims.count.is_some(), dims.first.len());
        let (fits, form) = match kind {
            Kind::Linear => (arrow && !count, "[in -> out]"),
            Kind::Experts => (arrow && count, "[in -> out; experts]"),
            Kind::PerHead => (arrow && count, "[in -> out; heads]"),
            Kind::Embed => (!arrow && n == 2, "[width, rows]"),
            Kind::Norm => (!arrow && n == 1, "[size]"),
            Kind::Vector | Kind::Raw => (!arrow && n <= 4, "one to four sizes: [a, b, …]"),
        };
        if !fits {
            self.errors
                .at_span(dims.span, format!("`{}` takes {form}", kind.name()));
            return None;
        }
        sizes
    }

    fn tie(&mut self, decl: &TensorDecl, to: &Ident, kind: Option<Kind>, sizes: Option<&[Scalar]>) -> Option<usize> {
        let Some(index) = self.find_tensor(&to.to_string()) else {
            return self.unknown(to, "earlier tensor", |c| c.tensors_named(|t| *t.kind == Kind::Embed));
        };
        if decl.optional {
            return self.error(
                to,
                format!(
                    "`{}` is already optional because of `or {to}`; remove the `?`",
                    decl.name
                ),
            );
        }
        let target = &self.tensors[index];
        if kind != Some(Kind::Linear) || *target.tensor.kind != Kind::Embed {
            return self.error(to, "`or` can only replace a `linear` tensor by an `embed` tensor");
        }
        if target.tensor.group.is_some() {
            return self.error(to, format!("`{to}` belongs to a layer and cannot be used after `or`"));
        }
        if target.tensor.may_be_absent() {
            return self.error(to, format!("`{to}` may be absent and cannot be used after `or`"));
        }
        let dims: Vec<_> = sizes?.iter().map(|s| s.dim.clone()).collect();
        if dims != target.tensor.dims && !target.broken {
            let (own, other) = (shape_text(kind, sizes?), target.tensor.shape_text.clone());
            return self.error(
                to,
                format!(
                    "`{to}` cannot replace `{}`: the shapes {other} and {own} differ",
                    decl.name
                ),
            );
        }
        Some(index)
    }

    /// Reports a GGUF name that is declared twice, unless the conditions exclude each other or both declare
    /// the same tensor.
    fn gguf_twice(&mut self, decl: &TensorDecl, new: &Tensor, known: &[facts::Fact]) {
        let named = self.gguf_names.all(&new.gguf);
        if named.len() >= MAX_FORMS {
            let message = format!("GGUF name {:?} is declared more than {MAX_FORMS} times", new.gguf);
            self.errors.at(&decl.gguf, message);
            return;
        }
        let clash = named
            .iter()
            .map(|&i| &self.tensors[i])
            .filter(|t| t.tensor.group == new.group)
            .find(|t| !facts::exclude(&t.facts, known) && !new.is_other_form_of(&t.tensor));
        if let Some(other) = clash {
            let message = format!(
                "GGUF name {:?} is declared twice, first for `{}`",
                new.gguf, other.tensor.name
            );
            self.errors.at(&decl.gguf, message);
        }
    }

    /// Adds a tensor to the indices of names, before it is added to the list.
    fn add_names(&mut self, tensor: &Tensor) {
        let (index, name) = (self.tensors.len(), tensor.name.to_string());
        let named = self.tensor_names.all(&name);
        if !named.iter().any(|&i| self.tensors[i].tensor.group == tensor.group) {
            self.tensor_names.add(&name, index);
        }
        if self.gguf_names.all(&tensor.gguf).len() < MAX_FORMS {
            self.gguf_names.add(&tensor.gguf, index);
        }
    }

    /// Reports GGUF names that are both ignored and declared.
    fn ignored_twice(&mut self, ignored: &[Ignored]) {
        for Ignored { name, group, facts } in ignored {
            let mut named = self.gguf_names.all(&name.value()).iter().map(|&i| &self.tensors[i]);
            let declared = named.find(|t| t.tensor.group == *group && !facts::exclude(&t.facts, facts));
            if let Some(t) = declared {
                let message = format!("{:?} is ignored but also declared as `{}`", name.value(), t.tensor.name);
                self.errors.at(name, message);
            }
        }
    }

    fn test_block(&mut self, decl: &Decl) -> Vec<(String, TestSize)> {
        let Some(test) = &decl.test else {
            let at = decl.name.as_ref().map_or_else(Span::call_site, |n| n.span());
            self.errors
                .at_span(at, "missing `test { … }` with the sizes of a test model");
            return Vec::new();
        };
        let mut sizes: Vec<(String, TestSize)> = Vec::new();
        let mut seen = HashSet::new();
        for (name, lit) in &test.sizes {
            let text = name.to_string();
            if !seen.insert(text.clone()) {
                self.errors.at(name, format!("`{text}` is given twice"));
            }
            if let Some(message) = derived(decl, &text) {
                self.errors.at(name, message);
                continue;
            }
            if let Some(value) = self.test_size(name, lit) {
                sizes.push((text, value));
            }
        }
        self.missing_sizes(decl, test);
        sizes
    }

    fn test_size(&mut self, name: &Ident, lit: &Lit) -> Option<TestSize> {
        let text = name.to_string();
        let builtin = builtins::builtin(&text).map(|b| b.ty);
        let Some(ty) = builtin.or_else(|| self.find_hparam(&text).and_then(|i| self.hparams[i].ty)) else {
            return self.unknown(name, "hyperparameter", |c| {
                let builtins = BUILTINS.iter().map(|b| b.name.to_string());
                builtins.chain(c.hparams.iter().map(|h| h.name.to_string())).collect()
            });
        };
        match (ty, lit) {
            // A list has this number of elements.
            (Ty::Int | Ty::List, Lit::Int(i)) => i.base10_parse().ok().map(TestSize::Int),
            (Ty::Bool, Lit::Bool(b)) => Some(TestSize::Bool(b.value)),
            (Ty::Float, Lit::Float(x)) => x.base10_parse().ok().map(TestSize::Float),
            (Ty::Str | Ty::List, _) => self.error(
                name,
                format!(
                    "test models support only numeric and boolean values, but `{text}` is `{}`",
                    ty.name()
                ),
            ),
            _ => self.error(lit, format!("expected `{}` for `{text}`", ty.name())),
        }
    }

    /// Reports required sizes that the `test` block neither sets nor implies.
    fn missing_sizes(&mut self, decl: &Decl, test: &Test) {
        let given: HashSet<String> = test.sizes.iter().map(|(name, _)| name.to_string()).collect();
        let given = |name: &str| given.contains(name);
        let mut missing: BTreeSet<(usize, String)> = BTreeSet::new();
        let is_needed = |name: &str| decl.media.is_none() || !super::media::OF_TEXT.contains(&name);
        for b in BUILTINS
            .iter()
            .filter(|b| !b.derived && !given(b.name) && is_needed(b.name))
        {
            missing.insert((0, b.name.to_string()));
        }
        for item in &decl.hparams {
            if let HparamItem::Key {
                name,
                ty,
                default: None,
                at_least: None,
                ..
            } = item
                && ty == "usize"
                && !given(&name.to_string())
            {
                missing.insert((1, name.to_string()));
            }
        }
        if !missing.is_empty() {
            let names: Vec<_> = missing.into_iter().map(|(_, n)| format!("`{n}`")).collect();
            self.errors.at_span(
                test.span,
                format!("missing size of the test model: {}", names.join(", ")),
            );
        }
    }

    fn unused(&mut self, decl: &Decl) {
        self.unused_models();
        if self.unknown_callee {
            return;
        }
        // Report the errors of a graph that overrides an inherited one first: once they are fixed, the graph may use
        // the tensors.
        let is_own = |sources: &SourceMap, span| sources.origin(span) == Origin::Own;
        let graph = decl.graph.as_ref().map(|graph| graph.span);
        let replaces = decl.like.is_some() && graph.is_some_and(|span| is_own(&self.errors.sources, span));
        let only_own = replaces && !self.errors.is_empty();
        let newlines = self.newlines();
        for t in &self.tensors {
            let is_used = t.used || newlines.contains(&t.tensor.gguf);
            if !is_used && (!only_own || is_own(&self.errors.sources, t.tensor.name.span())) {
                let message = format!(
                    "`{}` is never used; if the graph does not need the tensor, write `ignore {:?};`",
                    t.tensor.name, t.tensor.gguf
                );
                self.errors.at(&t.tensor.name, message);
            }
        }
        for f in self.functions.iter().filter(|f| !f.inherited) {
            if !self.called.contains(&f.name.to_string()) {
                self.errors
                    .at(&f.name, format!("function `{}` is never called", f.name));
            }
        }
        let given: HashSet<&String> = decl.given_hparams.iter().collect();
        for h in &self.hparams {
            if !h.used && !given.contains(&h.name.to_string()) {
                self.errors
                    .at(&h.name, format!("hyperparameter `{}` is never used", h.name));
            }
        }
    }
}

/// Returns an error message if a `test` block cannot set `name` because its value is computed.
fn derived(decl: &Decl, name: &str) -> Option<String> {
    let lets = decl
        .hparams
        .iter()
        .any(|item| matches!(item, HparamItem::Let { name: n, .. } if n == name));
    let computed = builtins::builtin(name).is_some_and(|b| b.key.is_none());
    (lets || computed)
        .then(|| format!("`{name}` is computed and cannot be set in `test`; set the values that it depends on"))
}

/// Returns the facts that the conditions of a tensor imply.
fn known(conditions: &[(Scalar, bool)]) -> Vec<facts::Fact> {
    conditions
        .iter()
        .flat_map(|(c, truth)| facts::facts(c, *truth))
        .collect()
}

/// Returns the models, or `None` if one is invalid.
fn whole_models(models: Vec<ModelSym>) -> Option<Vec<(String, Scalar)>> {
    models.into_iter().map(|m| Some((m.name.value(), m.cond?))).collect()
}

/// Returns `None` if the part is present but invalid.
fn whole<T>(part: Option<Option<T>>) -> Option<Option<T>> {
    match part {
        None => Some(None),
        Some(part) => part.map(Some),
    }
}

/// Formats the sizes as written in the declaration.
fn shape_text(kind: Option<Kind>, sizes: &[Scalar]) -> String {
    let texts: Vec<&str> = sizes.iter().map(|s| s.text.as_str()).collect();
    match (kind, &texts[..]) {
        (Some(Kind::Linear), [input, output]) => format!("[{input} -> {output}]"),
        (Some(Kind::Experts | Kind::PerHead), [input, output, n]) => format!("[{input} -> {output}; {n}]"),
        _ => format!("[{}]", texts.join(", ")),
    }
}
