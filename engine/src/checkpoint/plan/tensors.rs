//! Sources and shapes of the tensors of a plan.

use std::sync::Arc;

use kernels::GgmlType;

use super::{ConvertedTensor, MAX_STACK, OutputType, Planner, TensorPart, mxfp4_scales, scales};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::config::Setting;
use crate::checkpoint::data::DataChange;
use crate::checkpoint::packed::PackedMatrix;
use crate::checkpoint::repack::MXFP4_BLOCK;
use crate::checkpoint::safetensors::{SourceTensor, SourceType};
use crate::checkpoint::view::View;
use crate::model::CheckpointOrigin;

/// Declared source with the tensors of the checkpoint that it names.
pub(super) type Link = (&'static CheckpointOrigin, Vec<String>);

impl Planner<'_> {
    /// Returns the tensors of the checkpoint that an origin and its successors name; `None` if the checkpoint lacks
    /// one of them.
    pub(super) fn chain(
        &self,
        origin: &'static CheckpointOrigin,
        layer: Option<usize>,
        part: &str,
        is_own: bool,
    ) -> Option<Vec<Link>> {
        let links = std::iter::successors(Some(origin), |origin| origin.and).map(|origin| {
            let names = self.names(origin, layer, part, is_own);
            (!names.is_empty()).then_some((origin, names))
        });
        links.collect()
    }

    /// Returns the tensors of the checkpoint that an origin names; empty if the checkpoint lacks them.
    fn names(&self, origin: &CheckpointOrigin, layer: Option<usize>, part: &str, is_own: bool) -> Vec<String> {
        let name = match layer {
            Some(il) => self.numbered(origin.name, il),
            None => origin.name.to_owned(),
        };
        let find = |name: &str| {
            let candidates = match part {
                "bias" if is_own => vec![name.to_owned(), format!("{name}.bias")],
                "bias" => vec![format!("{name}.bias"), format!("{name}_bias")],
                _ => vec![format!("{name}.weight"), name.to_owned()],
            };
            candidates.iter().find_map(|name| self.rooted(name))
        };
        if !origin.stack {
            return find(&name).into_iter().collect();
        }
        let matrices = (0..MAX_STACK).map_while(|i| find(&name.replace("{}", &i.to_string())));
        matrices.collect()
    }

    /// Returns the name of a tensor of a layer. Multi-token prediction layers may be numbered separately.
    fn numbered(&self, name: &str, il: usize) -> String {
        let own = self.section.mtp.zip(il.checked_sub(self.n_layer));
        if let Some(([layers, mtp], i)) = own {
            let rest = name.strip_prefix(layers).or(name.strip_prefix(mtp));
            if let Some(rest) = rest {
                return format!("{mtp}{rest}").replacen("{}", &i.to_string(), 1);
            }
        }
        name.replacen("{}", &il.to_string(), 1)
    }

    /// Returns the name of a tensor, whose root may differ between a text model and one with more inputs.
    fn rooted(&self, name: &str) -> Option<String> {
        if self.shards.get(name).is_some() {
            return Some(name.to_owned());
        }
        let others = match name.strip_prefix("model.") {
            Some(rest) => vec![
                rest.to_owned(),
                format!("model.language_model.{rest}"),
                format!("language_model.model.{rest}"),
            ],
            None => ["language_model.", "bert.", "model."]
                .map(|root| format!("{root}{name}"))
                .to_vec(),
        };
        others.into_iter().find(|name| self.shards.get(name).is_some())
    }

    /// Plans a tensor of the output. `chain` has the sources of its rows, with the names of each.
    pub(super) fn tensor(
        &mut self,
        name: String,
        chain: &[Link],
        layer: Option<usize>,
        is_vector: bool,
        has_scale: bool,
        is_bias: bool,
    ) -> Result<(), CheckpointError> {
        let block = self.block_type(chain, is_vector || is_bias, has_scale);
        let (mut from, mut parts) = (Vec::new(), Vec::new());
        let (mut whole, mut types): (Vec<usize>, Vec<SourceType>) = (Vec::new(), Vec::new());
        for (origin, names) in chain {
            let steps = self.view_steps(origin, layer)?;
            let changes: Arc<[DataChange]> = self.changes(origin)?.into();
            let mut shape: Option<Vec<usize>> = None;
            for name in names {
                let Some(source) = self.shards.get(name) else { continue };
                let (view, found) = self.view(source, &steps, is_bias, block)?;
                match &shape {
                    Some(first) if *first != found => {
                        let text = format!("has shape {found:?}, but the first of the stack has {first:?}");
                        return Err(self.tensor_error(name, text));
                    }
                    _ => shape = Some(found),
                }
                types.push(source.ty);
                from.push(name.clone());
                parts.push(TensorPart {
                    view,
                    changes: changes.clone(),
                });
            }
            let mut shape = shape.unwrap_or_default();
            if origin.stack {
                shape.insert(0, names.len());
            }
            whole = if whole.is_empty() {
                shape
            } else {
                joined(&whole, &shape).ok_or_else(|| {
                    let text = format!("has shape {shape:?}, which cannot be joined to rows of shape {whole:?}");
                    self.tensor_error(&names[0], text)
                })?
            };
        }
        whole.reverse();
        if whole.is_empty() {
            whole.push(1);
        }
        let ty = block.unwrap_or_else(|| self.output(types[0], is_vector));
        if whole.len() > 4 || whole.contains(&0) {
            let text = format!("has the shape {whole:?} (innermost size first), which GGUF cannot hold");
            return Err(self.tensor_error(&from[0], text));
        }
        self.tensors.push(ConvertedTensor {
            name,
            from,
            shape: whole,
            ty,
            parts,
            computed: Vec::new(),
        });
        Ok(())
    }

    /// Returns the block type that holds all sources exactly, if the steps do not split blocks.
    fn block_type(&self, chain: &[Link], is_vector: bool, has_scale: bool) -> Option<GgmlType> {
        let names = || chain.iter().flat_map(|(_, names)| names);
        if names().all(|name| self.shards.get(name).is_some_and(is_mxfp4)) {
            return Some(GgmlType::MXFP4);
        }
        let of_rows = ["rows", "split", "every", "pairs", "heads", "merge", "tile"];
        let keeps_blocks = |(origin, _): &Link| origin.steps.iter().all(|(word, _)| of_rows.contains(word));
        if is_vector || self.ty != OutputType::Auto || !chain.iter().all(keeps_blocks) {
            return None;
        }
        let matrices: Option<Vec<_>> = names().map(|name| self.shards.packed(name)).collect();
        let matrices = matrices?;
        let first = matrices.first()?;
        let is_same = |m: &&PackedMatrix| m.exact == first.exact && (chain.len() == 1 || m.factor() == first.factor());
        let has_factors = first.factor().is_none() || has_scale;
        if has_factors && matrices.iter().all(is_same) {
            first.exact
        } else {
            None
        }
    }

    /// Adds the scales of the matrices of the last tensor, unless its type contains them.
    pub(super) fn factors(&mut self, name: &str) {
        let Some(base) = name.strip_suffix(".weight") else {
            return;
        };
        let Some(tensor) = self
            .tensors
            .last()
            .filter(|t| t.name == name && t.ty == GgmlType::NVFP4)
        else {
            return;
        };
        let of_source = |from: &String| self.shards.packed(from)?.factor();
        let mut factors: Vec<f32> = tensor.from.iter().filter_map(of_source).collect();
        // Concatenated rows have one scale; only stacks have several.
        factors.truncate(tensor.shape.get(2).copied().unwrap_or(1));
        self.tensors.push(ConvertedTensor {
            name: format!("{base}.scale"),
            from: Vec::new(),
            shape: vec![factors.len()],
            ty: GgmlType::F32,
            parts: Vec::new(),
            computed: factors,
        });
    }

    pub(super) fn tensor_error(&self, name: &str, text: impl Into<String>) -> CheckpointError {
        CheckpointError::tensor(self.shards.path(name), name, text)
    }

    /// Returns the view of a source after the steps, and its sizes in elements.
    fn view(
        &mut self,
        source: &SourceTensor,
        steps: &[(&str, Vec<usize>)],
        is_bias: bool,
        block: Option<GgmlType>,
    ) -> Result<(View, Vec<usize>), CheckpointError> {
        let is_mxfp4 = is_mxfp4(source);
        let n_dims = source.shape.len() - usize::from(is_mxfp4);
        let block = if is_mxfp4 { None } else { block };
        let mut units = source.shape[..n_dims].to_vec();
        if let (Some(ty), Some(last)) = (block, units.last_mut()) {
            *last /= ty.block_size();
        }
        let mut view = View::new(&units);
        apply(&mut view, steps, is_bias).map_err(|text| self.tensor_error(&source.name, text))?;
        let mut shape = view.shape();
        if is_mxfp4 {
            let scales = mxfp4_scales(&source.name);
            let is_fit = |s: &&SourceTensor| s.shape == source.shape[..n_dims] && s.ty == SourceType::U8;
            let (Some(_), Some(last)) = (self.shards.get(&scales).filter(is_fit), shape.last_mut()) else {
                let text = format!("has no exponents `{scales}` of its shape");
                return Err(self.tensor_error(&source.name, text));
            };
            *last *= MXFP4_BLOCK;
            self.used.insert(scales);
        }
        if let (Some(ty), Some(last)) = (block, shape.last_mut()) {
            *last *= ty.block_size();
        }
        let is_f8 = matches!(source.ty, SourceType::F8E4m3 | SourceType::F8E5m2);
        if is_f8 && scales(self.shards, source).is_none() {
            let text = "has 8-bit floats without scales that fit its shape";
            return Err(self.tensor_error(&source.name, text));
        }
        Ok((view, shape))
    }

    fn output(&self, source: SourceType, is_vector: bool) -> GgmlType {
        let is_integer = matches!(
            source,
            SourceType::I64 | SourceType::I32 | SourceType::U64 | SourceType::U32 | SourceType::I16 | SourceType::U16
        );
        match (self.ty, source) {
            _ if is_integer => GgmlType::I32,
            _ if is_vector => GgmlType::F32,
            (OutputType::F32, _) | (OutputType::Auto, SourceType::F32 | SourceType::F64) => GgmlType::F32,
            (OutputType::F16, _) | (OutputType::Auto, SourceType::F16) => GgmlType::F16,
            _ => GgmlType::BF16,
        }
    }

    /// Returns the steps that move data, with their operands.
    fn view_steps<'o>(
        &mut self,
        origin: &'o CheckpointOrigin,
        layer: Option<usize>,
    ) -> Result<Vec<(&'o str, Vec<usize>)>, CheckpointError> {
        if self.has_rows_only && origin.and.is_some() {
            let text = format!(
                "`{}` cannot be adapted, because the conversion joins its parts",
                origin.name
            );
            return Err(self.config_error(text));
        }
        let mut steps = Vec::new();
        for (word, args) in origin.steps {
            let is_of_rows = ["rows", "split", "every", "pairs", "times", "neg"].contains(word);
            if self.has_rows_only && !is_of_rows {
                let text = format!(
                    "`{}` cannot be adapted, because the conversion changes it by `{word}`",
                    origin.name
                );
                return Err(self.config_error(text));
            }
            if ["plus", "times", "exp", "neg"].contains(word) {
                continue;
            }
            let args: Result<Vec<usize>, _> = args.iter().map(|term| self.values.size(term, layer)).collect();
            steps.push((*word, args?));
        }
        Ok(steps)
    }

    /// Returns the changes of values.
    fn changes(&mut self, origin: &CheckpointOrigin) -> Result<Vec<DataChange>, CheckpointError> {
        let mut changes = Vec::new();
        for (word, args) in origin.steps {
            let number = match args {
                [term] => match self.values.term(term)? {
                    Some(Setting::Int(n)) => Some(n as f64),
                    Some(Setting::Float(x)) => Some(x),
                    _ => None,
                },
                _ => None,
            };
            match (*word, number) {
                ("exp", _) => changes.push(DataChange::Exp),
                ("neg", _) => changes.push(DataChange::Neg),
                ("plus", Some(n)) => changes.push(DataChange::Plus(n)),
                ("times", Some(n)) => changes.push(DataChange::Times(n)),
                ("plus" | "times", None) => {
                    return Err(self.config_error(format!("`{word}` of {} has no number", origin.name)));
                }
                _ => {}
            }
        }
        Ok(changes)
    }
}

/// Returns the shape of several matrices concatenated along rows; `None` if their row lengths differ, or if they are
/// stacks.
fn joined(first: &[usize], next: &[usize]) -> Option<Vec<usize>> {
    match (first, next) {
        (&[a], &[b]) => Some(vec![a.checked_add(b)?]),
        (&[a, n], &[b, m]) if n == m => Some(vec![a.checked_add(b)?, n]),
        _ => None,
    }
}

/// Returns true for a tensor of MXFP4 blocks: 16 bytes in the last dimension.
fn is_mxfp4(source: &SourceTensor) -> bool {
    source.name.ends_with("_blocks") && source.ty == SourceType::U8 && source.shape.last() == Some(&16)
}

fn apply(view: &mut View, steps: &[(&str, Vec<usize>)], is_bias: bool) -> Result<(), String> {
    if is_bias {
        view.add_column();
    }
    for (word, args) in steps {
        match (*word, &args[..]) {
            ("split", &[i, n]) => view.split(i, n)?,
            ("every", &[i, n]) => view.every(i, n)?,
            ("rows", &[a, b]) => view.keep_rows(a..b)?,
            ("pairs", &[n]) => view.pairs(n)?,
            ("heads", &[n]) => view.heads(n)?,
            ("tile", &[n]) => view.tile(n)?,
            ("merge", _) => view.merge()?,
            ("squeeze", _) => view.squeeze(),
            ("transpose", _) if !is_bias => view.transpose()?,
            _ => {}
        }
    }
    if is_bias {
        view.remove_column();
    }
    Ok(())
}
