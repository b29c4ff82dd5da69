//! The models of a folder, of the cache and of a file of presets, for `llama serve --models-dir` and `--models-preset`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::backend::installed_memory;
use server::fleet::{Card, Fleet, FleetParams, Later};

use crate::args::{Preset, Presets, ServeArgs, ServingArgs};
use crate::commands::input;
use crate::commands::serve::served;
use crate::failure::{Failure, Outcome};
use crate::hub::cache::Cache;
use crate::hub::name::Name;
use crate::{fetch, version};

/// Shares of the machine's memory that files of loaded models may have: contexts need the rest.
const SHARE: (u64, u64) = (3, 4);

/// Serves them, each when it is asked for; and the names of those to load at the start.
pub fn fleet(args: &'static ServeArgs) -> Outcome<(Arc<Fleet>, Vec<String>)> {
    let mut cards = match &args.models_dir {
        Some(folder) => of_folder(folder)?,
        None => Vec::new(),
    };
    add_fetched(&mut cards);
    let (mut presets, mut first) = (HashMap::new(), args.models_pin.clone());
    let mut others = &args.serving;
    if let Some(path) = &args.models_preset {
        let wrong = |e: String| Failure::new(format_args!("{}: {e}", path.display()));
        let line: Vec<OsString> = std::env::args_os().collect();
        let read = Presets::parse(&input::read(path)?, &line).map_err(wrong)?;
        // Models are loaded by them as long as the program runs.
        others = &Box::leak(Box::new(read.others)).serving;
        for preset in read.models {
            add_preset(&mut cards, &preset).map_err(|e| wrong(format!("[{}]: {}", preset.name, sentence(e))))?;
            if preset.at_start {
                first.push(preset.name.clone());
            }
            let of_model: &'static ServingArgs = &Box::leak(Box::new(preset.args)).serving;
            presets.insert(preset.name, of_model);
        }
    }
    if cards.is_empty() {
        return Err(Failure::new(
            "there is no model in --models-dir, --models-preset and the cache",
        ));
    }
    check_names(&cards)?;
    for name in &args.models_pin {
        let card = cards.iter_mut().find(|card| card.name == *name);
        let none = || Failure::new(format_args!("--models-pin {name}: there is no model of that name"));
        card.ok_or_else(none)?.is_pinned = true;
    }
    let params = FleetParams {
        cards,
        max_loaded: if args.models_max == 0 {
            usize::MAX
        } else {
            args.models_max
        },
        max_bytes: max_bytes(),
        autoload: !args.no_models_autoload,
        build: version::short(),
    };
    let load = move |card: &Card| {
        let serving = presets.get(&card.name).copied().unwrap_or(others);
        let mut served = served(serving, &card.path).map_err(sentence)?;
        served.params.name = card.name.clone();
        served.params.aliases = card.aliases.clone();
        served.params.slot_save_path = args.slot_save_path.clone();
        Ok(served)
    };
    Ok((Fleet::new(params, Box::new(load)), first))
}

/// The options of a model that is there, or one more model. One of a hub is fetched when it is first asked for, unless it has been before.
fn add_preset(cards: &mut Vec<Card>, preset: &Preset) -> Outcome {
    let args = &preset.args;
    let given = args.model.clone().or(args.first.clone());
    let is_file = |path: &PathBuf| path.exists() || path.to_str().and_then(Name::meant).is_none();
    if let Some(path) = given
        .as_ref()
        .filter(|path| is_file(path) && !args.serving.hub.names_a_model())
    {
        cards.retain(|card| card.name != preset.name);
        cards.push(card(preset.name.clone(), path.clone()));
    } else if given.is_some() || args.serving.hub.names_a_model() {
        let hub = args.serving.hub.clone();
        // What is wrong with a name is told now.
        let name = hub.name()?.or_else(|| given.as_ref()?.to_str().and_then(Name::meant));
        let entry = name.and_then(|name| Cache::of_user().ok()?.find(&name));
        let fetch = move || {
            let path = fetch::model(given.as_deref(), &hub).map_err(sentence)?;
            let n_bytes = n_bytes(&path);
            Ok((path, n_bytes))
        };
        cards.retain(|card| card.name != preset.name);
        cards.push(Card {
            path: entry.as_ref().map(|entry| entry.path.clone()).unwrap_or_default(),
            n_bytes: entry.map_or(0, |entry| entry.bytes),
            later: Some(Arc::new(Later::new(Box::new(fetch)))),
            ..card(preset.name.clone(), PathBuf::new())
        });
    }
    let card = cards.iter_mut().find(|card| card.name == preset.name);
    let none = || Failure::new("there is no model of that name: model = FILE or hf-repo = NAME says which it is");
    let aliases = args.serving.alias.iter().map(|alias| alias.trim().to_owned());
    card.ok_or_else(none)?.aliases = aliases.filter(|alias| !alias.is_empty()).collect();
    Ok(())
}

/// A name means one model.
fn check_names(cards: &[Card]) -> Outcome {
    let mut names: Vec<&String> = cards
        .iter()
        .flat_map(|card| card.aliases.iter().chain([&card.name]))
        .collect();
    names.sort();
    match names.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(Failure::new(format_args!("two models have the name {}", two[0]))),
        None => Ok(()),
    }
}

fn card(name: String, path: PathBuf) -> Card {
    Card {
        n_bytes: n_bytes(&path),
        name,
        aliases: Vec::new(),
        path,
        is_pinned: false,
        later: None,
    }
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

/// The files of a folder by their names.
fn of_folder(folder: &Path) -> Outcome<Vec<Card>> {
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
            cards.push(card(stem, path));
        }
    }
    cards.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cards)
}

/// Adds what was fetched, by the names it was fetched by.
fn add_fetched(cards: &mut Vec<Card>) {
    let fetched = Cache::of_user().map(|cache| cache.list()).unwrap_or_default();
    for entry in fetched {
        let name = entry.name.to_string();
        if cards.iter().all(|card| card.name != name) {
            cards.push(Card {
                n_bytes: entry.bytes,
                ..card(name, entry.path)
            });
        }
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
