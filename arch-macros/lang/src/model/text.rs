//! Descriptions of hyperparameters.

use super::Hparam;

/// Hyperparameter as shown in descriptions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HparamText {
    pub name: String,
    /// GGUF key without the architecture prefix; empty for derived values.
    pub key: String,
    /// Type as written in the declaration.
    pub ty: String,
    /// Default or defining expression.
    pub default: Option<String>,
}

impl Hparam {
    /// Returns the description of a value; `None` for a check.
    pub fn text(&self) -> Option<HparamText> {
        match self {
            Hparam::Key {
                name,
                read,
                key,
                default,
                ..
            } => Some(HparamText {
                name: name.to_string(),
                key: key.clone(),
                ty: read.name(),
                default: default.as_ref().map(|d| d.text.clone()),
            }),
            Hparam::Let { name, value, .. } => {
                let ty = value.ty.name();
                Some(HparamText {
                    name: name.to_string(),
                    key: String::new(),
                    ty: if value.per_layer {
                        format!("[{ty}]")
                    } else {
                        ty.to_owned()
                    },
                    default: Some(value.text.clone()),
                })
            }
            Hparam::Check { .. } => None,
        }
    }
}
