//! Model lists for `llama serve --models-dir` and `--models-preset`: a directory, the cache, and a preset file.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Command;
use engine::backend::installed_memory;
use engine::gguf::{FileKind, Gguf};
use server::model_pool::{LazyDownload, ModelEntry, ModelPool, ModelPoolParams};

use super::args::ServeArgs;
use super::preset::{Preset, Presets};
use crate::args::ServingArgs;
use crate::failure::{Failure, Outcome};
use crate::hub::{Cache, Name};
use crate::serving::app;
use crate::{checkpoints, fetch, input, version};

/// Fraction of the machine's memory for model files; contexts use the rest.
const SHARE: (u64, u64) = (3, 4);
/// Maximum time that a request for another model waits until a loaded model is idle.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Creates the model pool. Also returns the names of models to load at startup.
pub fn pool(args: &'static ServeArgs, program: Command) -> Outcome<(Arc<ModelPool>, Vec<String>)> {
    let mut models = match &args.models_dir {
        Some(directory) => of_directory(directory)?,
        None => Vec::new(),
    };
    add_fetched(&mut models);
    let (mut presets, mut first) = (HashMap::new(), args.models_pin.clone());
    let mut others = &args.serving;
    if let Some(path) = &args.models_preset {
        let wrong = |e: String| Failure::new(format_args!("{}: {e}", path.display()));
        let line: Vec<OsString> = std::env::args_os().collect();
        let read = Presets::parse(&input::read(path)?, &line, program).map_err(wrong)?;
        // Leaked, because models are loaded from it until the process exits.
        others = &Box::leak(Box::new(read.others)).serving;
        for preset in read.models {
            add_preset(&mut models, &preset).map_err(|e| wrong(format!("[{}]: {}", preset.name, sentence(e))))?;
            if preset.at_start {
                first.push(preset.name.clone());
            }
            let of_model: &'static ServingArgs = &Box::leak(Box::new(preset.args)).serving;
            presets.insert(preset.name, of_model);
        }
    }
    if models.is_empty() {
        return Err(Failure::new(
            "no models found in --models-dir, --models-preset, and the cache",
        ));
    }
    check_names(&models)?;
    for name in &args.models_pin {
        let model_entry = models.iter_mut().find(|model_entry| model_entry.name == *name);
        let none = || Failure::new(format_args!("--models-pin {name}: unknown model"));
        model_entry.ok_or_else(none)?.is_pinned = true;
    }
    let params = ModelPoolParams {
        models,
        max_loaded: if args.models_max == 0 {
            usize::MAX
        } else {
            args.models_max
        },
        max_bytes: max_bytes(),
        t_wait: MAX_WAIT,
        t_idle: t_idle(args),
        autoload: !args.no_models_autoload,
        build: version::short(),
    };
    let serving_of = Arc::new(move |name: &str| presets.get(name).copied().unwrap_or(others));
    let read_header = {
        let serving_of = serving_of.clone();
        move |model_entry: &ModelEntry| read_header(model_entry, serving_of(&model_entry.name))
    };
    let load = move |model_entry: &ModelEntry| {
        let serving = serving_of(&model_entry.name);
        let mut app = app(serving, &model_entry.path).map_err(sentence)?;
        let params = &mut app.service.params;
        params.name = model_entry.name.clone();
        params.aliases = model_entry.aliases.clone();
        params.tags = model_entry.tags.clone();
        args.applied_to(params);
        Ok(app)
    };
    Ok((ModelPool::new(params, Box::new(load), Box::new(read_header)), first))
}

/// Reads the header of a model with its own value of `--arch`, so that model lists use the declaration that loads it.
fn read_header(model_entry: &ModelEntry, serving: &ServingArgs) -> Result<Gguf, String> {
    checkpoints::header(&model_entry.path, &serving.load.placement.arch).map_err(sentence)
}

/// Creates a pool of one model, which is unloaded while it is idle. Also returns the name of the model.
pub fn sleeper(args: &'static ServeArgs, path: PathBuf) -> (Arc<ModelPool>, String) {
    let stem = checkpoints::name_of(&path);
    let mut names = args.serving.alias.iter().map(|name| name.trim().to_owned());
    let first = names.next().filter(|name| !name.is_empty()).or(stem);
    let name = first.unwrap_or_else(|| "model".to_owned());
    let params = ModelPoolParams {
        models: vec![ModelEntry {
            aliases: names.filter(|name| !name.is_empty()).collect(),
            tags: args.serving.labels(),
            ..model_entry(name.clone(), path)
        }],
        max_loaded: 1,
        max_bytes: u64::MAX,
        t_wait: MAX_WAIT,
        t_idle: t_idle(args),
        autoload: true,
        build: version::short(),
    };
    let load = move |model_entry: &ModelEntry| {
        let mut app = app(&args.serving, &model_entry.path).map_err(sentence)?;
        args.applied_to(&mut app.service.params);
        Ok(app)
    };
    let read_header = move |model_entry: &ModelEntry| read_header(model_entry, &args.serving);
    (ModelPool::new(params, Box::new(load), Box::new(read_header)), name)
}

/// Returns the idle time after which models are unloaded.
fn t_idle(args: &ServeArgs) -> Option<Duration> {
    u64::try_from(args.sleep_idle_seconds).ok().map(Duration::from_secs)
}

/// Applies a preset to an existing model, or adds a new model. A hub model is downloaded on first use unless
/// it is cached.
fn add_preset(models: &mut Vec<ModelEntry>, preset: &Preset) -> Outcome {
    let args = &preset.args;
    let given = args.model.clone().or(args.first.clone());
    let is_file = |path: &PathBuf| path.exists() || path.to_str().and_then(Name::meant).is_none();
    if let Some(path) = given
        .as_ref()
        .filter(|path| is_file(path) && !args.serving.hub.names_a_model())
    {
        models.retain(|model_entry| model_entry.name != preset.name);
        models.push(model_entry(preset.name.clone(), path.clone()));
    } else if given.is_some() || args.serving.hub.names_a_model() {
        let hub = args.serving.hub.clone();
        // Report invalid names at startup.
        let name = hub.name()?.or_else(|| given.as_ref()?.to_str().and_then(Name::meant));
        let entry = name.and_then(|name| Cache::of_user().ok()?.find(&name));
        let fetch = move || {
            let path = fetch::model(given.as_deref(), &hub).map_err(sentence)?;
            let n_bytes = n_bytes(&path);
            Ok((path, n_bytes))
        };
        models.retain(|model_entry| model_entry.name != preset.name);
        models.push(ModelEntry {
            path: entry.as_ref().map(|entry| entry.path.clone()).unwrap_or_default(),
            n_bytes: entry.map_or(0, |entry| entry.bytes),
            download: Some(Arc::new(LazyDownload::new(Box::new(fetch)))),
            ..model_entry(preset.name.clone(), PathBuf::new())
        });
    }
    let model_entry = models.iter_mut().find(|model_entry| model_entry.name == preset.name);
    let none = || Failure::new("unknown model; set `model = FILE` or `hf-repo = NAME`");
    let aliases = args.serving.alias.iter().map(|alias| alias.trim().to_owned());
    let model_entry = model_entry.ok_or_else(none)?;
    model_entry.aliases = aliases.filter(|alias| !alias.is_empty()).collect();
    model_entry.tags = args.serving.labels();
    Ok(())
}

/// Checks that model names are unique.
fn check_names(models: &[ModelEntry]) -> Outcome {
    let mut names: Vec<&String> = models
        .iter()
        .flat_map(|model_entry| model_entry.aliases.iter().chain([&model_entry.name]))
        .collect();
    names.sort();
    match names.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(Failure::new(format_args!("duplicate model name {}", two[0]))),
        None => Ok(()),
    }
}

fn model_entry(name: String, path: PathBuf) -> ModelEntry {
    ModelEntry {
        n_bytes: n_bytes(&path),
        name,
        aliases: Vec::new(),
        tags: Vec::new(),
        path,
        is_pinned: false,
        download: None,
    }
}

/// Returns the maximum total size of loaded model files in bytes.
fn max_bytes() -> u64 {
    match installed_memory() as u64 {
        // The installed memory is unknown.
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

/// Returns the model files and checkpoints of a directory, by name.
fn of_directory(directory: &Path) -> Outcome<Vec<ModelEntry>> {
    let wrong = |e: &dyn std::fmt::Display| Failure::new(format_args!("--models-dir {}: {e}", directory.display()));
    if checkpoints::is_checkpoint(directory) {
        let text = format!(
            "the directory is a checkpoint; serve it with `llama serve {}`",
            directory.display()
        );
        return Err(wrong(&text));
    }
    let (mut models, mut checkpoints) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(directory).map_err(|e| wrong(&e))? {
        let path = entry.map_err(|e| wrong(&e))?.path();
        if checkpoints::is_checkpoint(&path) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            checkpoints.push(model_entry(name, path));
            continue;
        }
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default()
            .to_owned();
        let is_model = path.extension().is_some_and(|e| e == "gguf") && !stem.is_empty() && !stem.starts_with("mmproj");
        // Only the first shard represents a model.
        let part = stem.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-'));
        if is_model && part.is_none_or(|(_, part)| part == "00001") && !is_other_kind(&path, part.is_some()) {
            models.push(model_entry(stem, path));
        }
    }
    for checkpoint in checkpoints {
        if models.iter().any(|file| file.name == checkpoint.name) {
            // The file may be the converted checkpoint.
            let name = &checkpoint.name;
            tracing::warn!(
                "--models-dir: serving {name}.gguf instead of the checkpoint {name}, which has the same name"
            );
            continue;
        }
        models.push(checkpoint);
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

/// Returns true for a readable file that is not a model, such as an adapter. Damaged files count as models, so that
/// requests report their errors.
fn is_other_kind(path: &Path, is_shard: bool) -> bool {
    Gguf::open_header(path).is_ok_and(|header| {
        // The first shard may have no tensors.
        let n_tensors = header.tensors().len().max(usize::from(is_shard));
        FileKind::of(&header.metadata, n_tensors) != FileKind::Model
    })
}

/// Adds the models in the cache.
fn add_fetched(models: &mut Vec<ModelEntry>) {
    let fetched = Cache::of_user().map(|cache| cache.list()).unwrap_or_default();
    for entry in fetched {
        let name = entry.name.to_string();
        if models.iter().all(|model_entry| model_entry.name != name) {
            models.push(ModelEntry {
                n_bytes: entry.bytes,
                ..model_entry(name, entry.path)
            });
        }
    }
}

/// Returns the size of a model file in bytes, including all shards.
fn n_bytes(path: &Path) -> u64 {
    if checkpoints::is_checkpoint(path) {
        return checkpoints::n_bytes(path);
    }
    let len = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (Some((before, after)), Some(directory)) = (name.split_once("-00001-of-"), path.parent()) else {
        return len(path);
    };
    let n_parts: u32 = after
        .strip_suffix(".gguf")
        .and_then(|n| n.parse().ok())
        .unwrap_or(1)
        .min(99_999);
    let part = |i| directory.join(format!("{before}-{i:05}-of-{after}"));
    (1..=n_parts).map(|i| len(&part(i))).sum()
}
