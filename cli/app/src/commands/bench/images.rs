//! Times of encoding images with a projector.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::backend::Profile;
use engine::context::{ContextParams, MediaEncoder};
use engine::model::Model;
use llama::parts::ENCODERS;
use serde::Serialize;

use super::args::{BenchArgs, BenchFormat};
use super::pixel_size::PixelSize;
use super::profile::{OpShare, Times};
use super::samples::{median, range};
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::{fetch, format};

/// Times of one size of images, printed as text or JSON.
#[derive(Serialize)]
struct Row {
    projector: String,
    encoder: &'static str,
    image: String,
    /// Size that images are resized to before the measurement.
    resized: String,
    n_rows: usize,
    n_threads: usize,
    median_ms: f64,
    samples_ms: Vec<f64>,
    /// Size of the compute buffers in bytes.
    compute_bytes: usize,
    /// Time per op, if profiling is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Vec<OpShare>>,
}

/// Measures images of each size with each projector and number of threads.
pub fn run(args: &BenchArgs) -> Outcome {
    if !matches!(args.output, BenchFormat::Table | BenchFormat::Json) {
        return Err(Failure::new("--image supports the output formats table and json (-o)"));
    }
    let default = [ContextParams::default().n_threads];
    let threads = if args.threads.is_empty() {
        &default[..]
    } else {
        &args.threads
    };
    let mut rows = Vec::new();
    for given in &args.model {
        let path = fetch::model(Some(given), &args.hub)?;
        let load = args.load.params(args.precision.mode, None)?;
        let model = Arc::new(Model::load(&path, ENCODERS, &load)?);
        for &n_threads in threads {
            for &size in &args.image {
                rows.push(measured(&model, &path, size, n_threads, args)?);
            }
        }
    }
    if rows.is_empty() {
        return Err(Failure::new("--image measures a projector; pass its file with -m"));
    }
    let mut out = stdout();
    match args.output {
        BenchFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &rows)?;
            writeln!(out)?;
        }
        _ => print(&mut out, &rows)?,
    }
    Ok(out.flush()?)
}

fn measured(model: &Arc<Model>, path: &Path, size: PixelSize, n_threads: usize, args: &BenchArgs) -> Outcome<Row> {
    let profile = args.profile.then(Profile::new);
    let params = ContextParams {
        profile: profile.clone(),
        n_threads,
        n_threads_batch: n_threads,
        precision: args.precision.mode.into(),
        ..ContextParams::default()
    };
    let failed = |e: &dyn fmt::Display| Failure::new(format_args!("{}: {e}", path.display()));
    let mut encoder = MediaEncoder::new(model.clone(), &params).map_err(|e| failed(&e))?;
    let target = encoder
        .sizes()
        .target(size.width, size.height)
        .map_err(|e| failed(&e))?;
    let [width, height] = target;
    let pixels: Vec<u8> = (0..3 * width * height).map(|i| (i * 7 / 5) as u8).collect();
    let mut time = || -> Outcome<(Duration, usize)> {
        let start = Instant::now();
        let rows = encoder.encode(width, height, &pixels).map_err(|e| failed(&e))?;
        Ok((start.elapsed(), rows.len()))
    };
    // The first image allocates memory.
    let (_, n_rows) = time()?;
    let (mut samples_ms, mut times) = (Vec::new(), Times::default());
    for _ in 0..args.repetitions {
        profile.iter().for_each(Profile::clear);
        let (elapsed, _) = time()?;
        samples_ms.push(elapsed.as_secs_f64() * 1e3);
        profile.iter().for_each(|profile| times.add(elapsed, profile));
    }
    Ok(Row {
        projector: path.display().to_string(),
        encoder: model.arch().name,
        image: size.to_string(),
        resized: PixelSize { width, height }.to_string(),
        n_rows,
        n_threads,
        median_ms: median(&samples_ms).unwrap_or(0.0),
        samples_ms,
        compute_bytes: encoder.n_bytes(),
        profile: profile.map(|_| times.shares()),
    })
}

fn print(out: &mut dyn Write, rows: &[Row]) -> Outcome {
    writeln!(
        out,
        "{:<16} {:>11} {:>11} {:>6} {:>7} {:>10}  {:<19} {:>12}",
        "encoder", "image", "resized", "rows", "threads", "median ms", "range ms", "compute"
    )?;
    for row in rows {
        let (low, high) = range(&row.samples_ms);
        let range = format!("{low:.1} to {high:.1}");
        let compute = format::bytes(row.compute_bytes);
        writeln!(
            out,
            "{:<16} {:>11} {:>11} {:>6} {:>7} {:>10.1}  {range:<19} {compute:>12}",
            row.encoder, row.image, row.resized, row.n_rows, row.n_threads, row.median_ms
        )?;
        for part in row.profile.iter().flatten() {
            writeln!(out, "{}", part.line())?;
        }
    }
    Ok(())
}
