//! llama-server's `/slots` and `/lora-adapters`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use axum::Extension;
use axum::extract::{Path as InPath, State};
use axum::http::{StatusCode, Uri};
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, adapter_scales, text_of};
use crate::app::{App, Shared};
use crate::http::{AnyBody, Client, blocking, json};
use crate::scheduler::Slot;
use crate::service::ServiceParams;

/// Fields of `/slots/{id}`.
pub const SLOT_FIELDS: &[Field] = &[Field::text(
    "filename",
    "File name in the directory given by `--slot-save-path`; for `save` and `restore`.",
)];

/// Start of the names of directories with the files of one API key.
const KEY_DIRECTORY: &str = "key-";

/// Handles `GET /slots`.
pub async fn slots(State(app): State<Shared>, Extension(client): Extension<Client>) -> ApiResult {
    check_enabled(&app)?;
    let n_ctx = app.service.n_ctx();
    // Encoder models have no slots.
    let slots = app.service.scheduler.slots(client.0).await.unwrap_or_default();
    let slot = |(id, slot): (usize, &Slot)| json!({ "id": id, "n_ctx": n_ctx, "is_processing": slot.is_busy, "n_held": slot.n_held });
    let slots: Vec<Json> = slots.iter().enumerate().map(slot).collect();
    Ok(json(&slots.into()))
}

fn check_enabled(app: &App) -> ApiResult<()> {
    if app.service.params.has_slots {
        return Ok(());
    }
    Err(ApiError::unsupported("/slots is disabled on this server (--no-slots)"))
}

/// Handles `POST /slots/{id}`.
pub async fn slot(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    InPath(id): InPath<String>,
    uri: Uri,
    AnyBody(body): AnyBody,
) -> ApiResult {
    check_enabled(&app)?;
    let id: usize = id
        .parse()
        .map_err(|_| ApiError::not_found("invalid slot id: expected an integer"))?;
    let (scheduler, start) = (&app.service.scheduler, Instant::now());
    let ms = || start.elapsed().as_secs_f64() * 1e3;
    let mut pairs = uri.query().unwrap_or_default().split('&');
    match pairs.find_map(|pair| pair.strip_prefix("action=")) {
        Some("erase") => {
            let n = scheduler.erase_slot(id, client.0).await?;
            Ok(json(&json!({ "id_slot": id, "n_erased": n })))
        }
        Some("save") => {
            let (name, path) = file(&app, client, body)?;
            // Names of requests do not start with a dot.
            let part = path.with_file_name(format!(".{name}.part"));
            let n = scheduler.save_slot(id, client.0, part.clone()).await?;
            let params = app.clone();
            let n_bytes = blocking(move || keep(&params.service.params, &part, &path)).await?;
            Ok(json(
                &json!({ "id_slot": id, "filename": name, "n_saved": n, "n_written": n_bytes, "timings": { "save_ms": ms() } }),
            ))
        }
        Some("restore") => {
            let (name, path) = file(&app, client, body)?;
            let n_bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
            let n = scheduler.restore_slot(id, client.0, path).await?;
            Ok(json(
                &json!({ "id_slot": id, "filename": name, "n_restored": n, "n_read": n_bytes, "timings": { "restore_ms": ms() } }),
            ))
        }
        _ => Err(ApiError::field("action", "expected save, restore, or erase")),
    }
}

/// Returns the path of the requested file inside the slot directory. Each API key has a separate directory there,
/// unless the keys share the cache.
fn file(app: &App, Client(client): Client, body: Json) -> ApiResult<(String, PathBuf)> {
    let Some(folder) = &app.service.params.slot_save_path else {
        return Err(ApiError::unsupported(
            "saving slots is disabled; enable it with --slot-save-path",
        ));
    };
    let name = body.get("filename").cloned().and_then(text_of);
    let name = name.ok_or_else(|| ApiError::field("filename", "expected a string"))?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(is_allowed) {
        return Err(ApiError::field(
            "filename",
            "expected a name of letters, digits, '.', '-' and '_' that does not start with '.'",
        ));
    }
    let path = match app.service.scheduler.settings().cache_owner(client) {
        0 => folder.join(&name),
        owner => {
            let own = folder.join(format!("{KEY_DIRECTORY}{owner}"));
            let failed = |e: std::io::Error| ApiError::unprocessable(format!("cannot create {}: {e}", own.display()));
            std::fs::create_dir_all(&own).map_err(failed)?;
            own.join(&name)
        }
    };
    Ok((name, path))
}

/// Renames a new slot file to `path`, or deletes the file if all files would exceed the limit. Returns its size.
fn keep(params: &ServiceParams, part: &Path, path: &Path) -> ApiResult<u64> {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let folder = params.slot_save_path.as_deref().unwrap_or(path);
    // The new file is among the files; the file that it replaces does not count.
    let n_bytes = bytes_in(folder).saturating_sub(size(path));
    if n_bytes > params.slot_save_limit {
        // The file counts toward the limit until it is deleted.
        let _ = std::fs::remove_file(part);
        let [n, limit] = [n_bytes, params.slot_save_limit].map(|n| n >> 20);
        return Err(ApiError {
            status: StatusCode::INSUFFICIENT_STORAGE,
            ..ApiError::invalid(format!(
                "cannot save the slot: the files in --slot-save-path would need {n} MiB, and --slot-save-limit is {limit} MiB; delete some of them, or raise the limit"
            ))
        });
    }
    let refused = |e: std::io::Error| ApiError::unprocessable(format!("cannot write {}: {e}", path.display()));
    std::fs::rename(part, path).map_err(refused)?;
    Ok(size(path))
}

/// Returns the size of the files in a directory and in the directories of API keys in it.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(file) if file.is_file() => file.len(),
        Ok(file) if file.is_dir() && entry.file_name().to_string_lossy().starts_with(KEY_DIRECTORY) => {
            bytes_in(&entry.path())
        }
        _ => 0,
    };
    entries.map(size).sum()
}

/// Handles `GET /lora-adapters`.
pub async fn adapters(State(app): State<Shared>) -> ApiResult {
    let scales = app.service.scheduler.adapter_scales().await.unwrap_or_default();
    let paths = &app.service.params.adapters;
    let adapter = |(id, scale): (usize, f32)| json!({ "id": id, "path": paths.get(id), "scale": scale });
    let all: Vec<Json> = scales.into_iter().enumerate().map(adapter).collect();
    Ok(json(&all.into()))
}

/// Handles `POST /lora-adapters`. Omitted adapters get scale 0; running requests keep their scales.
pub async fn set_adapter_scales(State(app): State<Shared>, AnyBody(body): AnyBody) -> ApiResult {
    let list = body.as_array().map_or(&[Json::Null][..], Vec::as_slice);
    let scales = adapter_scales(list).map_err(ApiError::invalid)?;
    app.service.scheduler.set_adapter_scales(scales).await?;
    Ok(json(&json!({ "success": true })))
}
