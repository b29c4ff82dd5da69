//! Speed of the matrix product on one core: `cargo bench -p llama-kernels [-- TYPE...]`.
//!
//! For one column the weights read per second, for several the operations per second.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kernels::{GgmlType, MatMul, can_dequantize, isa, matmul, matmul_scratch};

/// Elements of a row.
const K: usize = 2048;

/// Rows of weights that are measured together: about what a thread is given at a time.
const ROWS: usize = 32;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    println!("one core, {}, rows of {K}", isa().name());
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>12}",
        "type", "n=1 GB/s", "n=2 GFLOP/s", "n=8 GFLOP/s", "n=128 GFLOP/s"
    );
    for &ty in GgmlType::ALL.iter().filter(|&&ty| can_dequantize(ty)) {
        if !wanted.is_empty() && !wanted.iter().any(|name| name.eq_ignore_ascii_case(ty.name())) {
            continue;
        }
        // Beyond the second-level cache for one column, as in a model; a thread's share of a matrix for several.
        let row_bytes = ty.row_bytes(K).expect("K is a multiple of every block size");
        let m = (8 << 20) / row_bytes / ROWS * ROWS;
        let gbps = (m * row_bytes) as f64 / measure(ty, m, 1).as_secs_f64() / 1e9;
        let gflops = [2, 8, 128].map(|n| (2 * 256 * K * n) as f64 / measure(ty, 256, n).as_secs_f64() / 1e9);
        println!(
            "{:>8} {gbps:>12.1} {:>12.1} {:>12.1} {:>12.1}",
            ty.name(),
            gflops[0],
            gflops[1],
            gflops[2]
        );
    }
}

/// Time of a product of `m` rows and `n` columns: the sum of the best times of its chunks, which are too short to be interrupted often.
fn measure(ty: GgmlType, m: usize, n: usize) -> Duration {
    let row_stride = ty.row_bytes(K).expect("K is a multiple of every block size");
    // Any bytes are blocks. These make no float of any type infinite or subnormal.
    let w: Vec<u8> = (0..m * row_stride)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8 & 0x37 | 0x30)
        .collect();
    let x: Vec<f32> = (0..n * K).map(|i| (i % 17) as f32 - 8.0).collect();
    let mut out = vec![0.0; n * ROWS];
    let mut scratch = vec![0.0; matmul_scratch(K, n)];
    let mut best = vec![Duration::MAX; m / ROWS];
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        for (w, best) in w.chunks_exact(ROWS * row_stride).zip(&mut best) {
            let args = MatMul {
                ty,
                w,
                row_stride,
                m: ROWS,
                k: K,
                x: &x,
                x_stride: K,
                n,
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
