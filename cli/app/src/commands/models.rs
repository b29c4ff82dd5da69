//! `llama pull`, `list`, `rm`, and `ps`: manage downloaded models and running processes.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use serde::Serialize;
use tracing::info;

use crate::args::HubArgs;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::hub::{Cache, Entry, Hub, HubError, Name, SHORT_NAMES};
use crate::{dirs, format};

/// Arguments of `llama pull`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_long_help = short_names())]
pub struct PullArgs {
    /// Models: user/repo, user/repo:QUANT, or short names such as qwen3:0.6b
    #[arg(value_name = "NAME", required_unless_present_any = ["hf_repo", "model_url"])]
    pub names: Vec<String>,
    #[command(flatten)]
    pub hub: HubArgs,
}

/// Arguments of `llama list`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `llama rm`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct RmArgs {
    /// Models as printed by `llama list`; user/repo removes all of its quantizations
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

/// Arguments of `llama ps`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct PsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Formats the table of short names for the help.
fn short_names() -> String {
    let rows = SHORT_NAMES
        .iter()
        .map(|short| format!("\n  {:<14} {}", short.name, short.means));
    format!("Short names:{}", rows.collect::<String>())
}

/// Downloads the latest version of the models and prints the paths of their first files.
pub fn pull(args: &PullArgs) -> Outcome {
    let hub = Hub::new(&args.hub)?;
    let names = args
        .names
        .iter()
        .map(|text| Name::parse(text).ok_or_else(|| Failure::from(HubError::invalid_name(text))));
    // Validate all names before a long download.
    let names = names.collect::<Outcome<Vec<_>>>()?;
    let mut paths = names.iter().map(|name| hub.pull(name)).collect::<Outcome<Vec<_>>>()?;
    if let Some(name) = args.hub.name()? {
        paths.push(hub.pull(&name)?);
    }
    if let Some(url) = &args.hub.model_url {
        paths.push(hub.address(url)?);
    }
    let mut out = stdout();
    for path in paths {
        writeln!(out, "{}", path.display())?;
    }
    Ok(out.flush()?)
}

/// A local model, printed as text or JSON.
#[derive(Serialize)]
struct Row {
    name: String,
    bytes: u64,
    /// Seconds since the last modification.
    age_s: Option<u64>,
    path: String,
    files: usize,
}

impl Row {
    fn of(entry: &Entry) -> Row {
        Row {
            name: entry.name.to_string(),
            bytes: entry.bytes,
            age_s: age(entry.modified),
            path: entry.path.display().to_string(),
            files: entry.files.len(),
        }
    }

    /// Creates the row of a file in the llama cache, which is named by its path.
    fn of_file(path: &Path) -> Option<Row> {
        let metadata = path.metadata().ok().filter(|m| m.is_file())?;
        Some(Row {
            name: path.display().to_string(),
            bytes: metadata.len(),
            age_s: age(metadata.modified().ok()),
            path: path.display().to_string(),
            files: 1,
        })
    }
}

fn age(modified: Option<SystemTime>) -> Option<u64> {
    let age = SystemTime::now().duration_since(modified?).ok()?;
    Some(age.as_secs())
}

/// Lists the local models.
pub fn list(args: &ListArgs) -> Outcome {
    let entries = Cache::of_user()?.list();
    let mut rows: Vec<Row> = entries.iter().map(Row::of).collect();
    rows.extend(own_files().iter().filter_map(|path| Row::of_file(path)));
    let mut out = stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    let width = rows
        .iter()
        .map(|row| row.name.chars().count())
        .max()
        .unwrap_or(0)
        .max("model".len());
    writeln!(out, "{:width$}  {:>10}  fetched", "model", "size")?;
    for row in &rows {
        let age = row.age_s.map(format::ago).unwrap_or_default();
        writeln!(
            out,
            "{:width$}  {:>10}  {age}",
            row.name,
            format::bytes(row.bytes as usize)
        )?;
    }
    Ok(out.flush()?)
}

/// Returns the GGUF files in the llama cache: the default model and downloads from URLs.
fn own_files() -> Vec<PathBuf> {
    let Some(cache) = dirs::cache() else { return Vec::new() };
    let mut directories = vec![cache.clone()];
    let of_urls = std::fs::read_dir(cache.join("urls")).into_iter().flatten().flatten();
    directories.extend(of_urls.map(|e| e.path()));
    let entries = directories.iter().flat_map(std::fs::read_dir).flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")))
        .collect();
    files.sort();
    files
}

pub fn rm(args: &RmArgs) -> Outcome {
    let cache = Cache::of_user()?;
    let own = own_files();
    for text in &args.names {
        let freed = match own.iter().find(|path| path.as_os_str() == text.as_str()) {
            Some(path) => Some(remove_own(path)?),
            None => Name::parse(text).map_or(Ok(None), |name| cache.remove(&name))?,
        };
        match freed {
            Some(bytes) => info!("removed {text}, freeing {}", format::bytes(bytes as usize)),
            None => {
                return Err(Failure::new(format_args!(
                    "cannot remove {text}: not a downloaded model; `llama list` shows local models"
                )));
            }
        }
    }
    Ok(())
}

fn remove_own(path: &Path) -> Outcome<u64> {
    let bytes = path.metadata().map_or(0, |m| m.len());
    std::fs::remove_file(path).map_err(|e| Failure::new(format_args!("cannot remove {}: {e}", path.display())))?;
    let mut note = path.as_os_str().to_owned();
    note.push(".verified");
    let _ = std::fs::remove_file(note);
    Ok(bytes)
}

/// A running llama process, printed as text or JSON.
#[derive(Serialize)]
struct Running {
    pid: u32,
    command: String,
    /// Resident memory in bytes.
    resident: u64,
    model: Option<String>,
}

/// Lists the running llama processes, each with the model file it has mapped.
pub fn ps(args: &PsArgs) -> Outcome {
    let mut names = BTreeMap::new();
    for entry in Cache::of_user()?.list() {
        let files = entry.files.iter().filter_map(|file| file.canonicalize().ok());
        names.extend(files.map(|file| (file, entry.name.to_string())));
    }
    let processes = std::fs::read_dir("/proc")
        .map_err(|e| Failure::new(format_args!("cannot list processes on this system: /proc: {e}")))?;
    let pids = processes.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    let mut rows: Vec<Running> = pids
        .filter(|&pid| pid != std::process::id())
        .filter_map(|pid| running(pid, &names))
        .collect();
    rows.sort_by_key(|row| row.pid);
    let mut out = stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    writeln!(out, "{:>8}  {:<10}  {:>10}  model", "pid", "command", "memory")?;
    for row in &rows {
        let model = row.model.as_deref().unwrap_or("-");
        writeln!(
            out,
            "{:>8}  {:<10}  {:>10}  {model}",
            row.pid,
            row.command,
            format::bytes(row.resident as usize)
        )?;
    }
    Ok(out.flush()?)
}

/// Returns `None` for other programs, processes of other users, and exited processes.
fn running(pid: u32, names: &BTreeMap<PathBuf, String>) -> Option<Running> {
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let program = std::fs::read_link(directory.join("exe")).ok()?;
    let file = program.file_name()?.to_str()?;
    if file.strip_suffix(" (deleted)").unwrap_or(file) != "llama" {
        return None;
    }
    let arguments = std::fs::read(directory.join("cmdline")).ok()?;
    let command = arguments
        .split(|&b| b == 0)
        .nth(1)
        .map(String::from_utf8_lossy)
        .unwrap_or_default();
    // A command line that starts with a flag runs `run`.
    let command = if command.chars().all(|c| c.is_ascii_lowercase()) {
        command.into_owned()
    } else {
        "run".to_owned()
    };
    let maps = std::fs::read_to_string(directory.join("maps")).ok()?;
    let status = std::fs::read_to_string(directory.join("status")).ok()?;
    let resident = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix(" kB")?
            .trim()
            .parse()
            .ok()
    });
    Some(Running {
        pid,
        command,
        resident: resident.unwrap_or(0_u64).saturating_mul(1024),
        model: mapped_model(&maps, names),
    })
}

/// Returns the model among the mapped files: a cached model or another GGUF file.
fn mapped_model(maps: &str, names: &BTreeMap<PathBuf, String>) -> Option<String> {
    let mut found = None;
    for path in maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])) {
        if let Some(name) = names.get(Path::new(path)) {
            return Some(name.clone());
        }
        if path.to_ascii_lowercase().ends_with(".gguf") {
            found.get_or_insert(path);
        }
    }
    found.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_file_identifies_model() {
        let names = BTreeMap::from([(PathBuf::from("/c/blobs/ab"), "u/r:Q8_0".to_owned())]);
        let map = |path: &str| format!("7f00-7f01 r--s 00000000 fe:00 12 {path}\n");
        let of = |paths: &[&str]| mapped_model(&paths.iter().map(|p| map(p)).collect::<String>(), &names);
        assert_eq!(of(&["/usr/lib/x.so", "/c/blobs/ab"]).as_deref(), Some("u/r:Q8_0"));
        assert_eq!(of(&["/a b/m.gguf"]).as_deref(), Some("/a b/m.gguf"));
        assert_eq!(of(&["/usr/lib/x.so", "[heap]"]), None);
    }
}
