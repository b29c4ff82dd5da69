//! Variations of the fixtures: more layers, other head groups, missing optional tensors, tied outputs.
//!
//! A variation changes keys of a fixture's header. The architecture then determines the tensors.

use std::ops::{Deref, DerefMut};

use engine::conformance::Draft;
use engine::gguf::{Array, Gguf, Metadata, Value};
use engine::model::{ModelError, TensorError};

/// A model configuration: keys, tensor names, and shapes.
#[derive(Clone)]
pub struct Configuration {
    pub arch: String,
    draft: Draft,
}

impl Deref for Configuration {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.draft
    }
}

impl DerefMut for Configuration {
    fn deref_mut(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

/// Kind of change to a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variation {
    /// Five more layers of the same kinds as the first ones.
    Layers,
    /// Four query heads per KV head with the original head size, so that heads and width are independent.
    Groups,
    /// Doubles the number of heads, halves their size, and groups them in pairs.
    SmallHeads,
    /// More experts, fewer used experts, and a different width of every feed-forward network.
    Widths,
    /// No optional tensors, no biases, and a tied output if possible.
    Bare,
}

impl Variation {
    pub const ALL: [Variation; 5] = [
        Variation::Layers,
        Variation::Groups,
        Variation::SmallHeads,
        Variation::Widths,
        Variation::Bare,
    ];
}

impl Configuration {
    /// Returns the configuration of a fixture.
    pub fn of(header: &Gguf) -> Configuration {
        Configuration {
            arch: header
                .require("general.architecture")
                .expect("the fixture names its architecture"),
            draft: Draft::of(header),
        }
    }

    /// Divides all sizes from 64 by four, which leaves a sixteenth of the bytes. Returns the original
    /// configuration if the smaller sizes are inconsistent.
    pub fn small(self) -> Configuration {
        let mut small = self.clone();
        for (_, ne) in &mut small.tensors {
            ne.iter_mut().for_each(|n| *n = quarter(*n));
        }
        quarter_sizes(&mut small.metadata);
        // The rotated part must not exceed the smaller heads.
        let (rotated, head) = ("rope.dimension_count", "attention.key_length");
        if let (Some(n), Some(max)) = (small.number(rotated), small.number(head))
            && n > max
        {
            let key = small.key(rotated);
            small.metadata.insert(key, max as u32);
        }
        if small.settle() { small } else { self }
    }

    /// Returns the changed configuration, or `None` if the architecture does not support the variation.
    pub fn varied(&self, variation: Variation) -> Option<Configuration> {
        let mut c = self.clone();
        match variation {
            Variation::Layers => c.add_layers(5)?,
            Variation::Groups => c.regroup(false)?,
            Variation::SmallHeads => c.regroup(true)?,
            Variation::Widths => c.widen()?,
            Variation::Bare => return c.bare(),
        }
        c.settle().then_some(c)
    }

    /// Returns a configuration with more layers of the same kinds and other key values; keys have no
    /// architecture prefix. `None` if the architecture rejects the keys.
    pub fn changed(&self, more_layers: usize, keys: &[(&str, Value)]) -> Option<Configuration> {
        let mut c = self.clone();
        if more_layers > 0 {
            c.add_layers(more_layers)?;
        }
        for (key, value) in keys {
            let key = c.key(key);
            c.metadata.insert(key, value.clone());
        }
        if !c.settle() {
            return None;
        }
        // Other engines reject optional tensors that a layer does not use: indexers, and biases of another
        // attention variant.
        let old = self.number("block_count")?;
        for il in 0..old + more_layers {
            let (prefix, repeated) = (format!("blk.{il}.attn_"), format!("blk.{}.attn_", il % old));
            let is_new = |name: &str| {
                let same = name.strip_prefix(&prefix).map(|rest| format!("{repeated}{rest}"));
                same.is_some_and(|same| name.ends_with(".bias") && self.tensors.iter().all(|(n, _)| *n != same))
            };
            c.tensors.retain(|(name, _)| !is_new(name));
            let mut fewer = c.clone();
            let indexer = format!("blk.{il}.indexer");
            fewer.tensors.retain(|(name, _)| !name.starts_with(&indexer));
            if fewer.errors().is_some_and(|errors| errors.is_empty()) {
                c = fewer;
            }
        }
        Some(c)
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn number(&self, key: &str) -> Option<usize> {
        match self.metadata.get(&self.key(key))? {
            Value::Array(Array::U32(list)) => list.iter().find(|&&n| n > 0).map(|&n| n as usize),
            Value::Array(Array::I32(list)) => list.iter().find_map(|&n| usize::try_from(n).ok().filter(|&n| n > 0)),
            value => value.as_u64().and_then(|n| usize::try_from(n).ok()),
        }
    }

    /// Sets an existing number; in lists, all entries that are not 0.
    fn set(&mut self, key: &str, n: usize) {
        let (key, n) = (self.key(key), u32::try_from(n).expect("a small number"));
        let value = match self.metadata.get(&key) {
            Some(Value::Array(Array::U32(list))) => Value::Array(Array::U32(
                list.iter().map(|&old| if old == 0 { 0 } else { n }).collect(),
            )),
            _ => Value::U32(n),
        };
        self.metadata.insert(key, value);
    }

    fn add_layers(&mut self, more: usize) -> Option<()> {
        let old = self.number("block_count")?;
        let all: Vec<(String, Value)> = self.metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
        for (key, value) in all {
            self.metadata.insert(key, lengthened(value, old, more));
        }
        self.set("block_count", old + more);
        // Optional tensors may occur in any layer, so add all; undeclared ones are removed again.
        let layers: Vec<(String, Vec<usize>)> = (self.tensors.iter())
            .filter_map(|(name, ne)| {
                let (il, rest) = name.strip_prefix("blk.")?.split_once('.')?;
                il.bytes()
                    .all(|b| b.is_ascii_digit())
                    .then(|| (rest.to_owned(), ne.clone()))
            })
            .collect();
        for il in old..old + more {
            for (rest, ne) in &layers {
                let name = format!("blk.{il}.{rest}");
                if !self.tensors.iter().any(|(n, _)| *n == name) {
                    self.tensors.push((name, ne.clone()));
                }
            }
        }
        Some(())
    }

    /// Increases the number of query heads; with `small`, heads get half the size.
    fn regroup(&mut self, small: bool) -> Option<()> {
        let n_head = self.number("attention.head_count").filter(|&n| n > 0)?;
        let width = self.number("embedding_length")? / n_head;
        let size = self.number("attention.key_length").unwrap_or(width);
        self.set("attention.head_count", n_head * if small { 2 } else { 4 });
        self.set("attention.head_count_kv", n_head);
        let factor = if small { 2 } else { 1 };
        for key in ["attention.key_length", "attention.value_length"] {
            if !small || self.number(key).is_some() {
                self.set(key, size / factor);
            }
        }
        let others = [
            "attention.key_length_swa",
            "attention.value_length_swa",
            "rope.dimension_count",
            "rope.dimension_count_swa",
        ];
        for key in others {
            if let Some(n) = self.number(key) {
                self.set(key, n / factor);
            }
        }
        let key = self.key("rope.dimension_sections");
        if let Some(list) = self.metadata.get(&key).cloned() {
            self.metadata.insert(key, divided(list, factor as u32));
        }
        Some(())
    }

    fn widen(&mut self) -> Option<()> {
        let n_ff = self.number("feed_forward_length")?;
        self.set("feed_forward_length", n_ff + 64);
        if let Some(n) = self.number("expert_feed_forward_length") {
            self.set("expert_feed_forward_length", n / 2);
        }
        if self.number("expert_count").is_some_and(|n| n > 0) {
            self.set("expert_count", 5);
            self.set("expert_used_count", 3);
        }
        Some(())
    }

    /// Removes every optional tensor from all layers.
    fn bare(mut self) -> Option<Configuration> {
        let mut names: Vec<String> = self.tensors.iter().map(|(name, _)| in_any_layer(name)).collect();
        names.sort();
        names.dedup();
        let before = self.tensors.len();
        for name in names {
            let mut fewer = self.clone();
            fewer.tensors.retain(|(n, _)| in_any_layer(n) != name);
            if fewer.errors().is_some_and(|errors| errors.is_empty()) {
                self = fewer;
            }
        }
        (self.tensors.len() < before).then_some(self)
    }

    /// Gives tensors their declared shapes, adds missing tensors, and removes undeclared ones. Returns false if the
    /// keys are rejected.
    fn settle(&mut self) -> bool {
        match self.draft.settle(archs::ALL) {
            Ok(()) => true,
            Err(e @ ModelError::Tensors { .. }) => {
                panic!("{}: the tensors do not match the declaration: {e}", self.arch)
            }
            Err(_) => false,
        }
    }

    /// Returns the differences between tensors and declaration; `None` if the keys are rejected.
    fn errors(&self) -> Option<Vec<TensorError>> {
        match self.plan(archs::ALL) {
            Ok(_) => Some(Vec::new()),
            Err(ModelError::Tensors { errors, .. }) => Some(errors),
            Err(_) => None,
        }
    }

    /// Returns the file with seeded weights.
    pub fn file(&self) -> Vec<u8> {
        self.seeded(1).expect("a valid file")
    }
}

/// Divides a size by four unless it is small.
fn quarter(n: usize) -> usize {
    if n >= 64 { n / 4 } else { n }
}

/// Divides all sizes by four, including the vocabulary.
fn quarter_sizes(metadata: &mut Metadata) {
    let pairs: Vec<(String, Value)> = metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    for (key, value) in pairs {
        let value = match value {
            // -1 means unset.
            Value::U32(u32::MAX) => value,
            Value::U32(n) => Value::U32(quarter(n as usize) as u32),
            Value::Array(Array::String(s)) => Value::Array(Array::String(s.iter().take(quarter(s.len())).collect())),
            Value::Array(Array::F32(mut v)) => {
                v.truncate(quarter(v.len()));
                Value::Array(Array::F32(v))
            }
            list if key.ends_with("dimension_sections") => divided(list, 4),
            Value::Array(Array::I32(mut v)) => {
                v.truncate(quarter(v.len()));
                Value::Array(Array::I32(v))
            }
            other => other,
        };
        metadata.insert(key, value);
    }
}

/// Divides each element of a list of counts.
fn divided(list: Value, by: u32) -> Value {
    match list {
        Value::Array(Array::U32(v)) => Value::Array(Array::U32(v.into_iter().map(|n| n / by).collect())),
        Value::Array(Array::I32(v)) => {
            let by = by.cast_signed();
            Value::Array(Array::I32(v.into_iter().map(|n| n / by).collect()))
        }
        other => other,
    }
}

/// Removes the layer number from a tensor name.
fn in_any_layer(name: &str) -> String {
    let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    name.split('.')
        .filter(|part| !is_number(part))
        .collect::<Vec<_>>()
        .join(".")
}

/// Extends per-layer lists by repeating their pattern.
fn lengthened(value: Value, n_layer: usize, more: usize) -> Value {
    fn cycle<T: Clone>(list: &mut Vec<T>, n_layer: usize, more: usize) {
        if list.len() == n_layer {
            let longer = (0..n_layer + more).map(|i| list[i % n_layer].clone()).collect();
            *list = longer;
        }
    }
    let mut value = value;
    match &mut value {
        Value::Array(Array::U32(list)) => cycle(list, n_layer, more),
        Value::Array(Array::I32(list)) => cycle(list, n_layer, more),
        Value::Array(Array::F32(list)) => cycle(list, n_layer, more),
        Value::Array(Array::Bool(list)) => cycle(list, n_layer, more),
        _ => {}
    }
    value
}
