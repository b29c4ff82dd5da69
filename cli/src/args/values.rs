//! Values that several commands take.

use engine::context::ContextParams;
use kernels::GgmlType;

/// Types that keys and values can be cached in.
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

/// A type of cached keys or values.
pub fn cache_type(text: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(text).filter(|ty| CACHE_TYPES.contains(ty));
    ty.ok_or_else(|| {
        let names: Vec<_> = CACHE_TYPES.iter().map(|ty| ty.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// A whole number above 0.
pub fn positive(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|&n| n > 0);
    n.ok_or_else(|| "expected a whole number above 0".to_owned())
}

/// More threads than any machine has; bounds what a slip of the finger can start.
const MAX_THREADS: usize = 1024;

/// A number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    if text == "-1" {
        return Ok(ContextParams::default().n_threads);
    }
    let n = text.parse().ok().filter(|n| (1..=MAX_THREADS).contains(n));
    n.ok_or_else(|| format!("expected a whole number from 1 to {MAX_THREADS}, or -1 for one for each core"))
}

/// A size of contexts; -1 is what the model was trained for, as 0 is.
pub fn context_size(text: &str) -> Result<usize, String> {
    let n = if text == "-1" { Some(0) } else { text.parse().ok() };
    n.ok_or_else(|| "expected a whole number of tokens, or 0 for as many as the model was trained for".to_owned())
}

/// A number above 0.
pub fn positive_float(text: &str) -> Result<f32, String> {
    let x = text.parse().ok().filter(|x: &f32| *x > 0.0 && x.is_finite());
    x.ok_or_else(|| "expected a number above 0".to_owned())
}

/// The same with more digits.
pub fn positive_float_64(text: &str) -> Result<f64, String> {
    let x = text.parse().ok().filter(|x: &f64| *x > 0.0 && x.is_finite());
    x.ok_or_else(|| "expected a number above 0".to_owned())
}

/// A number of at least 0.
pub fn at_least_0(text: &str) -> Result<f32, String> {
    let x = text.parse().ok().filter(|x: &f32| *x >= 0.0 && x.is_finite());
    x.ok_or_else(|| "expected a number of at least 0".to_owned())
}
