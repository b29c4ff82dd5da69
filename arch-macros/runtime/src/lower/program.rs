//! Converts hyperparameters and tensors.

use arch_lang::Errors;
use arch_lang::builtins::Ty;
use arch_lang::model::{
    Arch, Group as LangGroup, Head as LangHead, Hparam, Kind as LangKind, Presence as LangPresence, Read as LangRead,
    Tensor as LangTensor,
};
use engine::declared::{DeclaredTensor, Group, Head, Item, Kind, Presence, Program, Read};
use proc_macro2::{Ident, Span};

use super::statics::{option, text};

/// State of a conversion.
pub struct Lowering<'a, 'e> {
    pub arch: &'a Arch,
    pub errors: &'e mut Errors,
    /// Scalar variables in scope; the innermost scope is last.
    pub scopes: Vec<Vec<(String, usize)>>,
    /// Group of layers of the current context.
    pub group: Option<usize>,
    /// True inside a loop over integers.
    pub repeats: bool,
    /// Names of the matrices in calls of `file_rows`.
    pub file_rows: Vec<&'static str>,
    /// Position of each tensor in its layer, or outside of layers.
    slots: Vec<usize>,
}

/// Converts a checked declaration.
pub fn program(arch: &Arch, digest: u64, errors: &mut Errors) -> Option<Program> {
    let mut l = Lowering {
        arch,
        errors,
        scopes: vec![Vec::new()],
        group: None,
        repeats: false,
        slots: vec![0; arch.tensors.len()],
        file_rows: Vec::new(),
    };
    let globals = arch.in_loading_order(None);
    let of_groups: Vec<Vec<usize>> = (0..arch.groups.len()).map(|g| arch.in_loading_order(Some(g))).collect();
    for list in of_groups.iter().chain([&globals]) {
        list.iter()
            .enumerate()
            .for_each(|(slot, &tensor)| l.slots[tensor] = slot);
    }
    let items = l.each(&arch.hparams, Lowering::hparam);
    let tensors = l.each(&arch.tensors, Lowering::tensor);
    let groups: Vec<(&LangGroup, Vec<usize>)> = arch.groups.iter().zip(of_groups).collect();
    let groups = l.each(&groups, |l, (group, tensors)| l.layer_group(group, tensors));
    let encoder = l.each(arch.encoder.as_slice(), Lowering::block);
    let graph = l.block(&arch.graph);
    l.group = Some(0);
    let mtp = l.each(arch.mtp.as_slice(), Lowering::block);
    l.group = None;
    let embedding = l.each(arch.embedding.as_slice(), Lowering::head);
    let rank = l.each(arch.rank.as_slice(), Lowering::head);
    let image = arch.media.as_ref().map_or(&[][..], |media| media.image.as_slice());
    let image = l.each(image, Lowering::image);
    let audio = l.each(arch.audio.as_slice(), Lowering::audio);
    Some(Program {
        digest,
        items: items?,
        groups: groups?,
        tensors: tensors?,
        globals,
        ignored: arch.ignored.iter().map(|(name, _)| text(name)).collect(),
        n_vars: arch.vars.len(),
        encoder: encoder?.pop(),
        graph: graph?,
        mtp: mtp?.pop(),
        embedding: embedding?.pop(),
        rank: rank?.pop(),
        image: image?.pop(),
        audio: audio?.pop(),
        file_rows: l.file_rows,
    })
}

impl<'a> Lowering<'a, '_> {
    /// Records an error.
    pub fn fail<T>(&mut self, at: Span, message: String) -> Option<T> {
        self.errors.at_span(at, message);
        None
    }

    /// Converts all items, so that the errors of all are reported.
    pub fn each<T, U>(&mut self, items: &'a [T], convert: impl Fn(&mut Self, &'a T) -> Option<U>) -> Option<Vec<U>> {
        let converted: Vec<Option<U>> = items.iter().map(|item| convert(self, item)).collect();
        converted.into_iter().collect()
    }

    /// Returns the index of the item that defines a hyperparameter.
    pub fn item(&mut self, name: &Ident) -> Option<usize> {
        let defines = |h: &Hparam| match h {
            Hparam::Key { name: n, .. } | Hparam::Let { name: n, .. } => n == name,
            Hparam::Check { .. } => false,
        };
        match self.arch.hparams.iter().position(defines) {
            Some(index) => Some(index),
            None => self.fail(name.span(), format!("internal error: `{name}` has no definition")),
        }
    }

    /// Returns a tensor by name, in the current group of layers or outside of layers.
    pub fn tensor_named(&mut self, name: &Ident, in_layer: bool) -> Option<usize> {
        let group = if in_layer { self.group } else { None };
        let is = |t: &LangTensor| t.name == *name && t.group == group;
        match self.arch.tensors.iter().position(is) {
            Some(index) => Some(index),
            None => self.fail(
                name.span(),
                format!("internal error: no tensor `{name}` in this context"),
            ),
        }
    }

    fn hparam(&mut self, h: &'a Hparam) -> Option<Item> {
        Some(match h {
            Hparam::Key {
                read,
                key,
                default,
                at_least,
                ..
            } => Item::Key {
                read: form(*read),
                key: text(key),
                default: self.optional(default.as_ref())?,
                at_least: self.optional(at_least.as_ref())?,
            },
            Hparam::Let { value, .. } => Item::Let {
                per_layer: value.per_layer,
                value: self.expr(value)?,
            },
            Hparam::Check {
                cond,
                text: message,
                only_warns,
            } => {
                let mut found = Vec::new();
                for (key, value) in self.arch.found_values(cond) {
                    found.push((text(&key), self.expr(value)?));
                }
                Item::Check {
                    per_layer: cond.per_layer,
                    cond: self.expr(cond)?,
                    text: text(message),
                    found,
                    only_warns: *only_warns,
                }
            }
        })
    }

    /// Converts an optional expression. The outer `None` means an error.
    pub fn optional(&mut self, s: Option<&arch_lang::model::Scalar>) -> Option<Option<engine::declared::Expr>> {
        match s {
            Some(s) => self.expr(s).map(Some),
            None => Some(None),
        }
    }

    fn layer_group(&mut self, group: &LangGroup, tensors: &[usize]) -> Option<Group> {
        Some(Group {
            prefix: text(&group.prefix),
            count: self.optional(group.count.as_ref())?,
            tensors: tensors.to_vec(),
        })
    }

    fn tensor(&mut self, t: &'a LangTensor) -> Option<DeclaredTensor> {
        self.group = t.group;
        let sizes = self.each(&t.sizes, Lowering::expr);
        let conditions = self.each(&t.conditions, |l, (c, truth)| Some((l.expr(c)?, *truth)));
        self.group = None;
        let index = self.arch.tensors.iter().position(|other| std::ptr::eq(other, t))?;
        Some(DeclaredTensor {
            kind: kind(*t.kind),
            gguf: text(&t.gguf),
            other_name: option(t.other_name.as_deref()),
            sizes: sizes?,
            presence: match self.arch.presence(t) {
                LangPresence::Required => Presence::Required,
                LangPresence::OrMore => Presence::OrMore,
                LangPresence::Optional => Presence::Optional,
                LangPresence::Form => Presence::Form,
                LangPresence::Tied(tie) => Presence::Tied(tie),
            },
            conditions: conditions?,
            slot: self.slots[index],
            in_layer: t.group.is_some(),
            decides: t.optional && self.arch.is_loaded_early(t),
        })
    }

    fn head(&mut self, head: &'a LangHead) -> Option<Head> {
        Some(Head {
            pooled: head.pooled.0,
            block: self.block(&head.block)?,
        })
    }
}

fn form(read: LangRead) -> Read {
    match read {
        LangRead::One(Ty::Int) => Read::Int,
        LangRead::One(Ty::Float) => Read::Float,
        LangRead::One(Ty::Bool) => Read::Bool,
        LangRead::One(Ty::Str) | LangRead::PerLayer(Ty::Str) => Read::Text,
        LangRead::PerLayer(Ty::Int) => Read::Ints,
        LangRead::PerLayer(Ty::Float) => Read::Floats,
        LangRead::PerLayer(Ty::Bool) => Read::Bools,
        LangRead::One(Ty::List) | LangRead::PerLayer(Ty::List) | LangRead::List => Read::List,
        LangRead::Pattern => Read::Pattern,
        LangRead::DenseFirst => Read::DenseFirst,
        LangRead::Listed => Read::Listed,
    }
}

fn kind(kind: LangKind) -> Kind {
    match kind {
        LangKind::Embed => Kind::Embed,
        LangKind::Vector => Kind::Vector,
        LangKind::Raw => Kind::Raw,
        LangKind::Norm => Kind::Norm,
        LangKind::Linear => Kind::Linear,
        LangKind::Experts => Kind::Experts,
        LangKind::PerHead => Kind::PerHead,
    }
}
