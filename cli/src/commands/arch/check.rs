//! `llama arch check`: does an architecture compute what was recorded? The gate of a new file in `archs/`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use engine::backend::Device;
use engine::context::{Context, ContextParams};
use engine::gguf::logits::Logits;
use engine::gguf::{Gguf, GgufFile, seeded};
use engine::model::{LoadParams, Model};
use engine::sample::Token;
use kernels::GgmlType;
use rayon::iter::{ParallelBridge, ParallelIterator};

use crate::args::CheckArgs;
use crate::failure::{Failure, Outcome};
use crate::positions::decode_all;
use crate::session;

const HEADER: &str = ".header.gguf";

/// One pair of files.
struct Config {
    name: String,
    path: PathBuf,
    header: Outcome<Gguf>,
}

/// Checks every configuration that is asked for; fails if one of them does.
pub fn run(args: &CheckArgs) -> Outcome {
    let device = match &args.device {
        Some(name) => session::device(name)?,
        None => LoadParams::default().device,
    };
    let configs = selected(configs(&args.fixtures)?, args)?;
    let printer = Mutex::new(Printer::new(io::stdout()));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.threads.unwrap_or(0))
        .build()?;
    pool.install(|| {
        // Bridged, threads take one after the other, so that results come nearly in order.
        configs.iter().enumerate().par_bridge().for_each(|(i, config)| {
            let result = check(config, args, &device);
            printer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .add(i, &config.name, result);
        });
    });
    printer.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
}

/// Every header in a folder, in the order of names.
fn configs(dir: &Path) -> Outcome<Vec<Config>> {
    let failed = |e: io::Error| Failure::new(format_args!("cannot read {}: {e}", dir.display()));
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(name) = file.strip_suffix(HEADER) {
            let header = Gguf::open_header(&path).map_err(Failure::from);
            found.push(Config {
                name: name.to_owned(),
                path,
                header,
            });
        }
    }
    if found.is_empty() {
        return Err(Failure::new(format_args!(
            "there is no file NAME{HEADER} in {}",
            dir.display()
        )));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Those that the names ask for, each of which must stand for something.
fn selected(mut configs: Vec<Config>, args: &CheckArgs) -> Outcome<Vec<Config>> {
    let stands_for = |name: &str, c: &Config| c.name == name || c.arch() == Some(name);
    if let Some(name) = args
        .names
        .iter()
        .find(|name| !configs.iter().any(|c| stands_for(name, c)))
    {
        let dir = args.fixtures.display();
        return Err(Failure::new(format_args!(
            "{dir} has no configuration or architecture `{name}`"
        )));
    }
    if !args.names.is_empty() {
        configs.retain(|c| args.names.iter().any(|name| stands_for(name, c)));
    }
    if args.known {
        configs.retain(|c| {
            c.arch()
                .is_none_or(|arch| archs::ALL.iter().any(|r| r.arch.name == arch))
        });
    }
    Ok(configs)
}

impl Config {
    /// `None` if the header is unusable, which its check will say.
    fn arch(&self) -> Option<&str> {
        self.header.as_ref().ok()?.optional("general.architecture").ok()?
    }
}

/// The error of a configuration, and whether it passes.
type Checked = Result<(f64, bool), String>;

fn check(config: &Config, args: &CheckArgs, device: &Arc<dyn Device>) -> Checked {
    let header = config.header.as_ref().map_err(sentence)?;
    let recorded = config.path.with_file_name(format!("{}.logits", config.name));
    let recorded = Logits::read(recorded).map_err(|e| e.to_string())?;
    let nmse = compare(config, header, &recorded, args, device).map_err(|e| sentence(&e))?;
    let is_exact = args.ctk == GgmlType::F32 && args.ctv == GgmlType::F32;
    let limit = args.limit.unwrap_or(if is_exact { 1e-8 } else { 1e-4 });
    Ok((nmse, nmse <= limit))
}

fn sentence(failure: &Failure) -> String {
    match failure {
        Failure::Message(text) => text.clone(),
        Failure::BrokenPipe | Failure::Interrupted | Failure::Reported => "stopped".to_owned(),
    }
}

/// Builds the seeded model, decodes the recorded tokens and returns the largest error of all sequences.
fn compare(
    config: &Config,
    header: &Gguf,
    recorded: &Logits,
    args: &CheckArgs,
    device: &Arc<dyn Device>,
) -> Outcome<f64> {
    let file = GgufFile::from_bytes(&config.path, &seeded::seeded_model(header, args.seed)?)?;
    let load = LoadParams {
        device: device.clone(),
        ..LoadParams::default()
    };
    let model = Arc::new(Model::from_file(file, archs::ALL, &load)?);
    // Recorded tokens are not negative.
    let tokens: Vec<Token> = recorded.tokens().iter().map(|&t| t as Token).collect();
    let n = tokens.len() * args.parallel;
    let params = ContextParams {
        n_ctx: n,
        n_batch: n,
        n_ubatch: args.ubatch.min(n),
        n_seq_max: args.parallel,
        n_outputs_max: args.ubatch.min(n),
        // Configurations are what runs in parallel.
        n_threads: 1,
        n_threads_batch: 1,
        type_k: args.ctk,
        type_v: args.ctv,
        ..ContextParams::default()
    };
    let mut context = Context::new(model, &params)?;
    let mut largest = 0f64;
    for logits in decode_all(&mut context, &tokens, args.parallel)? {
        if logits.len() != recorded.values().len() {
            let (found, expected) = (logits.len() / tokens.len(), recorded.n_vocab());
            return Err(Failure::new(format_args!(
                "{found} logits for each token, recorded are {expected}"
            )));
        }
        largest = largest.max(recorded.nmse(&logits));
    }
    Ok(largest)
}

/// Prints results in order, as soon as they are there, and counts them.
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
                Ok((nmse, true)) => (format!("{nmse:.2e}"), "ok".to_owned()),
                Ok((nmse, false)) => (format!("{nmse:.2e}"), "FAIL".to_owned()),
                Err(reason) => ("-".to_owned(), format!("FAIL {reason}")),
            };
            self.n_printed += 1;
            self.n_failed += !matches!(result, Ok((_, true))) as usize;
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
    fn results_are_printed_in_order_and_counted() {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out);
        printer.add(1, "b", Ok((1e-3, false)));
        printer.add(2, "c", Err("no such architecture".into()));
        printer.add(0, "a", Ok((0.0, true)));
        assert!(matches!(printer.finish(), Err(Failure::Reported)));
        let lines: Vec<Vec<_>> = std::str::from_utf8(&out)
            .unwrap()
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], ["a", "0.00e0", "ok"]);
        assert_eq!(lines[1], ["b", "1.00e-3", "FAIL"]);
        assert_eq!(lines[2][..3], ["c", "-", "FAIL"]);
        assert_eq!(lines[3].join(" "), "1 passed, 2 failed");
    }
}
