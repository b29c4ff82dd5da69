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
