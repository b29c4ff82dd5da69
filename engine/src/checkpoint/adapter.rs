//! Low-rank adapters of published checkpoints (LoRA, as the PEFT library saves them), and their conversion to GGUF.
//!
//! The rows of an adapter's second factor correspond to the rows of the weight. Steps of the checkpoint section that
//! select and reorder rows therefore apply to this factor. The first factor does not change.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kernels::GgmlType;
use regex_lite::Regex;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::CheckpointError;
use super::config::Config;
use super::data::{DataChange, DataError, Piece, TensorData, WriteBuffers};
use super::plan::{self, ConvertedTensor};
use super::safetensors::SourceType;
use super::shards::Shards;
use super::view::View;
use crate::gguf::GgufWriter;
use crate::model::{Architecture, Registered};

/// Maximum size of `adapter_config.json`, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// Settings of an adapter.
#[derive(Debug, Deserialize)]
struct AdapterConfig {
    #[serde(default)]
    peft_type: Option<String>,
    r: f64,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    alpha_pattern: AlphaPattern,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
}

/// An adapter whose factors match an architecture.
pub struct AdapterConversion {
    /// Architecture of the base model.
    pub arch: &'static Architecture,
    /// Numerator of the scale; the denominator is the rank.
    pub alpha: f64,
    /// Name of the base model, if the adapter has one.
    pub base: Option<String>,
    /// Adapted weights.
    pub weights: Vec<AdaptedWeight>,
    path: PathBuf,
    first: Shards,
    second: Shards,
}

/// Weight with its factors.
pub struct AdaptedWeight {
    /// GGUF name of the weight.
    pub name: String,
    /// Rank of the factors.
    pub rank: usize,
    /// Names of the adapted weights in the checkpoint; several for a stack of experts.
    pub from: Vec<String>,
    /// Sizes of both factors, innermost dimension first.
    pub shapes: [Vec<usize>; 2],
    /// Element types of both factors.
    pub types: [GgmlType; 2],
    views: [Vec<View>; 2],
    changes: Vec<DataChange>,
}

impl AdapterConversion {
    /// Reads an adapter and matches its factors with an architecture. `path` is the directory of the adapter, and
    /// `base` the path of the base model's `config.json`.
    pub fn open(path: &Path, base: &Path, archs: &[Registered]) -> Result<AdapterConversion, CheckpointError> {
        let config = read_config(&path.join("adapter_config.json"))?;
        let file = path.join("adapter_model.safetensors");
        let all = Shards::open(&file)?;
        if let Some(other) = all.iter().find(|t| split(&t.name).is_none()) {
            let text = "is not a factor of a low-rank adapter";
            return Err(CheckpointError::tensor(&file, &other.name, text));
        }
        let factor = |shards: Shards, n: usize| {
            shards.renamed(|name| {
                let (module, factor) = split(name)?;
                (factor.index == n).then(|| format!("{module}.weight"))
            })
        };
        let embeddings: Vec<String> = all
            .iter()
            .filter_map(|t| split(&t.name).filter(|(_, factor)| factor.is_embedding))
            .map(|(module, _)| format!("{module}.weight"))
            .collect();
        let (first, second) = (factor(all, 0)?, factor(Shards::open(&file)?, 1)?);
        let base_config = Config::read(&base.join("config.json"))?;
        let (arch, tensors) = plan::of_rows(&base_config, &second, archs)?;
        let mut adapter = AdapterConversion {
            arch,
            alpha: alpha(&config),
            base: config.base_model_name_or_path.clone(),
            weights: Vec::new(),
            path: file,
            first,
            second,
        };
        for tensor in tensors {
            let is_embedding = tensor.from.iter().any(|name| embeddings.contains(name));
            let weight = adapter.weight(tensor, &config, is_embedding)?;
            adapter.weights.push(weight);
        }
        if let Some(t) = adapter.first.iter().find(|t| adapter.second.get(&t.name).is_none()) {
            return Err(adapter.error(&t.name, "has no second factor"));
        }
        Ok(adapter)
    }

    fn error(&self, name: &str, text: impl Into<String>) -> CheckpointError {
        CheckpointError::tensor(&self.path, name.trim_end_matches(".weight"), text)
    }

    /// Matches the factors of a weight.
    fn weight(
        &self,
        tensor: ConvertedTensor,
        config: &AdapterConfig,
        is_embedding: bool,
    ) -> Result<AdaptedWeight, CheckpointError> {
        let first_name = tensor.from.first().cloned().unwrap_or_default();
        let error = |text: String| self.error(&first_name, text);
        let rank = tensor.shape[0];
        let (mut views, mut shape, mut ty) = (Vec::new(), Vec::new(), SourceType::F32);
        for name in &tensor.from {
            let Some(source) = self.first.get(name) else {
                return Err(self.error(name, "has no first factor"));
            };
            if source.shape.len() != 2 || source.shape[0] != rank {
                let text = format!("has a first factor of shape {:?}, expected [{rank}, _]", source.shape);
                return Err(self.error(name, text));
            }
            let mut view = View::new(&source.shape);
            if is_embedding {
                // Rows of the first factor are looked up by token.
                view.transpose().map_err(error)?;
            }
            shape = view.shape();
            ty = source.ty;
            views.push(view);
        }
        let mut shapes = [shape, tensor.shape.clone()];
        shapes[0].reverse();
        if let Some(n) = tensor.shape.get(2) {
            shapes[0].push(*n);
        }
        let mut changes = tensor
            .parts()
            .first()
            .map_or_else(Vec::new, |part| part.changes.to_vec());
        let factor = factor(config, &first_name, rank) * rank as f64 / self.alpha;
        if (factor - 1.0).abs() > 1e-9 {
            changes.push(DataChange::Times(factor));
        }
        Ok(AdaptedWeight {
            rank,
            shapes,
            types: [output(ty), tensor.ty],
            views: [views, tensor.parts().iter().map(|part| part.view.clone()).collect()],
            changes,
            name: tensor.name,
            from: tensor.from,
        })
    }

    /// Writes the file. `progress` is called with the number of weights written and stops the conversion by
    /// returning false.
    pub fn write(&self, out: &mut dyn Write, progress: &dyn Fn(usize) -> bool) -> Result<(), CheckpointError> {
        let failed = std::cell::RefCell::new(None);
        let mut writer = GgufWriter::new();
        writer
            .set("general.type", "adapter")
            .set("general.architecture", self.arch.name)
            .set("adapter.type", "lora")
            .set("adapter.lora.alpha", self.alpha as f32);
        if let Some(base) = &self.base {
            writer
                .set("general.base_model.0.name", base.as_str())
                .set("general.base_model.count", 1u32);
        }
        for (i, weight) in self.weights.iter().enumerate() {
            for (factor, suffix) in ["lora_a", "lora_b"].into_iter().enumerate() {
                let failed = &failed;
                let name = format!("{}.{suffix}", weight.name);
                writer.add_tensor_with(name, weight.types[factor], &weight.shapes[factor], move |out| {
                    let result = self.write_factor(weight, factor, out);
                    let stop = |error| {
                        *failed.borrow_mut() = Some(error);
                        io::Error::other("stopped")
                    };
                    match result {
                        Ok(()) if progress(i + factor) => Ok(()),
                        Ok(()) => Err(stop(CheckpointError::Stopped)),
                        Err(DataError::Io(error)) => Err(error),
                        Err(DataError::BadElement(bad)) => Err(stop(self.error(&bad.name, bad.text()))),
                    }
                })?;
            }
        }
        let written = writer.write(out);
        if let Some(error) = failed.into_inner() {
            return Err(error);
        }
        written?;
        self.second.check_unchanged()
    }

    fn write_factor(&self, weight: &AdaptedWeight, factor: usize, out: &mut dyn Write) -> Result<(), DataError> {
        let shards = if factor == 0 { &self.first } else { &self.second };
        let changes = if factor == 0 { &[] } else { &weight.changes[..] };
        let pieces = weight
            .from
            .iter()
            .zip(&weight.views[factor])
            .filter_map(|(name, view)| {
                Some(Piece {
                    name: name.clone(),
                    ty: shards.get(name)?.ty,
                    bytes: shards.data(name),
                    view: view.clone(),
                    scales: None,
                    blocks: None,
                    packed: None,
                    changes,
                })
            });
        let data = TensorData {
            ty: weight.types[factor],
            pieces: pieces.collect(),
            row: weight.shapes[factor][0],
        };
        data.write(&mut WriteBuffers::default(), out)
    }
}

/// Returns the GGUF type of a factor.
fn output(source: SourceType) -> GgmlType {
    match source {
        SourceType::F32 | SourceType::F64 => GgmlType::F32,
        SourceType::F16 => GgmlType::F16,
        _ => GgmlType::BF16,
    }
}

/// Factor that a tensor name denotes.
struct Factor {
    /// 0 for `lora_A`, and 1 for `lora_B`.
    index: usize,
    is_embedding: bool,
}

/// Splits a tensor name into the adapted module and the factor.
fn split(name: &str) -> Option<(&str, Factor)> {
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    for (mark, index, is_embedding) in [
        (".lora_A", 0, false),
        (".lora_B", 1, false),
        (".lora_embedding_A", 0, true),
        (".lora_embedding_B", 1, true),
    ] {
        if let Some((module, rest)) = name.split_once(mark)
            && ["", ".weight", ".default", ".default.weight"].contains(&rest)
        {
            return Some((module, Factor { index, is_embedding }));
        }
    }
    None
}

/// Numerators of the scales of the modules whose names match. The first match counts.
#[derive(Debug, Default)]
struct AlphaPattern(Vec<(Regex, f64)>);

impl AlphaPattern {
    /// Returns the numerator for a module.
    fn of(&self, module: &str) -> Option<f64> {
        let found = self.0.iter().find(|(pattern, _)| pattern.is_match(module));
        found.map(|(_, alpha)| *alpha)
    }
}

impl<'de> Deserialize<'de> for AlphaPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AlphaPattern, D::Error> {
        deserializer.deserialize_map(AlphaPatternVisitor)
    }
}

struct AlphaPatternVisitor;

impl<'de> Visitor<'de> for AlphaPatternVisitor {
    type Value = AlphaPattern;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of regular expressions to numbers")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<AlphaPattern, M::Error> {
        let mut patterns = Vec::new();
        while let Some((key, alpha)) = map.next_entry::<String, f64>()? {
            // PEFT matches the last components of the name.
            let pattern = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$")).map_err(|error| {
                serde::de::Error::custom(format_args!("`alpha_pattern`: {key:?} is not supported: {error}"))
            })?;
            patterns.push((pattern, alpha));
        }
        Ok(AlphaPattern(patterns))
    }
}

fn read_config(path: &Path) -> Result<AdapterConfig, CheckpointError> {
    let io = |error| CheckpointError::Io {
        path: path.to_owned(),
        error,
    };
    if fs::metadata(path).map_err(io)?.len() > MAX_CONFIG {
        return Err(CheckpointError::config(path, "the file is too long"));
    }
    let text = fs::read_to_string(path).map_err(io)?;
    let config: AdapterConfig =
        serde_json::from_str(&text).map_err(|error| CheckpointError::config(path, error.to_string()))?;
    if let Some(kind) = config.peft_type.as_deref().filter(|kind| *kind != "LORA") {
        let text = format!("`peft_type` is {kind:?}; only \"LORA\" can be converted");
        return Err(CheckpointError::config(path, text));
    }
    if config.use_dora {
        let text = "`use_dora` is true; GGUF adapters cannot store the magnitudes of DoRA. Merge the adapter instead";
        return Err(CheckpointError::config(path, text));
    }
    let numbers = [config.r, config.lora_alpha];
    if numbers
        .into_iter()
        .chain(config.alpha_pattern.0.iter().map(|(_, alpha)| *alpha))
        .any(|n| !n.is_finite() || n <= 0.0)
    {
        return Err(CheckpointError::config(path, "`r` and `lora_alpha` must be positive"));
    }
    Ok(config)
}

/// Returns the numerator of the scale of all weights; the denominator is the rank of each.
fn alpha(config: &AdapterConfig) -> f64 {
    if config.use_rslora {
        config.lora_alpha * config.r.sqrt()
    } else {
        config.lora_alpha
    }
}

/// Returns the scale of a weight, which `alpha_pattern` can change.
fn factor(config: &AdapterConfig, weight: &str, rank: usize) -> f64 {
    let module = weight.trim_end_matches(".weight");
    let alpha = config.alpha_pattern.of(module).unwrap_or(config.lora_alpha);
    if config.use_rslora {
        alpha / (rank as f64).sqrt()
    } else {
        alpha / rank as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PEFT finds a key with `re.match(rf"(.*\.)?({key})$", name)`, in the order of the file.
    #[test]
    fn alpha_pattern_matches_the_end_of_names_as_regular_expressions() {
        let text = r#"{"r": 8, "lora_alpha": 16, "alpha_pattern": {
            "layers\\.[01]\\.mlp\\.up_proj": 3, "up_proj|down_proj": 5, "q": 7
        }}"#;
        let config: AdapterConfig = serde_json::from_str(text).unwrap();
        let scale = |name: &str| 8.0 * factor(&config, name, 8);
        for (name, expected) in [
            ("model.layers.1.mlp.up_proj.weight", 3.0),
            ("model.layers.11.mlp.up_proj.weight", 5.0),
            ("model.layers.2.mlp.down_proj.weight", 5.0),
            ("model.layers.2.self_attn.q.weight", 7.0),
            ("model.layers.2.self_attn.seq.weight", 16.0),
            ("up_proj", 5.0),
        ] {
            assert_eq!(scale(name), expected, "{name}");
        }
        let error = serde_json::from_str::<AdapterConfig>(&text.replace("up_proj|", "(?=up)|"));
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("`alpha_pattern`: \"(?=up)|down_proj\"")
        );
    }
}
