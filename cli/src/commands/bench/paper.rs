//! The price of kernels for cards, on paper: on the emulated driver of tests nothing is timed, but all that a kernel does is counted, and an estimate of its
//! time on a card follows from that.
//!
//! A kernel takes as long as the slowest of what it needs, and [`START`] for each launch:
//! - memory: bytes that it touches at least once, by [`MEMORY_SHARE`] of the card's bandwidth;
//! - caches: sectors that its loads and stores ask for, [`OWN_CACHE_BYTES`] a clock in each multiprocessor that has a block, of which stores and copies
//!   to shared memory come from farther, [`CACHE_BYTES`] a clock; what several warps of a block load is taken to stay in its multiprocessor;
//! - instructions: one a clock in each of a multiprocessor's four parts, and those of each kind by their own rate;
//! - shared memory: a clock for what lanes ask for at once, 128 bytes at most, and one for each further way of a conflict; what `ldmatrix` loads and copies
//!   bring counts, too;
//! - products of matrices: by the card's rate of `mma.sync`, a multiplication and its addition as two.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use engine::backend::cuda::{Counters, Specialization, loaded};
use serde::{Deserialize, Serialize};

use crate::args::BenchFormat;
use crate::failure::{Failure, Outcome};

use super::case::Case;

/// A card, by its maker's figures.
struct Card {
    name: &'static str,
    multiprocessors: f64,
    /// Clocks in a second.
    clock: f64,
    /// Bytes of memory in a second.
    memory: f64,
    /// Multiplications and additions of `mma.sync` in a second, each counted, of bf16 with sums of f32. Hopper's is two thirds of what `wgmma` reaches.
    matrix: f64,
}

const CARDS: [Card; 3] = [
    Card {
        name: "RTX 4090",
        multiprocessors: 128.0,
        clock: 2.52e9,
        memory: 1.008e12,
        matrix: 165e12,
    },
    Card {
        name: "H100",
        multiprocessors: 132.0,
        clock: 1.83e9,
        memory: 3.35e12,
        matrix: 660e12,
    },
    Card {
        name: "H200",
        multiprocessors: 132.0,
        clock: 1.83e9,
        memory: 4.8e12,
        matrix: 660e12,
    },
];

/// Part of a memory's bandwidth that long reads reach. An assumption.
const MEMORY_SHARE: f64 = 0.92;
/// Bytes that a multiprocessor gets from its own cache in a clock, and from those behind it.
const OWN_CACHE_BYTES: f64 = 128.0;
const CACHE_BYTES: f64 = 64.0;
/// Bytes that shared memory takes or gives in a clock.
const SHARED_BYTES: f64 = 128.0;
/// Seconds from the end of a kernel of a recorded graph to the work of the next. An assumption.
const START: f64 = 1.5e-6;
/// Instructions of a warp that a multiprocessor begins in a clock.
const ISSUES: f64 = 4.0;
/// As [`ISSUES`], of the kinds that have fewer lanes.
const RATES: [(&str, f64); 4] = [("integer", 2.0), ("convert", 0.5), ("special", 0.5), ("global", 1.0)];
/// Compute capability that registers and spills are told for.
const CAPABILITY: i32 = 90;

/// Bytes and sectors of accesses.
#[derive(Clone, Copy, Default, Deserialize)]
struct Traffic {
    bytes: u64,
    sectors: u64,
}

/// Instructions of a kind.
#[derive(Clone, Copy, Default, Deserialize)]
struct Instructions {
    warps: u64,
    /// Of accesses to shared memory: ways that conflicts add, and those without them.
    moved: u64,
    waves: u64,
}

/// What was counted of a kernel.
#[derive(Deserialize)]
struct Counted {
    launches: u64,
    blocks: u64,
    /// Multiplications, each with its addition.
    matrix_operations: u64,
    loads: Traffic,
    stores: Traffic,
    /// Of the loads, those that copy to shared memory.
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

    /// Accesses to shared memory, those of `ldmatrix` included.
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

    /// Seconds of all launches on a card.
    fn seconds(&self, card: &Card) -> f64 {
        let launches = self.launches.max(1) as f64;
        // Blocks of a launch that are fewer than multiprocessors leave some of these idle.
        let busy = (self.blocks as f64 / launches).min(card.multiprocessors) * card.clock;
        let touched: u64 = self.footprint.iter().sum();
        let sectors = self.loads.sectors + self.stores.sectors;
        let shared = self.shared();
        let copied = self.copies.bytes as f64 / SHARED_BYTES;
        let kinds = RATES.map(|(class, rate)| self.of(class).warps as f64 / rate / busy);
        let needs = [
            touched as f64 / (MEMORY_SHARE * card.memory),
            32.0 * sectors as f64 / OWN_CACHE_BYTES / busy,
            32.0 * (self.copies.sectors + self.stores.sectors) as f64 / CACHE_BYTES / busy,
            self.n_instructions() as f64 / ISSUES / busy,
            ((shared.waves + shared.moved) as f64 + copied) / busy,
            2.0 * self.matrix_operations as f64 / card.matrix,
        ];
        needs.into_iter().chain(kinds).fold(0.0, f64::max) + START * launches
    }
}

/// What `ptxas` says of a kernel.
#[derive(Clone, Copy, Serialize)]
struct Assembled {
    registers: u64,
    spilled_bytes: u64,
}

/// A kernel's price. The JSON is exactly this.
#[derive(Serialize)]
struct Kernel {
    name: String,
    launches: u64,
    /// That lanes asked for.
    bytes_asked: u64,
    /// Of sectors that were moved for that.
    bytes_moved: u64,
    /// Of memory that was touched, each byte once a launch.
    bytes_touched: u64,
    /// Of warps.
    instructions: u64,
    /// Ways of accesses to shared memory that conflicts add, of all ways.
    conflicts: f64,
    assembled: Option<Assembled>,
    /// On each card.
    estimated_us: Vec<f64>,
}

/// The price of a test.
#[derive(Serialize)]
struct Price {
    test: String,
    cards: Vec<&'static str>,
    estimated_ms: Vec<f64>,
    estimated_tokens_per_s: Vec<f64>,
    /// Touched bytes in a second, of the bandwidth.
    estimated_share_of_bandwidth: Vec<f64>,
    kernels: Vec<Kernel>,
}

/// Counts each test once and prints what it would take.
pub struct Paper<'a> {
    counters: Counters,
    out: &'a mut dyn Write,
    format: BenchFormat,
    prices: Vec<Price>,
}

impl<'a> Paper<'a> {
    /// With the counters of the emulated driver; `None` where there is no such driver.
    pub fn start(out: &'a mut dyn Write, format: BenchFormat) -> Outcome<Option<Paper<'a>>> {
        let Some(counters) = Counters::find() else {
            return Ok(None);
        };
        if format == BenchFormat::Csv {
            let text = "estimates on the emulated device are printed as a table, as markdown or as JSON (-o table, -o md, -o json)";
            return Err(Failure::new(text));
        }
        Ok(Some(Paper {
            counters,
            out,
            format,
            prices: Vec::new(),
        }))
    }

    /// A test's price.
    pub fn test(&mut self, case: &mut Case) -> Outcome {
        case.warm_up()?;
        self.counters.reset();
        case.run()?;
        let report: Report = serde_json::from_str(&self.counters.json())?;
        let loaded: BTreeMap<String, Specialization> = loaded().into_iter().map(|k| (k.describe(), k)).collect();
        let mut kernels: Vec<Kernel> = (report.kernels.iter())
            .map(|(name, counted)| Kernel::new(name, counted, loaded.get(name)))
            .collect();
        kernels.sort_by(|a, b| b.estimated_us[CARDS.len() - 1].total_cmp(&a.estimated_us[CARDS.len() - 1]));
        let price = Price::new(case, kernels);
        if self.format != BenchFormat::Json {
            price.print(self.out)?;
        }
        self.prices.push(price);
        Ok(())
    }

    /// Ends.
    pub fn end(self) -> Outcome {
        if self.format == BenchFormat::Json {
            serde_json::to_writer_pretty(&mut *self.out, &self.prices)?;
            writeln!(self.out)?;
        }
        Ok(self.out.flush()?)
    }
}

impl Kernel {
    fn new(name: &str, counted: &Counted, source: Option<&Specialization>) -> Kernel {
        let shared = counted.shared();
        Kernel {
            name: name.to_owned(),
            launches: counted.launches,
            bytes_asked: counted.loads.bytes + counted.stores.bytes,
            bytes_moved: 32 * (counted.loads.sectors + counted.stores.sectors),
            bytes_touched: counted.footprint.iter().sum(),
            instructions: counted.n_instructions(),
            conflicts: shared.moved as f64 / (shared.waves + shared.moved).max(1) as f64,
            assembled: source.and_then(assemble),
            estimated_us: CARDS.iter().map(|card| 1e6 * counted.seconds(card)).collect(),
        }
    }
}

impl Price {
    fn new(case: &Case, kernels: Vec<Kernel>) -> Price {
        let seconds = |i: usize| kernels.iter().map(|k| k.estimated_us[i]).sum::<f64>() / 1e6;
        let touched: u64 = kernels.iter().map(|k| k.bytes_touched).sum();
        let of_each = |f: &dyn Fn(usize) -> f64| (0..CARDS.len()).map(f).collect::<Vec<_>>();
        Price {
            test: case.test().to_string(),
            cards: CARDS.iter().map(|card| card.name).collect(),
            estimated_ms: of_each(&|i| 1e3 * seconds(i)),
            estimated_tokens_per_s: of_each(&|i| case.test().n_tokens() as f64 / seconds(i)),
            estimated_share_of_bandwidth: of_each(&|i| touched as f64 / seconds(i) / CARDS[i].memory),
            kernels,
        }
    }

    /// As markdown, which is read as it is, too.
    fn print(&self, out: &mut dyn Write) -> Outcome {
        writeln!(
            out,
            "{}: estimates from counters of the emulated device; nothing is timed\n",
            self.test
        )?;
        let cards = self.cards.join(" us | ");
        writeln!(
            out,
            "| kernel | launches | MB asked for | MB moved | MB touched | k instructions | conflicts | registers | spills | {cards} us |"
        )?;
        writeln!(out, "|---|{}", "---:|".repeat(8 + self.cards.len()))?;
        for k in &self.kernels {
            let megabytes = [k.bytes_asked, k.bytes_moved, k.bytes_touched].map(|n| format!("{:.3}", n as f64 / 1e6));
            let (registers, spills) = k.assembled.map_or(("-".into(), "-".into()), |a| {
                (a.registers.to_string(), a.spilled_bytes.to_string())
            });
            let times: Vec<String> = k.estimated_us.iter().map(|us| format!("{us:.1}")).collect();
            writeln!(
                out,
                "| {} | {} | {} | {:.1} | {:.1} % | {registers} | {spills} | {} |",
                k.name,
                k.launches,
                megabytes.join(" | "),
                k.instructions as f64 / 1e3,
                100.0 * k.conflicts,
                times.join(" | ")
            )?;
        }
        writeln!(out)?;
        for (i, card) in self.cards.iter().enumerate() {
            writeln!(
                out,
                "{card}, estimated: {:.3} ms, {:.0} tokens/s, {:.0} % of its bandwidth",
                self.estimated_ms[i],
                self.estimated_tokens_per_s[i],
                100.0 * self.estimated_share_of_bandwidth[i]
            )?;
        }
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// What `ptxas` says of a kernel; `None` where there is no `ptxas`.
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

/// Reads `ptxas -v`: "Used 72 registers", "0 bytes spill stores, 0 bytes spill loads".
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
            matrix_operations: 0,
            loads: Traffic::default(),
            stores: Traffic::default(),
            copies: Traffic::default(),
            footprint: [touched, 0],
            instructions: [("integer".to_owned(), integers)].into(),
        }
    }

    #[test]
    fn a_kernel_takes_as_long_as_the_slowest_of_what_it_needs() {
        let card = &CARDS[2];
        let near = |x: f64, y: f64| (x / y - 1.0).abs() < 1e-9;
        let read = counted(920_000_000, 1000, 132).seconds(card);
        assert!(near(read, 1e9 / 4.8e12 + START), "{read}");
        // Two integer instructions a clock in each multiprocessor.
        let computed = counted(1000, 264 * 1830, 132).seconds(card);
        assert!(near(computed, 1e-6 + START), "{computed}");
        let on_one = counted(1000, 264 * 1830, 1).seconds(card);
        assert!(near(on_one, 132e-6 + START), "{on_one}");
    }

    #[test]
    fn what_ptxas_says_is_read() {
        let text = "ptxas info    : Function properties for f\n    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
                    ptxas info    : Used 72 registers, used 1 barriers, 18432 bytes smem\n";
        let found = assembled(text).unwrap();
        assert_eq!((found.registers, found.spilled_bytes), (72, 16));
        assert!(assembled("ptxas fatal").is_none());
    }
}
