//! Benchmark of attention on one core: `cargo bench -p llama-kernels --bench attention [-- TYPE...]`.
//!
//! Measures one head of a cache with [`N_HEAD_KV`] heads and several numbers of queries that share it. Some contexts
//! fit into the CPU caches, others do not. Prints nanoseconds per pair of query and key, bytes of keys and values read
//! per second, and multiply-adds relative to the peak of the core.

#[allow(dead_code, unused_imports, reason = "used by the bench command of the CLI")]
#[path = "../../cli/app/src/commands/bench/limits.rs"]
mod limits;
#[allow(dead_code, unused_imports, reason = "used by the bench command of the CLI")]
#[path = "../../cli/app/src/commands/bench/samples.rs"]
mod samples;

use std::hint::black_box;
use std::time::{Duration, Instant};

use kernels::attention::{CacheRows, FEW_QUERIES, KEYS, add_values, scores, scratch, softmax_step};
use kernels::{GgmlType, isa, quantize_row};
use limits::Limits;

/// Number of heads in the cache.
const N_HEAD_KV: usize = 4;

/// Numbers of queries: queries of a token that share a head, or of several tokens of a prompt.
const QUERIES: [(&str, usize); 5] = [
    ("decode 1", 1),
    ("decode 3", 3),
    ("decode 4", 4),
    ("decode 8", 8),
    ("prompt 48", 48),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let roof = Limits::measure(1, 0).f32 * 1e-9;
    println!("one core, {}, {roof:.1} multiply-adds per ns", isa().name());
    println!(
        "{:>6} {:>5} {:>6} {:>10} {:>10} {:>8} {:>6}",
        "type", "head", "keys", "queries", "ns/pair", "GB/s", "roof"
    );
    for ty in [GgmlType::F16, GgmlType::Q8_0] {
        if !wanted.is_empty() && !wanted.iter().any(|name| name.eq_ignore_ascii_case(ty.name())) {
            continue;
        }
        for d in [64, 128, 256] {
            for n_keys in [128, 1024, 8192] {
                let cache = Cache::new(ty, d, n_keys);
                for (name, n_queries) in QUERIES {
                    let ns = cache.measure(n_queries).as_secs_f64() * 1e9;
                    let pairs = (n_queries * n_keys * N_HEAD_KV) as f64;
                    let bytes = (2 * n_keys * cache.stride) as f64;
                    println!(
                        "{:>6} {d:>5} {n_keys:>6} {name:>10} {:>10.3} {:>8.1} {:>5.0}%",
                        ty.name(),
                        ns / pairs,
                        bytes / ns,
                        100.0 * pairs * (2 * d) as f64 / ns / roof
                    );
                }
            }
        }
    }
}

/// KV cache with the keys and values of all heads.
struct Cache {
    ty: GgmlType,
    d: usize,
    n_keys: usize,
    /// Returns the size of a cell in bytes.
    stride: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Cache {
    fn new(ty: GgmlType, d: usize, n_keys: usize) -> Cache {
        let stride = N_HEAD_KV * ty.row_bytes(d).expect("a head is a whole number of blocks");
        let rows = |factor: usize| {
            let mut bytes = vec![0; n_keys * stride];
            for (i, row) in bytes.chunks_exact_mut(stride).enumerate() {
                let x: Vec<f32> = (0..N_HEAD_KV * d)
                    .map(|c| ((i * factor + c * 7) % 31) as f32 / 31.0 - 0.5)
                    .collect();
                quantize_row(ty, &x, row);
            }
            bytes
        };
        Cache {
            ty,
            d,
            n_keys,
            stride,
            keys: rows(13),
            values: rows(17),
        }
    }

    /// Returns the page of some heads that starts at cell `first`.
    fn page<'a>(&self, bytes: &'a [u8], head: usize, heads: usize, first: usize) -> CacheRows<'a> {
        let head_stride = self.stride / N_HEAD_KV;
        let start = first * self.stride + head * head_stride;
        CacheRows {
            heads,
            head_stride,
            ty: self.ty,
            bytes: &bytes[start..],
            stride: self.stride,
            n: KEYS,
            d: self.d,
            next: bytes.get(start + KEYS * self.stride..).unwrap_or_default(),
        }
    }

    /// Returns the minimum time in which `n` queries attend to all cells of each head. A few queries process
    /// all heads at a time.
    fn measure(&self, n: usize) -> Duration {
        let heads = if n <= FEW_QUERIES { N_HEAD_KV } else { 1 };
        let n = n * heads;
        let queries = self.queries(n);
        let (mut products, mut scratch) = (vec![0.0; n * KEYS], vec![0.0; scratch(self.d)]);
        let (mut max, mut sum, mut factors) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        let (mut out, seen) = (vec![0.0; n * self.d], vec![u64::MAX; 1]);
        least_time(|| {
            for head in (0..N_HEAD_KV).step_by(heads) {
                max.fill(f32::NEG_INFINITY);
                sum.fill(0.0);
                out.fill(0.0);
                for first in (0..self.n_keys).step_by(KEYS) {
                    let keys = self.page(&self.keys, head, heads, first);
                    scores(&keys, u64::MAX, &queries, &mut products, &mut scratch);
                    softmax_step(&mut products, &seen, &mut max, &mut sum, &mut factors);
                    let values = self.page(&self.values, head, heads, first);
                    add_values(&values, &seen, &products, &factors, &mut out, &mut scratch);
                }
                black_box(&mut out);
            }
        })
    }

    fn queries(&self, n: usize) -> Vec<f32> {
        (0..n * self.d).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect()
    }
}

/// Returns the minimum time of several runs.
fn least_time(mut f: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(60) {
        let run = Instant::now();
        f();
        best = run.elapsed().min(best);
    }
    best
}
