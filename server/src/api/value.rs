//! Conversions of JSON values, shared by all readers of requests.

use serde_json::Value as Json;

/// Returns the integer value of a number; accepts 3.0.
pub fn integer_of(value: &Json) -> Option<i64> {
    let whole = |x: &f64| x.fract() == 0.0 && x.abs() < 9e15;
    value
        .as_i64()
        .or_else(|| value.as_f64().filter(whole).map(|x| x as i64))
}

/// Returns the string if the value is one.
pub fn text_of(value: Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text),
        _ => None,
    }
}

/// Reads a list of objects with the `id` and the `scale` of a LoRA adapter.
///
/// # Errors
/// Returns the expected form.
pub fn adapter_scales(list: &[Json]) -> Result<Vec<(usize, f32)>, &'static str> {
    let read = |one: &Json| {
        let id = one.get("id")?.as_u64().and_then(|id| usize::try_from(id).ok())?;
        let scale = one.get("scale")?.as_f64().filter(|scale| scale.abs() <= 1e6)?;
        Some((id, scale as f32))
    };
    let scales: Option<Vec<_>> = list.iter().map(read).collect();
    scales.ok_or("expected a list of objects with `id` and `scale`")
}

/// Formats a value for error messages, abbreviated.
pub fn shown(value: &Json) -> String {
    const MAX: usize = 40;
    let text = match value {
        Json::Array(_) => return "a list".to_owned(),
        Json::Object(_) => return "an object".to_owned(),
        value => value.to_string(),
    };
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn integers_may_have_zero_fraction() {
        assert_eq!(integer_of(&json!(3.0)), Some(3));
        for other in [json!(3.5), json!(1e300), json!("3")] {
            assert_eq!(integer_of(&other), None, "{other}");
        }
    }
}
