//! Metadata values on the command line.

use engine::gguf::{Array, Metadata, StringArray, Value, ValueType};

/// A key with the text of its value: `KEY=VALUE` or `KEY:TYPE=VALUE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    pub key: String,
    pub ty: Option<NewType>,
    pub text: String,
}

/// Type of a new value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewType {
    /// A single value.
    Single(ValueType),
    /// An array of values of a type.
    ArrayOf(ValueType),
}

/// Parses `KEY=VALUE` or `KEY:TYPE=VALUE`.
pub fn assignment(text: &str) -> Result<Assignment, String> {
    let form = "expected KEY=VALUE or KEY:TYPE=VALUE";
    let (key, value) = text.split_once('=').ok_or(form)?;
    let (key, ty) = match key.split_once(':') {
        Some((key, ty)) => (key, Some(new_type(ty)?)),
        None => (key, None),
    };
    if key.is_empty() {
        return Err(form.to_owned());
    }
    Ok(Assignment {
        key: key.to_owned(),
        ty,
        text: value.to_owned(),
    })
}

fn new_type(name: &str) -> Result<NewType, String> {
    let single = |name: &str| {
        let found = ValueType::ALL.iter().find(|ty| ty.name() == name);
        found.copied().filter(|&ty| ty != ValueType::Array)
    };
    let found = match name.strip_suffix("[]") {
        Some(element) => single(element).map(NewType::ArrayOf),
        None => single(name).map(NewType::Single),
    };
    found.ok_or_else(|| {
        let names: Vec<_> = ValueType::ALL
            .iter()
            .map(|ty| ty.name())
            .filter(|n| *n != "array")
            .collect();
        format!(
            "unknown type {name:?}: expected {}, or an array such as u32[]",
            names.join(", ")
        )
    })
}

impl Assignment {
    /// Returns the value, whose type is the given one or that of the key in `metadata`.
    ///
    /// # Errors
    /// Returns a sentence if the key is new and has no type, or if the text is not a value of the type.
    pub fn value(&self, metadata: &Metadata) -> Result<Value, String> {
        let ty = match (self.ty, metadata.get(&self.key)) {
            (Some(ty), _) => ty,
            (None, Some(Value::Array(array))) => NewType::ArrayOf(array.element_type()),
            (None, Some(value)) => NewType::Single(value.value_type()),
            (None, None) => {
                return Err(format!(
                    "key {:?} is not in the file; give the type of a new key, such as {}:string=… or {}:u32=…",
                    self.key, self.key, self.key
                ));
            }
        };
        match ty {
            NewType::Single(ty) => single(&self.text, ty)
                .ok_or_else(|| format!("{}: expected a value of type {ty}, found {:?}", self.key, self.text)),
            NewType::ArrayOf(ty) => array(&self.text, ty)
                .map(Value::Array)
                .ok_or_else(|| format!("{}: expected a JSON array of {ty}, found {:?}", self.key, self.text)),
        }
    }
}

fn single(text: &str, ty: ValueType) -> Option<Value> {
    Some(match ty {
        ValueType::U8 => Value::U8(text.parse().ok()?),
        ValueType::I8 => Value::I8(text.parse().ok()?),
        ValueType::U16 => Value::U16(text.parse().ok()?),
        ValueType::I16 => Value::I16(text.parse().ok()?),
        ValueType::U32 => Value::U32(text.parse().ok()?),
        ValueType::I32 => Value::I32(text.parse().ok()?),
        ValueType::U64 => Value::U64(text.parse().ok()?),
        ValueType::I64 => Value::I64(text.parse().ok()?),
        ValueType::F32 => Value::F32(text.parse().ok()?),
        ValueType::F64 => Value::F64(text.parse().ok()?),
        ValueType::Bool => Value::Bool(text.parse().ok()?),
        ValueType::String => text.into(),
        ValueType::Array => return None,
    })
}

fn array(text: &str, ty: ValueType) -> Option<Array> {
    use serde_json::from_str as parse;
    Some(match ty {
        ValueType::U8 => Array::U8(parse(text).ok()?),
        ValueType::I8 => Array::I8(parse(text).ok()?),
        ValueType::U16 => Array::U16(parse(text).ok()?),
        ValueType::I16 => Array::I16(parse(text).ok()?),
        ValueType::U32 => Array::U32(parse(text).ok()?),
        ValueType::I32 => Array::I32(parse(text).ok()?),
        ValueType::U64 => Array::U64(parse(text).ok()?),
        ValueType::I64 => Array::I64(parse(text).ok()?),
        ValueType::F32 => Array::F32(parse(text).ok()?),
        ValueType::F64 => Array::F64(parse(text).ok()?),
        ValueType::Bool => Array::Bool(parse(text).ok()?),
        ValueType::String => {
            let strings: Vec<String> = parse(text).ok()?;
            let mut array = StringArray::with_capacity(strings.len(), strings.iter().map(String::len).sum());
            if !strings.iter().all(|s| array.push(s.as_bytes())) {
                return None;
            }
            Array::String(array)
        }
        ValueType::Array => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignment_takes_type_of_key_or_given_type() {
        let metadata = Metadata::from_iter([("a", Value::U32(1)), ("s", "x".into()), ("n", vec![1i32].into())]);
        let value = |text: &str| assignment(text).and_then(|a| a.value(&metadata));
        assert_eq!(value("a=7"), Ok(Value::U32(7)));
        assert_eq!(value("s=u32:7=8"), Ok("u32:7=8".into()));
        assert_eq!(value("a:string=7"), Ok("7".into()));
        assert_eq!(value("new:f32=0.5"), Ok(Value::F32(0.5)));
        assert_eq!(value("n=[-1, 2]"), Ok(vec![-1i32, 2].into()));
        assert_eq!(value("w:string[]=[\"x\"]").unwrap().describe(), "array of 1 string");
        for bad in [
            "a=-1",
            "a=x",
            "new=1",
            "new:u31=1",
            "=1",
            "a",
            "n=1",
            "n=[1.5]",
            "new:array=[]",
        ] {
            assert!(value(bad).is_err(), "{bad}");
        }
    }
}
