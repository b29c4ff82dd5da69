//! Hardware of the machine, limits of the process, and measured speed.

use std::fs;
use std::io::Write;

use engine::backend;
use engine::context::ContextParams;
use kernels::Isa;
use serde::Serialize;

use crate::commands::bench::limits::Limits;
use crate::commands::devices;
use crate::failure::Outcome;
use crate::format;

/// The machine as seen by this process.
#[derive(Serialize)]
pub struct Machine {
    isa: InstructionSets,
    cpus: Cpus,
    memory: Memory,
    /// Bandwidth and arithmetic rates, measured at startup.
    pub speed: Speed,
    #[serde(flatten)]
    devices: devices::DeviceReport,
}

/// Instruction sets by their `LLAMA_CPU_ISA` names, from the oldest to the newest.
#[derive(Serialize)]
struct InstructionSets {
    in_use: &'static str,
    available: Vec<&'static str>,
    missing: Vec<&'static str>,
}

#[derive(Serialize)]
struct Cpus {
    /// Default number of threads.
    threads: usize,
    /// Number of online CPUs; `None` if unknown.
    online: Option<usize>,
    /// CPUs in the affinity mask of the process; `None` if unknown.
    allowed: Option<usize>,
}

/// Memory in bytes; 0 if unknown.
#[derive(Serialize)]
struct Memory {
    free_bytes: usize,
    /// Installed memory, or the limit of the control group if it is lower.
    total_bytes: usize,
    installed_bytes: usize,
    /// Memory that `--mlock` may lock; `None` if unlimited or unknown.
    lockable_bytes: Option<usize>,
}

/// Throughput of all threads together, per second.
#[derive(Serialize)]
pub struct Speed {
    /// Bytes read from memory per second.
    pub read_bytes: f64,
    f32_multiply_adds: f64,
    i16_multiply_adds: Option<f64>,
    i8_multiply_adds: Option<f64>,
    bf16_multiply_adds: Option<f64>,
}

impl Machine {
    /// Queries the machine and measures it for about half a second.
    pub fn look() -> Machine {
        let cpus = Cpus::look();
        let speed = Speed::measure(cpus.threads);
        Machine {
            isa: InstructionSets::look(),
            cpus,
            memory: Memory::look(),
            speed,
            devices: devices::DeviceReport::look(),
        }
    }

    /// Returns hints about limits that slow the machine down.
    pub fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        if let Some(best) = self.isa.available.last().filter(|best| **best != self.isa.in_use) {
            advice.push(format!(
                "LLAMA_CPU_ISA limits the kernels to {}; unset it to use {best}",
                self.isa.in_use
            ));
        }
        let Cpus {
            threads,
            online,
            allowed,
        } = self.cpus;
        if let Some((allowed, online)) = allowed.zip(online).filter(|(allowed, online)| allowed < online) {
            advice.push(format!(
                "the process may use {allowed} of {online} CPUs; check its affinity (taskset, container cpuset)"
            ));
        }
        if allowed.is_some_and(|allowed| threads < allowed) {
            advice.push(format!(
                "a control group limits the process to {}; check the container's CPU limit",
                format::plural(threads, "CPU")
            ));
        }
        if self.memory.total_bytes < self.memory.installed_bytes {
            advice.push(format!(
                "a control group limits memory to {} of {}; check the container's memory limit",
                format::bytes(self.memory.total_bytes),
                format::bytes(self.memory.installed_bytes)
            ));
        }
        advice
    }

    pub fn print(&self, out: &mut dyn Write) -> Outcome {
        self.isa.print(out)?;
        self.cpus.print(out)?;
        self.memory.print(out)?;
        self.speed.print(out)?;
        writeln!(out, "\ndevices")?;
        Ok(self.devices.print(out)?)
    }
}

impl InstructionSets {
    fn look() -> InstructionSets {
        let names = |wanted: bool| Isa::ALL.into_iter().filter(move |isa| isa.is_available() == wanted);
        InstructionSets {
            in_use: kernels::isa().name(),
            available: names(true).map(Isa::name).collect(),
            missing: names(false).map(Isa::name).collect(),
        }
    }

    fn print(&self, out: &mut dyn Write) -> Outcome {
        let missing = match self.missing.as_slice() {
            [] => String::new(),
            missing => format!("; not supported: {}", missing.join(", ")),
        };
        let available = self.available.join(", ");
        Ok(writeln!(out, "instructions  {} of {available}{missing}", self.in_use)?)
    }
}

impl Cpus {
    fn look() -> Cpus {
        let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Cpus {
            threads: ContextParams::default().n_threads,
            online: online.as_deref().and_then(n_listed),
            allowed: allowed.and_then(n_listed),
        }
    }

    fn print(&self, out: &mut dyn Write) -> Outcome {
        let of = |n: Option<usize>, what| n.map_or_else(String::new, |n| format!(", {n} {what}"));
        let (online, allowed) = (of(self.online, "online"), of(self.allowed, "allowed"));
        let threads = format::plural(self.threads, "thread");
        Ok(writeln!(out, "CPUs          {threads}{allowed}{online}")?)
    }
}

/// Counts the numbers in a Linux CPU list: 6 for `0-3,8,10`.
fn n_listed(list: &str) -> Option<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    let ranges = list.trim().split(',').map(range);
    ranges.sum()
}

impl Memory {
    fn look() -> Memory {
        let (free_bytes, total_bytes) = backend::default_device().memory();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        Memory {
            free_bytes,
            total_bytes,
            installed_bytes: backend::installed_memory(),
            lockable_bytes: lockable(&limits),
        }
    }

    fn print(&self, out: &mut dyn Write) -> Outcome {
        let (free, total) = (format::bytes(self.free_bytes), format::bytes(self.total_bytes));
        let lockable = self.lockable_bytes.map_or_else(String::new, |n| {
            format!("; --mlock limit {} (ulimit -l)", format::bytes(n))
        });
        match self.total_bytes {
            0 => writeln!(out, "memory        unknown{lockable}")?,
            _ => writeln!(out, "memory        {free} of {total} free{lockable}")?,
        }
        Ok(())
    }
}

/// Parses the soft limit of locked memory from `/proc/self/limits`.
fn lockable(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Speed {
    fn measure(n_threads: usize) -> Speed {
        let limits = Limits::measure(n_threads, backend::default_device().memory().0);
        Speed {
            read_bytes: limits.read,
            f32_multiply_adds: limits.f32,
            i16_multiply_adds: limits.i16,
            i8_multiply_adds: limits.i8,
            bf16_multiply_adds: limits.bf16,
        }
    }

    fn print(&self, out: &mut dyn Write) -> Outcome {
        writeln!(out, "bandwidth     {:.1} GB/s (memory reads)", self.read_bytes * 1e-9)?;
        let rates = [
            ("f32", Some(self.f32_multiply_adds)),
            ("i16", self.i16_multiply_adds),
            ("i8", self.i8_multiply_adds),
            ("bf16", self.bf16_multiply_adds),
        ];
        let rates = rates.iter().filter_map(|(name, rate)| Some((name, (*rate)?)));
        let rates: Vec<_> = rates.map(|(name, rate)| format!("{:.0} {name}", rate * 1e-9)).collect();
        Ok(writeln!(
            out,
            "multiply-adds {} (billions per second)",
            rates.join(", ")
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        for (list, n) in [("0\n", 1), ("0-1", 2), ("\t0-3,8,10\n", 6)] {
            assert_eq!(n_listed(list), Some(n), "{list:?}");
        }
        for list in ["", "a", "3-1", "1-", "0-18446744073709551615"] {
            assert_eq!(n_listed(list), None, "{list:?}");
        }
    }

    #[test]
    fn memlock_limit_is_soft_limit() {
        let limits =
            |soft: &str| format!("Limit  Soft Limit  Hard Limit  Units\nMax locked memory   {soft}  900   bytes\n");
        assert_eq!(lockable(&limits("800")), Some(800));
        assert_eq!(lockable(&limits("unlimited")), None);
        assert_eq!(lockable(""), None);
    }

    #[test]
    fn advice_names_limits() {
        let mut machine = Machine {
            isa: InstructionSets {
                in_use: "avx2",
                available: vec!["scalar", "avx2"],
                missing: vec!["avx512"],
            },
            cpus: Cpus {
                threads: 4,
                online: Some(4),
                allowed: Some(4),
            },
            memory: Memory {
                free_bytes: 1 << 30,
                total_bytes: 4 << 30,
                installed_bytes: 4 << 30,
                lockable_bytes: None,
            },
            speed: Speed::measure(1),
            devices: devices::DeviceReport::look(),
        };
        assert_eq!(machine.advice(), Vec::<String>::new());
        machine.isa.in_use = "scalar";
        machine.cpus.allowed = Some(3);
        machine.cpus.threads = 1;
        machine.memory.total_bytes = 2 << 30;
        let advice = machine.advice().join("\n");
        for part in [
            "LLAMA_CPU_ISA",
            "3 of 4 CPUs",
            "limits the process to 1 CPU",
            "2.00 GiB of 4.00 GiB",
        ] {
            assert!(advice.contains(part), "{part:?} in {advice}");
        }
    }
}
