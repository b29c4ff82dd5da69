//! Merges two declarations. Items of the child replace inherited items.

use std::collections::HashMap;

use proc_macro2::{Ident, Span};
use syn::LitStr;

use crate::ast::{Decl, Function, GroupDecl, HparamItem, ModelDecl, TensorItem, media, tensor_names};
use crate::diag::{Errors, did_you_mean};

/// Returns the parent with the child's replacements.
pub fn merge(parent: Decl, child: Decl, errors: &mut Errors) -> Decl {
    let own = |name: &String| child.hparams.iter().any(|item| item.name().is_some_and(|n| n == name));
    let mut given_hparams: Vec<String> = parent.given_hparams.into_iter().filter(|n| !own(n)).collect();
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
    let replaced = |m: &ModelDecl| own.iter().any(|o| o.name.value() == m.name.value());
    let kept = inherited.into_iter().filter(|m| !replaced(m));
    let kept: Vec<ModelDecl> = kept.map(|m| ModelDecl { inherited: true, ..m }).collect();
    own.extend(kept);
    own
}

/// Returns the child's functions and the inherited functions that it does not replace.
fn merge_functions(inherited: Vec<Function>, mut own: Vec<Function>) -> Vec<Function> {
    let kept = inherited.into_iter().filter(|f| !own.iter().any(|o| o.name == f.name));
    let kept: Vec<Function> = kept.map(|f| Function { inherited: true, ..f }).collect();
    own.extend(kept);
    own
}

/// Returns the hyper-parameters listed after `without`.
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

/// Replaces inherited items of the same name in their position and appends the others. Items that precede a
/// replacement in the child are inserted before it, because defaults and derived values refer only to
/// preceding items.
pub fn merge_hparams(mut inherited: Vec<HparamItem>, own: Vec<HparamItem>, errors: &mut Errors) -> Vec<HparamItem> {
    for name in removed_hparams(&own) {
        let all: Vec<String> = inherited
            .iter()
            .filter_map(HparamItem::name)
            .map(Ident::to_string)
            .collect();
        if all.iter().any(|n| name == n) {
            inherited.retain(|item| item.name() != Some(name));
        } else {
            nothing_to_remove(name, "hyper-parameter", &all, errors);
        }
    }
    for text in removed_checks(&own) {
        let is_it = |item: &HparamItem| matches!(item, HparamItem::Check { text: t, .. } if t.value() == text.value());
        if inherited.iter().any(is_it) {
            inherited.retain(|item| !is_it(item));
        } else {
            let all = inherited.iter().filter_map(|item| match item {
                HparamItem::Check { text, .. } => Some(text.value()),
                _ => None,
            });
            let all: Vec<String> = all.collect();
            let hint = did_you_mean(&text.value(), all.iter().map(String::as_str));
            errors.at(text, format!("no inherited check with this message{hint}"));
        }
    }
    let mut new = Vec::new();
    // A name declared twice in the child replaces only once; the checker reports the second.
    let mut seen: Vec<Ident> = Vec::new();
    for item in own {
        if matches!(item, HparamItem::Without(_) | HparamItem::WithoutCheck(_)) {
            continue;
        }
        let name = item.name().filter(|name| !seen.contains(name)).cloned();
        new.push(item);
        let place = |name: &Ident| inherited.iter().position(|i| i.name() == Some(name));
        if let Some(at) = name.as_ref().and_then(place) {
            inherited.splice(at..=at, new.drain(..));
        }
        seen.extend(name);
    }
    inherited.extend(new);
    inherited
}

fn nothing_to_remove(name: &Ident, what: &str, all: &[String], errors: &mut Errors) {
    let hint = did_you_mean(&name.to_string(), all.iter().map(String::as_str));
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
    let all: Vec<String> = tensor_names(&inherited).iter().map(ToString::to_string).collect();
    for name in removed_tensors(&own) {
        if !all.iter().any(|n| name == n) {
            nothing_to_remove(name, "tensor", &all, errors);
        }
    }
    let (mut inherited, own) = (blocks(inherited), blocks(own));
    for block in &mut inherited {
        let mut gone: Vec<Ident> = Vec::new();
        for o in own.iter().filter(|o| o.shares_names(block)) {
            let directly = |b: &TensorBlock, name| b.items.iter().any(|i| i.name() == Some(name));
            let in_place = |name| o.name == block.name && directly(o, name) && directly(block, name);
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

fn drop_tensors(items: &mut Vec<TensorItem>, gone: &[Ident]) {
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

/// Replaces inherited tensors of the same name in their position and appends the others. Names that the
/// parent ignores and the child declares are no longer ignored.
fn merge_block(mut inherited: Vec<TensorItem>, own: Vec<TensorItem>) -> Vec<TensorItem> {
    for item in &own {
        if let TensorItem::Tensor(tensor) = item {
            unignore(&mut inherited, &tensor.gguf.value());
        }
    }
    let mut seen: Vec<Ident> = Vec::new();
    for item in own {
        if matches!(item, TensorItem::Without(_)) {
            continue;
        }
        let name = item.name().filter(|name| !seen.contains(name)).cloned();
        let place = |name: &Ident| inherited.iter().position(|i| i.name() == Some(name));
        match name.as_ref().and_then(place) {
            Some(at) => inherited[at] = item,
            None => inherited.push(item),
        }
        seen.extend(name);
    }
    inherited
}

fn unignore(items: &mut [TensorItem], gguf: &str) {
    for item in items {
        if let TensorItem::Ignore(names) = item {
            names.retain(|n| n.value() != gguf);
        }
    }
}
