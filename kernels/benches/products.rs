//! Speed of matrix products beside what the machine can do: `cargo bench -p llama-kernels --bench products [-- WORD...]`.
//!
//! A word is a type of weights (`all`: every type), a precision (`exact`, `high`, `fast`), a layout (`rows`: as in a file, `groups`: interleaved), a length of
//! rows, a number of columns (`n=512`) or of threads (`threads=2`). What is not named is as it is shipped: `fast`, and interleaved where a type can be.
//!
//! One column reads weights once, from memory, so that time is compared with reading; products with more columns take weights that the second-level
//! cache holds, and time is compared with multiplying. The word `cached` does so with one column too. Times are those of a row of weights with all columns: the median of many runs, and the best one.
//!
//! A harness of its own: benches that count elements print time and speed, but no share of limits measured in the same run.

#[allow(dead_code, unused_imports, reason = "the bench of models uses the rest")]
#[path = "../../cli/src/commands/bench/limits.rs"]
mod limits;
#[allow(dead_code, unused_imports, reason = "the bench of models uses the rest")]
#[path = "../../cli/src/commands/bench/samples.rs"]
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

/// What is measured where nothing is asked for.
const TYPES: [GgmlType; 5] = [
    GgmlType::Q4_0,
    GgmlType::Q4_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
    GgmlType::F16,
];
const LENGTHS: [usize; 6] = [64, 256, 1024, 4096, 16384, 32768];
const COLUMNS: [usize; 4] = [1, 8, 32, 512];

/// Bytes of weights that are beyond any cache, and that the second level holds.
const MEMORY: usize = 256 << 20;
const CACHE: usize = 512 << 10;

/// Rows that are multiplied at once, at most: a piece of work of a thread.
const ROWS: usize = 256;

/// A multiple of what any kernel takes at a time, so that none multiplies rows that are not there. The longest rows then come from beyond the second-level cache.
const FULL: usize = 32;

/// Shortest time of a run, so that clocks do not matter, and of all runs of a case.
const RUN: Duration = Duration::from_micros(100);
const RUNS: Duration = Duration::from_millis(100);

const PRECISIONS: [(&str, Precision); 3] = [
    ("exact", Precision::Exact),
    ("high", Precision::High),
    ("fast", Precision::Fast),
];

fn main() {
    let asked = Asked::new(std::env::args().skip(1).filter(|arg| !arg.starts_with("--")));
    let weights = weights(MEMORY);
    let limits = Limits::measure(asked.n_threads);
    print_head(&asked, &limits);
    for &ty in &asked.types {
        for (precision_name, precision) in asked.precisions() {
            for &k in asked.lengths.iter().filter(|&&k| ty.row_bytes(k).is_some()) {
                for layout in asked.layouts(ty, k) {
                    for &n in &asked.columns {
                        let case = Case {
                            ty,
                            precision,
                            layout,
                            k,
                            n,
                            is_from_memory: n == 1 && !asked.is_cached,
                        };
                        print_line(precision_name, &case, &case.measure(&weights, asked.n_threads), &limits);
                    }
                }
            }
        }
    }
}

/// What is to be measured.
struct Asked {
    words: Vec<String>,
    types: Vec<GgmlType>,
    lengths: Vec<usize>,
    columns: Vec<usize>,
    /// Whether weights come from the second-level cache with one column, too.
    is_cached: bool,
    n_threads: usize,
}

impl Asked {
    fn new(words: impl Iterator<Item = String>) -> Asked {
        let words: Vec<String> = words.collect();
        let or = |found: Vec<usize>, default: &[usize]| if found.is_empty() { default.to_vec() } else { found };
        let numbers = |prefix: &str| {
            let rest = words.iter().filter_map(|word| word.strip_prefix(prefix));
            rest.filter_map(|rest| rest.parse().ok()).collect::<Vec<usize>>()
        };
        let has = |name: &str| words.iter().any(|word| word.eq_ignore_ascii_case(name));
        let can = GgmlType::ALL.iter().copied().filter(|&ty| can_dequantize(ty));
        let named: Vec<GgmlType> = can.filter(|ty| has("all") || has(ty.name())).collect();
        Asked {
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
        let is_asked = move |&(name, _): &(&str, Precision)| if is_any { self.has(name) } else { name == "fast" };
        PRECISIONS.into_iter().filter(is_asked)
    }

    /// Layouts that a type has, of those that are asked for; the shipped one if none is.
    fn layouts(&self, ty: GgmlType, k: usize) -> Vec<WeightLayout> {
        let rows = WeightLayout::Rows {
            stride: ty.row_bytes(k).expect("rows fit"),
        };
        let groups = can_interleave(ty, k).then_some(WeightLayout::Interleaved);
        match (self.has("rows"), self.has("groups")) {
            (false, false) => vec![groups.unwrap_or(rows)],
            (wants_rows, wants_groups) => {
                let groups = groups.filter(|_| wants_groups);
                groups.into_iter().chain(wants_rows.then_some(rows)).collect()
            }
        }
    }
}

fn print_head(asked: &Asked, limits: &Limits) {
    let giga = |limit: Option<f64>| limit.map_or("-".to_owned(), |x| format!("{:.1}", x * 1e-9));
    println!(
        "{} with {} thread(s): {} GB/s from memory; G multiply-adds/s: f32 {}, i16 {}, i8 {}, bf16 {}",
        isa().name(),
        asked.n_threads,
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
    let roof = match case.is_from_memory {
        true => Some(bytes_per_s / limits.read),
        false => case.arithmetic(limits).map(|limit| multiply_adds_per_s / limit),
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

/// Any bytes are blocks. These make no float of any type infinite or subnormal. In huge pages where the system has them, as a model's weights.
fn weights(n: usize) -> MmapMut {
    let mut bytes = MmapMut::map_anon(n).expect("memory");
    let _ = bytes.advise(Advice::HugePage);
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (i.wrapping_mul(0x9e37_79b9) >> 13) as u8 & 0x37 | 0x30;
    }
    bytes
}

/// A product.
#[derive(Clone, Copy)]
struct Case {
    ty: GgmlType,
    precision: Precision,
    layout: WeightLayout,
    k: usize,
    n: usize,
    is_from_memory: bool,
}

/// Seconds that a row of weights takes, of all threads together.
struct Speed {
    median: f64,
    best: f64,
}

impl Case {
    fn form(&self) -> ActivationForm {
        activation_form(self.ty, self.n, self.precision)
    }

    /// Bytes of a row of weights.
    fn row_stride(&self) -> usize {
        match self.layout {
            WeightLayout::Rows { stride } => stride,
            WeightLayout::Interleaved => interleaved_bytes(self.ty, self.k) / GROUP_ROWS,
        }
    }

    /// Multiply-adds of the numbers that the activations are; those of 16 bits are two of 8 in some kernels, at the same rate.
    fn arithmetic(&self, limits: &Limits) -> Option<f64> {
        match self.form() {
            ActivationForm::F32 => Some(limits.f32),
            ActivationForm::I16Row => limits.i16,
            ActivationForm::U8Chunk => limits.i8,
            ActivationForm::Bf16Row => limits.bf16,
        }
    }

    /// The speed of all threads, each with weights of its own.
    fn measure(&self, weights: &[u8], n_threads: usize) -> Speed {
        let parts = weights.chunks(weights.len() / n_threads).take(n_threads);
        let speeds: Vec<Speed> = std::thread::scope(|scope| {
            let threads: Vec<_> = parts.map(|part| scope.spawn(|| self.of_one_thread(part))).collect();
            let threads = threads.into_iter();
            threads.map(|thread| thread.join().expect("a measurement")).collect()
        });
        // Rows per second add up.
        let together = |of: fn(&Speed) -> f64| 1.0 / speeds.iter().map(|speed| 1.0 / of(speed)).sum::<f64>();
        Speed {
            median: together(|speed| speed.median),
            best: together(|speed| speed.best),
        }
    }

    fn of_one_thread(&self, weights: &[u8]) -> Speed {
        let m = (CACHE / self.row_stride() / FULL * FULL).clamp(FULL, ROWS);
        let piece = m * self.row_stride();
        let weights = match self.is_from_memory {
            true => weights,
            false => &weights[..piece],
        };
        let mut product = Product::new(self, m);
        let mut pass = |n_passes: usize| {
            let start = Instant::now();
            for _ in 0..n_passes {
                weights.chunks_exact(piece).for_each(|w| product.run(w));
            }
            start.elapsed()
        };
        // What is first touched is slow.
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

/// Bytes aligned to a cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A product with its activations and its result.
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

    /// Multiplies `m` rows.
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
            any_order: true,
            again: false,
        };
        // SAFETY: `out` holds n rows of m floats.
        unsafe { matmul(black_box(&args), self.out.as_mut_ptr(), self.m, &mut self.scratch) };
        black_box(&mut self.out);
    }
}
