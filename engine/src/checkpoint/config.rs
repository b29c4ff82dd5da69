//! `config.json` and the values of settings.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::CheckpointError;
use super::shards::read_text;
use crate::model::{Checkpoint, ConfigTerm};

/// Maximum length of a configuration in bytes. Published configurations are below 200 KiB. A parsed configuration takes
/// up to 32 times its length.
const MAX_CONFIG: u64 = 1 << 20;
/// Maximum number of layers of a model.
const MAX_LAYERS: i64 = 1024;

/// Parsed `config.json`.
pub struct Config {
    path: PathBuf,
    json: Json,
}

/// Value of a setting.
#[derive(Clone, PartialEq, Debug)]
pub enum Setting {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Setting>),
}

impl Setting {
    /// Returns true for `false`, and for a list with a `false`.
    pub fn is_false(&self) -> bool {
        match self {
            Setting::Bool(b) => !b,
            Setting::List(list) => list.iter().any(Setting::is_false),
            _ => false,
        }
    }
}

impl Config {
    /// Reads a configuration.
    pub fn read(path: &Path) -> Result<Config, CheckpointError> {
        let text = read_text(path, MAX_CONFIG)?;
        let json = parse_python_json(&text).map_err(|e| CheckpointError::config(path, format!("invalid JSON: {e}")))?;
        Ok(Config {
            path: path.to_owned(),
            json,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the values of `architectures`.
    pub fn classes(&self) -> Vec<&str> {
        let list = self.json.get("architectures").and_then(Json::as_array);
        list.into_iter().flatten().filter_map(Json::as_str).collect()
    }

    /// Returns the value at a path of names, first in `text_config`. `null` counts as missing.
    pub fn get(&self, path: &str) -> Option<&Json> {
        let text = self.json.get("text_config").and_then(|root| find(root, path));
        text.or_else(|| find(&self.json, path))
    }

    /// Returns a string of the configuration.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str()
    }

    /// Returns a number of the configuration.
    pub fn number(&self, path: &str) -> Option<f64> {
        self.get(path)?.as_f64()
    }
}

/// Returns the value at a path of names, unless it is `null`.
fn find<'a>(root: &'a Json, path: &str) -> Option<&'a Json> {
    let value = path.split('.').try_fold(root, |value, name| value.get(name))?;
    (!value.is_null()).then_some(value)
}

/// Parses JSON. The words `NaN`, `Infinity`, and `-Infinity`, which Python writes, count as missing.
pub fn parse_python_json(text: &str) -> serde_json::Result<Json> {
    let first = serde_json::from_str(text);
    if first.is_ok() || !(text.contains("Infinity") || text.contains("NaN")) {
        return first;
    }
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"]
            .into_iter()
            .find(|w| rest.starts_with(w));
        let length = match (in_string, c, word) {
            (false, _, Some(word)) => {
                plain.push_str("null");
                rest = &rest[word.len()..];
                continue;
            }
            (true, '\\', _) => c.len_utf8() + rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => c.len_utf8(),
        };
        in_string ^= c == '"';
        plain.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    serde_json::from_str(&plain)
}

/// Evaluates the settings of one section.
pub struct Evaluator<'a> {
    config: &'a Config,
    section: &'a Checkpoint,
    /// Values of symbols; `None` while a value is being computed, or if it is missing.
    known: HashMap<&'static str, Option<Setting>>,
}

impl<'a> Evaluator<'a> {
    pub fn new(config: &'a Config, section: &'a Checkpoint) -> Evaluator<'a> {
        Evaluator {
            config,
            section,
            known: HashMap::new(),
        }
    }

    fn fault<T>(&self, text: impl Into<String>) -> Result<T, CheckpointError> {
        Err(CheckpointError::config(&self.config.path, text))
    }

    /// Returns the first alternative that the configuration has.
    pub fn first(&mut self, terms: &[ConfigTerm]) -> Result<Option<Setting>, CheckpointError> {
        for term in terms {
            if let Some(value) = self.term(term)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns the value of a symbol.
    pub fn symbol(&mut self, name: &'static str) -> Result<Option<Setting>, CheckpointError> {
        if let Some(value) = self.known.get(name) {
            return Ok(value.clone());
        }
        self.known.insert(name, None);
        let setting = self.section.settings.iter().find(|s| s.symbol == name);
        let value = match setting {
            Some(setting) => self.first(setting.value)?,
            None => None,
        };
        self.known.insert(name, value.clone());
        Ok(value)
    }

    /// Returns the number of layers.
    pub fn n_layer(&mut self) -> Result<usize, CheckpointError> {
        match self.symbol("n_layer")? {
            Some(Setting::Int(n)) if (1..=MAX_LAYERS).contains(&n) => Ok(n as usize),
            Some(other) => self.fault(format!("the number of layers is {other:?}; expected 1 to {MAX_LAYERS}")),
            None => self.fault("the number of layers is missing"),
        }
    }

    /// Returns a size in a layer, such as a number of heads.
    pub fn size(&mut self, term: &ConfigTerm, layer: Option<usize>) -> Result<usize, CheckpointError> {
        let value = self.term(term)?;
        let value = match (value, layer) {
            // Layers of multi-token prediction follow the layers of the list.
            (Some(Setting::List(list)), Some(il)) => list.get(il).or(list.last()).cloned(),
            (value, _) => value,
        };
        match value {
            Some(Setting::Int(n)) if n >= 0 => Ok(n as usize),
            other => self.fault(format!("a size of the mapping is {other:?}, not a number: {term:?}")),
        }
    }

    /// Returns the value of an expression; `None` if the configuration lacks a part of it.
    pub fn term(&mut self, term: &ConfigTerm) -> Result<Option<Setting>, CheckpointError> {
        Ok(match *term {
            ConfigTerm::Path(path) => match self.config.get(path) {
                Some(json) => Some(self.setting(json, path, 0)?),
                None => None,
            },
            ConfigTerm::Int(n) => Some(Setting::Int(i64::try_from(n).unwrap_or(i64::MAX))),
            ConfigTerm::Float(x) => Some(Setting::Float(x)),
            ConfigTerm::Bool(b) => Some(Setting::Bool(b)),
            ConfigTerm::Text(text) => Some(Setting::Text(text.to_owned())),
            ConfigTerm::Symbol(name) => self.symbol(name)?,
            ConfigTerm::Call("first", args) => self.first(args)?,
            ConfigTerm::Call("given", args) => Some(Setting::Bool(self.first(args)?.is_some())),
            ConfigTerm::Call("il", _) => {
                let n = self.n_layer()?;
                Some(Setting::List((0..n).map(|il| Setting::Int(il as i64)).collect()))
            }
            ConfigTerm::Call("if", [cond, then, otherwise]) => match self.term(cond)? {
                Some(Setting::Bool(true)) => self.term(then)?,
                Some(Setting::Bool(false)) | None => self.term(otherwise)?,
                Some(cond @ Setting::List(_)) => {
                    let (then, otherwise) = (self.term(then)?, self.term(otherwise)?);
                    let Some((then, otherwise)) = then.zip(otherwise) else {
                        return Ok(None);
                    };
                    let pick = |c: &Setting, i: usize| {
                        let branch = if *c == Setting::Bool(true) { &then } else { &otherwise };
                        element(branch, i).cloned()
                    };
                    let Setting::List(list) = cond else { return Ok(None) };
                    list.iter()
                        .enumerate()
                        .map(|(i, c)| pick(c, i))
                        .collect::<Option<_>>()
                        .map(Setting::List)
                }
                Some(other) => return self.fault(format!("expected a condition, found {other:?}")),
            },
            ConfigTerm::Call(name, args) => {
                let mut values = Vec::new();
                for arg in args {
                    match self.term(arg)? {
                        Some(value) => values.push(value),
                        None => return Ok(None),
                    }
                }
                self.call(name, values)?
            }
        })
    }

    /// Converts a value of the configuration.
    fn setting(&self, json: &Json, path: &str, depth: usize) -> Result<Setting, CheckpointError> {
        Ok(match json {
            Json::Bool(b) => Setting::Bool(*b),
            Json::Number(n) => match n.as_i64() {
                Some(n) => Setting::Int(n),
                None => Setting::Float(n.as_f64().unwrap_or(f64::INFINITY)),
            },
            Json::String(text) => Setting::Text(text.clone()),
            Json::Array(list) if depth < 2 => {
                let list: Result<_, _> = list.iter().map(|v| self.setting(v, path, depth + 1)).collect();
                Setting::List(list?)
            }
            _ => {
                return self.fault(format!(
                    "`{path}` has an unexpected value: expected a number, a string, or a list"
                ));
            }
        })
    }

    fn call(&mut self, name: &str, values: Vec<Setting>) -> Result<Option<Setting>, CheckpointError> {
        let value = match (name, &values[..]) {
            ("length", [Setting::List(list)]) => Setting::Int(list.len() as i64),
            ("at", [Setting::List(list), Setting::Int(i)]) => {
                return Ok(usize::try_from(*i).ok().and_then(|i| list.get(i)).cloned());
            }
            ("contains", [Setting::List(list), Setting::List(values)]) => {
                Setting::List(values.iter().map(|value| Setting::Bool(list.contains(value))).collect())
            }
            ("contains", [Setting::List(list), value]) => Setting::Bool(list.contains(value)),
            ("each_layer", [Setting::List(list)]) => Setting::List(list.clone()),
            ("each_layer", [value]) => Setting::List(vec![value.clone(); self.n_layer()?]),
            (_, values) if values.iter().any(|v| matches!(v, Setting::List(_))) => {
                let lengths = values.iter().filter_map(|v| match v {
                    Setting::List(list) => Some(list.len()),
                    _ => None,
                });
                let n = lengths.min().unwrap_or(0);
                let each = (0..n).map(|i| {
                    let values: Option<Vec<&Setting>> = values.iter().map(|v| element(v, i)).collect();
                    values.and_then(|values| scalar(name, &values))
                });
                match each.collect::<Option<Vec<_>>>() {
                    Some(list) => Setting::List(list),
                    None => return self.fault(format!("`{name}` cannot be applied to {values:?}")),
                }
            }
            (_, values) => match scalar(name, &values.iter().collect::<Vec<_>>()) {
                Some(value) => value,
                None => return self.fault(format!("`{name}` cannot be applied to {values:?}")),
            },
        };
        Ok(Some(value))
    }
}

/// Returns element `i` of a list, or a scalar itself.
fn element(value: &Setting, i: usize) -> Option<&Setting> {
    match value {
        Setting::List(list) => list.get(i),
        other => Some(other),
    }
}

/// Applies an operator to scalars. Integers stay integers unless a division leaves a remainder.
fn scalar(name: &str, values: &[&Setting]) -> Option<Setting> {
    use Setting::{Bool, Float, Int};
    let float = |v: &Setting| match v {
        Int(n) => Some(*n as f64),
        Float(x) => Some(*x),
        _ => None,
    };
    Some(match (name, values) {
        ("neg", [Int(n)]) => Int(n.checked_neg()?),
        ("neg", [x]) => Float(-float(x)?),
        ("not", [Bool(b)]) => Bool(!b),
        ("int", [Int(n)]) => Int(*n),
        ("int", [Float(x)]) if x.abs() < 9e15 => Int(*x as i64),
        ("sqrt", [x]) => Float(float(x)?.sqrt()),
        ("ln", [x]) => Float(float(x)?.ln()),
        ("&&", [Bool(a), Bool(b)]) => Bool(*a && *b),
        ("||", [Bool(a), Bool(b)]) => Bool(*a || *b),
        ("==", [a, b]) if float(a).is_some() && float(b).is_some() => Bool(float(a) == float(b)),
        ("!=", [a, b]) if float(a).is_some() && float(b).is_some() => Bool(float(a) != float(b)),
        ("==", [a, b]) => Bool(a == b),
        ("!=", [a, b]) => Bool(a != b),
        ("<", [a, b]) => Bool(float(a)? < float(b)?),
        ("<=", [a, b]) => Bool(float(a)? <= float(b)?),
        (">", [a, b]) => Bool(float(a)? > float(b)?),
        (">=", [a, b]) => Bool(float(a)? >= float(b)?),
        ("+", [Int(a), Int(b)]) => Int(a.checked_add(*b)?),
        ("-", [Int(a), Int(b)]) => Int(a.checked_sub(*b)?),
        ("*", [Int(a), Int(b)]) => Int(a.checked_mul(*b)?),
        ("%", [Int(a), Int(b)]) => Int(a.checked_rem(*b)?),
        ("/", [Int(a), Int(b)]) if a.checked_rem(*b)? == 0 => Int(a.checked_div(*b)?),
        ("min", [Int(a), Int(b)]) => Int(*a.min(b)),
        ("max", [Int(a), Int(b)]) => Int(*a.max(b)),
        ("+", [a, b]) => Float(float(a)? + float(b)?),
        ("-", [a, b]) => Float(float(a)? - float(b)?),
        ("*", [a, b]) => Float(float(a)? * float(b)?),
        ("/", [a, b]) => Float(float(a)? / float(b)?),
        ("min", [a, b]) => Float(float(a)?.min(float(b)?)),
        ("max", [a, b]) => Float(float(a)?.max(float(b)?)),
        _ => return None,
    })
}
