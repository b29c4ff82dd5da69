//! Benchmark results and their output formats.

use std::io::Write;

use engine::backend::cuda::KernelTime;
use serde::Serialize;

use crate::failure::Outcome;
use crate::format;

use super::Loaded;
use super::args::{BenchArgs, BenchFormat};
use super::case::Case;
use super::limits::Limits;
use super::profile::OpShare;
use super::samples::{Samples, mean_and_deviation, median, range};
use super::system;
use super::work::Work;

/// Results of one test, printed as text or JSON. Names that occur in `llama-bench -o json` have the same
/// meaning.
#[derive(Debug, Serialize)]
pub struct Row {
    model_filename: String,
    model_type: &'static str,
    model_size: usize,
    model_n_params: usize,
    n_batch: usize,
    n_ubatch: usize,
    n_threads: usize,
    type_k: &'static str,
    type_v: &'static str,
    precision: &'static str,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    /// Number of parallel sequences; speeds are totals of all sequences.
    n_parallel: usize,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ts: Vec<f64>,
    median_ts: f64,
    /// Bytes of weights and KV cache read per second.
    read_bytes_per_s: Option<f64>,
    /// Peak read bandwidth of the same number of threads, measured just before the test.
    read_limit: f64,
    /// Multiply-adds with weights per second.
    multiply_adds_per_s: f64,
    f32_limit: f64,
    i16_limit: Option<f64>,
    i8_limit: Option<f64>,
    bf16_limit: Option<f64>,
    load_ms: f64,
    first_token_ms: f64,
    /// Peak memory of loading and the first token.
    load_peak_bytes: Option<usize>,
    /// Peak memory of this test in bytes.
    pub peak_bytes: Option<usize>,
    joules_per_token: Option<f64>,
    /// Speeds of the baseline in the same rounds.
    rival_ts: Vec<f64>,
    /// Speed ratio of this engine to the baseline per round.
    ratios: Vec<f64>,
    median_ratio: Option<f64>,
    /// Time per op, if profiling is enabled.
    pub profile: Option<Vec<OpShare>>,
    /// Times of GPU kernels, if measured.
    pub kernels: Option<Vec<KernelTime>>,
    #[serde(skip)]
    test: String,
}

impl Row {
    /// Computes the results of a measured test.
    pub fn new(loaded: &Loaded, case: &Case, samples: &Samples, limits: &Limits, args: &BenchArgs) -> Row {
        let (model, test, context) = (&loaded.model, case.test(), case.context());
        let work = Work::of(model, &test, context.sizes(), context.n_ctx());
        let (avg_ts, stddev_ts) = mean_and_deviation(&samples.speeds);
        let median_ts = median(&samples.speeds).unwrap_or(0.0);
        let repetitions_per_s = median_ts / test.n_tokens().max(1) as f64;
        let ratios = samples.ratios();
        Row {
            model_filename: model.path().display().to_string(),
            model_type: model.arch().name,
            model_size: model.n_bytes(),
            model_n_params: model.n_params(),
            n_batch: context.params().n_batch,
            n_ubatch: context.params().n_ubatch,
            n_threads: test.n_threads,
            type_k: args.cache.k.name(),
            type_v: args.cache.v.name(),
            precision: args.precision.mode.name(),
            n_prompt: test.n_prompt,
            n_gen: test.n_gen,
            n_depth: test.n_depth,
            n_parallel: test.n_parallel,
            avg_ts,
            stddev_ts,
            samples_ts: samples.speeds.clone(),
            median_ts,
            read_bytes_per_s: work.bytes.map(|bytes| bytes * repetitions_per_s),
            read_limit: limits.read,
            multiply_adds_per_s: work.multiply_adds * repetitions_per_s,
            f32_limit: limits.f32,
            i16_limit: limits.i16,
            i8_limit: limits.i8,
            bf16_limit: limits.bf16,
            load_ms: loaded.t_load.as_secs_f64() * 1e3,
            first_token_ms: loaded.t_first.as_secs_f64() * 1e3,
            load_peak_bytes: loaded.peak_bytes,
            peak_bytes: system::peak_memory(),
            joules_per_token: samples.joules_per_token(),
            rival_ts: samples.baseline.clone(),
            median_ratio: median(&ratios),
            ratios,
            profile: None,
            kernels: None,
            test: test.to_string(),
        }
    }
}

/// Table column: heading, width, and cell formatter.
type Column = (&'static str, usize, fn(&Row) -> String);

const COLUMNS: &[Column] = &[
    ("test", 14, |r| r.test.clone()),
    ("threads", 7, |r| r.n_threads.to_string()),
    ("tok/s", 8, |r| speed(r.median_ts)),
    ("range", 17, |r| {
        let (low, high) = range(&r.samples_ts);
        format!("{}..{}", speed(low), speed(high))
    }),
    ("GB/s", 6, |r| {
        r.read_bytes_per_s.map_or("-".into(), |x| format!("{:.1}", x * 1e-9))
    }),
    ("of memory", 12, |r| share_of_memory(r.read_bytes_per_s, r.read_limit)),
    ("G mul-add/s", 11, |r| format!("{:.1}", r.multiply_adds_per_s * 1e-9)),
    ("of f32", 6, |r| share(Some(r.multiply_adds_per_s), Some(r.f32_limit))),
    ("of i16", 6, |r| share(Some(r.multiply_adds_per_s), r.i16_limit)),
    ("of i8", 5, |r| share(Some(r.multiply_adds_per_s), r.i8_limit)),
    ("of bf16", 7, |r| share(Some(r.multiply_adds_per_s), r.bf16_limit)),
    ("peak", 10, |r| r.peak_bytes.map_or("-".into(), format::bytes)),
    ("J/token", 7, |r| {
        r.joules_per_token.map_or("-".into(), |x| format!("{x:.3}"))
    }),
    ("other", 8, |r| median(&r.rival_ts).map_or("-".into(), speed)),
    ("ratio", 6, |r| r.median_ratio.map_or("-".into(), |x| format!("{x:.2}"))),
];

/// Formats a speed with at least three digits.
fn speed(x: f64) -> String {
    match x {
        100.0.. => format!("{x:.0}"),
        10.0.. => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

fn share(x: Option<f64>, limit: Option<f64>) -> String {
    match (x, limit) {
        (Some(x), Some(limit)) => format!("{:.0} %", 100.0 * x / limit),
        _ => "-".to_owned(),
    }
}

/// Formats the share of the read bandwidth, and the bandwidth in GB/s.
fn share_of_memory(read: Option<f64>, limit: f64) -> String {
    match read {
        Some(_) => format!("{} of {:.1}", share(read, Some(limit)), limit * 1e-9),
        None => "-".to_owned(),
    }
}

/// Prints rows immediately, or at the end if the format requires it.
pub struct Report<'a> {
    out: &'a mut dyn Write,
    format: BenchFormat,
    rows: Vec<serde_json::Value>,
}

impl<'a> Report<'a> {
    pub fn start(out: &'a mut dyn Write, format: BenchFormat) -> Outcome<Report<'a>> {
        Ok(Report {
            out,
            format,
            rows: Vec::new(),
        })
    }

    /// Prints the header of a model.
    pub fn model(&mut self, loaded: &Loaded) -> Outcome {
        if !matches!(self.format, BenchFormat::Table | BenchFormat::Md) {
            return Ok(());
        }
        let model = &loaded.model;
        writeln!(
            self.out,
            "{}: {}, {} parameters, {}; loaded in {:.2} s, first token after {:.2} s{}\n",
            model.path().display(),
            model.arch().name,
            format::count(model.n_params()),
            format::bytes(model.n_bytes()),
            loaded.t_load.as_secs_f64(),
            loaded.t_first.as_secs_f64(),
            loaded
                .peak_bytes
                .map_or(String::new(), |n| format!(", peak {}", format::bytes(n)))
        )?;
        let titles: Vec<String> = COLUMNS.iter().map(|c| c.0.to_owned()).collect();
        self.line(&titles)?;
        if self.format == BenchFormat::Md {
            writeln!(self.out, "|---|{}", "---:|".repeat(COLUMNS.len() - 1))?;
        }
        Ok(self.out.flush()?)
    }

    /// Prints the result of a test.
    pub fn row(&mut self, row: &Row) -> Outcome {
        let value = serde_json::to_value(row)?;
        match self.format {
            BenchFormat::Table | BenchFormat::Md => {
                let cells: Vec<String> = COLUMNS.iter().map(|c| c.2(row)).collect();
                self.line(&cells)?;
                self.profile(row)?;
                self.kernels(row)?;
            }
            BenchFormat::Csv => {
                if self.rows.is_empty() {
                    writeln!(self.out, "{}", csv_names(&value))?;
                }
                writeln!(self.out, "{}", csv_values(&value))?;
            }
            BenchFormat::Json => {}
        }
        self.rows.push(value);
        Ok(self.out.flush()?)
    }

    pub fn end(self) -> Outcome {
        if self.format == BenchFormat::Json {
            serde_json::to_writer_pretty(&mut *self.out, &self.rows)?;
            writeln!(self.out)?;
        }
        Ok(self.out.flush()?)
    }

    /// Prints the time per op below a table row.
    fn profile(&mut self, row: &Row) -> Outcome {
        for part in row.profile.iter().flatten() {
            let (share, ms) = (100.0 * part.share, 1e3 * part.seconds);
            match self.format {
                BenchFormat::Md => writeln!(self.out, "| {} | {share:.1} % | {ms:.1} ms | {} x |", part.op, part.n)?,
                _ => writeln!(self.out, "{}", part.line())?,
            }
        }
        Ok(())
    }

    /// Prints the times of GPU kernels below a table row.
    fn kernels(&mut self, row: &Row) -> Outcome {
        let Some(kernels) = &row.kernels else {
            return Ok(());
        };
        for line in kernel_lines(kernels, self.format == BenchFormat::Md) {
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }

    fn line(&mut self, cells: &[String]) -> Outcome {
        if self.format == BenchFormat::Md {
            writeln!(self.out, "| {} |", cells.join(" | "))?;
            return Ok(());
        }
        for (i, (cell, column)) in cells.iter().zip(COLUMNS).enumerate() {
            let width = column.1;
            match i {
                0 => write!(self.out, "{cell:<width$}")?,
                _ => write!(self.out, "  {cell:>width$}")?,
            }
        }
        Ok(writeln!(self.out)?)
    }
}

/// Headings of kernel times with their widths.
const KERNEL_COLUMNS: [(&str, usize); 9] = [
    ("share", 7),
    ("launches", 8),
    ("median us", 9),
    ("min us", 9),
    ("GB/s", 6),
    ("TFLOP/s", 7),
    ("grid", 14),
    ("block", 5),
    ("kernel", 0),
];

/// Formats kernel times as a table.
fn kernel_lines(kernels: &[KernelTime], is_markdown: bool) -> Vec<String> {
    let total: f64 = kernels.iter().map(|kernel| kernel.us_total).sum();
    let number = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.1}"));
    let cells = |k: &KernelTime| {
        let [x, y, z] = k.grid;
        [
            format!("{:.1} %", 100.0 * k.us_total / total.max(f64::MIN_POSITIVE)),
            k.launches.to_string(),
            format!("{:.2}", k.us_median),
            format!("{:.2}", k.us_min),
            number(k.gb_s),
            number(k.tflops),
            format!("{x}x{y}x{z}"),
            k.block.to_string(),
            k.kernel.clone(),
        ]
    };
    let line = |cells: [String; 9]| {
        if is_markdown {
            return format!("| {} |", cells.join(" | "));
        }
        let cells = cells.iter().zip(KERNEL_COLUMNS);
        let cells: Vec<String> = cells.map(|(cell, (_, width))| format!("{cell:>width$}")).collect();
        format!("    {}", cells.join("  "))
    };
    let headings = KERNEL_COLUMNS.map(|(heading, _)| heading.to_owned());
    let lines = kernels.iter().map(|kernel| line(cells(kernel)));
    std::iter::once(line(headings)).chain(lines).collect()
}

fn csv_names(row: &serde_json::Value) -> String {
    let names = row.as_object().into_iter().flat_map(|row| row.keys().cloned());
    names.collect::<Vec<_>>().join(",")
}

/// Quotes a value for CSV output.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Formats values as in JSON. Lists are separated by spaces, and null values are empty.
fn csv_values(row: &serde_json::Value) -> String {
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => quoted(text),
        serde_json::Value::Array(list) if list.iter().any(serde_json::Value::is_object) => quoted(&value.to_string()),
        serde_json::Value::Array(list) => list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        value => value.to_string(),
    };
    let values = row.as_object().into_iter().flat_map(|row| row.values().map(value));
    values.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_compared_with_its_limit() {
        assert_eq!(share_of_memory(Some(32e9), 50e9), "64 % of 50.0");
        assert_eq!(share_of_memory(None, 50e9), "-");
    }

    #[test]
    fn kernel_times_are_aligned_columns() {
        let kernel = KernelTime {
            kernel: "mul_vec (mul_vec.cu, COLS=1)".to_owned(),
            launches: 12,
            us_median: 4.0,
            us_min: 3.5,
            us_total: 48.0,
            grid: [132, 2, 1],
            block: 128,
            shared: 0,
            bytes: Some(8000),
            gb_s: Some(2.0),
            tflops: None,
        };
        let expected = "      share  launches  median us     min us    GB/s  TFLOP/s            grid  block  kernel
    100.0 %        12       4.00       3.50     2.0        -         132x2x1    128  mul_vec (mul_vec.cu, COLS=1)";
        assert_eq!(kernel_lines(std::slice::from_ref(&kernel), false).join("\n"), expected);
        let rows = kernel_lines(&[kernel], true);
        assert_eq!(
            rows[1],
            "| 100.0 % | 12 | 4.00 | 3.50 | 2.0 | - | 132x2x1 | 128 | mul_vec (mul_vec.cu, COLS=1) |"
        );
    }
}
