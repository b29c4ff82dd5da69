//! `/slots` and `/lora-adapters`: sequences, what they hold, and adapters, as llama-server has them.

use std::path::PathBuf;
use std::time::Instant;

use axum::extract::{Path, State};
use axum::http::Uri;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Form, text_of};
use crate::http::{AnyBody, App, Shared, json};
use crate::scheduler::Slot;

/// The fields of what is done with a slot.
pub const SLOT_FIELDS: &[Field] = &[Field {
    name: "filename",
    form: Form::Text,
    doc: "The file's name in the folder of `--slot-save-path`, for `save` and `restore`.",
}];

/// Tells of sequences.
pub async fn slots(State(app): State<Shared>) -> ApiResult {
    let n_ctx = app.served.n_ctx();
    // A model that continues no texts has none.
    let slots = app
        .served
        .scheduler
        .ask(|batcher| Ok(batcher.slots()))
        .await
        .unwrap_or_default();
    let slot = |(id, slot): (usize, &Slot)| json!({ "id": id, "n_ctx": n_ctx, "is_processing": slot.is_busy, "n_held": slot.n_held });
    let slots: Vec<Json> = slots.iter().enumerate().map(slot).collect();
    Ok(json(&slots.into()))
}

/// Saves what a sequence holds, restores or erases it.
pub async fn slot(State(app): State<Shared>, Path(id): Path<String>, uri: Uri, AnyBody(body): AnyBody) -> ApiResult {
    let id: usize = id
        .parse()
        .map_err(|_| ApiError::not_found("expected the number of a slot"))?;
    let (scheduler, start) = (&app.served.scheduler, Instant::now());
    let ms = || start.elapsed().as_secs_f64() * 1e3;
    let mut pairs = uri.query().unwrap_or_default().split('&');
    match pairs.find_map(|pair| pair.strip_prefix("action=")) {
        Some("erase") => {
            let n = scheduler.ask(move |batcher| batcher.erase_slot(id)).await?;
            Ok(json(&json!({ "id_slot": id, "n_erased": n })))
        }
        Some("save") => {
            let (name, path) = file(&app, body)?;
            let at = path.clone();
            let n = scheduler.ask(move |batcher| batcher.save_slot(id, &at)).await?;
            let n_bytes = std::fs::metadata(path).map_or(0, |file| file.len());
            Ok(json(
                &json!({ "id_slot": id, "filename": name, "n_saved": n, "n_written": n_bytes, "timings": { "save_ms": ms() } }),
            ))
        }
        Some("restore") => {
            let (name, path) = file(&app, body)?;
            let n_bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
            let n = scheduler.ask(move |batcher| batcher.restore_slot(id, &path)).await?;
            Ok(json(
                &json!({ "id_slot": id, "filename": name, "n_restored": n, "n_read": n_bytes, "timings": { "restore_ms": ms() } }),
            ))
        }
        _ => Err(ApiError::field("action", "expected save, restore or erase")),
    }
}

/// The file that a request names, which is in the folder for them.
fn file(app: &App, body: Json) -> ApiResult<(String, PathBuf)> {
    let Some(folder) = &app.served.params.slot_save_path else {
        return Err(ApiError::unsupported(
            "slots are saved where --slot-save-path says, which was not given",
        ));
    };
    let name = body.get("filename").cloned().and_then(text_of);
    let name = name.ok_or_else(|| ApiError::field("filename", "expected a text"))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(ApiError::field(
            "filename",
            "expected a name of letters, digits, points, - and _ that does not begin with a point",
        ));
    }
    let path = folder.join(&name);
    Ok((name, path))
}

/// Tells of the adapters and their factors.
pub async fn adapters(State(app): State<Shared>) -> ApiResult {
    let scales = app
        .served
        .scheduler
        .ask(|batcher| Ok(batcher.adapters()))
        .await
        .unwrap_or_default();
    let paths = &app.served.params.adapters;
    let adapter = |(id, scale): (usize, f32)| json!({ "id": id, "path": paths.get(id), "scale": scale });
    let all: Vec<Json> = scales.into_iter().enumerate().map(adapter).collect();
    Ok(json(&all.into()))
}

/// Changes the factors, those of adapters that are not named to zero. Texts under way keep theirs.
pub async fn rescale(State(app): State<Shared>, AnyBody(body): AnyBody) -> ApiResult {
    let wrong = || ApiError::invalid("expected a list of objects with the `id` of an adapter and its `scale`");
    let list = body.as_array().ok_or_else(wrong)?;
    let read = |one: &Json| {
        let id = one.get("id")?.as_u64().and_then(|id| usize::try_from(id).ok())?;
        let scale = one.get("scale")?.as_f64().filter(|scale| scale.abs() <= 1e6)?;
        Some((id, scale as f32))
    };
    let scales = list.iter().map(read).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    app.served
        .scheduler
        .ask_later(|batcher, done| batcher.rescale(scales, done))
        .await?;
    Ok(json(&json!({ "success": true })))
}
