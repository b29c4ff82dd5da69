//! GPU cost model. The emulated driver used in tests counts instructions and memory accesses; this module
//! estimates kernel times on real GPUs from the counters.
//!
//! The time of a kernel is the maximum of the following, plus [`START`] per launch:
//!
//! - memory: unique bytes accessed, at [`MEMORY_SHARE`] of the GPU's bandwidth
//! - caches: requested sectors, at [`OWN_CACHE_BYTES`] per clock in each multiprocessor with a block. Stores
//!   and copies to shared memory come from the L2 cache, at [`CACHE_BYTES`] per clock. Loads shared by
//!   several warps of a block are assumed to hit the L1 cache.
//! - instructions: one per clock in each of the four partitions of a multiprocessor, and each class at its
//!   own rate
//! - shared memory: one clock per access of up to 128 bytes, and one per additional bank-conflict way,
//!   including `ldmatrix`, operands of `wgmma`, and async copies
//! - matrix multiplication: the GPU's `mma.sync` rates for floats and integers, and its `wgmma` rate, counting multiply and
//!   add separately
//! - latency: the chain of dependent instructions of the slowest block. If the blocks do not fit on the GPU at once,
//!   the chains of consecutive blocks add up. The emulated driver documents the clocks of each instruction
//!   (`tests/cuda-driver/src/exec/latency.rs`).

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use engine::backend::cuda::{Counters, Specialization, loaded};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

use super::args::BenchFormat;
use super::case::Case;

/// Specification of a GPU, from vendor data.
struct GpuSpec {
    name: &'static str,
    multiprocessors: f64,
    /// Clock frequency in Hz.
    clock: f64,
    /// Memory bandwidth in bytes per second.
    memory: f64,
    /// Maximum number of threads, and shared memory in bytes, of a multiprocessor.
    threads: u64,
    shared: u64,
    /// `mma.sync` rate for bf16 with f32 accumulation, in operations per second; a multiply-add counts as
    /// two. On Hopper it is two thirds of the `wgmma` rate.
    matrix: f64,
    /// `mma.sync` rate for f16 with f16 accumulation.
    half_matrix: f64,
    /// `mma.sync` rate for 8-bit integers.
    integer_matrix: f64,
    /// `wgmma` rate for bf16 with f32 accumulation, or the rate of `mma.sync` if the GPU lacks it.
    group_matrix: f64,
}

const GPUS: [GpuSpec; 3] = [
    GpuSpec {
        name: "RTX 4090",
        multiprocessors: 128.0,
        clock: 2.52e9,
        memory: 1.008e12,
        threads: 1536,
        shared: 100 << 10,
        matrix: 165e12,
        half_matrix: 330e12,
        integer_matrix: 660e12,
        group_matrix: 165e12,
    },
    GpuSpec {
        name: "H100",
        multiprocessors: 132.0,
        clock: 1.83e9,
        memory: 3.35e12,
        threads: 2048,
        shared: 228 << 10,
        matrix: 660e12,
        half_matrix: 660e12,
        integer_matrix: 1320e12,
        group_matrix: 989e12,
    },
    GpuSpec {
        name: "H200",
        multiprocessors: 132.0,
        clock: 1.83e9,
        memory: 4.8e12,
        threads: 2048,
        shared: 228 << 10,
        matrix: 660e12,
        half_matrix: 660e12,
        integer_matrix: 1320e12,
        group_matrix: 989e12,
    },
];

/// Assumed fraction of the memory bandwidth that long reads achieve.
const MEMORY_SHARE: f64 = 0.92;
/// Bytes per clock that a multiprocessor reads from its L1 cache and from the L2 cache.
const OWN_CACHE_BYTES: f64 = 128.0;
const CACHE_BYTES: f64 = 64.0;
/// Shared memory bandwidth in bytes per clock.
const SHARED_BYTES: f64 = 128.0;
/// Assumed launch latency in seconds between two kernels of a CUDA graph.
const START: f64 = 1.5e-6;
/// Warp instructions issued per clock by a multiprocessor.
const ISSUES: f64 = 4.0;
/// Issue rates per clock of instruction classes with fewer lanes.
const RATES: [(&str, f64); 4] = [("integer", 2.0), ("convert", 0.5), ("special", 0.5), ("global", 1.0)];
/// Registers of a multiprocessor, and of a thread if `ptxas` is not installed.
const REGISTERS: u64 = 64 << 10;
const REGISTERS_OF_THREAD: u64 = 128;
/// Shared memory that the driver reserves for each block, in bytes.
const RESERVED_SHARED: u64 = 1 << 10;
/// Compute capability of the reported register and spill counts.
const CAPABILITY: i32 = 90;

/// Bytes and sectors transferred by memory accesses.
#[derive(Clone, Copy, Default, Deserialize)]
struct Traffic {
    bytes: u64,
    sectors: u64,
}

/// Instruction counts of an instruction class.
#[derive(Clone, Copy, Default, Deserialize)]
struct Instructions {
    warps: u64,
    /// Shared-memory accesses: number of additional conflict ways, and number of conflict-free accesses.
    moved: u64,
    waves: u64,
}

/// Execution counters of a kernel.
#[derive(Deserialize)]
struct Counted {
    launches: u64,
    blocks: u64,
    threads: u64,
    /// Largest shared memory of a block in bytes.
    shared: u64,
    /// Clocks of the slowest block of each launch, and of all blocks, added over launches.
    latency: [u64; 2],
    /// Matrix multiply-adds of floats with sums in f32 and in f16, of 8-bit integers, and of `wgmma`.
    matrix_operations: u64,
    half_operations: u64,
    integer_operations: u64,
    group_operations: u64,
    loads: Traffic,
    stores: Traffic,
    /// Loads that copy to shared memory.
    copies: Traffic,
    footprint: [u64; 2],
    instructions: BTreeMap<String, Instructions>,
}

#[derive(Deserialize)]
struct Report {
    kernels: BTreeMap<String, Counted>,
}

impl Counted {
    fn of(&self, class: &str) -> Instructions {
        self.instructions.get(class).copied().unwrap_or_default()
    }

    /// Returns the seconds that chains of dependent instructions take on a GPU, without launch latency.
    fn latency(&self, gpu: &GpuSpec, registers: u64) -> f64 {
        let threads = (self.threads / self.blocks.max(1)).max(1);
        let fit = [
            gpu.threads / threads,
            gpu.shared / (self.shared + RESERVED_SHARED),
            REGISTERS / (registers.max(1) * threads),
        ];
        let at_a_time = fit.into_iter().fold(u64::MAX, u64::min).max(1) as f64 * gpu.multiprocessors;
        let [slowest, all] = self.latency.map(|clocks| clocks as f64);
        slowest.max(all / at_a_time) / gpu.clock
    }

    /// Returns the shared-memory accesses, including `ldmatrix`.
    fn shared(&self) -> Instructions {
        let (shared, matrix) = (self.of("shared"), self.of("matrix"));
        Instructions {
            warps: shared.warps,
            moved: shared.moved + matrix.moved,
            waves: shared.waves + matrix.waves,
        }
    }

    fn n_instructions(&self) -> u64 {
        self.instructions.values().map(|i| i.warps).sum()
    }

    /// Returns the estimated seconds of all launches on a GPU, without and with latency.
    fn seconds(&self, gpu: &GpuSpec, registers: u64) -> [f64; 2] {
        let work = self.work(gpu);
        [work, work.max(self.latency(gpu, registers))].map(|seconds| seconds + START * self.launches.max(1) as f64)
    }

    /// Returns the seconds of a GPU whose warps never wait for a result, without launch latency.
    fn work(&self, gpu: &GpuSpec) -> f64 {
        let launches = self.launches.max(1) as f64;
        // A launch with fewer blocks than multiprocessors leaves some of them idle.
        let busy = (self.blocks as f64 / launches).min(gpu.multiprocessors) * gpu.clock;
        let touched: u64 = self.footprint.iter().sum();
        let sectors = self.loads.sectors + self.stores.sectors;
        let shared = self.shared();
        let copied = self.copies.bytes as f64 / SHARED_BYTES;
        let kinds = RATES.map(|(class, rate)| self.of(class).warps as f64 / rate / busy);
        let needs = [
            touched as f64 / (MEMORY_SHARE * gpu.memory),
            32.0 * sectors as f64 / OWN_CACHE_BYTES / busy,
            32.0 * (self.copies.sectors + self.stores.sectors) as f64 / CACHE_BYTES / busy,
            self.n_instructions() as f64 / ISSUES / busy,
            ((shared.waves + shared.moved) as f64 + copied) / busy,
            2.0 * (self.matrix_operations as f64 / gpu.matrix
                + self.half_operations as f64 / gpu.half_matrix
                + self.integer_operations as f64 / gpu.integer_matrix
                + self.group_operations as f64 / gpu.group_matrix),
        ];
        needs.into_iter().chain(kinds).fold(0.0, f64::max)
    }
}

/// Resource use of a kernel reported by `ptxas`.
#[derive(Clone, Copy, Serialize)]
struct Assembled {
    registers: u64,
    spilled_bytes: u64,
}

/// Estimated cost of a kernel, printed as text or JSON.
#[derive(Serialize)]
struct Kernel {
    name: String,
    launches: u64,
    /// Number of bytes requested by the lanes.
    bytes_asked: u64,
    /// Number of bytes in the sectors transferred.
    bytes_moved: u64,
    /// Number of unique bytes accessed per launch.
    bytes_touched: u64,
    /// Warp instructions.
    instructions: u64,
    /// Fraction of shared-memory cycles caused by bank conflicts.
    conflicts: f64,
    assembled: Option<Assembled>,
    /// Clocks of the slowest block per launch.
    clocks: u64,
    /// Estimated time on each GPU in microseconds.
    estimated_us: Vec<f64>,
    /// Estimated time without latency.
    without_latency_us: Vec<f64>,
}

/// Estimated cost of a benchmark test.
#[derive(Serialize)]
struct Cost {
    test: String,
    gpus: Vec<&'static str>,
    estimated_ms: Vec<f64>,
    estimated_tokens_per_s: Vec<f64>,
    /// Achieved fraction of the memory bandwidth.
    estimated_share_of_bandwidth: Vec<f64>,
    /// Estimated time without latency.
    without_latency_ms: Vec<f64>,
    kernels: Vec<Kernel>,
}

/// Runs each test once on the emulated driver and prints estimates.
pub struct CostModel<'a> {
    counters: Counters,
    out: &'a mut dyn Write,
    format: BenchFormat,
    costs: Vec<Cost>,
}

impl<'a> CostModel<'a> {
    /// Starts the cost model; `None` without the emulated driver.
    pub fn start(out: &'a mut dyn Write, format: BenchFormat) -> Outcome<Option<CostModel<'a>>> {
        let Some(counters) = Counters::find() else {
            return Ok(None);
        };
        if format == BenchFormat::Csv {
            let text = "estimates on the emulated device require -o table, -o md or -o json";
            return Err(Failure::new(text));
        }
        counters.measure_latency();
        Ok(Some(CostModel {
            counters,
            out,
            format,
            costs: Vec::new(),
        }))
    }

    /// Estimates the cost of a benchmark test.
    pub fn test(&mut self, case: &mut Case) -> Outcome {
        case.warm_up()?;
        self.counters.reset();
        case.run()?;
        let report: Report = serde_json::from_str(&self.counters.json())?;
        let loaded: BTreeMap<String, Specialization> = loaded().into_iter().map(|k| (k.describe(), k)).collect();
        let mut kernels: Vec<Kernel> = (report.kernels.iter())
            .map(|(name, counted)| Kernel::new(name, counted, loaded.get(name)))
            .collect();
        kernels.sort_by(|a, b| b.estimated_us[GPUS.len() - 1].total_cmp(&a.estimated_us[GPUS.len() - 1]));
        let cost = Cost::new(case, kernels);
        if self.format != BenchFormat::Json {
            cost.print(self.out)?;
        }
        self.costs.push(cost);
        Ok(())
    }

    pub fn end(self) -> Outcome {
        if self.format == BenchFormat::Json {
            serde_json::to_writer_pretty(&mut *self.out, &self.costs)?;
            writeln!(self.out)?;
        }
        Ok(self.out.flush()?)
    }
}

impl Kernel {
    fn new(name: &str, counted: &Counted, source: Option<&Specialization>) -> Kernel {
        let (shared, assembled) = (counted.shared(), source.and_then(assemble));
        let registers = assembled.map_or(REGISTERS_OF_THREAD, |a| a.registers);
        let us = GPUS
            .each_ref()
            .map(|gpu| counted.seconds(gpu, registers).map(|s| 1e6 * s));
        Kernel {
            name: name.to_owned(),
            launches: counted.launches,
            bytes_asked: counted.loads.bytes + counted.stores.bytes,
            bytes_moved: 32 * (counted.loads.sectors + counted.stores.sectors),
            bytes_touched: counted.footprint.iter().sum(),
            instructions: counted.n_instructions(),
            conflicts: shared.moved as f64 / (shared.waves + shared.moved).max(1) as f64,
            assembled,
            clocks: counted.latency[0] / counted.launches.max(1),
            estimated_us: us.iter().map(|us| us[1]).collect(),
            without_latency_us: us.iter().map(|us| us[0]).collect(),
        }
    }
}

impl Cost {
    fn new(case: &Case, kernels: Vec<Kernel>) -> Cost {
        let seconds = |i: usize| kernels.iter().map(|k| k.estimated_us[i]).sum::<f64>() / 1e6;
        let touched: u64 = kernels.iter().map(|k| k.bytes_touched).sum();
        let of_each = |f: &dyn Fn(usize) -> f64| (0..GPUS.len()).map(f).collect::<Vec<_>>();
        Cost {
            test: case.test().to_string(),
            gpus: GPUS.iter().map(|gpu| gpu.name).collect(),
            estimated_ms: of_each(&|i| 1e3 * seconds(i)),
            estimated_tokens_per_s: of_each(&|i| case.test().n_tokens() as f64 / seconds(i)),
            estimated_share_of_bandwidth: of_each(&|i| touched as f64 / seconds(i) / GPUS[i].memory),
            without_latency_ms: of_each(&|i| kernels.iter().map(|k| k.without_latency_us[i]).sum::<f64>() / 1e3),
            kernels,
        }
    }

    /// Prints a Markdown table.
    fn print(&self, out: &mut dyn Write) -> Outcome {
        writeln!(
            out,
            "{}: estimates from counters of the emulated device; no times are measured\n",
            self.test
        )?;
        let gpus = self.gpus.join(" us | ");
        writeln!(
            out,
            "| kernel | launches | MB requested | MB moved | MB touched | k instructions | conflicts | registers | spills | clocks | {gpus} us |"
        )?;
        writeln!(out, "|---|{}", "---:|".repeat(9 + self.gpus.len()))?;
        for k in &self.kernels {
            let megabytes = [k.bytes_asked, k.bytes_moved, k.bytes_touched].map(|n| format!("{:.3}", n as f64 / 1e6));
            let (registers, spills) = k.assembled.map_or(("-".into(), "-".into()), |a| {
                (a.registers.to_string(), a.spilled_bytes.to_string())
            });
            let times: Vec<String> = k.estimated_us.iter().map(|us| format!("{us:.1}")).collect();
            writeln!(
                out,
                "| {} | {} | {} | {:.1} | {:.1} % | {registers} | {spills} | {} | {} |",
                k.name,
                k.launches,
                megabytes.join(" | "),
                k.instructions as f64 / 1e3,
                100.0 * k.conflicts,
                k.clocks,
                times.join(" | ")
            )?;
        }
        writeln!(out)?;
        for (i, gpu) in self.gpus.iter().enumerate() {
            writeln!(
                out,
                "{gpu}, estimated: {:.3} ms ({:.3} without latency), {:.0} tokens/s, {:.0} % of its bandwidth",
                self.estimated_ms[i],
                self.without_latency_ms[i],
                self.estimated_tokens_per_s[i],
                100.0 * self.estimated_share_of_bandwidth[i]
            )?;
        }
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// Runs `ptxas` on a kernel; `None` if `ptxas` is not installed.
fn assemble(kernel: &Specialization) -> Option<Assembled> {
    let ptx = kernel.ptx(CAPABILITY).ok()?;
    let mut child = Command::new("ptxas")
        .args(["-v", &format!("-arch=sm_{CAPABILITY}"), "-o", "/dev/null", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    child.stdin.take()?.write_all(ptx.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    assembled(&String::from_utf8_lossy(&output.stderr))
}

/// Parses the output of `ptxas -v`: "Used 72 registers", "0 bytes spill stores, 0 bytes spill loads".
fn assembled(text: &str) -> Option<Assembled> {
    let before = |words: &str| {
        let (head, _) = text.split_once(words)?;
        head.split_whitespace().last()?.parse::<u64>().ok()
    };
    Some(Assembled {
        registers: before(" registers")?,
        spilled_bytes: before(" bytes spill stores")? + before(" bytes spill loads")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(touched: u64, integers: u64, blocks: u64) -> Counted {
        let integers = Instructions {
            warps: integers,
            ..Instructions::default()
        };
        Counted {
            launches: 1,
            blocks,
            threads: 128 * blocks,
            shared: 0,
            latency: [0; 2],
            matrix_operations: 0,
            half_operations: 0,
            integer_operations: 0,
            group_operations: 0,
            loads: Traffic::default(),
            stores: Traffic::default(),
            copies: Traffic::default(),
            footprint: [touched, 0],
            instructions: [("integer".to_owned(), integers)].into(),
        }
    }

    #[test]
    fn kernel_time_is_maximum_of_costs() {
        let gpu = &GPUS[2];
        let near = |x: f64, y: f64| (x / y - 1.0).abs() < 1e-9;
        let seconds = |counted: Counted| counted.seconds(gpu, 64)[1];
        let read = seconds(counted(920_000_000, 1000, 132));
        assert!(near(read, 1e9 / 4.8e12 + START), "{read}");
        // Two integer instructions per clock in each multiprocessor.
        let computed = seconds(counted(1000, 264 * 1830, 132));
        assert!(near(computed, 1e-6 + START), "{computed}");
        let on_one = seconds(counted(1000, 264 * 1830, 1));
        assert!(near(on_one, 132e-6 + START), "{on_one}");
    }

    #[test]
    fn latency_adds_up_over_blocks_that_do_not_fit() {
        let gpu = &GPUS[2];
        let seconds = |blocks: u64, shared: u64, registers: u64| {
            let kernel = Counted {
                shared,
                latency: [1830, 1830 * blocks],
                ..counted(1000, 0, blocks)
            };
            let [without, with] = kernel.seconds(gpu, registers);
            assert!(without < 1.01 * START, "{without}");
            (1e9 * (with - START)).round() / 1e3
        };
        assert_eq!(seconds(1, 0, 64), 1.0);
        // By threads, 16 blocks fit on a multiprocessor; by shared memory three; by registers two.
        assert_eq!(seconds(2 * 16 * 132, 0, 32), 2.0);
        assert_eq!(seconds(6 * 132, 70 << 10, 32), 2.0);
        assert_eq!(seconds(6 * 132, 70 << 10, 255), 3.0);
    }

    #[test]
    fn ptxas_output_is_parsed() {
        let text = "ptxas info    : Function properties for f\n    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
                    ptxas info    : Used 72 registers, used 1 barriers, 18432 bytes smem\n";
        let found = assembled(text).unwrap();
        assert_eq!((found.registers, found.spilled_bytes), (72, 16));
        assert!(assembled("ptxas fatal").is_none());
    }
}
