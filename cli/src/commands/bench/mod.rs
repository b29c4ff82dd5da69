//! `llama bench`: how fast a model computes prompts and tokens, beside what the machine can do at most, and beside another engine.
//!
//! - [`case`]: one test at work: a context, and its repetitions
//! - [`work`]: bytes and multiply-adds that a test takes at least
//! - [`limits`], [`system`]: what this machine reads and multiplies in a second; its memory and energy counters
//! - [`compare`]: another engine's figures for the same tests
//! - [`profile`]: where the time goes
//! - [`paper`]: on the emulated driver of tests, what kernels would take on a card
//! - [`report`]: the figures, and how they are printed

mod case;
mod compare;
pub mod limits;
mod paper;
mod profile;
mod report;
mod samples;
mod system;
pub mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::backend::Profile;
use engine::context::ContextParams;
use engine::model::Model;

use crate::args::BenchArgs;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::{fetch, interrupt};

use case::{Case, Test};
use compare::Rival;
use limits::Limits;
use paper::Paper;
use profile::Times;
use report::{Report, Row};
use samples::Samples;

/// Measures every test with every model, and prints a row for each.
pub fn run(args: &BenchArgs) -> Outcome {
    let models: Vec<PathBuf> = match args.model.as_slice() {
        [] => vec![fetch::model(None, &args.hub)?],
        models => models
            .iter()
            .map(|m| fetch::model(Some(m), &args.hub))
            .collect::<Outcome<_>>()?,
    };
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Failure::new("there is nothing to measure: -p and -n are both 0"));
    }
    let rival = args.compare.as_deref().map(Rival::new);
    let mut out = stdout();
    if let Some(paper) = Paper::start(&mut out, args.output)? {
        return on_paper(&models, &tests, args, paper);
    }
    let mut report = Report::start(&mut out, args.output)?;
    for path in &models {
        let loaded = Loaded::open(path, args)?;
        report.model(&loaded)?;
        let tests = loaded.tests(&tests)?;
        match &rival {
            None => alone(&loaded, &tests, args, &mut report)?,
            Some(rival) => compared(&loaded, &tests, args, rival, &mut report)?,
        }
    }
    report.end()
}

/// A loaded model, and what loading took.
struct Loaded {
    path: PathBuf,
    model: Arc<Model>,
    t_load: Duration,
    /// From opening the file to the first token's logits.
    t_first: Duration,
    /// Most memory that the process has held until then.
    peak_bytes: Option<usize>,
}

impl Loaded {
    fn open(path: &Path, args: &BenchArgs) -> Outcome<Loaded> {
        system::reset_peak_memory();
        let start = Instant::now();
        let model = args.load.load(path, args.precision, None)?;
        if model.arch().encoder {
            return Err(Failure::new(format_args!(
                "{}: {} reads a text with an encoder and writes another with a decoder, which this does not measure",
                path.display(),
                model.arch().name
            )));
        }
        let t_load = start.elapsed();
        let first = Test {
            n_prompt: 1,
            n_threads: args.threads.first().copied().unwrap_or_else(default_threads),
            n_parallel: 1,
            ..Test::default()
        };
        Case::open(&model, first, &params(args))?.run()?;
        Ok(Loaded {
            path: path.to_owned(),
            model,
            t_load,
            t_first: start.elapsed(),
            peak_bytes: system::peak_memory(),
        })
    }

    /// Those of the tests that suit the model: of one that embeds texts, whose tokens see those behind them, only whole prompts.
    fn tests(&self, tests: &[Test]) -> Outcome<Vec<Test>> {
        let suits = |test: &Test| !self.model.bidirectional() || test.n_gen == 0 && test.n_depth == 0;
        let suitable: Vec<Test> = tests.iter().copied().filter(suits).collect();
        if suitable.is_empty() {
            return Err(Failure::new(format_args!(
                "{}: {} embeds whole texts and generates none: measure prompts (-p) without depth (-d)",
                self.path.display(),
                self.model.arch().name
            )));
        }
        Ok(suitable)
    }
}

fn default_threads() -> usize {
    ContextParams::default().n_threads
}

/// The settings that all tests share.
fn params(args: &BenchArgs) -> ContextParams {
    ContextParams {
        n_batch: args.batch_size,
        n_ubatch: args.ubatch_size.min(args.batch_size),
        type_k: args.cache_type_k,
        type_v: args.cache_type_v,
        precision: args.precision.into(),
        ..ContextParams::default()
    }
}

/// Every combination: for each number of threads, of sequences and each depth, first the prompts, then the generations.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let threads = match args.threads.as_slice() {
        [] => vec![default_threads()],
        threads => threads.to_vec(),
    };
    let mut tests = Vec::new();
    for &n_threads in &threads {
        for &n_parallel in &args.n_parallel {
            for &n_depth in &args.n_depth {
                let test = |n_prompt, n_gen| Test {
                    n_prompt,
                    n_gen,
                    n_depth,
                    n_parallel,
                    n_threads,
                };
                tests.extend(args.n_prompt.iter().filter(|&&n| n > 0).map(|&n| test(n, 0)));
                tests.extend(args.n_gen.iter().filter(|&&n| n > 0).map(|&n| test(0, n)));
            }
        }
    }
    tests
}

/// Every test with every model once, on a device that counts and takes no time.
fn on_paper(models: &[PathBuf], tests: &[Test], args: &BenchArgs, mut paper: Paper<'_>) -> Outcome {
    if args.compare.is_some() {
        return Err(Failure::new(
            "nothing is timed on the emulated device, so there is nothing to compare (--compare)",
        ));
    }
    let stop = interrupt::listen();
    for path in models {
        let loaded = Loaded::open(path, args)?;
        for test in loaded.tests(tests)? {
            let mut case = Case::open(&loaded.model, test, &params(args))?;
            case.set_cancel(stop.flag());
            paper.test(&mut case)?;
        }
    }
    paper.end()
}

/// One test after the other, each with all its repetitions.
fn alone(loaded: &Loaded, tests: &[Test], args: &BenchArgs, report: &mut Report<'_>) -> Outcome {
    let stop = interrupt::listen();
    for &test in tests {
        let limits = Limits::measure(test.n_threads);
        system::reset_peak_memory();
        let profile = args.profile.then(Profile::new);
        let params = ContextParams {
            profile: profile.clone(),
            ..params(args)
        };
        let mut case = Case::open(&loaded.model, test, &params)?;
        case.set_cancel(stop.flag());
        case.warm_up()?;
        let (mut samples, mut times) = (Samples::default(), Times::default());
        for _ in 0..args.repetitions {
            let repetition = case.run()?;
            samples.push(test.n_tokens(), repetition);
            if let Some(profile) = &profile {
                times.add(Duration::from_secs_f64(repetition.seconds), profile);
            }
        }
        let mut row = Row::new(loaded, &case, &samples, &limits, args);
        row.profile = profile.map(|_| times.shares());
        report.row(&row)?;
    }
    Ok(())
}

/// In each round every test once, then the other engine, then the machine's limits: what disturbs the machine for a while disturbs all.
fn compared(loaded: &Loaded, tests: &[Test], args: &BenchArgs, rival: &Rival, report: &mut Report<'_>) -> Outcome {
    let stop = interrupt::listen();
    system::reset_peak_memory();
    let open = |&test: &Test| Case::open(&loaded.model, test, &params(args));
    let mut cases = tests.iter().map(open).collect::<Outcome<Vec<_>>>()?;
    for case in &mut cases {
        case.set_cancel(stop.flag());
        case.warm_up()?;
    }
    let mut samples = vec![Samples::default(); tests.len()];
    // Of each round, by numbers of threads.
    let mut limits: BTreeMap<usize, Vec<Limits>> = tests.iter().map(|test| (test.n_threads, Vec::new())).collect();
    for _ in 0..args.repetitions {
        for (case, samples) in cases.iter_mut().zip(&mut samples) {
            samples.push(case.test().n_tokens(), case.run()?);
        }
        let theirs = rival.run()?;
        for (test, samples) in tests.iter().zip(&mut samples) {
            samples.push_rival(theirs.speed(test)?);
        }
        for (&n_threads, limits) in &mut limits {
            limits.push(Limits::measure(n_threads));
        }
    }
    for (case, samples) in cases.iter().zip(&samples) {
        let limits = Limits::median(&limits[&case.test().n_threads]);
        report.row(&Row::new(loaded, case, samples, &limits, args))?;
    }
    Ok(())
}
