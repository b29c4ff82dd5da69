//! What is served: `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

use axum::extract::State;
use axum::response::Response;
use engine::gguf::Value;
use engine::model::{Fingerprint, Model};
use serde_json::{Map, Value as Json, json};

use super::time_text;
use crate::api::{ApiResult, Field, Fields, Form};
use crate::http::{Body, Shared, json};
use crate::served::Served;

/// The interface that this is: programs refuse to speak to older ones.
const VERSION: &str = "0.12.0";

/// The fields of `/api/show`.
pub const SHOW_FIELDS: &[Field] = &[
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model; there is one, which answers whatever name is given.",
    },
    Field {
        name: "name",
        form: Form::Text,
        doc: "The same, as it was called before.",
    },
    Field {
        name: "verbose",
        form: Form::Ignored,
        doc: "Vocabularies are never told.",
    },
    Field {
        name: "options",
        form: Form::Ignored,
        doc: "Nothing is loaded anew.",
    },
    Field {
        name: "system",
        form: Form::Ignored,
        doc: "The same.",
    },
    Field {
        name: "template",
        form: Form::Ignored,
        doc: "The same.",
    },
];

/// Lists the model.
pub async fn tags(State(app): State<Shared>) -> Response {
    json(&json!({ "models": [entry(&app.served)] }))
}

/// Lists it as one that is loaded, which it always is.
pub async fn ps(State(app): State<Shared>) -> Response {
    let served = &app.served;
    let mut entry = entry(served);
    entry["size_vram"] = 0.into();
    entry["context_length"] = served.n_ctx().into();
    // It stays: a time that is far away.
    entry["expires_at"] = time_text(served.created + 100 * 365 * 86_400, 0).into();
    json(&json!({ "models": [entry] }))
}

/// The version of the interface.
pub async fn version() -> Response {
    json(&json!({ "version": VERSION }))
}

/// Tells what the model is.
pub async fn show(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    let mut fields = Fields::new(body, &[SHOW_FIELDS], false)?;
    fields.text("model")?;
    fields.text("name")?;
    fields.finish()?;
    let served = &app.served;
    let model = served.model();
    let plain = |value: &Value| -> Option<Json> {
        let text = value.as_str().filter(|text| text.len() < 256).map(Json::from);
        let number = || {
            value
                .as_i64()
                .map(Json::from)
                .or_else(|| value.as_f64().map(Json::from))
        };
        text.or_else(number)
    };
    let keys = model
        .metadata()
        .iter()
        .filter(|(key, _)| !key.starts_with("tokenizer.chat_template"));
    let info: Map<String, Json> = keys
        .filter_map(|(key, value)| Some((key.to_owned(), plain(value)?)))
        .collect();
    let capabilities = served.capabilities();
    Ok(json(&json!({
        "modelfile": "",
        "parameters": format!("num_ctx {}", served.n_ctx()),
        "template": served.template(),
        "details": details(served),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": time_text(served.created, 0),
    })))
}

fn entry(served: &Served) -> Json {
    let name = &served.params.name;
    json!({
        "name": name,
        "model": name,
        "modified_at": time_text(served.created, 0),
        "size": served.model().n_bytes(),
        "digest": digest(served.model()),
        "details": details(served),
    })
}

/// A name for this very model.
fn digest(model: &Model) -> String {
    let Fingerprint {
        hparams,
        tensors,
        weights,
        ..
    } = *model.fingerprint();
    format!("{hparams:016x}{tensors:016x}{weights:016x}")
}

fn details(served: &Served) -> Json {
    let model = served.model();
    let family = model.arch().name;
    let millions = model.n_params() as f64 / 1e6;
    let size = match millions >= 1e3 {
        true => format!("{:.1}B", millions / 1e3),
        false => format!("{millions:.0}M"),
    };
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": "",
    })
}
