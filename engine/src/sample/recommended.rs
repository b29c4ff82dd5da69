//! Recommended sampler settings of a model: from the file, or known for its family.

use super::SamplerParams;
use crate::gguf::{Metadata, Value};

/// Prefix of the GGUF keys with recommended settings.
const PREFIX: &str = "general.sampling.";

/// Settings recommended by the authors of a model family for instruct models.
struct Family {
    /// Initial words of model names, followed by a size: `Qwen3 0.6B` matches the family `qwen3`, `Qwen3
    /// Coder` does not.
    name: &'static [&'static str],
    /// Recommended settings: keys below [`PREFIX`] and their values.
    settings: &'static [(&'static str, &'static str)],
}

const FAMILIES: &[Family] = &[
    Family {
        name: &["smollm2"],
        settings: &[("temp", "0.2"), ("top_p", "0.9"), ("penalty_repeat", "1.1")],
    },
    Family {
        name: &["qwen3"],
        settings: &[("temp", "0.6"), ("top_p", "0.95"), ("top_k", "20"), ("min_p", "0")],
    },
    Family {
        name: &["qwen2.5"],
        settings: &[
            ("temp", "0.7"),
            ("top_p", "0.8"),
            ("top_k", "20"),
            ("penalty_repeat", "1.05"),
        ],
    },
    Family {
        name: &["gemma", "3"],
        settings: &[("temp", "1"), ("top_p", "0.95"), ("top_k", "64"), ("min_p", "0")],
    },
];

/// Returns true if a name starts with these words, followed by a size such as `0.6B` or `135M`.
fn is_of_family(name: &str, family: &[&str]) -> bool {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let mut words = name.split(|c: char| !is_of_word(c)).filter(|word| !word.is_empty());
    let begins = family
        .iter()
        .all(|word| words.next().is_some_and(|w| w.eq_ignore_ascii_case(word)));
    begins
        && words
            .next()
            .is_some_and(|size| size.starts_with(|c: char| c.is_ascii_digit()))
}

/// Recommended settings of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommended {
    /// Defaults with the recommendations applied.
    pub params: SamplerParams,
    /// Names of the parameters whose recommended value differs from the default.
    pub names: Vec<&'static str>,
    /// Keys of the file that have invalid values.
    pub refused: Vec<String>,
}

impl Recommended {
    /// Returns the recommendations of a file with this metadata. With `greedy`, family recommendations are
    /// ignored, because they assume random sampling.
    pub fn of(metadata: &Metadata, greedy: bool) -> Recommended {
        let mut recommended = Recommended::default();
        let name = metadata.get("general.name").and_then(Value::as_str).unwrap_or_default();
        let family = FAMILIES
            .iter()
            .find(|family| !greedy && is_of_family(name, family.name));
        for (name, value) in family.iter().flat_map(|family| family.settings) {
            recommended.set(name, value);
        }
        for (key, value) in metadata.iter() {
            let Some(name) = key.strip_prefix(PREFIX) else { continue };
            let name = if name == "sequence" { "samplers" } else { name };
            let is_set = text_of(value).is_some_and(|text| recommended.set(name, &text));
            if !is_set {
                recommended.refused.push(key.to_owned());
            }
        }
        recommended
    }

    fn set(&mut self, name: &str, text: &str) -> bool {
        let Some(def) = super::ParamDef::find(name) else {
            return false;
        };
        if self.params.set(name, &[text]).is_err() {
            return false;
        }
        self.names.retain(|known| *known != def.name);
        if (def.get)(&self.params) != def.default() {
            self.names.push(def.name);
        }
        true
    }
}

fn text_of(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    match value.as_i64() {
        Some(n) => Some(n.to_string()),
        // Formats the shortest string that round-trips as f32.
        None => value.as_f64().map(|x| (x as f32).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommendation_of_file_overrides_family() {
        let mut metadata = Metadata::default();
        metadata.insert("general.name", "Smollm2 135M 8k");
        let of_family = Recommended::of(&metadata, false);
        assert_eq!((of_family.params.temp, of_family.params.penalty_repeat), (0.2, 1.1));
        assert_eq!(Recommended::of(&metadata, true), Recommended::default());
        metadata.insert("general.sampling.temp", 0.8f32);
        metadata.insert("general.sampling.top_k", 20u32);
        metadata.insert("general.sampling.sequence", "kt");
        let of_file = Recommended::of(&metadata, false);
        assert_eq!((of_file.params.temp, of_file.params.top_k), (0.8, 20));
        assert_eq!(of_file.params.samplers.len(), 2);
        assert_eq!(of_file.names, ["top_p", "penalty_repeat", "top_k", "samplers"]);
        assert!(of_file.refused.is_empty());
    }

    #[test]
    fn family_name_matches_exactly() {
        let known = |name: &str| FAMILIES.iter().any(|family| is_of_family(name, family.name));
        for name in [
            "Smollm2 135M 8k",
            "Qwen3 0.6B",
            "Qwen2.5-7B-Instruct",
            "gemma-3-270m",
            "Gemma 3 4b It",
        ] {
            assert!(known(name), "{name}");
        }
        for name in [
            "",
            "Qwen3",
            "Qwen3-Coder-30B",
            "Qwen3.5 9B",
            "Gemma 3n E4B",
            "gemma-2-9b",
            "smollm 135M",
        ] {
            assert!(!known(name), "{name}");
        }
    }

    #[test]
    fn invalid_recommendations_are_reported() {
        let mut metadata = Metadata::default();
        metadata.insert("general.sampling.top_p", 7.5f32);
        metadata.insert("general.sampling.temp", f32::NAN);
        metadata.insert("general.sampling.unheard_of", 1u32);
        metadata.insert("general.sampling.top_k", "many");
        let recommended = Recommended::of(&metadata, false);
        assert_eq!(recommended.params, SamplerParams::default());
        assert_eq!(recommended.refused.len(), 4, "{recommended:?}");
    }
}
