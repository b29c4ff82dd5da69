//! Value parsers shared by several commands.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use engine::builder::Pooling;
use engine::context::{ContextParams, MAX_SEQUENCES};
use engine::quantize::Mixture;
use kernels::GgmlType;

/// Words for true, in lower case. The first one is shown in help; llama.cpp accepts the first four.
const ON: [&str; 7] = ["on", "true", "1", "enabled", "yes", "t", "y"];
/// Words for false, in lower case. The first one is shown in help; llama.cpp accepts the first four.
const OFF: [&str; 7] = ["off", "false", "0", "disabled", "no", "f", "n"];

/// Parses a boolean of an environment variable or a preset file. Case is ignored.
pub fn boolean(text: &str) -> Option<bool> {
    let is_in = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is_in(&ON) {
        Some(true)
    } else if is_in(&OFF) {
        Some(false)
    } else {
        None
    }
}

fn on() -> PossibleValue {
    PossibleValue::new(ON[0]).aliases(ON.into_iter().skip(1))
}

fn off() -> PossibleValue {
    PossibleValue::new(OFF[0]).aliases(OFF.into_iter().skip(1))
}

/// Returns a parser of `on` and `off`, which also accepts their synonyms.
pub fn on_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new([on(), off()]).map(|text| boolean(&text) == Some(true))
}

/// Setting that is on, off, or chosen automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Toggle {
    On,
    Off,
    #[default]
    Auto,
}

impl Toggle {
    /// Returns the explicit choice, or `None` for `auto`.
    pub fn choice(self) -> Option<bool> {
        match self {
            Toggle::On => Some(true),
            Toggle::Off => Some(false),
            Toggle::Auto => None,
        }
    }
}

impl ValueEnum for Toggle {
    fn value_variants<'a>() -> &'a [Toggle] {
        &[Toggle::On, Toggle::Off, Toggle::Auto]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Toggle::On => on(),
            Toggle::Off => off(),
            Toggle::Auto => PossibleValue::new("auto").alias("-1"),
        })
    }
}

/// Supported data types of the KV cache.
const CACHE_TYPES: &[GgmlType] = &[
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q5_1,
    GgmlType::Q5_0,
    GgmlType::Q4_1,
    GgmlType::Q4_0,
    GgmlType::IQ4_NL,
];

/// Parses a KV cache data type.
pub fn cache_type(text: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(text).filter(|ty| CACHE_TYPES.contains(ty));
    ty.ok_or_else(|| {
        let names: Vec<_> = CACHE_TYPES.iter().map(|ty| ty.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Parses a positive integer.
pub fn positive(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|&n| n > 0);
    n.ok_or_else(|| "expected a positive integer".to_owned())
}

/// Parses a size in bytes with an optional unit: `65536`, `64KiB`, `500MB`, `4.5G`. Units without `i` are decimal.
pub fn byte_size(text: &str) -> Result<usize, String> {
    let error = || "expected a positive size, such as 64KiB, 500MB, or 2GiB".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let end = end.unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let factor: usize = match unit.strip_suffix('b').unwrap_or(&unit) {
        "" => 1,
        "k" => 1000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        "ti" => 1 << 40,
        _ => return Err(error()),
    };
    let n = if number.contains('.') {
        let number: f64 = number.parse().map_err(|_| error())?;
        Some((number * factor as f64).round())
            .filter(|n| *n < usize::MAX as f64)
            .map(|n| n as usize)
    } else {
        number.parse().ok().and_then(|number: usize| number.checked_mul(factor))
    };
    n.filter(|&n| n > 0).ok_or_else(error)
}

/// Upper bound on thread counts; guards against typos.
const MAX_THREADS: usize = 1024;

/// Parses a thread count; 0 and -1 both mean one thread per core.
pub fn threads(text: &str) -> Result<usize, String> {
    if matches!(text, "0" | "-1") {
        return Ok(ContextParams::default().n_threads);
    }
    let n = text.parse().ok().filter(|n| (1..=MAX_THREADS).contains(n));
    n.ok_or_else(|| format!("expected an integer from 1 to {MAX_THREADS}, or -1 for one thread per core"))
}

/// Parses a context size; 0 and -1 both mean the training context.
pub fn context_size(text: &str) -> Result<usize, String> {
    let n = if text == "-1" { Some(0) } else { text.parse().ok() };
    n.ok_or_else(|| "expected a number of tokens, or 0 for the model's training context".to_owned())
}

/// Parses a positive, finite f32.
pub fn positive_float(text: &str) -> Result<f32, String> {
    let x = text.parse().ok().filter(|x: &f32| *x > 0.0 && x.is_finite());
    x.ok_or_else(|| "expected a positive number".to_owned())
}

/// Parses a positive, finite f64.
pub fn positive_float_64(text: &str) -> Result<f64, String> {
    let x = text.parse().ok().filter(|x: &f64| *x > 0.0 && x.is_finite());
    x.ok_or_else(|| "expected a positive number".to_owned())
}

/// Parses a non-negative, finite f32.
pub fn at_least_0(text: &str) -> Result<f32, String> {
    let x = text.parse().ok().filter(|x: &f32| *x >= 0.0 && x.is_finite());
    x.ok_or_else(|| "expected a non-negative number".to_owned())
}

/// Parses a number of sequences.
pub fn sequences(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=MAX_SEQUENCES).contains(n));
    n.ok_or_else(|| format!("expected an integer from 1 to {MAX_SEQUENCES}"))
}

/// Parses a pooling method.
pub fn pooling_mode(text: &str) -> Result<Pooling, String> {
    let found = Pooling::ALL.iter().find(|(name, _)| *name == text);
    found.map(|&(_, pooling)| pooling).ok_or_else(|| {
        let names: Vec<_> = Pooling::ALL.iter().map(|(name, _)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Parses the name of a mixture of types.
pub fn mixture(text: &str) -> Result<Mixture, String> {
    Mixture::find(text).ok_or_else(|| {
        let names: Vec<_> = Mixture::names().collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Parses a finite f32.
pub fn finite(text: &str) -> Option<f32> {
    text.parse().ok().filter(|x: &f32| x.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_size_has_decimal_and_binary_units() {
        for (text, n) in [
            ("65536", 65536),
            ("64KiB", 65536),
            ("64 kib", 65536),
            ("500MB", 500_000_000),
            ("2G", 2_000_000_000),
            ("1.5G", 1_500_000_000),
            ("4.5 KiB", 4608),
            ("7B", 7),
        ] {
            assert_eq!(byte_size(text), Ok(n), "{text}");
        }
        for text in ["", "0", "-1", "1.5.G", ".", "0.0001K", "GiB", "2X", "99999999999TiB"] {
            assert!(byte_size(text).is_err(), "{text}");
        }
    }

    /// The words that llama.cpp's `is_truthy`, `is_falsey`, and `is_autoy` accept.
    #[test]
    fn toggle_accepts_words_of_llama_cpp() {
        let toggle = |text| <Toggle as ValueEnum>::from_str(text, true);
        for (words, value) in [
            (&["on", "enabled", "true", "1", "True", "YES"][..], Toggle::On),
            (&["off", "disabled", "false", "0", "False"], Toggle::Off),
            (&["auto", "-1"], Toggle::Auto),
        ] {
            for word in words {
                assert_eq!(toggle(word), Ok(value), "{word}");
                if let Some(choice) = value.choice() {
                    assert_eq!(boolean(word), Some(choice), "{word}");
                }
            }
        }
        for word in ["", "2", "perhaps", "autos"] {
            assert!(toggle(word).is_err() && boolean(word).is_none(), "{word}");
        }
    }
}
