//! Scaling of rotary positions: keys, and the factors that GGUF files store as tensors.

use serde_json::Value as Json;

use super::CheckpointError;
use super::config::Config;
use crate::gguf::Metadata;

/// Maximum number of rotated elements of a head.
const MAX_ROT: usize = 1 << 16;

/// Frequency factors of a model: tensor name and values.
pub type Factors = Vec<(&'static str, Vec<f32>)>;

/// A rotary scaling of a configuration.
struct Scaling<'a> {
    config: &'a Config,
    json: &'a Json,
    kind: &'a str,
    /// Number of rotated elements of a head.
    n_rot: usize,
}

impl Scaling<'_> {
    fn number(&self, name: &str) -> Option<f64> {
        self.json.get(name).and_then(Json::as_f64)
    }

    fn needed(&self, name: &str) -> Result<f64, CheckpointError> {
        self.number(name).ok_or_else(|| {
            let text = format!("the rotary scaling `{}` has no `{name}`", self.kind);
            CheckpointError::config(self.config.path(), text)
        })
    }

    /// Returns the context length before the extension.
    fn original(&self) -> Option<f64> {
        let name = "original_max_position_embeddings";
        self.number(name).or_else(|| self.config.number(name))
    }

    /// Returns one factor per pair of rotated elements.
    fn list(&self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let list = self.json.get(name).and_then(Json::as_array);
        let number = |v: &Json| v.as_f64().map(|x| x as f32);
        let list: Option<Vec<f32>> = list.and_then(|l| l.iter().map(number).collect());
        list.filter(|l| l.len() == self.n_rot / 2).ok_or_else(|| {
            let text = format!("`{name}` is not a list of {} numbers", self.n_rot / 2);
            CheckpointError::config(self.config.path(), text)
        })
    }

    /// Returns the factors of Llama 3: long wavelengths are stretched, short ones are not.
    fn llama3(&self, freq_base: f64) -> Result<Factors, CheckpointError> {
        let factor = self.needed("factor")?;
        let (low, high) = (self.needed("low_freq_factor")?, self.needed("high_freq_factor")?);
        let original = self.needed("original_max_position_embeddings")?;
        let of = |i: usize| {
            let wavelength = 2.0 * std::f64::consts::PI * freq_base.powf(2.0 * i as f64 / self.n_rot as f64);
            if wavelength < original / high {
                return 1.0;
            }
            if wavelength > original / low {
                return factor as f32;
            }
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        };
        Ok(vec![("rope_freqs", (0..self.n_rot / 2).map(of).collect())])
    }
}

impl Scaling<'_> {
    /// Returns factors that rotate only the first pairs, at the frequencies of a head without other pairs.
    fn proportional(&self) -> Factors {
        let part = self.number("partial_rotary_factor").unwrap_or(1.0);
        let n_rotated = (self.n_rot as f64 * part / 2.0) as usize;
        let of = |i: usize| if i < n_rotated { 1.0 } else { 1e30 };
        vec![("rope_freqs", (0..self.n_rot / 2).map(of).collect())]
    }

    /// Returns the attention factor of YaRN; `None` for the default.
    fn yarn_attention(&self, factor: f64, has_own_mscale: bool) -> Result<Option<f64>, CheckpointError> {
        let [mscale, all_dim] = ["mscale", "mscale_all_dim"].map(|name| self.number(name).filter(|x| *x != 0.0));
        let of = |mscale: f64| {
            if factor > 1.0 {
                0.1 * mscale * factor.ln() + 1.0
            } else {
                1.0
            }
        };
        let given = self.number("attention_factor");
        if has_own_mscale {
            if given.is_some() || mscale.is_none() || mscale != all_dim {
                let text =
                    "the rotary scaling `yarn` must have equal `mscale` and `mscale_all_dim` for this architecture";
                return Err(CheckpointError::config(self.config.path(), text));
            }
            return Ok(None);
        }
        Ok(given.or_else(|| mscale.zip(all_dim).map(|(mscale, all_dim)| of(mscale) / of(all_dim))))
    }

    /// Returns the original context length, the attention factor, and the frequency factors of LongRoPE.
    fn longrope(&self) -> Result<(f64, f64, Factors), CheckpointError> {
        let trained = self.config.number("max_position_embeddings");
        let Some((original, trained)) = self.original().zip(trained) else {
            let text = "the rotary scaling `longrope` has no `original_max_position_embeddings`";
            return Err(CheckpointError::config(self.config.path(), text));
        };
        let extension = trained / original;
        let usual = if extension > 1.0 {
            (1.0 + extension.ln() / original.ln()).sqrt()
        } else {
            1.0
        };
        let factors = vec![
            ("rope_factors_long", self.list("long_factor")?),
            ("rope_factors_short", self.list("short_factor")?),
        ];
        Ok((original, self.number("attention_factor").unwrap_or(usual), factors))
    }
}

/// Returns an error if heads have more rotated elements than any model.
fn check_rotated(config: &Config, n_rot: usize) -> Result<(), CheckpointError> {
    if n_rot <= MAX_ROT {
        return Ok(());
    }
    let text = format!("heads have {n_rot} rotated elements; the maximum is {MAX_ROT}");
    Err(CheckpointError::config(config.path(), text))
}

/// Writes the metadata keys of a configuration's RoPE scaling, and returns the frequency factors. With `has_own_mscale`,
/// the graph computes the attention factor of YaRN from `mscale_all_dim`.
pub fn scaling(
    config: &Config,
    arch: &str,
    n_rot: usize,
    freq_base: f64,
    has_own_mscale: bool,
    metadata: &mut Metadata,
) -> Result<Factors, CheckpointError> {
    check_rotated(config, n_rot)?;
    let paths = ["rope_parameters.full_attention", "rope_parameters", "rope_scaling"];
    let json = paths
        .into_iter()
        .find_map(|path| config.get(path).filter(|v| v.is_object()));
    let Some(json) = json else {
        return Ok(Vec::new());
    };
    let mut kinds = ["rope_type", "type"].into_iter();
    let kind = kinds.find_map(|k| json.get(k)?.as_str()).unwrap_or("default");
    let s = Scaling {
        config,
        json,
        kind,
        n_rot,
    };
    let trained = config.number("max_position_embeddings");
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    let set = |metadata: &mut Metadata, name: &str, value: f64| metadata.insert(key(name), value as f32);
    match kind {
        // `dynamic` changes positions only beyond the training context.
        "default" | "mrope" | "dynamic" => Ok(Vec::new()),
        "linear" => {
            metadata.insert(key("type"), "linear");
            set(metadata, "factor", s.needed("factor")?);
            Ok(Vec::new())
        }
        "yarn" => {
            let factor = s.needed("factor")?;
            metadata.insert(key("type"), "yarn");
            set(metadata, "factor", factor);
            if let Some(original) = s.original().or(trained) {
                metadata.insert(key("original_context_length"), original as u32);
            }
            for (name, from) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(value) = s.number(from) {
                    set(metadata, name, value);
                }
            }
            if let Some(attention) = s.yarn_attention(factor, has_own_mscale)? {
                // The engine multiplies the factor by the factor of the YaRN paper.
                set(metadata, "attn_factor", attention / (0.1 * factor.ln() + 1.0));
            }
            Ok(Vec::new())
        }
        "llama3" => s.llama3(freq_base),
        "proportional" => Ok(s.proportional()),
        "longrope" | "su" => {
            metadata.insert(key("type"), "longrope");
            let (original, attention, factors) = s.longrope()?;
            metadata.insert(key("original_context_length"), original as u32);
            set(metadata, "attn_factor", attention);
            Ok(factors)
        }
        other => Err(CheckpointError::config(
            config.path(),
            format!("unknown rotary scaling `{other}`; known are linear, dynamic, yarn, llama3, and longrope"),
        )),
    }
}
