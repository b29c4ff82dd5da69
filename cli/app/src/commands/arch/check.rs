//! `llama arch check`: compares architectures with recorded logits. Every new file in `archs/` must pass.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use engine::conformance::{CheckParams, Comparison, Fixture, fixtures};
use engine::context::ContextParams;
use engine::model::{Model, Registered};
use kernels::{GgmlType, Precision};
use rayon::iter::{ParallelBridge, ParallelIterator};

use super::check_declaration::{self, MessageFormat};
use super::{check_encoder, check_file};
use crate::args::values::{positive_float_64, threads};
use crate::args::{CacheTypeArgs, LoadArgs, PrecisionArg, UbatchSizeArgs};
use crate::failure::{Failure, Outcome};
use crate::{checkpoints, declared};

/// Arguments of `llama arch check`. Recorded logits were computed with f32 caches.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    mut_arg("cache_type_k", |arg| arg.default_value("f32")),
    mut_arg("cache_type_v", |arg| arg.default_value("f32"))
)]
pub struct CheckArgs {
    /// Model files, or with --fixtures configurations such as llama-moe [default: all]
    ///
    /// A declaration file (FILE.rs) is checked, and the model files are loaded with it. Without model files, the test
    /// model of the declaration is checked.
    ///
    /// If NAME.logits exists next to a model file, its logits are compared with the model's output. With
    /// --fixtures, an architecture name such as llama selects all of its configurations.
    #[arg(value_name = "FILE", required_unless_present_any = ["fixtures", "file"])]
    pub names: Vec<String>,
    /// Check a declaration or fragment (archs/my.rs) without a build (may be repeated)
    #[arg(long, value_name = "FILE.rs", conflicts_with_all = ["fixtures", "names"])]
    pub file: Vec<PathBuf>,
    /// Form of the errors of a declaration
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = MessageFormat::Human)]
    pub message_format: MessageFormat,
    /// Directory of NAME.header.gguf and NAME.logits files
    #[arg(long, value_name = "DIR")]
    pub fixtures: Option<PathBuf>,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Skip architectures without a declaration instead of failing
    #[arg(long)]
    pub known: bool,
    #[command(flatten)]
    pub cache: CacheTypeArgs,
    #[command(flatten)]
    pub ubatch: UbatchSizeArgs,
    /// Maximum normalized mean squared error [default: 1e-8 with f32 caches, else 1e-4]
    #[arg(long, value_name = "X", value_parser = positive_float_64)]
    pub limit: Option<f64>,
    /// Split each model into N files and load the shards
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub shards: Option<u16>,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Number of configurations to check in parallel [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// Checks the selected declarations, files, or configurations; fails if any check fails.
pub fn run(args: &CheckArgs) -> Outcome {
    if !args.file.is_empty() {
        return check_declaration::run(&args.file, args.message_format);
    }
    let mut load = args.load.params(PrecisionArg::Exact, None)?;
    let mut encoders = Vec::new();
    let (declarations, files): (Vec<&String>, Vec<&String>) =
        args.names.iter().partition(|name| declared::is_file(name));
    if !declarations.is_empty() {
        let paths: Vec<PathBuf> = declarations.iter().map(PathBuf::from).collect();
        check_declaration::run(&paths, args.message_format)?;
        if args.message_format == MessageFormat::Json {
            return Ok(());
        }
        let declared: Vec<Registered> = paths
            .iter()
            .map(|path| declared::load(path).copied())
            .collect::<Outcome<_>>()?;
        // An encoder has no logits to compare.
        (encoders, load.archs) = declared.into_iter().partition(|r| r.arch.media.is_some());
        // A single declaration replaces the architecture of the files.
        load.arch = match load.archs.as_slice() {
            [declared] => Some(declared.arch.name.to_owned()),
            _ => None,
        };
    }
    let params = CheckParams {
        seed: args.seed,
        load,
        context: ContextParams {
            n_ubatch: args.ubatch.size,
            // Configurations run in parallel, so each uses one thread.
            n_threads: 1,
            n_threads_batch: 1,
            precision: Precision::Exact,
            type_k: args.cache.k,
            type_v: args.cache.v,
            ..ContextParams::default()
        },
    };
    let is_exact = (args.cache.k, args.cache.v) == (GgmlType::F32, GgmlType::F32);
    let limit = args.limit.unwrap_or(if is_exact { 1e-8 } else { 1e-4 });
    let Some(dir) = &args.fixtures else {
        return match files.as_slice() {
            [] => check_file::run_test_models(&params, limit).and(check_encoder::run(&encoders, &params)),
            files => check_files(files, args.threads, &params, limit),
        };
    };
    let fixtures = selected(args, dir)?;
    // File loading options can only be tested with files.
    let files = match args.shards {
        None if args.load.no_mmap || args.load.mlock => Some(1),
        shards => shards,
    };
    let printer = Mutex::new(Printer::new(io::stdout()));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.threads.unwrap_or(0))
        .build()?;
    pool.install(|| {
        // `par_bridge` hands out configurations in order, so results arrive nearly in order.
        fixtures.iter().enumerate().par_bridge().for_each(|(i, fixture)| {
            let compared = compare(fixture, &params, files, limit);
            let mut printer = printer.lock().unwrap_or_else(PoisonError::into_inner);
            printer.add(i, &fixture.name, compared);
        });
    });
    printer.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
}

/// Checks model files in order.
fn check_files(files: &[&String], threads: Option<usize>, params: &CheckParams, limit: f64) -> Outcome {
    let mut params = params.clone();
    let n_threads = threads.unwrap_or_else(|| ContextParams::default().n_threads);
    (params.context.n_threads, params.context.n_threads_batch) = (n_threads, n_threads);
    let mut outcome = Ok(());
    for name in files {
        let path = Path::new(name);
        if path.is_dir() && !checkpoints::is_checkpoint(path) {
            return Err(Failure::new(format_args!(
                "cannot check {name}: it is a directory without a config.json; pass declarations (FILE.rs), model files, \
                 or a checkpoint, or recorded models with --fixtures {name}"
            )));
        }
        if !path.is_file() && !checkpoints::is_checkpoint(path) {
            let known = archs::find(name).map_or(String::new(), |_| {
                format!("; use `llama arch seed {name}` to write a test model, or `--fixtures DIR` for recorded ones")
            });
            return Err(Failure::new(format_args!("cannot find file `{name}`{known}")));
        }
        match check_file::run(path, &params, limit) {
            Err(Failure::Reported) => outcome = Err(Failure::Reported),
            other => other?,
        }
    }
    outcome
}

/// Compares a configuration. The model is built in memory, or written to `files` shards and loaded.
fn compare(fixture: &Fixture, params: &CheckParams, files: Option<u16>, limit: f64) -> Checked {
    let result = match files {
        None => fixture.compare(archs::ALL, params, limit).map_err(Failure::from),
        Some(n) => compare_files(fixture, params, n, limit),
    };
    result.map_err(|failure| match failure {
        Failure::Message(text) => text,
        other => format!("{other:?}"),
    })
}

fn compare_files(fixture: &Fixture, params: &CheckParams, n_files: u16, limit: f64) -> Outcome<Comparison> {
    let dir = tempfile::tempdir()?;
    let first = fixture.write_files(dir.path(), params.seed, n_files)?;
    let model = Model::load(&first, archs::ALL, &params.load)?;
    let nmse = fixture.nmse_of(model, &params.context)?;
    let rounding = if nmse <= limit {
        None
    } else {
        Some(fixture.rounding(archs::ALL, params)?)
    };
    Ok(Comparison { nmse, limit, rounding })
}

/// Selects fixtures by name. A name without a match is an error, because an empty check would pass.
fn selected(args: &CheckArgs, directory: &Path) -> Outcome<Vec<Fixture>> {
    let dir = directory.display();
    // An unusable header has no architecture; its check reports the error.
    let mut all: Vec<_> = fixtures(directory)?.into_iter().map(|f| (f.arch().ok(), f)).collect();
    if all.is_empty() {
        return Err(Failure::new(format_args!("{dir} contains no NAME.header.gguf file")));
    }
    let stands_for = |name: &String, arch: &Option<String>, f: &Fixture| f.name == *name || arch.as_ref() == Some(name);
    if let Some(name) = args
        .names
        .iter()
        .find(|name| !all.iter().any(|(arch, f)| stands_for(name, arch, f)))
    {
        return Err(Failure::new(format_args!(
            "{dir} contains no configuration or architecture `{name}`"
        )));
    }
    if !args.names.is_empty() {
        all.retain(|(arch, f)| args.names.iter().any(|name| stands_for(name, arch, f)));
    }
    if args.known {
        all.retain(|(arch, _)| arch.as_ref().is_none_or(|arch| archs::find(arch).is_some()));
    }
    Ok(all.into_iter().map(|(_, f)| f).collect())
}

/// Result of a configuration, or the error message.
type Checked = Result<Comparison, String>;

/// Prints results in order as they become available, and counts failures.
struct Printer<W> {
    out: W,
    waiting: BTreeMap<usize, (String, Checked)>,
    n_printed: usize,
    n_failed: usize,
    error: Option<io::Error>,
}

impl<W: Write> Printer<W> {
    fn new(out: W) -> Printer<W> {
        Printer {
            out,
            waiting: BTreeMap::new(),
            n_printed: 0,
            n_failed: 0,
            error: None,
        }
    }

    fn add(&mut self, index: usize, name: &str, result: Checked) {
        self.waiting.insert(index, (name.to_owned(), result));
        while let Some((name, result)) = self.waiting.remove(&self.n_printed) {
            let (value, verdict) = match &result {
                Ok(c) => {
                    let verdict = if c.passes() { "ok" } else { "FAIL" };
                    let rounding = c
                        .rounding
                        .map_or(String::new(), |r| format!(" (rounding alone: {r:.2e})"));
                    (format!("{:.2e}", c.nmse), format!("{verdict}{rounding}"))
                }
                Err(reason) => ("-".to_owned(), format!("FAIL {reason}")),
            };
            self.n_printed += 1;
            self.n_failed += !matches!(result, Ok(c) if c.passes()) as usize;
            let line = writeln!(self.out, "{name:<24} {value:>9} {verdict}").and_then(|()| self.out.flush());
            self.error = self.error.take().or(line.err());
        }
    }

    fn finish(mut self) -> Outcome {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        writeln!(
            self.out,
            "{} passed, {} failed",
            self.n_printed - self.n_failed,
            self.n_failed
        )?;
        self.out.flush()?;
        if self.n_failed > 0 {
            Err(Failure::Reported)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printer_orders_and_counts_results() {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out);
        let compared = |nmse, rounding| Comparison {
            nmse,
            limit: 1e-8,
            rounding,
        };
        printer.add(1, "b", Ok(compared(1e-3, Some(1e-14))));
        printer.add(2, "c", Err("no such architecture".into()));
        printer.add(0, "a", Ok(compared(0.0, None)));
        printer.add(3, "d", Ok(compared(1e-6, Some(2e-7))));
        assert!(matches!(printer.finish(), Err(Failure::Reported)));
        let lines: Vec<Vec<_>> = std::str::from_utf8(&out)
            .unwrap()
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0][..3], ["a", "0.00e0", "ok"]);
        assert_eq!(lines[1][..3], ["b", "1.00e-3", "FAIL"]);
        assert_eq!(lines[2][..3], ["c", "-", "FAIL"]);
        assert_eq!(lines[3].join(" "), "d 1.00e-6 FAIL (rounding alone: 2.00e-7)");
        assert_eq!(lines[4].join(" "), "1 passed, 3 failed");
    }
}
