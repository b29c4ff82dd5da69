//! Typed reader for hyperparameters: scalars, lists, and per-layer values with defaults.

use std::fmt::Debug;

use crate::gguf::{Metadata, Value};
use crate::graph::ROPE_AXES;

use crate::builder::{NONE, Pooling};

use super::Base;

const SECTIONS: &str = "rope.dimension_sections";

/// An error that can occur when reading a hyperparameter.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum HparamError {
    /// A required key is missing.
    #[error("missing key `{key}`: expected {expected}")]
    Missing {
        /// Metadata key, including the prefix.
        key: String,
        expected: &'static str,
    },
    /// A value has the wrong type or length.
    #[error("key `{key}`: expected {expected}, found {found}")]
    WrongType {
        /// Metadata key, including the prefix.
        key: String,
        expected: String,
        found: String,
    },
    /// A number is out of range.
    #[error("key `{key}`: expected {min} to {max}, found {found}")]
    OutOfRange {
        /// Metadata key, including the prefix.
        key: String,
        found: usize,
        min: usize,
        max: usize,
    },
    /// Several values contradict each other.
    #[error("{0}")]
    Contradiction(String),
}

/// Reader for the hyperparameters of a model. Methods never fail: errors are collected and a placeholder is
/// returned, so that all errors are reported at once.
pub struct HparamReader<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) prefix: &'a str,
    pub(super) base: Option<Base>,
    /// Number of layers in the main graph; the minimum length of per-layer arrays.
    pub(super) n_layer: usize,
    /// Number of layers to load.
    pub(super) n_layer_loaded: usize,
    pub(super) errors: Vec<HparamError>,
    /// Warnings about missing keys that change the result.
    pub(super) warnings: Vec<String>,
}

impl<'a> HparamReader<'a> {
    /// Returns the common hyperparameters; placeholders if [`HparamReader::failed`].
    pub fn base(&self) -> Base {
        self.base.clone().expect("base is set in HparamReader::with_mtp")
    }

    /// Returns true if an error was recorded.
    pub fn failed(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Returns all recorded errors.
    pub fn into_errors(self) -> Vec<HparamError> {
        self.errors
    }

    /// Records an error unless `condition` holds. `text` states the requirement, and `found` lists the keys and
    /// values that the condition depends on. Returns the condition.
    pub fn check(&mut self, condition: bool, text: &str, found: &[(&str, &dyn Debug)]) -> bool {
        if !condition {
            self.contradiction(requirement(text, found));
        }
        condition
    }

    /// Records a warning unless `condition` holds.
    pub fn warn(&mut self, condition: bool, text: &str) {
        if !condition {
            self.warnings.push(text.to_owned());
        }
    }

    /// Returns true if the file has the key.
    pub fn has(&self, key: &str) -> bool {
        self.metadata.contains(&self.full(key))
    }

    /// Reads a count or size.
    pub fn usize(&mut self, key: &str, default: Option<usize>) -> usize {
        self.scalar(key, default, "a non-negative integer", as_usize)
    }

    /// Reads a finite number; an epsilon or a rotary base must be positive.
    pub fn f32(&mut self, key: &str, default: Option<f32>) -> f32 {
        if is_positive(key) {
            self.scalar(key, default, "a positive number", |v| as_f32(v).filter(|&x| x > 0.0))
        } else {
            self.scalar(key, default, "a finite number up to 1e30", as_f32)
        }
    }

    /// Reads a bool.
    pub fn bool(&mut self, key: &str, default: Option<bool>) -> bool {
        self.scalar(key, default, "a bool", as_bool)
    }

    /// Reads a string.
    pub fn string(&mut self, key: &str, default: Option<&str>) -> String {
        self.scalar(key, default.map(str::to_owned), "a string", |v| {
            v.as_str().map(str::to_owned)
        })
    }

    /// Reads a list of at least `n` integers; the key is optional if `n` is 0. The integer -1, which means none, is
    /// read as [`NONE`].
    pub fn list(&mut self, key: &str, n: usize) -> Vec<usize> {
        let element = |v: Value| match v.as_i64() {
            Some(-1) => Some(NONE),
            _ => as_usize(&v),
        };
        let values = |v: &Value| {
            let list = v.as_array().filter(|a| a.len() >= n)?;
            (0..list.len()).map(|i| element(list.get(i)?)).collect()
        };
        let key = self.full(key);
        let error = match self.metadata.get(&key) {
            None if n == 0 => return Vec::new(),
            None => HparamError::Missing {
                key,
                expected: "non-negative integers",
            },
            Some(value) => match values(value) {
                Some(list) => return list,
                None => HparamError::WrongType {
                    key,
                    expected: format!("{n} or more non-negative integers"),
                    found: value.describe(),
                },
            },
        };
        self.errors.push(error);
        Vec::new()
    }

    /// Reads one count per layer; a scalar applies to all layers.
    pub fn usizes(&mut self, key: &str, default: Option<usize>) -> Vec<usize> {
        self.per_layer(key, default.map(|d| move |_| d), "non-negative integers", as_usize)
    }

    /// Reads one count per layer, with a default by layer.
    pub fn usizes_with(&mut self, key: &str, default: impl Fn(usize) -> usize) -> Vec<usize> {
        self.per_layer(key, Some(default), "non-negative integers", as_usize)
    }

    /// Reads one finite number per layer.
    pub fn f32s(&mut self, key: &str, default: Option<f32>) -> Vec<f32> {
        self.per_layer(key, default.map(|d| move |_| d), "finite numbers", as_f32)
    }

    /// Reads one number per layer, with a default by layer.
    pub fn f32s_with(&mut self, key: &str, default: impl Fn(usize) -> f32) -> Vec<f32> {
        self.per_layer(key, Some(default), "finite numbers", as_f32)
    }

    /// Reads one bool per layer.
    pub fn bools(&mut self, key: &str, default: Option<bool>) -> Vec<bool> {
        self.per_layer(key, default.map(|d| move |_| d), "bools", as_bool)
    }

    /// Reads one bool per layer, with a default by layer.
    pub fn bools_with(&mut self, key: &str, default: impl Fn(usize) -> bool) -> Vec<bool> {
        self.per_layer(key, Some(default), "bools", as_bool)
    }

    /// Reads a layer pattern: an array of bools, or a period `n` that selects the layers with `il % n < n -
    /// 1`. Period 0 selects all layers, period 1 none.
    pub fn pattern(&mut self, key: &str, default: Option<usize>) -> Vec<bool> {
        self.period(key, default, |place, period| place + 1 < period)
    }

    /// Like [`HparamReader::pattern`], but the exception is the first layer of each period: a period `n`
    /// selects the layers with `il % n != 0`.
    pub fn dense_first(&mut self, key: &str, default: Option<usize>) -> Vec<bool> {
        self.period(key, default, |place, _| place > 0)
    }

    /// Reads an array of layer numbers, and returns true for each layer in it.
    pub fn listed(&mut self, key: &str, default: Option<bool>) -> Vec<bool> {
        let layers = match default {
            Some(default) if !self.has(key) => return vec![default; self.n_layer_loaded],
            Some(_) => self.list(key, 0),
            None => self.list(key, 1),
        };
        (0..self.n_layer_loaded).map(|il| layers.contains(&il)).collect()
    }

    fn period(&mut self, key: &str, default: Option<usize>, follows: impl Fn(usize, usize) -> bool) -> Vec<bool> {
        let full = self.full(key);
        if let Some(Value::Array(_)) = self.metadata.get(&full) {
            return self.bools(key, None);
        }
        let period = self.usize(key, default);
        (0..self.n_layer_loaded)
            .map(|il| period == 0 || follows(il % period, period))
            .collect()
    }

    pub(crate) fn contradiction(&mut self, text: String) {
        self.errors.push(HparamError::Contradiction(text));
    }

    pub(super) fn in_range(
        &mut self,
        key: &str,
        default: Option<usize>,
        range: std::ops::RangeInclusive<usize>,
    ) -> usize {
        let value = self.usize(key, default);
        if range.contains(&value) {
            return value;
        }
        let (min, max) = (*range.start(), *range.end());
        // A missing key was already reported and reads as zero.
        if self.metadata.contains(&self.full(key)) {
            self.errors.push(HparamError::OutOfRange {
                key: self.full(key),
                found: value,
                min,
                max,
            });
        }
        min
    }

    /// Returns the vocabulary size: `vocab_size`, or the number of tokens in the tokenizer.
    pub(super) fn n_vocab(&mut self) -> usize {
        let tokens = self
            .metadata
            .get("tokenizer.ggml.tokens")
            .and_then(Value::as_array)
            .map(|a| a.len());
        let n = self.usize("vocab_size", tokens);
        if n == 0 && self.metadata.contains(&self.full("vocab_size")) {
            self.errors.push(HparamError::OutOfRange {
                key: self.full("vocab_size"),
                found: 0,
                min: 1,
                max: 1 << 28,
            });
        }
        n.min(1 << 28)
    }

    /// Returns the number of classifier labels, at least one.
    pub(super) fn n_labels(&mut self) -> usize {
        let labels = self.metadata.get(&self.full("classifier.output_labels"));
        labels.and_then(Value::as_array).map_or(1, |a| a.len()).max(1)
    }

    /// Reads a pooling type.
    pub(super) fn pooling(&mut self, key: &str) -> Option<Pooling> {
        let full = self.full(key);
        let value = self.metadata.get(&full)?;
        // -1 means "not specified"; many files store the value as an unsigned integer.
        if matches!(value.as_i64(), Some(-1) | Some(0xffff_ffff)) {
            return None;
        }
        let pooling = value.as_u64().and_then(Pooling::from_code);
        if pooling.is_none() {
            self.errors.push(HparamError::WrongType {
                key: full,
                expected: "0 (none), 1 (mean), 2 (cls), 3 (last), or 4 (rank)".to_owned(),
                found: value.describe(),
            });
        }
        pooling
    }

    /// Returns the M-RoPE sections; zeros if the key is missing or invalid, which
    /// [`HparamReader::check_sections`] reports if the architecture needs them.
    pub(super) fn sections(&self) -> [usize; ROPE_AXES] {
        let sections = self.metadata.get(&self.full(SECTIONS)).and_then(|v| {
            let values = v.as_array().filter(|a| a.len() == ROPE_AXES)?;
            let sizes = (0..ROPE_AXES).map(|i| values.get(i).as_ref().and_then(as_usize));
            sizes.collect::<Option<Vec<_>>>()?.try_into().ok()
        });
        sections.unwrap_or_default()
    }

    /// Records an error if the M-RoPE sections are missing or invalid.
    pub(super) fn check_sections(&mut self, head_dim: usize) {
        let key = self.full(SECTIONS);
        let expected = "four section sizes";
        let Some(value) = self.metadata.get(&key) else {
            self.errors.push(HparamError::Missing { key, expected });
            return;
        };
        let sections = self.sections();
        let n_pairs = sections.iter().fold(0, |sum: usize, &n| sum.saturating_add(n));
        if sections[..3] == [0; 3] || n_pairs > head_dim {
            self.errors.push(HparamError::WrongType {
                key,
                expected: format!("{expected} with a sum of 1 to {head_dim}"),
                found: match sections {
                    [0, 0, 0, 0] => value.describe(),
                    _ => format!("{sections:?}"),
                },
            });
        }
    }

    /// Returns the full key: prefixed with the architecture unless it starts with `/`.
    fn full(&self, key: &str) -> String {
        match key.strip_prefix('/') {
            Some(whole) => whole.to_owned(),
            None => format!("{}.{key}", self.prefix),
        }
    }

    fn scalar<T: Default>(
        &mut self,
        key: &str,
        default: Option<T>,
        expected: &'static str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> T {
        let key = self.full(key);
        let error = match (self.metadata.get(&key), default) {
            (None, Some(default)) => return default,
            (None, None) => HparamError::Missing { key, expected },
            (Some(value), _) => match convert(value) {
                Some(v) => return v,
                None => HparamError::WrongType {
                    key,
                    expected: expected.to_owned(),
                    found: value.describe(),
                },
            },
        };
        self.errors.push(error);
        T::default()
    }

    fn per_layer<T: Default + Clone>(
        &mut self,
        key: &str,
        default: Option<impl Fn(usize) -> T>,
        expected: &'static str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Vec<T> {
        let (n_least, n) = (self.n_layer, self.n_layer_loaded);
        let key = self.full(key);
        let values = match (self.metadata.get(&key), default) {
            (None, Some(default)) => return (0..n).map(default).collect(),
            (None, None) => Err(HparamError::Missing { key, expected }),
            (Some(value), _) => {
                let wrong = || HparamError::WrongType {
                    key: key.clone(),
                    expected: format!("one value or {n} {expected}"),
                    found: value.describe(),
                };
                match value.as_array() {
                    None => convert(value).map(|v| vec![v; n]).ok_or_else(wrong),
                    // Extra entries belong to layers outside the graph. Layers without an entry use the last
                    // value.
                    Some(a) if a.len() >= n_least && !a.is_empty() => (0..n)
                        .map(|i| a.get(i.min(a.len() - 1)).as_ref().and_then(&convert))
                        .collect::<Option<_>>()
                        .ok_or_else(wrong),
                    Some(_) => Err(wrong()),
                }
            }
        };
        values.unwrap_or_else(|e| {
            self.errors.push(e);
            vec![T::default(); n]
        })
    }
}

/// Formats a requirement and the values that violate it.
fn requirement(text: &str, found: &[(&str, &dyn Debug)]) -> String {
    match found {
        [] => text.to_owned(),
        [(key, value)] if text.starts_with(key) => format!("{text}, found {value:?}"),
        found => {
            let values: Vec<String> = found.iter().map(|(key, value)| format!("{key} = {value:?}")).collect();
            format!("{text}; found {}", values.join(", "))
        }
    }
}

fn as_usize(v: &Value) -> Option<usize> {
    v.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// Largest magnitude of a number in a file. Its products with activations are finite.
const MAX_F32: f32 = 1e30;

/// Rejects infinity, NaN, and numbers whose products overflow or vanish: files disable an option by omitting the key
/// or by storing 0.
fn as_f32(v: &Value) -> Option<f32> {
    v.as_f32().filter(|f| f.abs() <= MAX_F32 && !f.is_subnormal())
}

/// Returns true for keys of divisors: epsilons of norms and rotary bases.
fn is_positive(key: &str) -> bool {
    key.ends_with("epsilon") || key.contains("freq_base")
}

/// Bools are stored as bools or as the integers 0 and 1.
fn as_bool(v: &Value) -> Option<bool> {
    v.as_bool().or_else(|| match v.as_i64()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, Value)]) -> Metadata {
        let mut m: Metadata = [
            ("x.block_count", Value::U32(3)),
            ("x.embedding_length", Value::U32(64)),
            ("x.context_length", Value::U32(128)),
            ("x.vocab_size", Value::U32(32)),
            ("x.attention.head_count", Value::U32(4)),
        ]
        .into_iter()
        .collect();
        for (k, v) in pairs {
            m.insert(*k, v.clone());
        }
        m
    }

    fn errors(m: &Metadata) -> Vec<String> {
        HparamReader::new(m, "x")
            .into_errors()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn defaults_derive_from_other_values() {
        let m = metadata(&[]);
        let mut r = HparamReader::new(&m, "x");
        assert!(!r.failed());
        let base = r.base();
        assert_eq!((base.n_head_kv(2), base.head_dim(), base.n_rot()), (4, 16, 16));
        assert_eq!(r.pattern("p", Some(3)), [true, true, false]);
        assert_eq!(r.dense_first("p", Some(2)), [false, true, false]);
        assert_eq!(r.dense_first("p", Some(0)), [true; 3]);
        assert_eq!(r.usizes("q", Some(7)), [7, 7, 7]);
    }

    #[test]
    fn per_layer_values_accept_scalars_and_full_arrays() {
        let m = metadata(&[
            ("x.a", Value::from(vec![1u32, 2, 3])),
            ("x.b", Value::from(vec![1u32, 2])),
        ]);
        let mut r = HparamReader::new(&m, "x");
        assert_eq!(r.usizes("a", None), [1, 2, 3]);
        assert_eq!(r.usizes("b", None), [0, 0, 0]);
        let e = r.into_errors();
        assert_eq!(
            e[0].to_string(),
            "key `x.b`: expected one value or 3 non-negative integers, found array of 2 u32"
        );
    }

    #[test]
    fn list_requires_minimum_length() {
        let m = metadata(&[
            ("x.a", Value::from(vec![5u32, 6, 7, 8])),
            ("x.b", Value::from(vec![5i32, -6])),
            ("x.c", Value::U32(5)),
            ("x.layers", Value::from(vec![7u32, 1])),
        ]);
        let mut r = HparamReader::new(&m, "x");
        assert_eq!((r.list("a", 3), r.list("none", 0)), (vec![5, 6, 7, 8], vec![]));
        assert_eq!(r.listed("layers", None), [false, true, false]);
        assert_eq!(r.listed("none", Some(true)), [true; 3]);
        for (key, n) in [("a", 5), ("none", 1), ("b", 0), ("c", 1)] {
            assert_eq!(r.list(key, n), [0; 0], "{key}");
        }
        let messages: Vec<_> = r.into_errors().iter().map(ToString::to_string).collect();
        let expected = [
            "key `x.a`: expected 5 or more non-negative integers, found array of 4 u32",
            "missing key `x.none`: expected non-negative integers",
            "key `x.b`: expected 0 or more non-negative integers, found array of 2 i32",
            "key `x.c`: expected 1 or more non-negative integers, found u32 5",
        ];
        assert_eq!(messages, expected);
    }

    #[test]
    fn mtp_layers_are_outside_the_graph() {
        let m = metadata(&[
            ("x.nextn_predict_layers", Value::U32(1)),
            ("x.attention.head_count", Value::from(vec![4u32, 2, 1])),
            ("x.a", Value::from(vec![1u32, 2])),
            ("x.b", Value::from(vec![true, false, true])),
        ]);
        let mut r = HparamReader::new(&m, "x");
        let base = r.base();
        assert_eq!((base.n_layer(), base.n_layer_file()), (2, 3));
        assert_eq!((base.n_head(0), base.n_head(1)), (4, 2));
        assert_eq!(r.usizes("a", None), [1, 2]);
        assert_eq!(r.pattern("b", None), [true, false]);
        assert!(!r.failed());
        let m = metadata(&[("x.nextn_predict_layers", Value::U32(3))]);
        assert_eq!(errors(&m), ["key `x.nextn_predict_layers`: expected 0 to 2, found 3"]);
    }

    #[test]
    fn contradictions_name_both_values() {
        let m = metadata(&[("x.attention.head_count_kv", Value::U32(3))]);
        assert_eq!(
            errors(&m),
            ["attention.head_count (4) is not a multiple of attention.head_count_kv (3) in layer 0"]
        );
        let m = metadata(&[
            ("x.expert_count", Value::U32(2)),
            ("x.expert_used_count", Value::U32(4)),
        ]);
        assert_eq!(errors(&m), ["expert_used_count (4) exceeds expert_count (2)"]);
        let m = metadata(&[("x.block_count", Value::U64(1 << 60))]);
        assert_eq!(
            errors(&m),
            ["key `x.block_count`: expected 1 to 1024, found 1152921504606846976"]
        );
    }

    #[test]
    fn numbers_out_of_range_name_key_and_value() {
        for (key, value, expected) in [
            ("attention.layer_norm_rms_epsilon", -1.0, "a positive number"),
            ("attention.layer_norm_epsilon", 0.0, "a positive number"),
            ("attention.layer_norm_epsilon", f32::NAN, "a positive number"),
            ("hyper_connection.epsilon", 1e-40, "a positive number"),
            ("rope.freq_base_swa", -10.0, "a positive number"),
            ("logit_scale", 1e38, "a finite number up to 1e30"),
            ("logit_scale", f32::INFINITY, "a finite number up to 1e30"),
        ] {
            let full = format!("x.{key}");
            let m = metadata(&[(full.as_str(), Value::F32(value))]);
            let mut r = HparamReader::new(&m, "x");
            r.f32(key, Some(1.0));
            let messages: Vec<_> = r.into_errors().iter().map(ToString::to_string).collect();
            let found = Value::F32(value).describe();
            assert_eq!(messages, [format!("key `{full}`: expected {expected}, found {found}")]);
        }
        let m = metadata(&[
            ("x.logit_scale", Value::F32(-1e30)),
            ("x.rope.freq_base_swa", Value::F32(5e6)),
        ]);
        let mut r = HparamReader::new(&m, "x");
        assert_eq!(
            (r.f32("logit_scale", None), r.f32("rope.freq_base_swa", None)),
            (-1e30, 5e6)
        );
        assert!(!r.failed());
    }

    #[test]
    fn warnings_do_not_fail() {
        let m = metadata(&[("x.a", Value::U32(1))]);
        let mut r = HparamReader::new(&m, "x");
        assert!(r.has("a") && !r.has("b"));
        r.warn(true, "a is missing");
        r.warn(false, "b is missing");
        assert!(!r.failed());
        assert_eq!(r.warnings, ["b is missing"]);
    }

    #[test]
    fn failed_check_states_requirement_and_found_values() {
        let m = metadata(&[]);
        let mut r = HparamReader::new(&m, "x");
        assert!(r.check(true, "a must be 1", &[("a", &1)]));
        assert!(!r.check(false, "a must be 1", &[("a", &2)]));
        r.check(false, "a must divide b", &[("a", &3), ("b", &0.5)]);
        r.check(false, "one key must be set", &[]);
        let errors: Vec<String> = r.into_errors().iter().map(ToString::to_string).collect();
        let expected = [
            "a must be 1, found 2",
            "a must divide b; found a = 3, b = 0.5",
            "one key must be set",
        ];
        assert_eq!(errors, expected);
    }

    #[test]
    fn missing_and_mistyped_keys_are_collected() {
        let m: Metadata = [("x.block_count", Value::String((*b"two").into()))]
            .into_iter()
            .collect();
        let e = errors(&m);
        assert!(
            e[0].contains("`x.block_count`: expected a non-negative integer, found string"),
            "{e:?}"
        );
        assert!(
            e.iter().any(|e| e.contains("missing key `x.embedding_length`")),
            "{e:?}"
        );
    }
}
