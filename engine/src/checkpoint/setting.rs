//! Values of metadata keys, and descriptions of settings.

use super::config::Setting;
use crate::gguf::{Array, Value};
use crate::model::{ConfigTerm, SettingType};

/// Returns the paths of a setting, for messages.
pub(super) fn paths(terms: &[ConfigTerm]) -> String {
    fn collect(term: &ConfigTerm, names: &mut Vec<String>) {
        match term {
            ConfigTerm::Path(path) => names.push(format!("`{path}`")),
            ConfigTerm::Symbol(name) => names.push(format!("the value of `{name}`")),
            ConfigTerm::Call(_, args) => args.iter().for_each(|arg| collect(arg, names)),
            _ => {}
        }
    }
    let mut names = Vec::new();
    terms.iter().for_each(|term| collect(term, &mut names));
    names.join(" or ")
}

/// Converts a setting to the value of a key.
pub(super) fn typed(value: &Setting, ty: SettingType) -> Option<Value> {
    let int = |v: &Setting| match v {
        Setting::Int(n) => u32::try_from(*n).ok(),
        Setting::Float(x) if x.fract() == 0.0 && (0.0..4e9).contains(x) => Some(*x as u32),
        Setting::Bool(b) => Some(u32::from(*b)),
        _ => None,
    };
    let float = |v: &Setting| match v {
        Setting::Int(n) => Some(*n as f32),
        Setting::Float(x) => Some(*x as f32),
        _ => None,
    };
    let bool = |v: &Setting| match v {
        Setting::Bool(b) => Some(*b),
        _ => None,
    };
    if let Setting::List(list) = value {
        let first = list.first()?;
        return Some(Value::Array(match (ty, first) {
            (SettingType::Bool | SettingType::Any, Setting::Bool(_)) => {
                Array::Bool(list.iter().map(bool).collect::<Option<_>>()?)
            }
            (SettingType::Float, _) | (SettingType::Any, Setting::Float(_)) => {
                Array::F32(list.iter().map(float).collect::<Option<_>>()?)
            }
            (SettingType::Int, _) | (SettingType::Any, Setting::Int(_)) => {
                Array::U32(list.iter().map(int).collect::<Option<_>>()?)
            }
            _ => return None,
        }));
    }
    Some(match (ty, value) {
        (SettingType::Int, v) => Value::U32(int(v)?),
        (SettingType::Float, v) => Value::F32(float(v)?),
        (SettingType::Bool, v) => Value::Bool(bool(v)?),
        (SettingType::Text | SettingType::Any, Setting::Text(text)) => Value::from(text.as_str()),
        (SettingType::Any, Setting::Bool(b)) => Value::Bool(*b),
        (SettingType::Any, Setting::Float(x)) => Value::F32(*x as f32),
        (SettingType::Any, v) => Value::U32(int(v)?),
        _ => return None,
    })
}
