//! `llama gguf diff`: compares metadata and weights.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use engine::gguf::{GgufSet, Metadata, TensorInfo};
use kernels::{can_decode, dequantize_row};
use rayon::prelude::*;
use serde::Serialize;

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::format;

/// Arguments of `llama gguf diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "The error of a tensor is the RMS of the differences divided by the RMS of the weights in A.\nThe exit status is 1 if the models differ."
)]
pub struct DiffArgs {
    /// GGUF file, or the first of several
    pub a: PathBuf,
    /// File to compare with
    pub b: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize, Default)]
struct Report {
    keys: Vec<Key>,
    tensors: Vec<Tensor>,
    n_equal_keys: usize,
    n_equal_tensors: usize,
}

/// Metadata key with different values; an absent value is null.
#[derive(Serialize)]
struct Key {
    key: String,
    a: Option<String>,
    b: Option<String>,
}

/// Tensor that differs.
#[derive(Serialize)]
struct Tensor {
    name: String,
    /// Type and shape in both files.
    a: Option<String>,
    b: Option<String>,
    /// Relative RMS error; null if the shapes differ.
    error: Option<f64>,
    /// Largest absolute difference.
    max_difference: Option<f64>,
}

/// Prints the differences.
pub fn run(args: &DiffArgs) -> Outcome {
    let (a, b) = (GgufSet::open(&args.a)?, GgufSet::open(&args.b)?);
    let mut report = Report::default();
    compare_keys(&mut report, a.metadata(), b.metadata());
    compare_tensors(&mut report, &a, &b);
    for shard in a.shards().iter().chain(b.shards()) {
        shard.mapping().check_unchanged().map_err(|e| e.in_file(shard.path()))?;
    }
    let mut out = stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
    }
    out.flush()?;
    if report.keys.is_empty() && report.tensors.is_empty() {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

fn compare_keys(report: &mut Report, a: &Metadata, b: &Metadata) {
    let only_b = b.iter().map(|(key, _)| key).filter(|key| !a.contains(key));
    for key in a.iter().map(|(key, _)| key).chain(only_b) {
        let (in_a, in_b) = (a.get(key), b.get(key));
        if in_a == in_b {
            report.n_equal_keys += 1;
        } else {
            report.keys.push(Key {
                key: key.to_owned(),
                a: in_a.map(|value| value.describe()),
                b: in_b.map(|value| value.describe()),
            });
        }
    }
}

fn compare_tensors(report: &mut Report, a: &GgufSet, b: &GgufSet) {
    let names = a.tensors().map(|(_, t)| t.name.as_str());
    let only_b = b.tensors().map(|(_, t)| t.name.as_str());
    for name in names.chain(only_b.filter(|name| a.tensor(name).is_none())) {
        let (in_a, in_b) = (a.tensor(name).map(|(_, t)| t), b.tensor(name).map(|(_, t)| t));
        let mut tensor = Tensor {
            name: name.to_owned(),
            a: in_a.map(form),
            b: in_b.map(form),
            error: None,
            max_difference: None,
        };
        if let (Some(x), Some(y)) = (in_a, in_b)
            && x.ne == y.ne
        {
            let (x_data, y_data) = (a.tensor_data(name), b.tensor_data(name));
            if x.ty == y.ty && x_data == y_data {
                report.n_equal_tensors += 1;
                continue;
            }
            if can_decode(x.ty) && can_decode(y.ty) {
                let difference = difference((x, x_data.unwrap_or(&[])), (y, y_data.unwrap_or(&[])));
                tensor.error = Some(difference.relative_rms());
                tensor.max_difference = Some(difference.max.into());
            }
        }
        report.tensors.push(tensor);
    }
}

fn form(t: &TensorInfo) -> String {
    format!("{} {}", t.ty, format::shape(t.shape()))
}

/// Sums over the weights of two tensors.
#[derive(Clone, Copy, Default)]
struct Difference {
    squared_difference: f64,
    squared_weight: f64,
    max: f32,
}

impl Difference {
    fn relative_rms(self) -> f64 {
        match (self.squared_difference, self.squared_weight) {
            (0.0, _) => 0.0,
            (difference, weight) => (difference / weight).sqrt(),
        }
    }
}

/// Decodes rows in parallel; the sums are added in order of the rows, so that they do not depend on the threads.
fn difference((x, x_data): (&TensorInfo, &[u8]), (y, y_data): (&TensorInfo, &[u8])) -> Difference {
    let n_columns = x.ne[0];
    let n_rows = x.n_elements() / n_columns;
    let of_row = |(a, b): &mut (Vec<f32>, Vec<f32>), (x_row, y_row): (&[u8], &[u8])| {
        a.resize(n_columns, 0.0);
        b.resize(n_columns, 0.0);
        dequantize_row(x.ty, x_row, a);
        dequantize_row(y.ty, y_row, b);
        let mut sums = Difference::default();
        for (&a, &b) in a.iter().zip(&*b) {
            sums.squared_difference += f64::from(a - b).powi(2);
            sums.squared_weight += f64::from(a).powi(2);
            sums.max = sums.max.max((a - b).abs());
        }
        sums
    };
    let rows = x_data
        .par_chunks(x.bytes / n_rows)
        .zip(y_data.par_chunks(y.bytes / n_rows));
    let rows: Vec<Difference> = rows.map_init(Default::default, of_row).collect();
    rows.iter().fold(Difference::default(), |sum, row| Difference {
        squared_difference: sum.squared_difference + row.squared_difference,
        squared_weight: sum.squared_weight + row.squared_weight,
        max: sum.max.max(row.max),
    })
}

fn print(out: &mut dyn Write, report: &Report) -> Outcome {
    let absent = || "absent".to_owned();
    for Key { key, a, b } in &report.keys {
        let (a, b) = (a.clone().unwrap_or_else(absent), b.clone().unwrap_or_else(absent));
        writeln!(out, "{key}: {a} -> {b}")?;
    }
    for t in &report.tensors {
        let (a, b) = (t.a.clone().unwrap_or_else(absent), t.b.clone().unwrap_or_else(absent));
        let forms = if a == b { a } else { format!("{a} -> {b}") };
        write!(out, "{}: {forms}", t.name)?;
        if let (Some(error), Some(max)) = (t.error, t.max_difference) {
            write!(out, ", error {error:.3e}, largest {max:.3e}")?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "{} and {} differ; {} and {} are equal",
        format::plural(report.keys.len(), "key"),
        format::plural(report.tensors.len(), "tensor"),
        format::plural(report.n_equal_keys, "key"),
        format::plural(report.n_equal_tensors, "tensor")
    )?;
    Ok(())
}
