//! Speed of the matrix product on one core: `cargo bench -p llama-kernels [-- TYPE... FORM... K...]`.
//!
//! For one column the weights read per second, from memory by one thread and by two, and from the second-level cache. For several columns the same from that
//! cache, or the operations per second. Activations are floats (`f32`) or integers, with rows of weights as in a file (`int`) or interleaved (`group`). A first line says how
//! fast memory can be read.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kernels::interleaved::{GROUP_ROWS, can_interleave, interleaved_bytes};
use kernels::{
    ActivationForm, Activations, GgmlType, MatMul, Precision, WeightLayout, activation_bytes, activation_form,
    can_dequantize, isa, matmul, matmul_scratch, quantize_activations,
};
use memmap2::{Advice, MmapMut};

/// Forms of activations and weights.
const FORMS: [&str; 3] = ["f32", "int", "group"];

/// Elements of a row where none are asked for.
const K: usize = 2048;

/// Rows of weights that are measured together: about what a thread is given at a time.
const ROWS: usize = 64;

/// Bytes of weights that are beyond any cache, and that the second level holds.
const MEMORY: usize = 256 << 20;
const CACHE: usize = 256 << 10;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let lengths: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let names: Vec<&String> = args.iter().filter(|arg| arg.parse::<usize>().is_err()).collect();
    let (forms, types): (Vec<&String>, Vec<&String>) =
        names.into_iter().partition(|name| FORMS.contains(&name.as_str()));
    let wanted = |ty: GgmlType| types.is_empty() || types.iter().any(|name| name.eq_ignore_ascii_case(ty.name()));
    let is_asked = |form: &str| forms.is_empty() || forms.iter().any(|name| *name == form);
    let bytes = weights(MEMORY);
    let [one, two] = [1, 2].map(|threads| read_speed(&bytes, threads));
    println!("memory: {one:.1} GB/s with one thread, {two:.1} with two");
    for &k in if lengths.is_empty() { &[K][..] } else { &lengths } {
        println!("one core, {}, rows of {k}", isa().name());
        println!(
            "{:>8} {:>5} {:>10} {:>11} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12} {:>8} {:>8}",
            "type",
            "x",
            "memory n=1",
            "two threads",
            "L2 n=1",
            "n=2",
            "n=3",
            "n=4",
            "n=8 GB/s",
            "n=16 GFLOP/s",
            "n=32",
            "n=128"
        );
        let fits = |ty: GgmlType| can_dequantize(ty) && ty.row_bytes(k).is_some();
        for &ty in GgmlType::ALL.iter().filter(|&&ty| wanted(ty) && fits(ty)) {
            let row_stride = ty.row_bytes(k).expect("rows fit");
            let rows = WeightLayout::Rows { stride: row_stride };
            let has_integers = activation_form(ty, 1, Precision::High) != ActivationForm::F32;
            let lines = [
                (true, Precision::Exact, rows),
                (has_integers, Precision::High, rows),
                (can_interleave(ty, k), Precision::High, WeightLayout::Interleaved),
            ];
            for (name, (exists, precision, layout)) in FORMS.into_iter().zip(lines) {
                if exists && is_asked(name) {
                    print_line(&bytes, ty, k, name, precision, layout);
                }
            }
        }
    }
}

/// One line of the table.
fn print_line(bytes: &[u8], ty: GgmlType, k: usize, name: &str, precision: Precision, layout: WeightLayout) {
    let gbps = |bytes: &[u8], n: usize| {
        let case = Case::new(bytes, ty, k, n, precision, layout);
        (case.m * case.row_stride) as f64 / case.time().as_secs_f64() / 1e9
    };
    let memory = gbps(bytes, 1);
    let both: f64 = std::thread::scope(|scope| {
        let gbps = &gbps;
        let parts = bytes.chunks(MEMORY / 2).map(|part| scope.spawn(move || gbps(part, 1)));
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().expect("a measurement")).sum()
    });
    print!("{:>8} {name:>5} {memory:>10.1} {both:>11.1}", ty.name());
    for n in [1, 2, 3, 4, 8] {
        print!(" {:>8.1}", gbps(&bytes[..CACHE], n));
    }
    // A thread's share of a matrix.
    let m = 256;
    let bytes = &bytes[..m * ty.row_bytes(k).expect("rows fit")];
    for (n, width) in [(16, 12), (32, 8), (128, 8)] {
        let case = Case::new(bytes, ty, k, n, precision, layout);
        let flops = (2 * case.m * k * n) as f64 / case.time().as_secs_f64();
        print!(" {:>width$.1}", flops / 1e9);
    }
    println!();
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

/// Bytes read per second, in GB: each thread goes through four parts of its share at once.
fn read_speed(bytes: &[u8], threads: usize) -> f64 {
    let words: &[u64] = bytemuck::cast_slice(&bytes[..bytes.len() / 32 * 32]);
    let read = |words: &[u64]| {
        let (front, back) = words.split_at(words.len() / 2);
        let ((a, b), (c, d)) = (front.split_at(front.len() / 2), back.split_at(back.len() / 2));
        let sums = a.iter().zip(b).zip(c.iter().zip(d));
        black_box(sums.fold(0u64, |sum, ((a, b), (c, d))| {
            sum.wrapping_add(*a).wrapping_add(*b).wrapping_add(*c).wrapping_add(*d)
        }));
    };
    let mut best = Duration::MAX;
    for _ in 0..6 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            words.chunks(words.len() / threads).for_each(|part| {
                scope.spawn(move || read(part));
            });
        });
        best = best.min(start.elapsed());
    }
    bytes.len() as f64 / best.as_secs_f64() / 1e9
}

/// Bytes aligned to a cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A product of `m` rows and `n` columns.
struct Case<'a> {
    ty: GgmlType,
    w: &'a [u8],
    row_stride: usize,
    layout: WeightLayout,
    m: usize,
    k: usize,
    n: usize,
    form: ActivationForm,
    floats: Vec<f32>,
    quantized: Vec<Line>,
}

impl<'a> Case<'a> {
    fn new(w: &'a [u8], ty: GgmlType, k: usize, n: usize, precision: Precision, layout: WeightLayout) -> Case<'a> {
        let row_stride = match layout {
            WeightLayout::Rows { stride } => stride,
            WeightLayout::Interleaved => interleaved_bytes(ty, k) / GROUP_ROWS,
        };
        let floats: Vec<f32> = (0..n * k).map(|i| (i % 17) as f32 - 8.0).collect();
        let form = activation_form(ty, n, precision);
        let row = activation_bytes(form, k);
        let mut quantized = vec![Line([0; 64]); (n * row).div_ceil(64)];
        let rows: &mut [u8] = bytemuck::cast_slice_mut(&mut quantized);
        for (x, out) in floats.chunks(k).zip(rows.chunks_exact_mut(row)) {
            quantize_activations(form, x, out);
        }
        Case {
            ty,
            w,
            row_stride,
            layout,
            m: (w.len() / row_stride / ROWS).max(1) * ROWS,
            k,
            n,
            form,
            floats,
            quantized,
        }
    }

    fn operand(&self) -> Activations<'_> {
        match self.form {
            ActivationForm::F32 => Activations::F32 {
                x: &self.floats,
                stride: self.k,
            },
            form => Activations::Quantized {
                form,
                rows: bytemuck::cast_slice(&self.quantized),
                stride: activation_bytes(form, self.k),
            },
        }
    }

    /// The sum of the best times of chunks of rows, which are too short to be interrupted often.
    fn time(&self) -> Duration {
        let mut out = vec![0.0; self.n * ROWS];
        let mut scratch = vec![0.0; matmul_scratch(self.k, self.n)];
        let mut best = vec![Duration::MAX; self.m / ROWS];
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(150) {
            for (w, best) in self.w.chunks_exact(ROWS * self.row_stride).zip(&mut best) {
                let args = MatMul {
                    ty: self.ty,
                    w,
                    layout: self.layout,
                    m: ROWS,
                    k: self.k,
                    x: self.operand(),
                    n: self.n,
                    any_order: true,
                    again: false,
                };
                let run = Instant::now();
                // SAFETY: `out` holds n rows of `ROWS` floats.
                unsafe { matmul(black_box(&args), out.as_mut_ptr(), ROWS, &mut scratch) };
                *best = run.elapsed().min(*best);
                black_box(&mut out);
            }
        }
        best.into_iter().sum()
    }
}
