//! Merges two declarations. Items of the child replace inherited items.

use std::collections::{HashMap, HashSet};

use proc_macro2::{Ident, Span};
use syn::LitStr;

use crate::ast::{Decl, Function, GroupDecl, HparamItem, ModelDecl, TensorItem, media, tensor_names};
use crate::diag::Errors;
use crate::names;

/// Returns the parent with the child's replacements.
pub fn merge(parent: Decl, child: Decl, errors: &mut Errors) -> Decl {
    let own: HashSet<String> = (child.hparams.iter())
        .filter_map(|item| Some(item.name()?.to_string()))
        .collect();
    let mut given_hparams = parent.given_hparams;
    given_hparams.retain(|name| !own.contains(name));
    given_hparams.extend(child.given_hparams);
    // `mtp` belongs to the graph next to it: a child with its own graph does not inherit `mtp`.
    let mtp = if child.mtp.is_some() || child.graph.is_some() {
        child.mtp
    } else {
        parent.mtp
    };
    Decl {
        audio: child.audio.or(parent.audio),
        media: media::MediaSyntax::merge(parent.media, child.media),
        given_hparams,
        needs: child.needs.into_iter().chain(parent.needs).collect(),
        name: child.name,
        like: child.like,
        models: merge_models(parent.models, child.models),
        rope: child.rope.or(parent.rope),
        attention: child.attention.or(parent.attention),
        result: child.result.or(parent.result),
        hparams: merge_hparams(parent.hparams, child.hparams, errors),
        tensors: merge_tensors(parent.tensors, child.tensors, errors),
        encoder: child.encoder.or(parent.encoder),
        graph: child.graph.or(parent.graph),
        mtp,
        embedding: child.embedding.or(parent.embedding),
        rank: child.rank.or(parent.rank),
        checkpoints: child.checkpoints,
        inherited_checkpoints: [parent.checkpoints, parent.inherited_checkpoints].concat(),
        given_mappings: [child.given_mappings, parent.given_mappings].concat(),
        test: child.test.or(parent.test),
        functions: merge_functions(parent.functions, child.functions),
        fragments: child.fragments.into_iter().chain(parent.fragments).collect(),
    }
}

/// Returns the child's models and the inherited models that it does not replace.
fn merge_models(inherited: Vec<ModelDecl>, mut own: Vec<ModelDecl>) -> Vec<ModelDecl> {
    let replaced: HashSet<String> = own.iter().map(|m| m.name.value()).collect();
    let kept = inherited.into_iter().filter(|m| !replaced.contains(&m.name.value()));
    let kept: Vec<ModelDecl> = kept.map(|m| ModelDecl { inherited: true, ..m }).collect();
    own.extend(kept);
    own
}

/// Returns the child's functions and the inherited functions that it does not replace.
fn merge_functions(inherited: Vec<Function>, mut own: Vec<Function>) -> Vec<Function> {
    let replaced = names::set(own.iter().map(|f| &f.name));
    let kept = inherited.into_iter().filter(|f| !replaced.contains(&f.name));
    let kept: Vec<Function> = kept.map(|f| Function { inherited: true, ..f }).collect();
    own.extend(kept);
    own
}

/// Returns the hyperparameters listed after `without`.
pub fn removed_hparams(items: &[HparamItem]) -> Vec<&Ident> {
    let names = items.iter().filter_map(|item| match item {
        HparamItem::Without(names) => Some(names),
        _ => None,
    });
    names.flatten().collect()
}

/// Returns the messages of the checks listed after `without check`.
pub fn removed_checks(items: &[HparamItem]) -> Vec<&LitStr> {
    let texts = items.iter().filter_map(|item| match item {
        HparamItem::WithoutCheck(text) => Some(text),
        _ => None,
    });
    texts.collect()
}

/// Replaces inherited items of the same name in their position, and appends all other items. Items that precede a
/// replacement in the child are inserted before it, because defaults and derived values refer only to preceding items.
pub fn merge_hparams(mut inherited: Vec<HparamItem>, own: Vec<HparamItem>, errors: &mut Errors) -> Vec<HparamItem> {
    let mut left = names::set(inherited.iter().filter_map(HparamItem::name));
    for name in removed_hparams(&own) {
        if !left.remove(name) {
            let all = || left.iter().map(Ident::to_string).collect();
            nothing_to_remove(name, "hyperparameter", all, errors);
        }
    }
    inherited.retain(|item| item.name().is_none_or(|name| left.contains(name)));
    let text_of = |item: &HparamItem| match item {
        HparamItem::Check { text, .. } => Some(text.value()),
        _ => None,
    };
    let mut left: HashSet<String> = inherited.iter().filter_map(text_of).collect();
    for text in removed_checks(&own) {
        if !left.remove(&text.value()) {
            let hint = errors.hint(&text.value(), || left.iter().cloned().collect());
            errors.at(text, format!("no inherited check with this message{hint}"));
        }
    }
    inherited.retain(|item| text_of(item).is_none_or(|text| left.contains(&text)));
    replaced_in_place(inherited, own)
}

/// Replaces inherited items by own items of the same name, each preceded by the own items before it. Appends the
/// remaining own items.
fn replaced_in_place(inherited: Vec<HparamItem>, own: Vec<HparamItem>) -> Vec<HparamItem> {
    let places = places(inherited.iter().map(HparamItem::name));
    let mut inherited: Vec<Vec<HparamItem>> = inherited.into_iter().map(|item| vec![item]).collect();
    let mut new = Vec::new();
    // A name declared twice in the child replaces only once; the checker reports the second.
    let mut seen: HashSet<Ident> = HashSet::new();
    for item in own {
        if matches!(item, HparamItem::Without(_) | HparamItem::WithoutCheck(_)) {
            continue;
        }
        let name = item.name().cloned().filter(|name| seen.insert(name.clone()));
        new.push(item);
        if let Some(&at) = name.as_ref().and_then(|name| places.get(name)) {
            inherited[at] = std::mem::take(&mut new);
        }
    }
    inherited.push(new);
    inherited.into_iter().flatten().collect()
}

/// Returns the position of the first item of each name.
fn places<'a>(names: impl Iterator<Item = Option<&'a Ident>>) -> HashMap<Ident, usize> {
    let mut places = HashMap::new();
    for (i, name) in names.enumerate() {
        if let Some(name) = name {
            places.entry(name.clone()).or_insert(i);
        }
    }
    places
}

fn nothing_to_remove(name: &Ident, what: &str, all: impl FnOnce() -> Vec<String>, errors: &mut Errors) {
    let hint = errors.hint(&name.to_string(), all);
    errors.at(name, format!("no inherited {what} named `{name}`{hint}"));
}

/// Returns the tensors listed after `without` in all blocks.
pub fn removed_tensors(items: &[TensorItem]) -> Vec<&Ident> {
    let names = items.iter().map(|item| match item {
        TensorItem::Without(names) => names.iter().collect(),
        TensorItem::Layer { items, .. } => removed_tensors(items),
        TensorItem::If { then, otherwise, .. } => [removed_tensors(then), removed_tensors(otherwise)].concat(),
        TensorItem::Tensor(_) | TensorItem::Ignore(_) | TensorItem::Use(_) => Vec::new(),
    });
    names.flatten().collect()
}

/// The items outside the layers, or of one group of layers.
struct TensorBlock {
    /// Name of the group of layers; `None` outside the layers.
    name: Option<String>,
    /// Span and group of the layer block.
    layers: Option<(Span, Option<Box<GroupDecl>>)>,
    items: Vec<TensorItem>,
}

impl TensorBlock {
    /// Returns false for two different groups of layers, which may use the same tensor names.
    fn shares_names(&self, other: &TensorBlock) -> bool {
        self.name == other.name || self.name.is_none() || other.name.is_none()
    }
}

/// Returns the name of a group of layers.
fn group_name(group: Option<&GroupDecl>) -> String {
    group.map_or_else(|| "layer".to_owned(), |g| g.name.to_string())
}

/// Returns the position of each block by its name.
fn positions(blocks: &[TensorBlock]) -> HashMap<Option<String>, usize> {
    let names = blocks.iter().map(|b| b.name.clone());
    names.zip(0..).collect()
}

/// Splits items into blocks; the block outside the layers comes first.
fn blocks(items: Vec<TensorItem>) -> Vec<TensorBlock> {
    let mut blocks = vec![TensorBlock {
        name: None,
        layers: None,
        items: Vec::new(),
    }];
    let mut places = HashMap::new();
    for item in items {
        match item {
            TensorItem::Layer { span, group, items } => {
                let name = group_name(group.as_deref());
                let at = *places.entry(name.clone()).or_insert(blocks.len());
                if at < blocks.len() {
                    blocks[at].items.extend(items);
                    continue;
                }
                blocks.push(TensorBlock {
                    name: Some(name),
                    layers: Some((span, group)),
                    items,
                });
            }
            item => blocks[0].items.push(item),
        }
    }
    blocks
}

/// Merges block by block, after removing the tensors that the child excludes, moves, or makes conditional.
fn merge_tensors(inherited: Vec<TensorItem>, own: Vec<TensorItem>, errors: &mut Errors) -> Vec<TensorItem> {
    let all = names::set(tensor_names(&inherited));
    for name in removed_tensors(&own) {
        if !all.contains(name) {
            let all = || all.iter().map(Ident::to_string).collect();
            nothing_to_remove(name, "tensor", all, errors);
        }
    }
    let (mut inherited, own) = (blocks(inherited), blocks(own));
    for block in &mut inherited {
        let mut gone: HashSet<Ident> = HashSet::new();
        let direct = |b: &TensorBlock| names::set(b.items.iter().filter_map(TensorItem::name));
        let of_block = direct(block);
        for o in own.iter().filter(|o| o.shares_names(block)) {
            let of_own = direct(o);
            let in_place = |name: &Ident| o.name == block.name && of_own.contains(name) && of_block.contains(name);
            gone.extend(removed_tensors(&o.items).into_iter().cloned());
            gone.extend(
                tensor_names(&o.items)
                    .into_iter()
                    .filter(|name| !in_place(name))
                    .cloned(),
            );
        }
        drop_tensors(&mut block.items, &gone);
    }
    let places = positions(&inherited);
    for block in own {
        match places.get(&block.name) {
            Some(&at) => inherited[at].items = merge_block(std::mem::take(&mut inherited[at].items), block.items),
            None => inherited.push(block),
        }
    }
    let mut merged = Vec::new();
    for TensorBlock { layers, items, .. } in inherited.into_iter().filter(|b| !b.items.is_empty()) {
        match layers {
            Some((span, group)) => merged.push(TensorItem::Layer { span, group, items }),
            None => merged.extend(items),
        }
    }
    merged
}

fn drop_tensors(items: &mut Vec<TensorItem>, gone: &HashSet<Ident>) {
    items.retain_mut(|item| match item {
        TensorItem::Tensor(t) => !gone.contains(&t.name),
        TensorItem::If { then, otherwise, .. } => {
            drop_tensors(then, gone);
            drop_tensors(otherwise, gone);
            !(then.is_empty() && otherwise.is_empty())
        }
        TensorItem::Layer { .. } | TensorItem::Ignore(_) | TensorItem::Without(_) | TensorItem::Use(_) => true,
    });
}

/// Replaces inherited tensors of the same name in their position, and appends all other tensors. Names that the parent
/// ignores and the child declares are no longer ignored.
fn merge_block(mut inherited: Vec<TensorItem>, own: Vec<TensorItem>) -> Vec<TensorItem> {
    let declared = own.iter().filter_map(|item| match item {
        TensorItem::Tensor(tensor) => Some(tensor.gguf.value()),
        _ => None,
    });
    unignore(&mut inherited, &declared.collect());
    let places = places(inherited.iter().map(TensorItem::name));
    let mut seen: HashSet<Ident> = HashSet::new();
    for item in own {
        if matches!(item, TensorItem::Without(_)) {
            continue;
        }
        let name = item.name().cloned().filter(|name| seen.insert(name.clone()));
        match name.as_ref().and_then(|name| places.get(name)) {
            Some(&at) => inherited[at] = item,
            None => inherited.push(item),
        }
    }
    inherited
}

fn unignore(items: &mut [TensorItem], declared: &HashSet<String>) {
    for item in items {
        if let TensorItem::Ignore(names) = item {
            names.retain(|n| !declared.contains(&n.value()));
        }
    }
}
