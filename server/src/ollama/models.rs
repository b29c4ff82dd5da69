//! Ollama's model routes: `/api/tags`, `/api/show`, `/api/ps`, and `/api/version`.

use axum::extract::State;
use axum::response::Response;
use engine::gguf::{Gguf, Metadata, TensorInfo, Value};
use engine::model::{Fingerprint, Model};
use serde_json::{Map, Value as Json, json};

use crate::api::{ApiResult, Field, Fields};
use crate::app::Shared;
use crate::capabilities::capabilities_of;
use crate::http::{Body, json};
use crate::service::ModelService;
use crate::timestamp::rfc3339;

/// Reported API version. Clients reject older versions.
const VERSION: &str = "0.12.0";

/// Fields of `/api/show`.
pub const SHOW_FIELDS: &[Field] = &[
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::text("name", "Older name of `model`."),
    Field::ignored("verbose", "Ignored; vocabularies are never returned."),
    Field::ignored("options", "Ignored."),
    Field::ignored("system", "Ignored."),
    Field::ignored("template", "Ignored."),
];

/// Handles `GET /api/tags` for a single model.
pub async fn tags(State(app): State<Shared>) -> Response {
    json(&json!({ "models": [entry(&app.service)] }))
}

/// Handles `GET /api/ps` for a single model, which is always loaded.
pub async fn ps(State(app): State<Shared>) -> Response {
    let service = &app.service;
    json(&json!({ "models": [loaded_json(entry(service), service)] }))
}

/// Adds the fields of a loaded model to its list entry.
pub fn loaded_json(mut entry: Json, service: &ModelService) -> Json {
    entry["size_vram"] = 0.into();
    entry["context_length"] = service.n_ctx().into();
    // The model never expires: report a time 100 years after the start.
    entry["expires_at"] = rfc3339(service.created + 100 * 365 * 86_400, 0).into();
    entry
}

/// Handles `GET /api/version`.
pub async fn version() -> Response {
    json(&json!({ "version": VERSION }))
}

/// Handles `POST /api/show` for a single model.
pub async fn show(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    named(body)?;
    Ok(json(&describe(&app.service)))
}

/// Reads the model name from a body with [`SHOW_FIELDS`].
pub fn named(body: Map<String, Json>) -> ApiResult<Option<String>> {
    let mut fields = Fields::new(body, &[SHOW_FIELDS], false)?;
    let (model, name) = (fields.text("model")?, fields.text("name")?);
    fields.finish()?;
    Ok(model.or(name).filter(|name| !name.is_empty()))
}

/// Describes a loaded model.
pub fn describe(service: &ModelService) -> Json {
    let about = about(service);
    let metadata = service.model().metadata();
    about.describe(
        metadata,
        service.chat.template(),
        service.n_ctx(),
        &service.capabilities(),
    )
}

fn entry(service: &ModelService) -> Json {
    about(service).entry(&service.params.name)
}

fn about(service: &ModelService) -> ModelSummary {
    let model = service.model();
    ModelSummary {
        family: model.arch().name.to_owned(),
        n_params: model.n_params(),
        quantization: quantization(model.metadata()),
        n_bytes: model.n_bytes() as u64,
        digest: digest(model),
        modified: service.created,
    }
}

/// Properties of a model in model lists.
#[derive(Debug, Default)]
pub struct ModelSummary {
    /// Architecture.
    pub family: String,
    /// Number of parameters.
    pub n_params: usize,
    /// Quantization type of most tensors.
    pub quantization: &'static str,
    /// Total size of the model files in bytes.
    pub n_bytes: u64,
    /// Fingerprint of the model.
    pub digest: String,
    /// Modification time in seconds since the Unix epoch.
    pub modified: u64,
}

impl ModelSummary {
    /// Reads the properties from a file header.
    pub fn of_header(header: &Gguf, n_bytes: u64, digest: String, modified: u64) -> ModelSummary {
        let family = header.metadata.optional::<&str>("general.architecture").ok().flatten();
        let n = |tensor: &TensorInfo| tensor.ne.iter().fold(1_usize, |all, &n| all.saturating_mul(n));
        ModelSummary {
            family: family.unwrap_or_default().to_owned(),
            n_params: header.tensors().iter().map(n).fold(0, usize::saturating_add),
            quantization: quantization(&header.metadata),
            n_bytes,
            digest,
            modified,
        }
    }

    /// Returns the entry of a model list.
    pub fn entry(&self, name: &str) -> Json {
        json!({
            "name": name,
            "model": name,
            "modified_at": rfc3339(self.modified, 0),
            "size": self.n_bytes,
            "digest": self.digest,
            "details": self.details(),
        })
    }

    /// Describes a model that is not loaded.
    pub fn describe_file(&self, metadata: &Metadata) -> Json {
        let template = metadata.optional::<&str>("tokenizer.chat_template").ok().flatten();
        let n_ctx = metadata.optional::<u32>(&format!("{}.context_length", self.family));
        let n_ctx = n_ctx.ok().flatten().unwrap_or(0) as usize;
        self.describe(
            metadata,
            template.unwrap_or_default(),
            n_ctx,
            &capabilities_of(metadata),
        )
    }

    fn describe(&self, metadata: &Metadata, template: &str, n_ctx: usize, capabilities: &[&str]) -> Json {
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
            "modified_at": rfc3339(self.modified, 0),
        })
    }

    fn details(&self) -> Json {
        let millions = self.n_params as f64 / 1e6;
        let size = if millions >= 1e3 {
            format!("{:.1}B", millions / 1e3)
        } else {
            format!("{millions:.0}M")
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

/// Names of quantization mixes by the value of `general.file_type`.
const MIXES: [(u32, &str); 39] = [
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
    (140, "IQ4_K"),
    (141, "IQ5_K"),
    (142, "IQ6_K"),
    (145, "IQ4_KS"),
    (150, "IQ5_KS"),
];

/// Returns the quantization mix recorded in the file, or an empty string.
fn quantization(metadata: &Metadata) -> &'static str {
    let number = metadata.optional::<u32>("general.file_type").ok().flatten();
    let found = MIXES.iter().find(|(n, _)| Some(*n) == number);
    found.map_or("", |(_, name)| name)
}

/// Returns an identifier for the model's hyperparameters, tensors, and weights.
fn digest(model: &Model) -> String {
    let Fingerprint {
        hparams,
        tensors,
        weights,
        ..
    } = *model.fingerprint();
    format!("{hparams:016x}{tensors:016x}{weights:016x}")
}
