//! Reads the keys of a file and declares its tensors, in the order of generated code.

use std::fmt::Debug;
use std::sync::Arc;

use crate::builder::BuildGraph;
use crate::model::{Base, HparamReader, LoadProgram, TensorTable};

use super::build::Interpreted;
use super::program::{DeclaredTensor, Item, Kind, Presence, Program, Read};
use super::scalar::{Expr, Scalar};
use super::scope::Scope;
use super::state::{Handle, Stored};

/// Reader of a file while a program is loaded.
struct Loading<'p> {
    program: &'p Program,
    base: Base,
    items: Vec<Stored>,
    globals: Vec<Handle>,
    layer: Vec<Handle>,
    il: usize,
    file_rows: Vec<usize>,
}

impl LoadProgram for Program {
    fn digest(&self) -> u64 {
        self.digest
    }

    fn load(self: Arc<Self>, r: &mut HparamReader<'_>, t: &mut TensorTable<'_>) -> Option<Box<dyn BuildGraph>> {
        let mut loading = Loading {
            program: &self,
            base: r.base(),
            items: Vec::with_capacity(self.items.len()),
            globals: vec![Handle::Absent; self.globals.len()],
            layer: Vec::new(),
            il: 0,
            file_rows: self.file_rows.iter().map(|name| t.file_rows(name)).collect(),
        };
        if let Some(excess) = self.excess_values(loading.base.n_layer_loaded()) {
            r.contradiction(excess);
            return None;
        }
        for item in &self.items {
            let value = loading.item(item, r);
            loading.items.push(value);
        }
        if let Some(excess) = loading.excess_tensors(r, t) {
            r.contradiction(excess);
        }
        if r.failed() {
            return None;
        }
        let groups = loading.tensors(r, t);
        let Loading {
            base, items, globals, ..
        } = loading;
        Some(Box::new(Interpreted::new(self, base, items, globals, groups)))
    }
}

/// Maximum number of values of all layers, about 100 MB.
const MAX_VALUES: usize = 1 << 22;

/// Maximum number of tensors of all layers. Each missing one is an error.
const MAX_TENSORS: usize = 1 << 18;

impl Program {
    /// Describes the number of values of all layers if the number exceeds the limit.
    fn excess_values(&self, n_layers: usize) -> Option<String> {
        let is_per_layer = |item: &&Item| match item {
            Item::Key { read, .. } => read.is_per_layer(),
            Item::Let { per_layer, .. } => *per_layer,
            Item::Check { .. } => false,
        };
        let n_items = self.items.iter().filter(is_per_layer).count();
        (n_items.saturating_mul(n_layers) > MAX_VALUES)
            .then(|| format!("the declaration has {n_items} values per layer, too many for {n_layers} layers"))
    }
}

impl Loading<'_> {
    fn scope<'a>(&'a self, r: &'a HparamReader<'a>, il: usize) -> Scope<'a> {
        Scope {
            base: &self.base,
            items: &self.items,
            vars: &[],
            tensors: &self.program.tensors,
            globals: &self.globals,
            layer: &self.layer,
            il,
            file_rows: &self.file_rows,
            reader: Some(r),
        }
    }

    /// Describes the number of tensors of all layers if the number exceeds the limit.
    fn excess_tensors(&self, r: &HparamReader<'_>, t: &TensorTable<'_>) -> Option<String> {
        let n_layers = |count: &Option<Expr>| match count {
            Some(count) => t.n_layers(self.eval(r, count).int()),
            None => self.base.n_layer_loaded(),
        };
        let groups = self.program.groups.iter();
        let n: usize = groups
            .map(|g| g.tensors.len().saturating_mul(n_layers(&g.count)))
            .fold(0, usize::saturating_add);
        (n > MAX_TENSORS).then(|| format!("the declaration has {n} tensors; the maximum is {MAX_TENSORS}"))
    }

    fn eval(&self, r: &HparamReader<'_>, expr: &Expr) -> Scalar {
        self.scope(r, self.il).eval(expr)
    }

    fn item(&self, item: &Item, r: &mut HparamReader<'_>) -> Stored {
        match item {
            Item::Key {
                read,
                key,
                default,
                at_least,
            } => self.key(*read, key, default.as_ref(), at_least.as_ref(), r),
            Item::Let { value, per_layer } => {
                if *per_layer {
                    Stored::PerLayer(self.by_layer(r, value))
                } else {
                    Stored::One(self.eval(r, value))
                }
            }
            Item::Check {
                cond,
                per_layer,
                text,
                found,
                only_warns,
            } => {
                let layers = if *per_layer {
                    0..self.base.n_layer_loaded()
                } else {
                    0..1
                };
                Stored::One(Scalar::Bool(if *only_warns {
                    let holds = layers.into_iter().all(|il| self.scope(r, il).bool(cond));
                    r.warn(holds, text);
                    holds
                } else {
                    layers.into_iter().all(|il| self.check(il, cond, text, found, r))
                }))
            }
        }
    }

    fn check(
        &self,
        il: usize,
        cond: &Expr,
        text: &str,
        found: &[(&'static str, Expr)],
        r: &mut HparamReader<'_>,
    ) -> bool {
        let scope = self.scope(r, il);
        if scope.bool(cond) {
            return true;
        }
        let values: Vec<(&str, Scalar)> = found.iter().map(|(key, value)| (*key, scope.eval(value))).collect();
        let found: Vec<(&str, &dyn Debug)> = values.iter().map(|(key, value)| (*key, value as &dyn Debug)).collect();
        r.check(false, text, &found)
    }

    fn by_layer(&self, r: &HparamReader<'_>, value: &Expr) -> Vec<Scalar> {
        let layers = 0..self.base.n_layer_loaded();
        layers.map(|il| self.scope(r, il).eval(value)).collect()
    }

    fn key(
        &self,
        read: Read,
        key: &str,
        default: Option<&Expr>,
        at_least: Option<&Expr>,
        r: &mut HparamReader<'_>,
    ) -> Stored {
        let one = default.map(|d| self.eval(r, d));
        let per_layer = matches!(read, Read::Ints | Read::Floats | Read::Bools);
        let by_layer = match default {
            Some(d) if per_layer => Some(self.by_layer(r, d)),
            _ => None,
        };
        let in_layer = |il: usize| by_layer.as_ref().and_then(|values| values.get(il));
        match read {
            Read::Int => Stored::One(Scalar::Int(r.usize(key, one.map(|d| d.int())))),
            Read::Float => Stored::One(Scalar::Float(r.f32(key, one.map(|d| d.float())))),
            Read::Bool => Stored::One(Scalar::Bool(r.bool(key, one.map(|d| d.bool())))),
            Read::Text => Stored::One(Scalar::Text(
                r.string(key, one.as_ref().map(|d| d.text())).as_str().into(),
            )),
            Read::List => {
                let n = at_least.map_or(0, |n| self.eval(r, n).int());
                Stored::One(Scalar::List(r.list(key, n).into()))
            }
            Read::Pattern => bools(r.pattern(key, one.map(|d| d.int()))),
            Read::DenseFirst => bools(r.dense_first(key, one.map(|d| d.int()))),
            Read::Listed => bools(r.listed(key, one.map(|d| d.bool()))),
            Read::Ints => {
                let values = match by_layer {
                    None => r.usizes(key, None),
                    Some(_) => r.usizes_with(key, |il| in_layer(il).map_or(0, Scalar::int)),
                };
                Stored::PerLayer(values.into_iter().map(Scalar::Int).collect())
            }
            Read::Floats => {
                let values = match by_layer {
                    None => r.f32s(key, None),
                    Some(_) => r.f32s_with(key, |il| in_layer(il).map_or(0.0, Scalar::float)),
                };
                Stored::PerLayer(values.into_iter().map(Scalar::Float).collect())
            }
            Read::Bools => bools(match by_layer {
                None => r.bools(key, None),
                Some(_) => r.bools_with(key, |il| in_layer(il).is_some_and(Scalar::bool)),
            }),
        }
    }

    /// Declares all tensors. Returns the handles of the layers, by group.
    fn tensors(&mut self, r: &HparamReader<'_>, t: &mut TensorTable<'_>) -> Vec<Vec<Vec<Handle>>> {
        let program = self.program;
        program.ignored.iter().for_each(|name| t.ignore(name));
        for &index in &program.globals {
            let handle = self.declare(index, r, t);
            self.globals[program.tensors[index].slot] = handle;
        }
        let mut groups = Vec::with_capacity(program.groups.len());
        for group in &program.groups {
            let count = match &group.count {
                _ if group.tensors.is_empty() => 0,
                None => self.base.n_layer_loaded(),
                Some(count) => t.n_layers(self.eval(r, count).int()),
            };
            let mut layers = Vec::with_capacity(count);
            for il in 0..count {
                t.layer(group.prefix, il);
                self.il = il;
                self.layer = vec![Handle::Absent; group.tensors.len()];
                for &index in &group.tensors {
                    let handle = self.declare(index, r, t);
                    self.layer[program.tensors[index].slot] = handle;
                }
                layers.push(std::mem::take(&mut self.layer));
            }
            self.il = 0;
            groups.push(layers);
        }
        groups
    }

    /// Declares a tensor if its conditions hold.
    fn declare(&self, index: usize, r: &HparamReader<'_>, t: &mut TensorTable<'_>) -> Handle {
        let (tensor, scope) = (&self.program.tensors[index], self.scope(r, self.il));
        let handle = if tensor.conditions.iter().all(|(c, truth)| scope.bool(c) == *truth) {
            declared(tensor, &scope, t)
        } else {
            Handle::Absent
        };
        if tensor.decides {
            t.decides(tensor.gguf, handle != Handle::Absent);
        }
        handle
    }
}

fn bools(values: Vec<bool>) -> Stored {
    Stored::PerLayer(values.into_iter().map(Scalar::Bool).collect())
}

/// Adds a tensor to the table.
fn declared(tensor: &DeclaredTensor, scope: &Scope<'_>, t: &mut TensorTable<'_>) -> Handle {
    let name = match tensor.other_name {
        Some(other) => t.named(tensor.gguf, other),
        None => tensor.gguf,
    };
    let mut sizes = [1; 4];
    let n = tensor.sizes.len().min(sizes.len());
    for (size, expr) in sizes.iter_mut().zip(&tensor.sizes) {
        *size = scope.int(expr);
    }
    let (ne, [a, b, c, _]) = (&sizes[..n], sizes);
    let is_optional = matches!(tensor.presence, Presence::Optional | Presence::Form);
    match (tensor.kind, tensor.presence) {
        (Kind::Embed, Presence::OrMore) => t.embed_or_more(name, &[a, b]).into(),
        (Kind::Embed, _) if is_optional => t.embed_opt(name, ne).into(),
        (Kind::Embed, _) => t.embed(name, ne).into(),
        (Kind::Vector, _) if is_optional => t.vector_opt(name, ne).into(),
        (Kind::Vector, _) => t.vector(name, ne).into(),
        (Kind::Raw, _) if is_optional => t.raw_opt(name, ne).into(),
        (Kind::Raw, _) => t.raw(name, ne).into(),
        (Kind::Norm, _) if is_optional => t.norm_opt(name, ne).into(),
        (Kind::Norm, _) => t.norm(name, ne).into(),
        (Kind::Linear, Presence::Form) => t.linear_form(name, a, b).into(),
        (Kind::Linear, Presence::Optional) => t.linear_opt(name, a, b).into(),
        (Kind::Linear, Presence::Tied(table)) => match scope.handle(table) {
            Handle::Embed(table) => t.linear_tied(name, a, b, table).into(),
            _ => t.linear(name, a, b).into(),
        },
        (Kind::Linear, _) => t.linear(name, a, b).into(),
        (Kind::Experts, _) if is_optional => t.experts_opt(name, a, b, c).into(),
        (Kind::Experts, _) => t.experts(name, a, b, c).into(),
        (Kind::PerHead, _) if is_optional => t.per_head_opt(name, a, b, c).into(),
        (Kind::PerHead, _) => t.per_head(name, a, b, c).into(),
    }
}
