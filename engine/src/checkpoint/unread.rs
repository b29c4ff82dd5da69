//! Settings that change the results of a model. A section that does not read such a setting only converts checkpoints
//! with its usual value.

use serde_json::Value as Json;

use super::CheckpointError;
use super::config::Config;
use crate::graph::Unary;
use crate::model::{Checkpoint, ConfigTerm};

/// Names of activations, and their functions. A graph must apply at least one of these functions. All forms of GELU count
/// as one, because some published configurations name another form than the model uses.
const ACTIVATIONS: &[(&[&str], &[Unary])] = &[
    (&["silu", "swish"], &[Unary::Silu]),
    (
        &[
            "gelu",
            "gelu_new",
            "gelu_pytorch_tanh",
            "gelu_fast",
            "gelu_python",
            "gelu_accurate",
        ],
        &[Unary::Gelu, Unary::GeluErf],
    ),
    (&["quick_gelu"], &[Unary::GeluQuick]),
    (&["relu"], &[Unary::Relu]),
    (&["relu2", "relu_squared"], &[Unary::ReluSqr, Unary::Sqr]),
];

/// Paths of the activation of feed-forward networks; the first that exists counts.
const ACTIVATION_PATHS: [&str; 4] = [
    "hidden_activation",
    "hidden_act",
    "activation_function",
    "mlp_hidden_act",
];

/// Names of the rotated part of a head.
const ROTATED_PARTS: [&str; 3] = ["partial_rotary_factor", "rotary_pct", "rotary_dim"];

/// Checks that `functions`, which a graph applies, contain the activation of the configuration. Unknown names pass.
pub fn check_activation(
    config: &Config,
    section: &Checkpoint,
    arch: &str,
    functions: &[Unary],
) -> Result<(), CheckpointError> {
    if functions.is_empty() || ACTIVATION_PATHS.iter().any(|path| reads(section, path)) {
        return Ok(());
    }
    let mut found = ACTIVATION_PATHS
        .iter()
        .filter_map(|path| Some((path, config.text(path)?)));
    let Some((path, name)) = found.next() else {
        return Ok(());
    };
    let row = ACTIVATIONS.iter().find(|(names, _)| names.contains(&name));
    if row.is_none_or(|(_, of_name)| of_name.iter().any(|function| functions.contains(function))) {
        return Ok(());
    }
    let text = format!("`{path}` is {name}, which the graph of `{arch}` does not compute");
    Err(CheckpointError::config(config.path(), text))
}

/// Checks the rotated part of heads and the windows of attention.
pub fn check_settings(config: &Config, section: &Checkpoint, arch: &str) -> Result<(), CheckpointError> {
    let unread = |path: &str, value: &Json| {
        let text = format!("`{path}` is {value}, which architecture `{arch}` does not support");
        Err(CheckpointError::config(config.path(), text))
    };
    if !ROTATED_PARTS.iter().any(|name| reads(section, name)) {
        for path in ["rope_parameters.partial_rotary_factor", "partial_rotary_factor"] {
            if let Some(value) = config
                .get(path)
                .filter(|value| value.as_f64().is_some_and(|x| x != 1.0))
            {
                return unread(path, value);
            }
        }
    }
    let windows = ["sliding_window", "layer_types", "use_sliding_window"];
    if windows.iter().any(|name| reads(section, name)) || config.get("sliding_window").is_none() {
        return Ok(());
    }
    let is_sliding = |ty: &Json| ty.as_str() == Some("sliding_attention");
    match (config.get("layer_types"), config.get("use_sliding_window")) {
        (Some(Json::Array(types)), _) if types.iter().any(is_sliding) => {
            unread("layer_types", &"sliding_attention".into())
        }
        (None, Some(Json::Bool(true))) if config.number("max_window_layers") < config.number("num_hidden_layers") => {
            unread("use_sliding_window", &true.into())
        }
        _ => Ok(()),
    }
}

/// Returns true if a setting or a check of the section reads a value with this name.
pub fn reads(section: &Checkpoint, name: &str) -> bool {
    fn contains(term: &ConfigTerm, name: &str) -> bool {
        match *term {
            ConfigTerm::Path(path) => path.rsplit('.').next() == Some(name),
            ConfigTerm::Call(_, args) => args.iter().any(|arg| contains(arg, name)),
            _ => false,
        }
    }
    let values = section.settings.iter().flat_map(|setting| setting.value);
    let conditions = section.checks.iter().map(|(condition, _)| condition);
    values.chain(conditions).any(|term| contains(term, name))
}
