//! Descriptions of request fields.

use engine::sample::ParamDef;

/// Description of a request field, from which the reader, the OpenAPI document, and `docs/server.md` are generated.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// JSON type that the field accepts.
    pub form: FieldType,
    /// Description of the field in one or two sentences.
    pub doc: &'static str,
}

impl Field {
    const fn new(name: &'static str, form: FieldType, doc: &'static str) -> Field {
        Field { name, form, doc }
    }

    /// Describes a field that accepts a string.
    pub const fn text(name: &'static str, doc: &'static str) -> Field {
        Field::new(name, FieldType::Text, doc)
    }

    /// Describes a field that accepts a boolean.
    pub const fn flag(name: &'static str, doc: &'static str) -> Field {
        Field::new(name, FieldType::Flag, doc)
    }

    /// Describes a field that accepts an integer.
    pub const fn integer(name: &'static str, doc: &'static str) -> Field {
        Field::new(name, FieldType::Integer, doc)
    }

    /// Describes a field that accepts an object.
    pub const fn object(name: &'static str, doc: &'static str) -> Field {
        Field::new(name, FieldType::Object, doc)
    }

    /// Describes a field that accepts a list.
    pub const fn list(name: &'static str, doc: &'static str) -> Field {
        Field::new(name, FieldType::List, doc)
    }

    /// Describes a field that accepts several JSON types.
    pub const fn any(name: &'static str, doc: &'static str) -> Field {
        Field::new(name, FieldType::Any, doc)
    }

    /// Describes a file of a multipart form.
    pub const fn file(name: &'static str, doc: &'static str) -> Field {
        Field::new(name, FieldType::File, doc)
    }

    /// Describes a field that has no effect.
    pub const fn ignored(name: &'static str, doc: &'static str) -> Field {
        Field::new(name, FieldType::Ignored, doc)
    }
}

/// JSON type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    Text,
    Flag,
    /// A number without a fractional part; 3.0 is accepted.
    Integer,
    Number,
    Object,
    List,
    /// A file. The body of a request with such a field is a multipart form.
    File,
    /// Several JSON types; the description lists them.
    Any,
    /// Any JSON value; the field has no effect.
    Ignored,
}

impl FieldType {
    /// Returns the name used in the documentation.
    pub fn name(self) -> &'static str {
        match self {
            FieldType::Text => "string",
            FieldType::Flag => "boolean",
            FieldType::Integer => "integer",
            FieldType::Number => "number",
            FieldType::Object => "object",
            FieldType::List => "array",
            FieldType::File => "file",
            FieldType::Any => "any",
            FieldType::Ignored => "ignored",
        }
    }
}

/// Returns the request field that sets a sampling parameter.
pub fn name_of(def: &ParamDef) -> &'static str {
    match def.name {
        "temp" => "temperature",
        "penalty_last_n" => "repeat_last_n",
        "penalty_repeat" => "repeat_penalty",
        "penalty_frequency" => "frequency_penalty",
        "penalty_presence" => "presence_penalty",
        name => name,
    }
}
