//! JSON of untrusted clients: the memory of its values is counted while it is parsed, and members of the same
//! name are errors.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};

use super::charge::Charge;
use crate::api::{ApiError, ApiResult};

/// Memory of a value in a list or an object.
const VALUE: usize = 32;
/// Memory of an object that is not empty, with its index.
const OBJECT: usize = 256;
/// Overhead of an object member, in addition to its name and value.
const MEMBER: usize = 64;
/// Overhead of a string, in addition to its contents.
const HEAP: usize = 32;
/// Memory of the first allocation of a list.
const LIST: usize = 4 * VALUE + 16;
/// Counted memory after which it is charged.
const STEP: usize = 64 << 10;

/// Encoding of U+FEFF, which some editors write at the start of a file.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses a JSON text. A byte order mark at the start is ignored.
pub fn parse(text: &[u8], charge: &Charge) -> ApiResult<Json> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let counter = Counter {
        charge,
        open: Cell::new(0),
        refused: RefCell::new(None),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    // `serde_json` limits the nesting depth.
    let parsed = Value(&counter).deserialize(&mut deserializer);
    let parsed = parsed.and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|e| {
        let wrong = || ApiError::invalid(format!("the request body is not valid JSON: {}", json_error(&e)));
        counter.refused.take().unwrap_or_else(wrong)
    })
}

/// Messages of `serde_json` for a `\u` escape that is half of a surrogate pair.
const LONE_SURROGATE: [&str; 2] = ["unexpected end of hex escape", "lone leading surrogate in hex escape"];

/// Returns the reason why a text is not valid JSON.
pub fn json_error(error: &serde_json::Error) -> String {
    let message = error.to_string();
    if !LONE_SURROGATE.iter().any(|known| message.starts_with(known)) {
        return message;
    }
    format!(
        "a \\u escape at line {} column {} is half of a surrogate pair; send both halves, or the character as UTF-8",
        error.line(),
        error.column()
    )
}

struct Counter<'a> {
    charge: &'a Charge,
    /// Counted memory that is not charged yet.
    open: Cell<usize>,
    refused: RefCell<Option<ApiError>>,
}

impl Counter<'_> {
    fn count<E: Error>(&self, n: usize) -> Result<(), E> {
        let open = self.open.get() + n;
        if open < STEP {
            self.open.set(open);
            return Ok(());
        }
        self.open.set(0);
        self.charge.add(open).map_err(|error| {
            let message = E::custom(&error.message);
            *self.refused.borrow_mut() = Some(error);
            message
        })
    }
}

#[derive(Clone, Copy)]
struct Value<'a>(&'a Counter<'a>);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Json, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Json, E> {
        self.0.count(HEAP + value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            self.0.count(if values.is_empty() { LIST } else { VALUE })?;
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let mut members = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            let own = if members.is_empty() { OBJECT } else { 0 };
            self.0.count(own + MEMBER + VALUE + HEAP + name.len())?;
            if members.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the field {name:?} is given twice")));
            }
            let value = object.next_value_seed(self)?;
            members.insert(name, value);
        }
        Ok(members.into())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> ApiResult<Json> {
        parse(text.as_bytes(), &Charge::default())
    }

    #[test]
    fn byte_order_mark_is_ignored() {
        assert_eq!(parsed("\u{feff}[1]"), Ok(json!([1])));
        assert!(parsed("[1]\u{feff}").is_err() && parsed("\u{feff}\u{feff}[1]").is_err());
    }

    #[test]
    fn json_is_parsed_as_by_serde() {
        for text in [
            r#"{"b": [1, -2, 1.5, 18446744073709551615, true, null, "é\n\ud83d\ude00"], "a": {}, "": []}"#,
            "3",
            "\"x\"",
            " [ ] ",
            "1e400",
            "[1] 2",
            "{\"a\":",
            "\u{1}",
            "nul",
        ] {
            let expected: Result<Json, _> = serde_json::from_str(text);
            let expected = expected.map_err(|e| format!("the request body is not valid JSON: {e}"));
            assert_eq!(parsed(text).map_err(|e| e.message), expected, "{text}");
        }
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        assert!(parsed(&deep).unwrap_err().message.contains("recursion limit"));
        let names: Vec<String> = parsed("{\"z\": 1, \"a\": 2}")
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        assert_eq!(names, ["z", "a"]);
    }

    #[test]
    fn lone_surrogate_is_named() {
        for half in [r"\ud83d", r"\ude00", r"\ud83dx", r"\ud83d\n", r"\ud83d\ud83d"] {
            let message = parsed(&format!("{{\"a\": \"{half}\"}}")).unwrap_err().message;
            assert!(message.contains("half of a surrogate pair"), "{half}: {message}");
            assert!(message.contains("line 1 column"), "{half}: {message}");
        }
    }

    #[test]
    fn field_that_is_given_twice_is_rejected() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"x": {"b": 1, "a": 2, "b": 3}}]"#] {
            let error = parsed(text).unwrap_err();
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
            assert!(error.message.contains("is given twice"), "{}", error.message);
        }
        assert_eq!(parsed(r#"{"a": {"a": 1}}"#).unwrap(), json!({"a": {"a": 1}}));
    }

    #[test]
    fn values_that_need_much_memory_are_rejected() {
        for value in ["{\"a\":0}", "{}", "[0]", "\"a\"", "[]", "{\"a\":{\"a\":{}}}"] {
            let text = format!("[{}0]", format!("{value},").repeat((16 << 20) / (value.len() + 1)));
            let error = parsed(&text).map(|_| ()).unwrap_err();
            assert_eq!(
                error.status,
                StatusCode::PAYLOAD_TOO_LARGE,
                "{value}: {}",
                error.message
            );
        }
        assert!(parsed(&format!("[{}0]", "12345,".repeat(1_000_000))).is_ok());
        assert!(parsed(&format!("\"{}\"", "x".repeat(16 << 20))).is_ok());
    }
}
