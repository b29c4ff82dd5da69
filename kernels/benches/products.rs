//! Benchmark of matmuls relative to the limits of the machine: `cargo bench -p llama-kernels --bench products
//! [-- WORD...]`.
//!
//! Each word selects something to measure:
//! - a type of weights (`all`: every type)
//! - a precision (`exact`, `high`, `fast`)
//! - a layout (`rows`: as in a file, `groups`: interleaved)
//! - a row length, such as `4096`
//! - a number of columns, such as `n=512`
//! - a number of threads, such as `threads=2`
//! - `cached`: weights in the L2 cache even with one column
//!
//! The defaults are `fast` and the layout that models use. With one column, weights are read from memory and
//! the time is compared with the memory bandwidth. With more columns, weights are in the L2 cache and the
//! time is compared with the multiply-add rate. The times are per row of weights with all columns, as the
//! median and minimum of many runs.
//!
//! This is not a criterion benchmark, because criterion cannot relate the results to limits measured in the
//! same run.

#[allow(dead_code, unused_imports, reason = "used by the bench command of the CLI")]
#[path = "../../cli/app/src/commands/bench/limits.rs"]
mod limits;
#[allow(dead_code, unused_imports, reason = "used by the bench command of the CLI")]
#[path = "../../cli/app/src/commands/bench/samples.rs"]
mod samples;

use std::hint::black_box;
use std::time::{Duration, Instant};

use kernels::interleaved::{GROUP_ROWS, can_interleave, interleaved_bytes};
use kernels::{
    ActivationForm, Activations, GgmlType, MatMul, Precision, WeightLayout, activation_bytes, activation_form,
    can_dequantize, isa, matmul, matmul_scratch, quantize_activations,
};
use limits::Limits;
use memmap2::{Advice, MmapMut};

/// Types, row lengths, and numbers of columns measured by default.
const TYPES: [GgmlType; 5] = [
    GgmlType::Q4_0,
    GgmlType::Q4_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
    GgmlType::F16,
];
const LENGTHS: [usize; 6] = [64, 256, 1024, 4096, 16384, 32768];
const COLUMNS: [usize; 4] = [1, 8, 32, 512];

/// Bytes of weights that exceed all caches, and that fit the L2 cache.
const MEMORY: usize = 256 << 20;
const CACHE: usize = 512 << 10;

/// Maximum rows multiplied at once, similar to a thread's unit of work.
const ROWS: usize = 256;

/// A multiple of the rows that any kernel multiplies at a time. The longest rows then exceed the L2 cache.
const FULL: usize = 32;

/// Minimum time of a run, long enough for the clock's resolution, and of all runs of a case.
const RUN: Duration = Duration::from_micros(100);
const RUNS: Duration = Duration::from_millis(100);

const PRECISIONS: [(&str, Precision); 3] = [
    ("exact", Precision::Exact),
    ("high", Precision::High),
    ("fast", Precision::Fast),
];

fn main() {
    let selection = Selection::new(std::env::args().skip(1).filter(|arg| !arg.starts_with("--")));
    let weights = weights(MEMORY);
    let limits = Limits::measure(selection.n_threads, 0);
    print_head(&selection, &limits);
    for &ty in &selection.types {
        for (precision_name, precision) in selection.precisions() {
            for &k in selection.lengths.iter().filter(|&&k| ty.row_bytes(k).is_some()) {
                for layout in selection.layouts(ty, k) {
                    for &n in &selection.columns {
                        let case = Case {
                            ty,
                            precision,
                            layout,
                            k,
                            n,
                            is_from_memory: n == 1 && !selection.is_cached,
                        };
                        print_line(
                            precision_name,
                            &case,
                            &case.measure(&weights, selection.n_threads),
                            &limits,
                        );
                    }
                }
            }
        }
    }
}

/// Benchmarks selected on the command line.
struct Selection {
    words: Vec<String>,
    types: Vec<GgmlType>,
    lengths: Vec<usize>,
    columns: Vec<usize>,
    /// Whether weights are in the L2 cache even with one column.
    is_cached: bool,
    n_threads: usize,
}

impl Selection {
    fn new(words: impl Iterator<Item = String>) -> Selection {
        let words: Vec<String> = words.collect();
        let or = |found: Vec<usize>, default: &[usize]| if found.is_empty() { default.to_vec() } else { found };
        let numbers = |prefix: &str| {
            let rest = words.iter().filter_map(|word| word.strip_prefix(prefix));
            rest.filter_map(|rest| rest.parse().ok()).collect::<Vec<usize>>()
        };
        let has = |name: &str| words.iter().any(|word| word.eq_ignore_ascii_case(name));
        let can = GgmlType::ALL.iter().copied().filter(|&ty| can_dequantize(ty));
        let named: Vec<GgmlType> = can.filter(|ty| has("all") || has(ty.name())).collect();
        Selection {
            types: if named.is_empty() { TYPES.to_vec() } else { named },
            lengths: or(numbers(""), &LENGTHS),
            columns: or(numbers("n="), &COLUMNS),
            is_cached: has("cached"),
            n_threads: numbers("threads=").first().copied().unwrap_or(1).max(1),
            words,
        }
    }

    fn has(&self, name: &str) -> bool {
        self.words.iter().any(|word| word == name)
    }

    fn precisions(&self) -> impl Iterator<Item = (&'static str, Precision)> {
        let is_any = PRECISIONS.iter().any(|(name, _)| self.has(name));
        let is_selected = move |&(name, _): &(&str, Precision)| if is_any { self.has(name) } else { name == "fast" };
        PRECISIONS.into_iter().filter(is_selected)
    }

    /// Returns the selected layouts that the type has, or the layout that models use if none is selected.
    fn layouts(&self, ty: GgmlType, k: usize) -> Vec<WeightLayout> {
        let rows = WeightLayout::Rows {
            stride: ty.row_bytes(k).expect("rows fit"),
        };
        let has_groups = can_interleave(ty, k);
        let (with_rows, with_groups) = (self.has("rows"), self.has("groups"));
        if !with_rows && !with_groups {
            return vec![if has_groups { WeightLayout::Interleaved } else { rows }];
        }
        let mut layouts = Vec::new();
        if with_groups && has_groups {
            layouts.push(WeightLayout::Interleaved);
        }
        if with_rows {
            layouts.push(rows);
        }
        layouts
    }
}

fn print_head(selection: &Selection, limits: &Limits) {
    let giga = |limit: Option<f64>| limit.map_or("-".to_owned(), |x| format!("{:.1}", x * 1e-9));
    println!(
        "{} with {} thread(s): {} GB/s from memory; G multiply-adds/s: f32 {}, i16 {}, i8 {}, bf16 {}",
        isa().name(),
        selection.n_threads,
        giga(Some(limits.read)),
        giga(Some(limits.f32)),
        giga(limits.i16),
        giga(limits.i8),
        giga(limits.bf16)
    );
    println!(
        "{:>8} {:>6} {:>6} {:>9} {:>5} {:>4} {:>10} {:>10} {:>7} {:>11} {:>7}",
        "type", "how", "layout", "form", "k", "n", "ns", "best", "GB/s", "G mul-add/s", "of roof"
    );
}

fn print_line(precision: &str, case: &Case, speed: &Speed, limits: &Limits) {
    let layout = match case.layout {
        WeightLayout::Rows { .. } => "rows",
        WeightLayout::Interleaved => "groups",
    };
    let bytes_per_s = case.row_stride() as f64 / speed.median;
    let multiply_adds_per_s = (case.k * case.n) as f64 / speed.median;
    let roof = if case.is_from_memory {
        Some(bytes_per_s / limits.read)
    } else {
        case.arithmetic(limits).map(|limit| multiply_adds_per_s / limit)
    };
    println!(
        "{:>8} {precision:>6} {layout:>6} {:>9} {:>5} {:>4} {:>10.1} {:>10.1} {:>7.1} {:>11.1} {:>7}",
        case.ty.name(),
        format!("{:?}", case.form()),
        case.k,
        case.n,
        speed.median * 1e9,
        speed.best * 1e9,
        bytes_per_s * 1e-9,
        multiply_adds_per_s * 1e-9,
        roof.map_or("-".to_owned(), |x| format!("{:.0} %", 100.0 * x)),
    );
}

/// Returns weights that are neither infinite nor subnormal in any type. They use huge pages if available,
/// like the weights of a model.
fn weights(n: usize) -> MmapMut {
    let mut bytes = MmapMut::map_anon(n).expect("memory");
    let _ = bytes.advise(Advice::HugePage);
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (i.wrapping_mul(0x9e37_79b9) >> 13) as u8 & 0x37 | 0x30;
    }
    bytes
}

/// A matmul to measure.
#[derive(Clone, Copy)]
struct Case {
    ty: GgmlType,
    precision: Precision,
    layout: WeightLayout,
    k: usize,
    n: usize,
    is_from_memory: bool,
}

/// Seconds per row of weights, for all threads together.
struct Speed {
    median: f64,
    best: f64,
}

impl Case {
    fn form(&self) -> ActivationForm {
        activation_form(self.ty, self.n, self.precision)
    }

    /// Returns the size of a row of weights in bytes.
    fn row_stride(&self) -> usize {
        match self.layout {
            WeightLayout::Rows { stride } => stride,
            WeightLayout::Interleaved => interleaved_bytes(self.ty, self.k) / GROUP_ROWS,
        }
    }

    /// Returns the peak multiply-add rate for the form of the activations. Some kernels split 16-bit
    /// activations into two bytes, which have twice the rate.
    fn arithmetic(&self, limits: &Limits) -> Option<f64> {
        match self.form() {
            ActivationForm::F32 => Some(limits.f32),
            ActivationForm::I16Row | ActivationForm::I16Pairs => limits.i16,
            ActivationForm::U8Chunk => limits.i8,
            ActivationForm::Bf16Row => limits.bf16,
        }
    }

    /// Measures all threads, each with its own weights.
    fn measure(&self, weights: &[u8], n_threads: usize) -> Speed {
        let parts = weights.chunks(weights.len() / n_threads).take(n_threads);
        let speeds: Vec<Speed> = std::thread::scope(|scope| {
            let threads: Vec<_> = parts.map(|part| scope.spawn(|| self.measure_thread(part))).collect();
            let threads = threads.into_iter();
            threads.map(|thread| thread.join().expect("a measurement")).collect()
        });
        // Rates add up across threads.
        let together = |of: fn(&Speed) -> f64| 1.0 / speeds.iter().map(|speed| 1.0 / of(speed)).sum::<f64>();
        Speed {
            median: together(|speed| speed.median),
            best: together(|speed| speed.best),
        }
    }

    fn measure_thread(&self, weights: &[u8]) -> Speed {
        let m = (CACHE / self.row_stride() / FULL * FULL).clamp(FULL, ROWS);
        let piece = m * self.row_stride();
        let weights = if self.is_from_memory {
            weights
        } else {
            &weights[..piece]
        };
        let mut product = Product::new(self, m);
        let mut pass = |n_passes: usize| {
            let start = Instant::now();
            for _ in 0..n_passes {
                weights.chunks_exact(piece).for_each(|w| product.run(w));
            }
            start.elapsed()
        };
        // Warm up: the first access to memory is slow.
        pass(1);
        let n_passes = (RUN.as_nanos() / pass(1).as_nanos().max(1)) as usize + 1;
        let (start, mut seconds) = (Instant::now(), Vec::new());
        while start.elapsed() < RUNS || seconds.len() < 3 {
            let n_rows = n_passes * (weights.len() / piece) * m;
            seconds.push(pass(n_passes).as_secs_f64() / n_rows as f64);
        }
        Speed {
            median: samples::median(&seconds).expect("some runs"),
            best: samples::range(&seconds).0,
        }
    }
}

/// A buffer of bytes aligned to a cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A matmul with its activations and result buffer.
struct Product {
    case: Case,
    m: usize,
    floats: Vec<f32>,
    quantized: Vec<Line>,
    out: Vec<f32>,
    scratch: Vec<f32>,
}

impl Product {
    fn new(case: &Case, m: usize) -> Product {
        let (k, n) = (case.k, case.n);
        let floats: Vec<f32> = (0..n * k).map(|i| (i % 17) as f32 - 8.0).collect();
        let row = activation_bytes(case.form(), k);
        let mut quantized = vec![Line([0; 64]); (n * row).div_ceil(64)];
        let rows: &mut [u8] = bytemuck::cast_slice_mut(&mut quantized);
        for (x, out) in floats.chunks(k).zip(rows.chunks_exact_mut(row)) {
            quantize_activations(case.form(), x, out);
        }
        Product {
            case: *case,
            m,
            floats,
            quantized,
            out: vec![0.0; n * m],
            scratch: vec![0.0; matmul_scratch(k, n)],
        }
    }

    /// Multiplies `m` rows of weights with the activations.
    fn run(&mut self, w: &[u8]) {
        let Case { ty, layout, k, n, .. } = self.case;
        let x = match self.case.form() {
            ActivationForm::F32 => Activations::F32 {
                x: &self.floats,
                stride: k,
            },
            form => Activations::Quantized {
                form,
                rows: bytemuck::cast_slice(&self.quantized),
                stride: activation_bytes(form, k),
            },
        };
        let args = MatMul {
            ty,
            w,
            layout,
            m: self.m,
            k,
            x,
            n,
            allow_reassociation: true,
            reuse_prepared_x: false,
        };
        // SAFETY: `out` has `n` rows of `m` floats.
        unsafe { matmul(black_box(&args), self.out.as_mut_ptr(), self.m, &mut self.scratch) };
        black_box(&mut self.out);
    }
}
