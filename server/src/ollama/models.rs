//! What is served: `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

use axum::extract::State;
use axum::response::Response;
use engine::gguf::{Gguf, Metadata, TensorInfo, Value};
use engine::model::{Fingerprint, Model};
use serde_json::{Map, Value as Json, json};

use super::time_text;
use crate::api::{ApiResult, Field, Fields, Form};
use crate::http::{Body, Shared, json};
use crate::served::{Served, capabilities_of};

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
    json(&json!({ "models": [loaded_json(entry(served), served)] }))
}

/// The entry of a model that is loaded.
pub fn loaded_json(mut entry: Json, served: &Served) -> Json {
    entry["size_vram"] = 0.into();
    entry["context_length"] = served.n_ctx().into();
    // It stays: a time that is far away.
    entry["expires_at"] = time_text(served.created + 100 * 365 * 86_400, 0).into();
    entry
}

/// The version of the interface.
pub async fn version() -> Response {
    json(&json!({ "version": VERSION }))
}

/// Tells what the model is.
pub async fn show(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    named(body)?;
    Ok(json(&shown(&app.served)))
}

/// The model that a body of [`SHOW_FIELDS`] names, if it names one.
pub fn named(body: Map<String, Json>) -> ApiResult<Option<String>> {
    let mut fields = Fields::new(body, &[SHOW_FIELDS], false)?;
    let (model, name) = (fields.text("model")?, fields.text("name")?);
    fields.finish()?;
    Ok(model.or(name).filter(|name| !name.is_empty()))
}

/// What is told of a model that is loaded.
pub fn shown(served: &Served) -> Json {
    let about = about(served);
    let metadata = served.model().metadata();
    about.shown(metadata, served.template(), served.n_ctx(), &served.capabilities())
}

fn entry(served: &Served) -> Json {
    about(served).entry(&served.params.name)
}

fn about(served: &Served) -> About {
    let model = served.model();
    About {
        family: model.arch().name.to_owned(),
        n_params: model.n_params(),
        quantization: quantization(model.metadata()),
        n_bytes: model.n_bytes() as u64,
        digest: digest(model),
        modified: served.created,
    }
}

/// What lists tell of a model.
#[derive(Debug, Default)]
pub struct About {
    /// Its architecture.
    pub family: String,
    /// Its weights.
    pub n_params: usize,
    /// How most of them are quantized.
    pub quantization: &'static str,
    /// Bytes of its files.
    pub n_bytes: u64,
    /// A name for this very model.
    pub digest: String,
    /// Seconds since 1970 of its last change.
    pub modified: u64,
}

impl About {
    /// What the header of a file says.
    pub fn of_header(header: &Gguf, n_bytes: u64, digest: String, modified: u64) -> About {
        let family = header.metadata.optional::<&str>("general.architecture").ok().flatten();
        let n = |tensor: &TensorInfo| tensor.ne.iter().fold(1_usize, |all, &n| all.saturating_mul(n));
        About {
            family: family.unwrap_or_default().to_owned(),
            n_params: header.tensors().iter().map(n).fold(0, usize::saturating_add),
            quantization: quantization(&header.metadata),
            n_bytes,
            digest,
            modified,
        }
    }

    /// An entry of a list.
    pub fn entry(&self, name: &str) -> Json {
        json!({
            "name": name,
            "model": name,
            "modified_at": time_text(self.modified, 0),
            "size": self.n_bytes,
            "digest": self.digest,
            "details": self.details(),
        })
    }

    /// What is told of the model of a file that is not loaded.
    pub fn shown_by(&self, metadata: &Metadata) -> Json {
        let template = metadata.optional::<&str>("tokenizer.chat_template").ok().flatten();
        let n_ctx = metadata.optional::<u32>(&format!("{}.context_length", self.family));
        let n_ctx = n_ctx.ok().flatten().unwrap_or(0) as usize;
        self.shown(
            metadata,
            template.unwrap_or_default(),
            n_ctx,
            &capabilities_of(metadata),
        )
    }

    fn shown(&self, metadata: &Metadata, template: &str, n_ctx: usize, capabilities: &[&str]) -> Json {
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
        let keys = metadata
            .iter()
            .filter(|(key, _)| !key.starts_with("tokenizer.chat_template"));
        let info: Map<String, Json> = keys
            .filter_map(|(key, value)| Some((key.to_owned(), plain(value)?)))
            .collect();
        json!({
            "modelfile": "",
            "parameters": format!("num_ctx {n_ctx}"),
            "template": template,
            "details": self.details(),
            "model_info": info,
            "capabilities": capabilities,
            "modified_at": time_text(self.modified, 0),
        })
    }

    fn details(&self) -> Json {
        let millions = self.n_params as f64 / 1e6;
        let size = match millions >= 1e3 {
            true => format!("{:.1}B", millions / 1e3),
            false => format!("{millions:.0}M"),
        };
        json!({
            "parent_model": "",
            "format": "gguf",
            "family": self.family,
            "families": [self.family],
            "parameter_size": size,
            "quantization_level": self.quantization,
        })
    }
}

/// Names of mixes of types, by the number that `general.file_type` has for each.
const MIXES: [(u32, &str); 34] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
    (39, "NVFP4"),
];

/// How a file says that it is quantized; empty where it does not.
fn quantization(metadata: &Metadata) -> &'static str {
    let number = metadata.optional::<u32>("general.file_type").ok().flatten();
    let found = MIXES.iter().find(|(n, _)| Some(*n) == number);
    found.map_or("", |(_, name)| name)
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
