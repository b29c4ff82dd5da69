//! The models of a folder and of the cache, for `llama serve --models-dir`.

use std::path::Path;
use std::sync::Arc;

use engine::backend::installed_memory;
use server::fleet::{Card, Fleet, FleetParams};

use crate::args::ServeArgs;
use crate::commands::serve::served;
use crate::failure::{Failure, Outcome};
use crate::hub::cache::Cache;
use crate::version;

/// Shares of the machine's memory that files of loaded models may have: contexts need the rest.
const SHARE: (u64, u64) = (3, 4);

/// Serves them, each when it is asked for.
pub fn fleet(args: &'static ServeArgs, folder: &Path) -> Outcome<Arc<Fleet>> {
    let mut cards = cards(folder)?;
    for name in &args.models_pin {
        let card = cards.iter_mut().find(|card| card.name == *name);
        let none = || {
            Failure::new(format_args!(
                "--models-pin {name}: there is no model of that name in {}",
                folder.display()
            ))
        };
        card.ok_or_else(none)?.is_pinned = true;
    }
    let params = FleetParams {
        cards,
        max_loaded: args.models_max,
        max_bytes: max_bytes(),
        build: version::short(),
    };
    let load = |card: &Card| {
        let mut served = served(&args.serving, &card.path).map_err(sentence)?;
        served.params.name = card.name.clone();
        served.params.slot_save_path = args.slot_save_path.clone();
        Ok(served)
    };
    Ok(Fleet::new(params, Box::new(load)))
}

/// Most bytes of files of loaded models.
fn max_bytes() -> u64 {
    match installed_memory() as u64 {
        // It cannot be found out.
        0 => u64::MAX,
        n => n / SHARE.1 * SHARE.0,
    }
}

fn sentence(failure: Failure) -> String {
    match failure {
        Failure::Message(message) => message,
        other => format!("{other:?}"),
    }
}

/// The models by name: files of the folder by theirs, and what was fetched by the names it was fetched by.
fn cards(folder: &Path) -> Outcome<Vec<Card>> {
    let wrong = |e: &dyn std::fmt::Display| Failure::new(format_args!("--models-dir {}: {e}", folder.display()));
    let mut cards = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| wrong(&e))? {
        let path = entry.map_err(|e| wrong(&e))?.path();
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default()
            .to_owned();
        let is_model = path.extension().is_some_and(|e| e == "gguf") && !stem.is_empty() && !stem.starts_with("mmproj");
        // Further parts of a model come with its first one.
        let part = stem.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-'));
        if is_model && part.is_none_or(|(_, part)| part == "00001") {
            cards.push(Card {
                n_bytes: n_bytes(&path),
                name: stem,
                path,
                is_pinned: false,
            });
        }
    }
    cards.sort_by(|a, b| a.name.cmp(&b.name));
    let fetched = Cache::of_user().map(|cache| cache.list()).unwrap_or_default();
    for entry in fetched {
        let name = entry.name.to_string();
        if cards.iter().all(|card| card.name != name) {
            cards.push(Card {
                name,
                path: entry.path,
                n_bytes: entry.bytes,
                is_pinned: false,
            });
        }
    }
    match cards.is_empty() {
        true => Err(wrong(&"there is no model in it")),
        false => Ok(cards),
    }
}

/// Bytes of a model's files: of all its parts, if it has some.
fn n_bytes(path: &Path) -> u64 {
    let len = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (Some((before, after)), Some(folder)) = (name.split_once("-00001-of-"), path.parent()) else {
        return len(path);
    };
    let n_parts: u32 = after
        .strip_suffix(".gguf")
        .and_then(|n| n.parse().ok())
        .unwrap_or(1)
        .min(99_999);
    let part = |i| folder.join(format!("{before}-{i:05}-of-{after}"));
    (1..=n_parts).map(|i| len(&part(i))).sum()
}
