//! Ollama's `keep_alive`: the time that a model stays loaded after a request.

use std::time::Duration;

use serde_json::Value as Json;

use crate::api::{ApiError, ApiResult, Fields, shown};

/// Time that a model stays loaded after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// The model is not unloaded as idle.
    Forever,
    /// The model is unloaded after this time without requests.
    For(Duration),
}

impl KeepAlive {
    /// Removes the field from a request. Only the model pool applies it.
    ///
    /// # Errors
    /// Returns status 400 if the value is neither a number nor a duration.
    pub fn check(fields: &mut Fields) -> ApiResult<()> {
        match fields.take("keep_alive") {
            Some(value) if KeepAlive::of_json(&value).is_none() => {
                let found = shown(&value);
                let message = format_args!("expected seconds or a duration such as \"5m\", found {found}");
                Err(ApiError::field("keep_alive", message))
            }
            _ => Ok(()),
        }
    }

    /// Parses seconds, or a duration such as `5m` or `1h30m`; negative: forever. Other values return `None`.
    pub fn of_json(value: &Json) -> Option<KeepAlive> {
        let seconds = match value {
            Json::String(text) => seconds_of(text)?,
            value => value.as_f64()?,
        };
        if seconds < 0.0 {
            return Some(KeepAlive::Forever);
        }
        Duration::try_from_secs_f64(seconds).ok().map(KeepAlive::For)
    }
}

/// Parses a duration in Go's format; a number without unit is in seconds.
fn seconds_of(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if let Ok(seconds) = rest.parse::<u32>() {
        return Some(sign * f64::from(seconds));
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let n_digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(n_digits);
        let n_letters = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(n_letters);
        let unit = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * unit;
        rest = behind;
    }
    Some(sign * total)
}

/// Extension of requests after which the model is unloaded, unless other requests use it.
#[derive(Clone, Copy, Debug)]
pub struct UnloadsModel;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keep_alive_accepts_seconds_and_durations() {
        let seconds = |n: f64| Some(KeepAlive::For(Duration::from_secs_f64(n)));
        for (value, expected) in [
            (json!(0), seconds(0.0)),
            (json!(2.5), seconds(2.5)),
            (json!("5m"), seconds(300.0)),
            (json!("1h30m"), seconds(5400.0)),
            (json!("1.5h"), seconds(5400.0)),
            (json!("250ms"), seconds(0.25)),
            (json!("10"), seconds(10.0)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!("1500us"), seconds(0.0015)),
            (json!(""), None),
            (json!("-"), None),
            (json!("soon"), None),
            (json!("5 m"), None),
            (json!("5"), seconds(5.0)),
            (json!(1e300), None),
            (json!([]), None),
        ] {
            assert_eq!(KeepAlive::of_json(&value), expected, "{value}");
        }
    }
}
