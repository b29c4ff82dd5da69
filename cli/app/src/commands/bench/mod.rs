//! `llama bench`: measures prefill and decoding, compared with the machine's peak rates and with another
//! engine.
//!
//! - [`args`][]: arguments
//! - [`case`]: one test with its context
//! - [`work`]: minimum bytes and multiply-adds of a test
//! - [`limits`], [`system`]: peak rates, memory and energy counters
//! - [`compare`]: results of another engine
//! - [`profile`]: time per op
//! - [`images`]: times of encoding images
//! - [`cost_model`]: GPU cost estimates from the emulated driver
//! - [`report`]: output formats

pub mod args;
mod case;
mod compare;
mod cost_model;
mod images;
pub mod limits;
mod pixel_size;
mod profile;
mod report;
mod samples;
mod system;
pub mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::backend::cuda::{KernelTime, KernelTimes};
use engine::backend::{Profile, default_device};
use engine::context::ContextParams;
use engine::model::Model;

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::loading::warn_of_threads;
use crate::{fetch, interrupt};

use args::BenchArgs;
use case::{Case, Test};
use compare::Baseline;
use cost_model::CostModel;
use limits::Limits;
use profile::Times;
use report::{Report, Row};
use samples::Samples;

/// Runs every test with every model and prints the results.
pub fn run(args: &BenchArgs) -> Outcome {
    if !args.image.is_empty() {
        return images::run(args);
    }
    let models: Vec<PathBuf> = match args.model.as_slice() {
        [] => vec![fetch::model(None, &args.hub)?],
        models => models
            .iter()
            .map(|m| fetch::model(Some(m), &args.hub))
            .collect::<Outcome<_>>()?,
    };
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Failure::new("nothing to measure: -p and -n are both 0"));
    }
    if let Some(&n_threads) = args.threads.iter().max() {
        warn_of_threads(n_threads);
    }
    let baseline = args.compare.as_deref().map(Baseline::new);
    let mut out = stdout();
    if let Some(cost_model) = CostModel::start(&mut out, args.output)? {
        return estimated(&models, &tests, args, cost_model);
    }
    let mut report = Report::start(&mut out, args.output)?;
    for path in &models {
        let loaded = Loaded::open(path, args)?;
        report.model(&loaded)?;
        let tests = loaded.tests(&tests)?;
        match &baseline {
            None => alone(&loaded, &tests, args, &mut report)?,
            Some(baseline) => compared(&loaded, &tests, args, baseline, &mut report)?,
        }
    }
    report.end()
}

/// A loaded model with its loading time.
struct Loaded {
    path: PathBuf,
    model: Arc<Model>,
    t_load: Duration,
    /// Time from opening the file to the logits of the first token.
    t_first: Duration,
    /// Peak memory up to the first token, in bytes.
    peak_bytes: Option<usize>,
}

impl Loaded {
    fn open(path: &Path, args: &BenchArgs) -> Outcome<Loaded> {
        system::reset_peak_memory();
        let start = Instant::now();
        let model = args.load.load(path, args.precision.mode, None)?;
        if model.arch().encoder {
            return Err(Failure::new(format_args!(
                "{}: {} is an encoder-decoder model, which `llama bench` does not support",
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

    /// Returns the tests that apply to the model: embedding models only support prefill without depth.
    fn tests(&self, tests: &[Test]) -> Outcome<Vec<Test>> {
        let suits = |test: &Test| !self.model.bidirectional() || test.n_gen == 0 && test.n_depth == 0;
        let suitable: Vec<Test> = tests.iter().copied().filter(suits).collect();
        if suitable.is_empty() {
            return Err(Failure::new(format_args!(
                "{}: {} is an embedding model; use prefill tests (-p) without depth (-d)",
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

/// Returns the context parameters common to all tests.
fn params(args: &BenchArgs) -> ContextParams {
    ContextParams {
        n_batch: args.batch.size,
        n_ubatch: args.batch.ubatch(),
        type_k: args.cache.k,
        type_v: args.cache.v,
        precision: args.precision.mode.into(),
        ..ContextParams::default()
    }
}

/// Returns all combinations of threads, sequences, and depths, with prefill tests before decode tests.
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

/// Runs every test with every model once on the emulated driver and estimates GPU times.
fn estimated(models: &[PathBuf], tests: &[Test], args: &BenchArgs, mut cost_model: CostModel<'_>) -> Outcome {
    if args.compare.is_some() {
        return Err(Failure::new(
            "--compare cannot be used with the emulated device, which measures no time",
        ));
    }
    if args.times {
        return Err(Failure::new(
            "--times needs a GPU: the emulated device measures no time; without --times, `llama bench` prints estimates",
        ));
    }
    let stop = interrupt::listen();
    for path in models {
        let loaded = Loaded::open(path, args)?;
        for test in loaded.tests(tests)? {
            let mut case = Case::open(&loaded.model, test, &params(args))?;
            case.set_cancel(stop.flag());
            cost_model.test(&mut case)?;
        }
    }
    cost_model.end()
}

/// Runs the tests one after another, each with all repetitions.
fn alone(loaded: &Loaded, tests: &[Test], args: &BenchArgs, report: &mut Report<'_>) -> Outcome {
    let stop = interrupt::listen();
    for &test in tests {
        let limits = Limits::measure(test.n_threads, default_device().memory().0);
        system::reset_peak_memory();
        let profile = args.profile.then(Profile::new);
        let params = ContextParams {
            profile: profile.clone(),
            ..params(args)
        };
        let mut case = Case::open(&loaded.model, test, &params)?;
        case.set_cancel(stop.flag());
        if args.times {
            KernelTimes::start();
        }
        case.warm_up()?;
        KernelTimes::take();
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
        if args.times {
            row.kernels = Some(kernel_times()?);
        }
        report.row(&row)?;
    }
    Ok(())
}

/// Returns the kernel times of the last test.
fn kernel_times() -> Outcome<Vec<KernelTime>> {
    let times = KernelTimes::take();
    if times.is_empty() {
        return Err(Failure::new(
            "--times: no kernel ran on an NVIDIA GPU; `llama devices` lists the GPUs, and --device selects one",
        ));
    }
    Ok(times)
}

/// Runs every test once per round, then the other engine and the peak measurements, so that a disturbance
/// affects all of them.
fn compared(
    loaded: &Loaded,
    tests: &[Test],
    args: &BenchArgs,
    baseline: &Baseline,
    report: &mut Report<'_>,
) -> Outcome {
    let stop = interrupt::listen();
    system::reset_peak_memory();
    let mut peak_bytes = None;
    let open = |&test: &Test| Case::open(&loaded.model, test, &params(args));
    let mut cases = tests.iter().map(open).collect::<Outcome<Vec<_>>>()?;
    for case in &mut cases {
        case.set_cancel(stop.flag());
        case.warm_up()?;
    }
    let mut samples = vec![Samples::default(); tests.len()];
    // Peak rates of each round, by number of threads.
    let mut limits: BTreeMap<usize, Vec<Limits>> = tests.iter().map(|test| (test.n_threads, Vec::new())).collect();
    for _ in 0..args.repetitions {
        for (case, samples) in cases.iter_mut().zip(&mut samples) {
            samples.push(case.test().n_tokens(), case.run()?);
        }
        let theirs = baseline.run()?;
        for (test, samples) in tests.iter().zip(&mut samples) {
            samples.push_baseline(theirs.speed(test)?);
        }
        // The measurements need memory of their own.
        peak_bytes = peak_bytes.max(system::peak_memory());
        for (&n_threads, limits) in &mut limits {
            limits.push(Limits::measure(n_threads, default_device().memory().0));
        }
        system::reset_peak_memory();
    }
    for (case, samples) in cases.iter().zip(&samples) {
        let limits = Limits::median(&limits[&case.test().n_threads]);
        let mut row = Row::new(loaded, case, samples, &limits, args);
        row.peak_bytes = peak_bytes;
        report.row(&row)?;
    }
    Ok(())
}
