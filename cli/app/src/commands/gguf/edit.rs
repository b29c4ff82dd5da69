//! `llama gguf set`, `remove`, and `rename`: edits of the header.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use engine::gguf::Gguf;
use engine::gguf::edit::{Change, Edit, EditError, Reserve};
use engine::model::{did_you_mean, nearest_names};

use super::value::{Assignment, assignment};
use crate::args::values::byte_size;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::output::OutputFile;
use crate::{format, input, interrupt};

/// Options of all edits.
#[derive(Debug, Args)]
pub struct EditOptions {
    /// Write the edited file here, and leave FILE unchanged
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Reserve space in the header, such as 64KiB, so that later edits are made in place
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    pub reserve: Option<usize>,
    /// Print the changes without writing
    #[arg(long)]
    pub dry_run: bool,
    /// Write a file that no longer matches its architecture
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `llama gguf set`.
#[derive(Debug, Args)]
#[command(after_help = SET_NOTES)]
pub struct SetArgs {
    /// GGUF file
    pub file: PathBuf,
    /// Keys and values; a new key needs a type, as in KEY:u32=7
    #[arg(value_name = "KEY[:TYPE]=VALUE", value_parser = assignment, required_unless_present = "text")]
    pub set: Vec<Assignment>,
    /// Set a string to the text of a file (may be repeated)
    #[arg(long = "file", value_name = "KEY=PATH", value_parser = text_file, id = "text")]
    pub text: Vec<(String, PathBuf)>,
    #[command(flatten)]
    pub options: EditOptions,
}

const SET_NOTES: &str = "\
Examples:
  llama gguf set model.gguf general.name=\"My model\" tokenizer.ggml.add_bos_token=false
  llama gguf set model.gguf --file tokenizer.chat_template=template.jinja
  llama gguf set model.gguf 'my.numbers:u32[]=[1, 2]' -o edited.gguf --reserve 64KiB

An edit that fits into the header is made in place; otherwise a copy replaces the file.";

/// Arguments of `llama gguf remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// GGUF file
    pub file: PathBuf,
    /// Keys to remove
    #[arg(value_name = "KEY", required = true)]
    pub keys: Vec<String>,
    #[command(flatten)]
    pub options: EditOptions,
}

/// Arguments of `llama gguf rename`.
#[derive(Debug, Args)]
pub struct RenameArgs {
    /// GGUF file
    pub file: PathBuf,
    /// Present name
    pub from: String,
    /// New name
    pub to: String,
    /// Rename a tensor instead of a metadata key
    #[arg(long)]
    pub tensor: bool,
    #[command(flatten)]
    pub options: EditOptions,
}

fn text_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((key, path)) if !key.is_empty() && !path.is_empty() => Ok((key.to_owned(), path.into())),
        _ => Err("expected KEY=PATH".to_owned()),
    }
}

/// Sets metadata keys.
pub fn set(args: &SetArgs) -> Outcome {
    let header = Gguf::open_header(&args.file)?;
    let in_file = |e: String| Failure::new(format_args!("{}: {e}", args.file.display()));
    let mut changes = Vec::new();
    for assignment in &args.set {
        changes.push(Change::Set {
            key: assignment.key.clone(),
            value: assignment.value(&header.metadata).map_err(in_file)?,
        });
    }
    for (key, path) in &args.text {
        changes.push(Change::Set {
            key: key.clone(),
            value: input::read_whole(path)?.as_str().into(),
        });
    }
    edit(&args.file, &changes, &args.options)
}

/// Removes metadata keys.
pub fn remove(args: &RemoveArgs) -> Outcome {
    let remove = |key: &String| Change::Remove { key: key.clone() };
    let changes: Vec<_> = args.keys.iter().map(remove).collect();
    edit(&args.file, &changes, &args.options)
}

/// Renames a metadata key or a tensor.
pub fn rename(args: &RenameArgs) -> Outcome {
    let (from, to) = (args.from.clone(), args.to.clone());
    let change = if args.tensor {
        Change::RenameTensor { from, to }
    } else {
        Change::RenameKey { from, to }
    };
    edit(&args.file, &[change], &args.options)
}

fn edit(file: &Path, changes: &[Change], options: &EditOptions) -> Outcome {
    let reserve = options.reserve.map_or(Reserve::Keep, Reserve::Bytes);
    let edit = Edit::new(file, changes, reserve).map_err(|e| explain(file, e))?;
    if !options.force {
        check_declaration(file, &edit)?;
    }
    let target = options.output.as_deref().unwrap_or(file);
    let is_in_place = edit.fits() && options.output.is_none();
    let written = match (options.dry_run, is_in_place) {
        (true, true) => "would be edited in place".to_owned(),
        (true, false) => "would be written as a copy".to_owned(),
        (false, true) => {
            edit.write_in_place().map_err(|e| explain(file, e))?;
            "edited in place".to_owned()
        }
        (false, false) => format!("written, {}", format::bytes(copy(file, &edit, target)?)),
    };
    let mut out = stdout();
    for change in changes {
        describe(&mut out, &edit, change)?;
    }
    writeln!(out, "{}: {written}", target.display())?;
    Ok(out.flush()?)
}

/// Writes the edited file to `target` and returns its size.
fn copy(file: &Path, edit: &Edit, target: &Path) -> Outcome<usize> {
    let guard = interrupt::listen();
    let mut output = OutputFile::create(target)?;
    let n_bytes = edit.copy_to(output.file(), &guard.flag()).map_err(|e| match e {
        EditError::Write { error, .. } => Failure::new(format_args!(
            "cannot copy {} to {}: {error}",
            file.display(),
            target.display()
        )),
        other => explain(target, other),
    })?;
    output.finish(Some(file))?;
    Ok(usize::try_from(n_bytes).unwrap_or(usize::MAX))
}

fn describe(out: &mut dyn Write, edit: &Edit, change: &Change) -> Outcome {
    match change {
        Change::Set { key, value } => match edit.old().metadata.get(key) {
            Some(old) => writeln!(out, "{key}: {} -> {}", old.describe(), value.describe())?,
            None => writeln!(out, "{key}: {}", value.describe())?,
        },
        Change::Remove { key } => writeln!(out, "{key}: removed")?,
        Change::RenameKey { from, to } | Change::RenameTensor { from, to } => writeln!(out, "{from} -> {to}")?,
    }
    Ok(())
}

/// Adds the file, and names that the user may have meant.
fn explain(file: &Path, error: EditError) -> Failure {
    let (is_tensor, name) = match &error {
        EditError::NoKey { key } => (false, key),
        EditError::NoTensor { name } => (true, name),
        EditError::Interrupted => return Failure::Interrupted,
        EditError::Gguf(_) | EditError::Write { .. } | EditError::Backup { .. } => return Failure::from(error),
        _ => return Failure::new(format_args!("{}: {error}", file.display())),
    };
    let Ok(header) = Gguf::open_header(file) else {
        return Failure::new(format_args!("{}: {error}", file.display()));
    };
    let nearest = if is_tensor {
        nearest_names(name, header.tensors().iter().map(|t| t.name.as_str()))
    } else {
        nearest_names(name, header.metadata.iter().map(|(key, _)| key))
    };
    let hint = did_you_mean(&nearest);
    Failure::new(format_args!("{}: {error}{hint}", file.display()))
}

/// Refuses an edit after which a model no longer matches the declaration of its architecture.
fn check_declaration(file: &Path, edit: &Edit) -> Outcome {
    if declared(edit.old(), file).is_ok()
        && let Err(error) = declared(edit.header(), file)
    {
        return Err(Failure::new(format_args!(
            "the edited model would not load: {error}; use --force to write it anyway"
        )));
    }
    Ok(())
}

fn declared(header: &Gguf, file: &Path) -> Result<(), String> {
    let name: Option<&str> = header.optional("general.architecture").map_err(|e| e.to_string())?;
    let name = name.ok_or("the file names no architecture")?;
    let registered = match archs::find(name) {
        Some(registered) => Some(*registered),
        None => crate::declared::find(name, false)?,
    };
    let registered = registered.ok_or_else(|| format!("unknown architecture `{name}`"))?;
    match engine::model::declare_header(header, file, registered.arch, name) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
