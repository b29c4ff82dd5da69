//! Value parsers shared by several commands.

use engine::builder::Pooling;
use engine::context::{ContextParams, MAX_SEQUENCES};
use kernels::GgmlType;

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

/// Upper bound on thread counts; guards against typos.
const MAX_THREADS: usize = 1024;

/// Parses a thread count.
pub fn threads(text: &str) -> Result<usize, String> {
    if text == "-1" {
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

/// Parses a finite f32.
pub fn finite(text: &str) -> Option<f32> {
    text.parse().ok().filter(|x: &f32| x.is_finite())
}
