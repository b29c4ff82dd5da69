//! Benchmark of row operations and recurrent state steps on one core: `cargo bench -p llama-kernels --bench
//! rows [-- WORD...]`.
//!
//! A word is the name of an operation or a row length. All operands are in the caches, like rows that were
//! just written. Row operations are compared with copying rows of the same length, state steps with the
//! multiply-add rate of the core. The times are the median and minimum of many runs.

#[allow(dead_code, unused_imports, reason = "used by the bench command of the CLI")]
#[path = "../../cli/app/src/commands/bench/limits.rs"]
mod limits;
#[allow(dead_code, unused_imports, reason = "used by the bench command of the CLI")]
#[path = "../../cli/app/src/commands/bench/samples.rs"]
mod samples;

use std::hint::black_box;
use std::time::{Duration, Instant};

use kernels::{
    ActivationForm, FAST_COLUMNS, GgmlType, Precision, activation_bytes, activation_form, isa, quantize_activations,
    recurrent, rope, rows,
};
use limits::Limits;

/// Row lengths to measure.
const LENGTHS: [usize; 6] = [64, 256, 1024, 4096, 16384, 32768];

/// Elements per row of a recurrent state, which is square.
const STATES: [usize; 2] = [64, 128];

/// Minimum time of a run, long enough for the clock's resolution, and of all runs of a case.
const RUN: Duration = Duration::from_micros(50);
const RUNS: Duration = Duration::from_millis(50);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let roof = Limits::measure(1, 0).f32;
    println!("one core, {}, {:.1} multiply-adds per ns", isa().name(), roof * 1e-9);
    println!(
        "{:>14} {:>6} {:>10} {:>10} {:>7} {:>10}",
        "operation", "n", "ns", "best", "GB/s", "of limit"
    );
    let is_asked = |name: &str, n: usize| {
        let is_number = |word: &&String| word.parse::<usize>().is_ok();
        let (numbers, names): (Vec<&String>, Vec<&String>) = words.iter().partition(is_number);
        (numbers.is_empty() || numbers.iter().any(|word| **word == n.to_string()))
            && (names.is_empty() || names.iter().any(|word| *word == name))
    };
    for n in LENGTHS {
        let of_tiles = is_prompt_form(ActivationForm::Bf16Row).then_some(&TO_BF16);
        for op in ROW_OPS.iter().chain(of_tiles).filter(|op| is_asked(op.name, n)) {
            let (time, copy) = (op.measure(n), COPY.measure(n));
            let moved = (op.bytes)(n) as f64 / time.median;
            let of_copying = moved / ((COPY.bytes)(n) as f64 / copy.median);
            print_line(op.name, n, &time, moved, of_copying);
        }
    }
    for n in STATES {
        for op in STEPS.iter().filter(|op| is_asked(op.name, n)) {
            let time = op.measure(n);
            let (bytes, multiply_adds) = ((8 * n * n) as f64, (op.multiply_adds * n * n) as f64);
            print_line(
                op.name,
                n,
                &time,
                bytes / time.median,
                multiply_adds / time.median / roof,
            );
        }
    }
}

fn print_line(name: &str, n: usize, time: &Time, bytes_per_s: f64, of_limit: f64) {
    println!(
        "{name:>14} {n:>6} {:>10.1} {:>10.1} {:>7.1} {:>10}",
        time.median * 1e9,
        time.best * 1e9,
        bytes_per_s * 1e-9,
        format!("{:.0} %", 100.0 * of_limit)
    );
}

/// Median and minimum time of a call in seconds.
struct Time {
    median: f64,
    best: f64,
}

/// Measures the time of a call.
fn measure(mut call: impl FnMut()) -> Time {
    let mut pass = |n: usize| {
        let start = Instant::now();
        (0..n).for_each(|_| call());
        start.elapsed()
    };
    // Warm up: the first access to memory is slow.
    pass(1);
    let n = (RUN.as_nanos() / pass(1).as_nanos().max(1)) as usize + 1;
    let (start, mut seconds) = (Instant::now(), Vec::new());
    while start.elapsed() < RUNS || seconds.len() < 3 {
        seconds.push(pass(n).as_secs_f64() / n as f64);
    }
    Time {
        median: samples::median(&seconds).expect("some runs"),
        best: samples::range(&seconds).0,
    }
}

/// Operands of row operations: two input rows, an output row, and output bytes.
struct Operands {
    x: Vec<f32>,
    y: Vec<f32>,
    out: Vec<f32>,
    bytes: Vec<u8>,
}

impl Operands {
    fn new(n: usize) -> Operands {
        let row = |seed: usize| (0..n).map(|i| ((i * seed) % 17) as f32 / 8.0 - 1.0).collect();
        Operands {
            x: row(3),
            y: row(5),
            out: vec![0.0; n],
            bytes: vec![0; 8 * n + 4096],
        }
    }
}

/// A row operation.
struct RowOp {
    name: &'static str,
    /// Bytes that a call reads and writes, each counted once.
    bytes: fn(usize) -> usize,
    run: fn(&mut Operands),
}

const COPY: RowOp = RowOp {
    name: "copy",
    bytes: |n| 8 * n,
    run: |o| o.out.copy_from_slice(&o.x),
};

const ROW_OPS: &[RowOp] = &[
    COPY,
    RowOp {
        name: "add",
        bytes: |n| 12 * n,
        run: |o| rows::add(&o.x, &o.y, &mut o.out),
    },
    RowOp {
        name: "rms_norm",
        bytes: |n| 12 * n,
        run: |o| rows::rms_norm(&o.x, Some(&o.y), 1e-6, &mut o.out),
    },
    RowOp {
        name: "norm",
        bytes: |n| 8 * n,
        run: |o| rows::norm(&o.x, 1e-6, &mut o.out),
    },
    RowOp {
        name: "softmax",
        bytes: |n| 8 * n,
        run: |o| {
            o.out.copy_from_slice(&o.x);
            rows::softmax(&mut o.out, 0.5);
        },
    },
    RowOp {
        name: "silu_mul",
        bytes: |n| 12 * n,
        run: |o| rows::silu_mul(&o.x, &o.y, &mut o.out),
    },
    RowOp {
        name: "gelu_mul",
        bytes: |n| 12 * n,
        run: |o| rows::gelu_mul(&o.x, &o.y, &mut o.out),
    },
    RowOp {
        name: "gelu_erf_mul",
        bytes: |n| 12 * n,
        run: |o| rows::gelu_erf_mul(&o.x, &o.y, &mut o.out),
    },
    RowOp {
        name: "rope_halves",
        bytes: |n| 12 * n,
        run: |o| rotate(o, rope::rotate_halves),
    },
    RowOp {
        name: "rope_pairs",
        bytes: |n| 12 * n,
        run: |o| rotate(o, rope::rotate_pairs),
    },
    RowOp {
        name: "to_i16",
        bytes: |n| 4 * n + activation_bytes(ActivationForm::I16Row, n),
        run: |o| quantize(o, ActivationForm::I16Row),
    },
    RowOp {
        name: "to_u8",
        bytes: |n| 4 * n + activation_bytes(ActivationForm::U8Chunk, n),
        run: |o| quantize(o, ActivationForm::U8Chunk),
    },
];

/// Conversion for tile matmuls, on CPUs that support them.
const TO_BF16: RowOp = RowOp {
    name: "to_bf16",
    bytes: |n| 4 * n + activation_bytes(ActivationForm::Bf16Row, n),
    run: |o| quantize(o, ActivationForm::Bf16Row),
};

/// Returns true if prompts use activations in this form.
fn is_prompt_form(form: ActivationForm) -> bool {
    activation_form(GgmlType::Q4_0, FAST_COLUMNS, Precision::Fast) == form
}

fn rotate(o: &mut Operands, rotate: fn(&mut [f32], &[f32], &[f32])) {
    let (sin, cos) = o.y.split_at(o.y.len() / 2);
    o.out.copy_from_slice(&o.x);
    rotate(&mut o.out, sin, cos);
}

fn quantize(o: &mut Operands, form: ActivationForm) {
    let n = activation_bytes(form, o.x.len());
    quantize_activations(form, &o.x, &mut o.bytes[..n]);
}

impl RowOp {
    fn measure(&self, n: usize) -> Time {
        let mut operands = Operands::new(n);
        measure(|| {
            (self.run)(&mut operands);
            black_box(&mut operands);
        })
    }
}

/// A step of the recurrent state of one head: `n` rows of `n` elements.
struct Step {
    name: &'static str,
    /// Multiply-adds per element of the state.
    multiply_adds: usize,
    run: fn(&[Vec<f32>; 6], &mut [f32], &mut [f32]),
}

const STEPS: &[Step] = &[
    Step {
        name: "scan",
        multiply_adds: 3,
        run: |[a, x, b, c, _, _], state, y| recurrent::scan(a, 0.5, x, b, c, state, y),
    },
    Step {
        name: "wkv6",
        multiply_adds: 3,
        run: |[r, w, k, v, _, _], state, y| recurrent::wkv6([r, w, k, v], 0.5, state, y),
    },
    Step {
        name: "wkv7",
        multiply_adds: 5,
        run: |[r, w, k, v, a, b], state, y| recurrent::wkv7([r, w, k, v, a, b], state, y),
    },
    // Gated delta rule: read the state for a key, decay and correct it, read it for a query.
    Step {
        name: "delta_rule",
        multiply_adds: 4,
        run: |[k, q, decay, v, _, _], state, y| {
            let n = y.len();
            y.fill(0.0);
            rows::axpy_rows(k, state, n, y);
            rows::scale_add_outer(decay, k, v, state);
            y.fill(0.0);
            rows::axpy_rows(q, state, n, y);
        },
    },
];

impl Step {
    fn measure(&self, n: usize) -> Time {
        // Factors below 1 keep the states finite.
        let row = |seed: usize| -> Vec<f32> { (0..n).map(|i| ((i * seed) % 13) as f32 / 32.0).collect() };
        let operands = [3, 5, 7, 9, 11, 2].map(row);
        let (mut state, mut y) = (vec![0.1; n * n], vec![0.0; n]);
        measure(|| {
            (self.run)(&operands, &mut state, &mut y);
            black_box((&mut state, &mut y));
        })
    }
}
