//! Speed of the matrix product with many columns on one core: `cargo bench -p llama-kernels --bench prefill [-- TYPE... K...]`.
//!
//! Billions of multiply-adds per second for each precision, and how many times as fast as with floats.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kernels::{
    ActivationForm, Activations, GgmlType, MatMul, Precision, WeightLayout, activation_bytes, activation_form,
    can_dequantize, isa, matmul, matmul_scratch, quantize_activations,
};

/// Elements of a row where none are asked for.
const K: usize = 2048;

/// Rows of weights: a piece of work of a thread.
const ROWS: usize = 64;

/// Numbers of columns: a small batch, a part of a prompt, a whole ubatch.
const COLUMNS: [usize; 5] = [8, 16, 32, 128, 512];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let lengths: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let names: Vec<&String> = args.iter().filter(|arg| arg.parse::<usize>().is_err()).collect();
    let wanted = |ty: GgmlType| names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(ty.name()));
    for &k in if lengths.is_empty() { &[K][..] } else { &lengths } {
        println!(
            "one core, {}, {ROWS} rows of {k}, G multiply-adds/s (times f32's)",
            isa().name()
        );
        println!(
            "{:>8} {:>9} {}",
            "type",
            "precision",
            COLUMNS.map(|n| format!("{:>14}", format!("n={n}"))).join("")
        );
        let fits = |ty: GgmlType| can_dequantize(ty) && ty.row_bytes(k).is_some();
        for &ty in GgmlType::ALL.iter().filter(|&&ty| wanted(ty) && fits(ty)) {
            print_lines(ty, k);
        }
    }
}

/// The lines of a type: one for each precision that has a form of its own.
fn print_lines(ty: GgmlType, k: usize) {
    let floats = COLUMNS.map(|n| giga_per_second(ty, k, n, Precision::Exact));
    let lines = [
        ("exact", Precision::Exact),
        ("high", Precision::High),
        ("fast", Precision::Fast),
    ];
    for (name, precision) in lines {
        let form = activation_form(ty, COLUMNS[4], precision);
        let speeds = match precision {
            Precision::Exact => floats,
            _ if form == ActivationForm::F32 => continue,
            Precision::Fast if form == activation_form(ty, COLUMNS[4], Precision::High) => continue,
            _ => COLUMNS.map(|n| giga_per_second(ty, k, n, precision)),
        };
        let cells: Vec<String> = speeds
            .iter()
            .zip(floats)
            .map(|(speed, floats)| format!("{:>14}", format!("{speed:.1} ({:.2})", speed / floats)))
            .collect();
        println!("{:>8} {name:>9} {}", ty.name(), cells.join(""));
    }
}

/// The best of many runs, which are too short to be interrupted often.
fn giga_per_second(ty: GgmlType, k: usize, n: usize, precision: Precision) -> f64 {
    let row_stride = ty.row_bytes(k).expect("rows fit");
    // Any bytes are blocks. These make no float of any type infinite or subnormal.
    let w: Vec<u8> = (0..ROWS * row_stride)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8 & 0x37 | 0x30)
        .collect();
    let floats: Vec<f32> = (0..n * k).map(|i| (i % 17) as f32 - 8.0).collect();
    let form = activation_form(ty, n, precision);
    let stride = activation_bytes(form, k);
    let mut rows = vec![0; n * stride];
    for (x, out) in floats.chunks(k).zip(rows.chunks_mut(stride)) {
        quantize_activations(form, x, out);
    }
    let x = match form {
        ActivationForm::F32 => Activations::F32 { x: &floats, stride: k },
        form => Activations::Quantized {
            form,
            rows: &rows,
            stride,
        },
    };
    let args = MatMul {
        ty,
        w: &w,
        layout: WeightLayout::Rows { stride: row_stride },
        m: ROWS,
        k,
        x,
        n,
        any_order: true,
        again: false,
    };
    let mut out = vec![0.0; n * ROWS];
    let mut scratch = vec![0.0; matmul_scratch(k, n)];
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < Duration::from_millis(60) {
        let run = Instant::now();
        // SAFETY: `out` holds n rows of `ROWS` floats.
        unsafe { matmul(black_box(&args), out.as_mut_ptr(), ROWS, &mut scratch) };
        best = best.min(run.elapsed());
        black_box(&mut out);
    }
    (ROWS * k * n) as f64 / best.as_secs_f64() / 1e9
}
