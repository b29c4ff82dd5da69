//! `llama gguf split` and `merge`.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clap::Args;
use engine::gguf::partition::{self, Part, PartLimits};
use engine::gguf::split::part_path;
use engine::gguf::{GgufError, GgufSet, GgufWriter, TensorInfo};

use crate::args::values::{byte_size, positive};
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::output::{OutputFile, check_absent, failed};
use crate::progress::{self, Bar};
use crate::{format, interrupt};

/// Arguments of `llama gguf split`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  llama gguf split model.gguf model --max-size 4GiB\nwrites model-00001-of-00003.gguf and so on. The first part is the one to run."
)]
pub struct SplitArgs {
    /// GGUF file, or the first of several
    pub file: PathBuf,
    /// Path of the parts up to `-00001-of-00003.gguf`
    pub prefix: PathBuf,
    /// Maximum size of tensor data in a part, such as 2GiB or 500MB
    #[arg(long, alias = "split-max-size", value_name = "SIZE", value_parser = byte_size)]
    pub max_size: Option<usize>,
    /// Maximum number of tensors in a part [default: 128 without --max-size]
    #[arg(long, alias = "split-max-tensors", value_name = "N", value_parser = positive)]
    pub max_tensors: Option<usize>,
    /// Write no tensors to the first part
    #[arg(long)]
    pub no_tensor_first_split: bool,
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
    /// Print the parts without writing
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `llama gguf merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// First part of a split model
    pub file: PathBuf,
    /// Output file
    pub out: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}

/// Tensors in a part, if no limit is given.
const DEFAULT_TENSORS: usize = 128;

/// Splits a model.
pub fn split(args: &SplitArgs) -> Outcome {
    let set = GgufSet::open(&args.file)?;
    let n_tensors = match (args.max_tensors, args.max_size) {
        (Some(n), _) => n,
        (None, Some(_)) => usize::MAX,
        (None, None) => DEFAULT_TENSORS,
    };
    let limits = PartLimits {
        n_tensors,
        n_bytes: args.max_size.unwrap_or(usize::MAX),
        is_first_empty: args.no_tensor_first_split,
    };
    let parts = partition::split(&set, &limits).map_err(|e| in_file(&args.file, &e))?;
    let count = u16::try_from(parts.len())?;
    let mut paths = Vec::new();
    for no in 0..count {
        let path = part_path(&args.prefix, no, count);
        check_absent(&path, args.force || args.dry_run)?;
        paths.push(path);
    }
    let line = |(path, part): (&PathBuf, &Part<'_>)| {
        let tensors = format::plural(part.tensors.len(), "tensor");
        let size = format::bytes(part.n_bytes());
        format!("{}: {tensors}, {size}\n", path.display())
    };
    let report: String = paths.iter().zip(&parts).map(line).collect();
    if !args.dry_run {
        let copy = Copy::new(set.n_tensors());
        let mut written = Vec::new();
        for (path, part) in paths.iter().zip(parts) {
            written.push(copy.write(&set, part, path)?);
        }
        // All parts are complete before the first gets its name.
        written.into_iter().try_for_each(|output| output.finish(None))?;
    }
    let mut out = stdout();
    out.write_all(report.as_bytes())?;
    Ok(out.flush()?)
}

/// Merges the files of a split model.
pub fn merge(args: &MergeArgs) -> Outcome {
    check_absent(&args.out, args.force)?;
    let set = GgufSet::open(&args.file)?;
    let part = Part {
        metadata: partition::merged(&set),
        tensors: set.tensors().collect(),
    };
    let (n, size) = (part.tensors.len(), part.n_bytes());
    Copy::new(n).write(&set, part, &args.out)?.finish(None)?;
    let mut out = stdout();
    let (tensors, size) = (format::plural(n, "tensor"), format::bytes(size));
    writeln!(out, "{}: {tensors}, {size}", args.out.display())?;
    Ok(out.flush()?)
}

fn in_file(file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format_args!("{}: {error}", file.display()))
}

/// Copy of tensors to new files, with a progress bar.
struct Copy {
    bar: Bar,
    n_done: AtomicUsize,
    guard: interrupt::Guard,
    interrupt: Arc<AtomicBool>,
}

/// Bytes that are written between two checks for an interrupt.
const STEP: usize = 16 << 20;

impl Copy {
    fn new(n_tensors: usize) -> Copy {
        let guard = interrupt::listen();
        Copy {
            bar: progress::bar("Writing", n_tensors),
            n_done: AtomicUsize::new(0),
            interrupt: guard.flag(),
            guard,
        }
    }

    /// Writes a part to a temporary file next to `path`.
    fn write(&self, set: &GgufSet, part: Part<'_>, path: &Path) -> Outcome<OutputFile> {
        let mut output = OutputFile::create(path)?;
        let mut writer = GgufWriter::with_metadata(part.metadata);
        for (shard, tensor) in part.tensors {
            writer.add_tensor_with(tensor.name.as_str(), tensor.ty, tensor.shape(), move |out| {
                self.copy(set, shard, tensor, out)
            })?;
        }
        let result = writer.write(&mut BufWriter::with_capacity(1 << 20, output.file()));
        match result {
            Err(_) if self.guard.is_set() => Err(Failure::Interrupted),
            Err(GgufError::Io { error, .. }) => Err(failed(path, &error)),
            Err(error) => Err(Failure::from(error)),
            Ok(_) => {
                for shard in set.shards() {
                    shard.mapping().check_unchanged().map_err(|e| e.in_file(shard.path()))?;
                }
                Ok(output)
            }
        }
    }

    fn copy(&self, set: &GgufSet, shard: usize, tensor: &TensorInfo, out: &mut dyn Write) -> io::Result<()> {
        for bytes in set.shards()[shard].tensor_data(tensor).chunks(STEP) {
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            out.write_all(bytes)?;
        }
        self.bar.set(self.n_done.fetch_add(1, Ordering::Relaxed) + 1);
        Ok(())
    }
}
