//! References within a JSON schema: pointers, anchors, and ids.

use std::cell::Cell;
use std::collections::HashMap;

use serde_json::Value;

use super::refused;
use crate::grammar::GrammarError;

/// Maximum length of a chain of references.
const MAX_CHAIN: usize = 64;
/// Maximum number of comparisons of schemas.
const MAX_WORK: usize = 20_000;

/// Targets of the references of one schema.
pub struct References<'a> {
    root: &'a Value,
    /// Pointers by anchor (`#name`) or id.
    named: HashMap<String, String>,
    /// Comparisons that are left.
    work: Cell<usize>,
}

impl<'a> References<'a> {
    /// Collects the anchors and ids of a schema.
    pub fn new(root: &'a Value) -> References<'a> {
        let mut named = HashMap::new();
        collect(root, &mut String::new(), &mut named);
        References {
            root,
            named,
            work: Cell::new(MAX_WORK),
        }
    }

    /// Counts a comparison of schemas. Returns false once the limit of comparisons is exceeded.
    pub fn spend(&self) -> bool {
        let left = self.work.get();
        self.work.set(left.saturating_sub(1));
        left > 0
    }

    /// Returns the part of the schema at a pointer.
    pub fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.root.pointer(pointer)
    }

    /// Returns the pointer of the target of a reference at `place`.
    pub fn resolve(&self, target: &Value, place: &str) -> Result<String, GrammarError> {
        let text = target.as_str();
        let text = text.ok_or_else(|| refused(place, format!("a reference must be a string, found {target}")))?;
        let Some(pointer) = self.pointer(text) else {
            let message = format!(
                "unsupported reference {target}: only references to an existing part within the schema (#…) are supported"
            );
            return Err(refused(place, message));
        };
        if self.comes_back(&pointer) {
            return Err(refused(place, format!("circular reference {target}")));
        }
        Ok(pointer)
    }

    /// Follows references from a schema to a schema with other keywords; `None` if a reference is invalid.
    pub fn target(&self, schema: &'a Value) -> Option<&'a Value> {
        let mut schema = schema;
        for _ in 0..MAX_CHAIN {
            match schema.get("$ref") {
                None => return Some(schema),
                Some(target) => schema = self.at(&self.pointer(target.as_str()?)?)?,
            }
        }
        None
    }

    fn pointer(&self, text: &str) -> Option<String> {
        let (base, fragment) = text.split_once('#').unwrap_or((text, ""));
        let base = match base {
            "" => "",
            id => self.named.get(id.trim_end_matches('/'))?,
        };
        let fragment = decoded(fragment)?;
        let pointer = match fragment.as_str() {
            "" | "/" => base.to_owned(),
            path if path.starts_with('/') => format!("{base}{path}"),
            anchor => self.named.get(&format!("#{anchor}"))?.clone(),
        };
        self.at(&pointer)?;
        Some(pointer)
    }

    /// Returns true if a reference leads only to further references.
    fn comes_back(&self, pointer: &str) -> bool {
        self.at(pointer).is_some_and(|schema| {
            let mut schema = schema;
            for _ in 0..MAX_CHAIN {
                let next = schema
                    .get("$ref")
                    .and_then(Value::as_str)
                    .and_then(|text| self.pointer(text));
                match next.and_then(|pointer| self.at(&pointer)) {
                    Some(target) => schema = target,
                    None => return false,
                }
            }
            true
        })
    }
}

/// Adds the pointers of all anchors and ids. The JSON parser bounds the recursion.
fn collect(schema: &Value, place: &mut String, named: &mut HashMap<String, String>) {
    let n = place.len();
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("$anchor" | "$dynamicAnchor", Value::String(name)) => {
                        named.entry(format!("#{name}")).or_insert_with(|| place.clone());
                    }
                    ("$id" | "id", Value::String(id)) => {
                        let id = id.trim_end_matches(['#', '/']);
                        named.entry(id.to_owned()).or_insert_with(|| place.clone());
                    }
                    _ => {
                        *place += "/";
                        *place += &key.replace('~', "~0").replace('/', "~1");
                        collect(value, place, named);
                        place.truncate(n);
                    }
                }
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                *place += &format!("/{i}");
                collect(value, place, named);
                place.truncate(n);
            }
        }
        _ => {}
    }
}

/// Decodes the percent-encoding of a fragment.
fn decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        let hex = behind.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(value) if byte == b'%' => {
                bytes.push(value);
                rest = &behind[2..];
            }
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}
