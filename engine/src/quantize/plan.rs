//! Plans: the type of each tensor of an output file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kernels::GgmlType;
use regex_lite::Regex;

use super::error::QuantizeError;
use super::facts::Facts;
use super::mixture::{Mixture, fitting};
use super::prune::{self, PrunedLayers};
use super::role::{self, Role};
use super::role_mixture;
use crate::gguf::{Array, GgufSet, TensorInfo, Value};
use crate::importance::ImportanceMatrix;

/// Choices of a quantization.
#[derive(Clone, Debug)]
pub struct Options {
    /// Types of all tensors without a specific rule.
    pub mixture: Mixture,
    /// Chooses types by the part of the layer that a matrix belongs to, instead of llama.cpp's types.
    pub by_role: bool,
    /// Stores all matrices in the base type of the mixture.
    pub pure: bool,
    /// Keeps the type of the output projection.
    pub keep_output: bool,
    /// Type of the output projection, or of a token embedding that serves as output projection.
    pub output: Option<GgmlType>,
    /// Type of the token embedding.
    pub embedding: Option<GgmlType>,
    /// Types of the tensors whose name matches. The first match counts.
    pub rules: Vec<(Regex, GgmlType)>,
    /// Types of individual tensors, which replace the types of the mixture.
    pub types: BTreeMap<String, GgmlType>,
    /// Layers to remove.
    pub pruned: PrunedLayers,
    /// Accepts source tensors that are quantized already.
    pub allow_requantize: bool,
    /// Importance of the columns of matrices, which weights rounding errors.
    pub importance: Option<Arc<ImportanceMatrix>>,
}

impl Options {
    /// Checks that the layers to remove exist, and that at least one layer remains.
    fn check_pruned(&self, source: &GgufSet) -> Result<(), QuantizeError> {
        let layers = source.tensors().filter_map(|(_, info)| prune::split(&info.name));
        let layers: BTreeSet<usize> = layers.map(|(layer, _)| layer).collect();
        match self.pruned.iter().find(|layer| !layers.contains(layer)) {
            Some(layer) => Err(QuantizeError::NoLayer {
                layer,
                n_layers: layers.len(),
            }),
            None if !layers.is_empty() && self.pruned.iter().count() == layers.len() => Err(QuantizeError::AllPruned),
            None => Ok(()),
        }
    }
}

/// Type of a tensor in the output file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Name of the tensor in the output file.
    pub name: String,
    /// Name of the tensor in the source.
    pub source: String,
    /// Index of the source file that contains the tensor.
    pub shard: usize,
    /// Dimensions, fastest-varying first.
    pub shape: Vec<usize>,
    /// Type in the source file.
    pub from: GgmlType,
    /// Type in the output file.
    pub to: GgmlType,
    /// Type selected by the rules, if the rows do not consist of whole blocks of this type.
    pub wanted: Option<GgmlType>,
    /// Whether the mixture or [`Options::types`] determines the type.
    pub is_free: bool,
    /// Size in the output file.
    pub bytes: usize,
    /// Tensor whose importance weights the quantization errors of this tensor: the tensor itself, or a tensor with the
    /// same input.
    pub weighted_by: Option<String>,
    /// Number of matrices that get the mean importance of the other matrices.
    pub n_filled: usize,
}

impl PlannedTensor {
    /// Returns true if the weights are encoded in another, quantized type.
    pub fn is_encoded(&self) -> bool {
        self.from != self.to && self.to.is_quantized()
    }

    /// Returns the number of matrices, such as experts.
    pub fn n_matrices(&self) -> usize {
        self.shape.iter().skip(2).product()
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Types of all tensors of an output file, in the order of the source.
#[derive(Clone, Debug)]
pub struct QuantizePlan {
    /// Mixture of the plan.
    pub mixture: Mixture,
    /// All tensors.
    pub tensors: Vec<PlannedTensor>,
    /// Importance of the columns of matrices.
    pub importance: Option<Arc<ImportanceMatrix>>,
    /// Removed layers.
    pub pruned: PrunedLayers,
}

impl QuantizePlan {
    /// Chooses the type of every tensor.
    ///
    /// # Errors
    /// Returns an error if a tensor to be converted is quantized, unless the options accept it, or has no decoder.
    pub fn new(source: &GgufSet, options: &Options) -> Result<QuantizePlan, QuantizeError> {
        let model = Model::new(source, options.importance.is_some());
        let mut tensors = Vec::with_capacity(source.n_tensors());
        options.check_pruned(source)?;
        for (shard, info) in source.tensors() {
            let Some(name) = options.pruned.name(&info.name) else {
                continue;
            };
            let choice = wanted(info, options, &model);
            let wanted = choice.ty();
            let to = if wanted == info.ty {
                wanted
            } else {
                fitting(wanted, info.ne[0])
            };
            if to != info.ty && info.ty.is_quantized() && !options.allow_requantize {
                return Err(QuantizeError::AlreadyQuantized {
                    tensor: info.name.clone(),
                    ty: info.ty,
                });
            }
            if to != info.ty && !kernels::can_decode(info.ty) {
                return Err(QuantizeError::Undecodable {
                    tensor: info.name.clone(),
                    ty: info.ty,
                });
            }
            let rows = info.n_elements() / info.ne[0].max(1);
            let (weighted_by, n_filled) = match &options.importance {
                Some(matrix) if to != info.ty && to.is_quantized() => weighted_by(info, matrix)?,
                _ => (None, 0),
            };
            tensors.push(PlannedTensor {
                weighted_by,
                n_filled,
                name,
                source: info.name.clone(),
                shard,
                shape: info.shape().to_vec(),
                from: info.ty,
                to,
                is_free: matches!(choice, Choice::Free(_)),
                wanted: (wanted != to).then_some(wanted),
                bytes: to.row_bytes(info.ne[0]).unwrap_or(0) * rows,
            });
        }
        check_types(&tensors, options)?;
        let has_weights = tensors.iter().any(|tensor| tensor.weighted_by.is_some());
        if options.importance.is_some() && !has_weights && tensors.iter().any(PlannedTensor::is_encoded) {
            return Err(QuantizeError::ForeignImportance);
        }
        Ok(QuantizePlan {
            mixture: options.mixture,
            tensors,
            importance: options.importance.clone(),
            pruned: options.pruned.clone(),
        })
    }

    /// Returns the size of all tensors in the output file.
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Returns the average number of bits per weight in the output file.
    pub fn bits_per_weight(&self) -> f64 {
        let n: usize = self.tensors.iter().map(PlannedTensor::n_elements).sum();
        self.bytes() as f64 * 8.0 / n.max(1) as f64
    }
}

/// Checks that [`Options::types`] names tensors of the model, and types that fit their rows.
fn check_types(tensors: &[PlannedTensor], options: &Options) -> Result<(), QuantizeError> {
    let is_known = |name: &str, ty: GgmlType| {
        let tensor = tensors.iter().find(|tensor| tensor.source == name);
        let is_made = |tensor: &PlannedTensor| tensor.to == ty && (tensor.from == ty || kernels::can_encode(ty));
        tensor.is_some_and(|tensor| !tensor.is_free || is_made(tensor))
    };
    match options.types.iter().find(|(name, ty)| !is_known(name, **ty)) {
        None => Ok(()),
        Some((tensor, ty)) => Err(QuantizeError::ForeignRecipe {
            tensor: tensor.clone(),
            ty: *ty,
        }),
    }
}

/// Type of a tensor, and whether a budget may change it.
enum Choice {
    /// Type of the mixture or of a recipe.
    Free(GgmlType),
    /// Type that cannot change, or that an option determines.
    Fixed(GgmlType),
}

impl Choice {
    fn ty(&self) -> GgmlType {
        match self {
            Choice::Free(ty) | Choice::Fixed(ty) => *ty,
        }
    }
}

/// Returns the type that the options choose, regardless of the length of rows.
fn wanted(info: &TensorInfo, options: &Options, model: &Model) -> Choice {
    let (_, kind) = role::split(&info.name);
    let role = role::role(&info.name);
    let is_output = role == Role::Output;
    if role::is_kept(&info.name, info.n_dims) || is_output && options.keep_output {
        return Choice::Fixed(info.ty);
    }
    if let Some((_, ty)) = options.rules.iter().find(|(pattern, _)| pattern.is_match(&info.name)) {
        return Choice::Fixed(*ty);
    }
    let serves_as_output = is_output || role == Role::Embedding && model.is_tied;
    let chosen = match role {
        Role::Embedding if serves_as_output => options.embedding.or(options.output),
        Role::Embedding => options.embedding,
        Role::Output => options.output,
        _ => None,
    };
    if let Some(ty) = chosen {
        return Choice::Fixed(ty);
    }
    let of_tensor = options.types.get(&info.name).copied();
    Choice::Free(of_tensor.unwrap_or_else(|| {
        if options.pure {
            options.mixture.base()
        } else {
            let facts = model.facts(info, role);
            let of_peer = options.mixture.type_of(&facts);
            let base = options.mixture.base();
            if options.by_role && base.is_quantized() {
                role_mixture::type_of(role_mixture::part(kind), base, of_peer, &facts)
            } else {
                of_peer
            }
        }
    }))
}

/// Returns the tensor whose importance weights the errors of a tensor, and the number of matrices without data.
fn weighted_by(info: &TensorInfo, matrix: &ImportanceMatrix) -> Result<(Option<String>, usize), QuantizeError> {
    let n_matrices = info.ne[2..].iter().product();
    if let Some(weights) = matrix.weights(&info.name, info.ne[0], n_matrices)? {
        return Ok((Some(info.name.clone()), weights.n_filled));
    }
    let (layer, kind) = role::split(&info.name);
    let siblings = layer.map_or(&[][..], |_| role::siblings(kind));
    for sibling in siblings.iter().filter(|sibling| **sibling != kind) {
        let name = info.name.replacen(kind, sibling, 1);
        if let Ok(Some(_)) = matrix.weights(&name, info.ne[0], n_matrices) {
            return Ok((Some(name), n_matrices));
        }
    }
    Ok((None, 0))
}

/// Facts about the model that the rules of mixtures use.
struct Model {
    /// Layers with a tensor of each kind, in file order.
    layers: HashMap<String, Vec<usize>>,
    is_tied: bool,
    is_falcon: bool,
    n_expert: usize,
    n_gqa: usize,
    n_layer: usize,
    has_importance: bool,
}

impl Model {
    fn new(source: &GgufSet, has_importance: bool) -> Model {
        let metadata = source.metadata();
        let arch: &str = metadata.optional("general.architecture").ok().flatten().unwrap_or("");
        let number = |key: &str| match metadata.get(&format!("{arch}.{key}")) {
            Some(Value::Array(array)) => largest(array),
            Some(value) => unsigned(value),
            None => None,
        };
        let heads = number("attention.head_count").unwrap_or(1);
        let key_heads = number("attention.head_count_kv").unwrap_or(heads);
        let mut layers: HashMap<String, Vec<usize>> = HashMap::new();
        for (_, info) in source.tensors() {
            if let (Some(layer), kind) = role::split(&info.name) {
                layers.entry(kind.to_owned()).or_default().push(layer);
            }
        }
        layers.values_mut().for_each(|layers| layers.sort_unstable());
        Model {
            layers,
            is_tied: source.tensor("output.weight").is_none(),
            is_falcon: arch == "falcon",
            n_expert: number("expert_count").unwrap_or(0),
            n_gqa: heads / key_heads.max(1),
            n_layer: number("block_count").unwrap_or(0),
            has_importance,
        }
    }

    fn facts(&self, info: &TensorInfo, role: Role) -> Facts {
        let (layer, kind) = role::split(&info.name);
        let layers = self.layers.get(kind).map_or(&[][..], Vec::as_slice);
        let position = layer.map_or(0, |layer| layers.partition_point(|&other| other < layer));
        Facts {
            role,
            n_in: info.ne[0],
            is_experts: info.n_dims == 3 && kind.ends_with("_exps"),
            turn: (position, layers.len()),
            is_tied: self.is_tied,
            is_falcon: self.is_falcon,
            n_expert: self.n_expert,
            n_gqa: self.n_gqa,
            n_layer: self.n_layer,
            has_importance: self.has_importance,
        }
    }
}

/// Returns a nonnegative integer of any width.
fn unsigned(value: &Value) -> Option<usize> {
    match *value {
        Value::U8(v) => Some(v.into()),
        Value::U16(v) => Some(v.into()),
        Value::U32(v) => usize::try_from(v).ok(),
        Value::U64(v) => usize::try_from(v).ok(),
        Value::I32(v) => usize::try_from(v).ok(),
        Value::I64(v) => usize::try_from(v).ok(),
        _ => None,
    }
}

/// Returns the largest element of an array of integers.
fn largest(array: &Array) -> Option<usize> {
    match array {
        Array::U32(v) => v.iter().max().and_then(|&v| usize::try_from(v).ok()),
        Array::I32(v) => v.iter().max().and_then(|&v| usize::try_from(v).ok()),
        Array::U64(v) => v.iter().max().and_then(|&v| usize::try_from(v).ok()),
        Array::I64(v) => v.iter().max().and_then(|&v| usize::try_from(v).ok()),
        _ => None,
    }
}
