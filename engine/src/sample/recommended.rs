//! How a model's authors would have it sampled: what the file says, else what is known of its family.

use super::SamplerParams;
use crate::gguf::{Metadata, Value};

/// Keys of a file under which recommended settings stand.
const PREFIX: &str = "general.sampling.";

/// What the authors of a family recommend for its instruct models.
struct Family {
    /// The words that names begin with. A size follows: `Qwen3 0.6B` is of the family `qwen3`, `Qwen3 Coder` is another.
    name: &'static [&'static str],
    /// Keys below [`PREFIX`], and their values.
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

/// Does a name begin with these words, and go on with a size, as `0.6B` and `135M` are?
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

/// Recommended settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommended {
    /// The defaults with what is recommended.
    pub params: SamplerParams,
    /// Names of the parameters that are recommended otherwise than the defaults are.
    pub names: Vec<&'static str>,
    /// Keys of the file whose values no parameter can have.
    pub refused: Vec<String>,
}

impl Recommended {
    /// What a file with this metadata recommends. What is known of families is for texts with some chance in them: it is left out where
    /// the most likely token is wanted (`greedy`).
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
        let Some(def) = super::ParamDef::find(name).filter(|_| self.params.set(name, &[text]).is_ok()) else {
            return false;
        };
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
        // As short as floats of 32 bits are written.
        None => value.as_f64().map(|x| (x as f32).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_known_by_its_name_and_the_file_has_the_last_word() {
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
    fn families_are_told_from_their_relatives() {
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
    fn absurd_values_are_refused_and_told() {
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
