//! Drafts of models derived from an architecture's declaration: given the metadata keys, the tensors follow.

use std::collections::BTreeSet;
use std::path::PathBuf;

use kernels::GgmlType;

use crate::gguf::{Gguf, GgufError, GgufWriter, Metadata, StringArray, Value, seeded};
use crate::model::{
    Architecture, HparamDecl, LoadParams, LoadPlan, ModelError, Registered, TensorDecl, TensorError, plan,
    projector_type,
};

/// Context length of a drafted model, in tokens.
const N_CTX: u32 = 256;

/// Color means and deviations of a drafted encoder. They differ by channel, so that swapped channels are detected.
const IMAGE_MEAN: [f32; 3] = [0.5, 0.45, 0.4];
const IMAGE_STD: [f32; 3] = [0.5, 0.55, 0.6];

/// Maximum number of passes to resolve dependencies between tensors.
const MAX_ROUNDS: usize = 8;

/// A model without weights: metadata, and the name and shape of every tensor.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Metadata keys.
    pub metadata: Metadata,
    /// Names and shapes of the tensors, innermost dimension first.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// Names of the I32 tensors, which list experts for each token. All other tensors are F32.
    pub integers: BTreeSet<String>,
}

impl Draft {
    /// Creates a draft from a file's header.
    pub fn of(header: &Gguf) -> Draft {
        let tensors = header.tensors();
        Draft {
            metadata: header.metadata.clone(),
            tensors: tensors.iter().map(|t| (t.name.clone(), t.shape().to_vec())).collect(),
            integers: (tensors.iter().filter(|t| t.ty == GgmlType::I32))
                .map(|t| t.name.clone())
                .collect(),
        }
    }

    /// Creates the model of a declaration's `test { … }`, with either all compatible optional tensors or none
    /// that the graph can omit. Required keys that are not sizes get [typical values](usual_value).
    pub fn of_declaration(
        arch: &'static Architecture,
        archs: &[Registered],
        with_optional: bool,
    ) -> Result<Draft, ModelError> {
        Self::of_sizes(arch, archs, arch.test, |_| with_optional)
    }

    /// Creates a model with the given sizes and other hyperparameters, in the form of `test { … }`. Like
    /// [`Draft::of_declaration`], with a choice for each optional tensor.
    pub fn of_sizes(
        arch: &'static Architecture,
        archs: &[Registered],
        sizes: &[(&str, f64)],
        wants: impl Fn(&TensorDecl) -> bool,
    ) -> Result<Draft, ModelError> {
        let mut draft = Draft {
            metadata: metadata(arch, sizes),
            ..Draft::default()
        };
        let optional = || arch.tensors.iter().filter(|t| t.optional || t.tied.is_some());
        let complete = match draft.settle(archs) {
            Ok(()) => true,
            // The graph needs one of several optional tensors.
            Err(ModelError::Graph { .. }) => false,
            Err(e) => return Err(e),
        };
        let wanted = optional().filter(|t| !complete || wants(t));
        wanted.for_each(|t| draft.add_optional(t, archs));
        let unwanted = optional().filter(|t| !complete && !wants(t));
        unwanted.for_each(|t| draft.remove_optional(t, archs));
        draft.plan(archs)?;
        Ok(draft)
    }

    /// Adds a bias to each norm, projection, and stack of experts that can have one and that `wants` selects.
    /// Returns the names of the changed tensors without layer and `.weight`.
    pub fn add_biases(
        &mut self,
        arch: &'static Architecture,
        archs: &[Registered],
        wants: impl Fn(&TensorDecl) -> bool,
    ) -> Vec<&'static str> {
        let kinds = ["norm", "linear", "experts"];
        let candidates = arch.tensors.iter().filter(|t| kinds.contains(&t.kind) && wants(t));
        candidates.filter(|t| self.add_bias(t, archs)).map(|t| t.gguf).collect()
    }

    /// Adds the biases of a declared tensor in all its layers. Returns false if it has none.
    fn add_bias(&mut self, t: &TensorDecl, archs: &[Registered]) -> bool {
        let mut trial = self.clone();
        let weights = self.names_of(t).into_iter().filter(|name| self.has(name));
        let biases = weights.filter_map(|name| Some(format!("{}.bias", name.strip_suffix(".weight")?)));
        let biases: Vec<String> = biases.filter(|name| !self.has(name)).collect();
        // `settle` determines the shape.
        trial.tensors.extend(biases.iter().map(|name| (name.clone(), vec![1])));
        // A declaration may ignore a bias, which then keeps its shape.
        let has_shape = |trial: &Draft, bias: &String| trial.tensors.iter().any(|(n, ne)| n == bias && *ne != [1]);
        let added = !biases.is_empty() && trial.settle(archs).is_ok() && biases.iter().all(|b| has_shape(&trial, b));
        if added {
            *self = trial;
        }
        added
    }

    /// Returns the architecture's name.
    pub fn arch(&self) -> &str {
        let name = self.metadata.get("general.architecture");
        let name = name.and_then(Value::as_str).unwrap_or_default();
        projector_type(&self.metadata).unwrap_or(name)
    }

    /// Plans loading the model, or returns how it differs from the architecture's declaration.
    pub fn plan(&self, archs: &[Registered]) -> Result<LoadPlan, ModelError> {
        let path = PathBuf::from(format!("{}.header.gguf", self.arch()));
        let all = LoadParams {
            mtp: true,
            ..LoadParams::default()
        };
        plan(&self.header()?, &path, archs, &all)
    }

    /// Sets tensors to their declared shapes, adds missing tensors, and removes undeclared ones.
    pub fn settle(&mut self, archs: &[Registered]) -> Result<(), ModelError> {
        for _ in 0..MAX_ROUNDS {
            match self.plan(archs) {
                Err(ModelError::Tensors { errors, .. }) => errors.into_iter().for_each(|e| self.correct(e)),
                Err(error @ ModelError::Graph { .. }) => return self.find_integers(archs).ok_or(error),
                other => return other.map(|_| ()),
            }
        }
        self.plan(archs).map(|_| ())
    }

    fn correct(&mut self, error: TensorError) {
        match error {
            TensorError::Missing { name, shape, .. } => self.tensors.push((name, shape)),
            TensorError::Unexpected { name, .. } => self.tensors.retain(|(n, _)| *n != name),
            TensorError::WrongShape { name, expected, .. } => {
                let found = self.tensors.iter_mut().filter(|(n, _)| *n == name);
                found.for_each(|(_, ne)| ne.clone_from(&expected));
            }
        }
    }

    /// Converts a layer's embedding table to integers if the graph cannot be built otherwise, because it uses
    /// the rows as expert numbers.
    fn find_integers(&mut self, archs: &[Registered]) -> Option<()> {
        let arch = archs.iter().find(|r| r.arch.name == self.arch())?.arch;
        for t in arch.tensors.iter().filter(|t| t.kind == "embed" && t.group.is_some()) {
            let ending = format!(".{}.weight", t.gguf);
            let names = self.tensors.iter().map(|(name, _)| name);
            let mut trial = self.clone();
            trial.integers.extend(names.filter(|n| n.ends_with(&ending)).cloned());
            if trial.plan(archs).is_ok() {
                *self = trial;
                return Some(());
            }
        }
        None
    }

    /// Returns the header as in a fixture: truncated at the start of the tensor data.
    pub fn header_bytes(&self) -> Result<Vec<u8>, GgufError> {
        let mut writer = GgufWriter::with_metadata(self.metadata.clone());
        for (name, ne) in &self.tensors {
            writer.add_tensor_with(name.clone(), self.type_of(name), ne, |_| Ok(()))?;
        }
        writer.header()
    }

    /// Parses and returns [`Draft::header_bytes`].
    pub fn header(&self) -> Result<Gguf, GgufError> {
        Gguf::parse_header(&self.header_bytes()?)
    }

    /// Returns the whole file with [seeded] weights.
    pub fn seeded(&self, seed: u64) -> Result<Vec<u8>, GgufError> {
        seeded::seeded_model(&self.header()?, seed)
    }

    fn type_of(&self, name: &str) -> GgmlType {
        if self.integers.contains(name) {
            GgmlType::I32
        } else {
            GgmlType::F32
        }
    }

    /// Adds an optional tensor in every layer that can have it, if it is compatible with the existing
    /// tensors.
    fn add_optional(&mut self, t: &TensorDecl, archs: &[Registered]) {
        let mut trial = self.clone();
        for name in self.names_of(t).into_iter().filter(|name| !self.has(name)) {
            // `settle` determines the shape.
            trial.tensors.push((name, vec![1]));
        }
        let builds = match trial.settle(archs) {
            Ok(()) => true,
            // The tensor is one of several required alternatives.
            Err(ModelError::Graph { .. }) => self.plan(archs).is_err(),
            Err(_) => false,
        };
        if builds && self.tensors.iter().all(|(name, _)| trial.has(name)) {
            *self = trial;
        }
    }

    /// Removes an optional tensor from all layers if the graph can omit it.
    fn remove_optional(&mut self, t: &TensorDecl, archs: &[Registered]) {
        let (names, mut trial) = (self.names_of(t), self.clone());
        trial.tensors.retain(|(name, _)| !names.contains(name));
        if trial.plan(archs).is_ok() {
            *self = trial;
        }
    }

    /// Returns the names of a declared tensor in all layers of its group.
    fn names_of(&self, t: &TensorDecl) -> Vec<String> {
        let suffix = if t.kind == "raw" { "" } else { ".weight" };
        let name = format!("{}{suffix}", t.gguf);
        match t.group {
            None => vec![name],
            Some(group) => (self.layers_of(group).iter())
                .map(|il| match name.strip_prefix('/') {
                    Some(whole) => whole.replace("{}", &il.to_string()),
                    None => format!("{group}.{il}.{name}"),
                })
                .collect(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|(n, _)| n == name)
    }

    /// Returns the layer numbers of a group that have tensors.
    fn layers_of(&self, group: &str) -> BTreeSet<usize> {
        let number = |name: &str| {
            name.strip_prefix(group)?
                .strip_prefix('.')?
                .split('.')
                .next()?
                .parse()
                .ok()
        };
        self.tensors.iter().filter_map(|(name, _)| number(name)).collect()
    }
}

/// Returns the metadata of a model with the given sizes.
fn metadata(arch: &Architecture, sizes: &[(&str, f64)]) -> Metadata {
    let mut m = Metadata::default();
    m.insert("general.architecture", arch.file_arch());
    m.insert("general.name", format!("{}, seeded", arch.name));
    let full = |key: &str| match key.strip_prefix('/') {
        Some(whole) => whole.to_owned(),
        None => format!("{}.{key}", arch.key_prefix(arch.name)),
    };
    if arch.media.is_some() {
        m.insert("general.type", "mmproj");
        m.insert("clip.projector_type", arch.name);
        m.insert("clip.has_vision_encoder", true);
        m.insert(full("image_mean"), IMAGE_MEAN.to_vec());
        m.insert(full("image_std"), IMAGE_STD.to_vec());
    } else {
        m.insert(full("context_length"), N_CTX);
    }
    for &(symbol, n) in sizes {
        if let Some(key) = arch.key_of_symbol(symbol) {
            m.insert(full(key), n as u32);
        }
    }
    // The file's layer count includes multi-token prediction layers.
    let n_layers = size(sizes, "n_layer") + size(sizes, "n_mtp");
    m.insert(full("block_count"), n_layers as u32);
    let mut n_lists = 0;
    for h in arch.hparams.iter().filter(|h| !h.key.is_empty()) {
        let given = sizes.iter().find(|(name, _)| *name == h.name);
        let value = match (given, h.ty) {
            (Some(&(_, x)), "bool" | "[bool]") => Some(Value::Bool(x != 0.0)),
            (Some(&(_, x)), "f32" | "[f32]") => Some(Value::F32(x as f32)),
            (Some(&(_, n)), "[usize; ..]") => Some(Value::from(vec![0u32; n as usize])),
            (Some(&(_, x)), _) => Some(Value::U32(x as u32)),
            (None, "[bool]") if h.default.is_none() => {
                n_lists += 1;
                let turns = (0..size(sizes, "n_layer")).map(|il| il % 2 != n_lists % 2);
                Some(Value::from(turns.collect::<Vec<bool>>()))
            }
            (None, _) if h.default.is_none() => usual_value(h),
            (None, _) => None,
        };
        if let Some(value) = value {
            m.insert(full(h.key), value);
        }
    }
    if arch.needs_sections() {
        m.insert(full("rope.dimension_sections"), sections(sizes));
    }
    if arch.media.is_some() {
        return m;
    }
    let n_vocab = size(sizes, "n_vocab");
    let tokens: StringArray = (0..n_vocab).map(|i| format!("tok_{i}")).collect();
    m.insert("tokenizer.ggml.model", "test");
    m.insert("tokenizer.ggml.tokens", tokens);
    m
}

/// Returns the size named `symbol`, or 0.
fn size(sizes: &[(&str, f64)], symbol: &str) -> usize {
    let found = sizes.iter().find(|(name, _)| *name == symbol);
    found.map_or(0, |&(_, n)| n as usize)
}

/// Returns a typical value for a required key without a value in `test { … }`: 1e-5 for epsilons, 10000 for
/// rotary bases, otherwise 0.5. Unlike 1, 0.5 reveals a graph that ignores the key. Booleans alternate by
/// layer, also in lists. Returns `None` for a list that may be empty.
fn usual_value(h: &HparamDecl) -> Option<Value> {
    Some(match h.ty {
        "f32" | "[f32]" if h.key.ends_with("epsilon") || h.key.ends_with("eps") => Value::F32(1e-5),
        "f32" | "[f32]" if h.key.contains("freq_base") => Value::F32(10000.0),
        "f32" | "[f32]" => Value::F32(0.5),
        "bool" => Value::Bool(true),
        "pattern" | "dense_first" => Value::U32(2),
        "listed" => Value::from(vec![1u32]),
        "string" => Value::from(""),
        "[usize; ..]" => return None,
        _ => Value::U32(1),
    })
}

/// Returns the rotary sections of multi-axis positions: a quarter for time, the rest for height and width.
fn sections(sizes: &[(&str, f64)]) -> Value {
    let head_dim = match size(sizes, "head_dim") {
        0 => size(sizes, "n_embd") / size(sizes, "n_head").max(1),
        n => n,
    };
    let n_rot = match size(sizes, "n_rot") {
        0 => head_dim,
        n => n,
    };
    let pairs = n_rot / 2;
    let side = pairs * 3 / 8;
    Value::from(vec![(pairs - 2 * side) as i32, side as i32, side as i32, 0])
}
