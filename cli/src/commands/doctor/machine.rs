//! What the machine has, what the process may use of it, and how fast it is.

use std::fs;
use std::io::Write;

use engine::backend;
use engine::context::ContextParams;
use kernels::Isa;
use serde::Serialize;

use crate::commands::bench::limits::Limits;
use crate::commands::devices;
use crate::failure::Outcome;
use crate::human;

/// The machine as this process sees it.
#[derive(Serialize)]
pub struct Machine {
    isa: InstructionSets,
    cpus: Cpus,
    memory: Memory,
    /// Measured just now.
    pub speed: Speed,
    #[serde(flatten)]
    devices: devices::Report,
}

/// By their names in `LLAMA_CPU_ISA`, weakest first.
#[derive(Serialize)]
struct InstructionSets {
    in_use: &'static str,
    available: Vec<&'static str>,
    missing: Vec<&'static str>,
}

#[derive(Serialize)]
struct Cpus {
    /// Threads that are used if nothing is said.
    threads: usize,
    /// Those that are switched on; `None` where that cannot be found out.
    online: Option<usize>,
    /// Those that the process may run on (its affinity); `None` as above.
    allowed: Option<usize>,
}

/// Bytes; 0 where they cannot be found out.
#[derive(Serialize)]
struct Memory {
    free_bytes: usize,
    /// What a control group leaves of what is installed, if there is one with a limit.
    total_bytes: usize,
    installed_bytes: usize,
    /// What `--mlock` may keep in memory; `None`: as much as there is, or not known.
    lockable_bytes: Option<usize>,
}

/// Of all threads together, in a second.
#[derive(Serialize)]
pub struct Speed {
    /// Bytes read from memory.
    pub read_bytes: f64,
    f32_multiply_adds: f64,
    i16_multiply_adds: Option<f64>,
    i8_multiply_adds: Option<f64>,
    bf16_multiply_adds: Option<f64>,
}

impl Machine {
    /// Looks, and measures for about half a second.
    pub fn look() -> Machine {
        let cpus = Cpus::look();
        let speed = Speed::measure(cpus.threads);
        Machine {
            isa: InstructionSets::look(),
            cpus,
            memory: Memory::look(),
            speed,
            devices: devices::Report::look(),
        }
    }

    /// What keeps the machine from what it could do.
    pub fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        if let Some(best) = self.isa.available.last().filter(|best| **best != self.isa.in_use) {
            advice.push(format!(
                "LLAMA_CPU_ISA keeps the kernels at {}; without it they use {best}",
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
                "the process may run on {allowed} of {online} CPUs; its affinity (taskset, a container's cpuset) decides"
            ));
        }
        if allowed.is_some_and(|allowed| threads < allowed) {
            advice.push(format!(
                "a control group gives the process the time of {}; a container's CPU limit decides",
                human::plural(threads, "CPU")
            ));
        }
        if self.memory.total_bytes < self.memory.installed_bytes {
            advice.push(format!(
                "a control group leaves {} of {} of memory; a container's memory limit decides",
                human::bytes(self.memory.total_bytes),
                human::bytes(self.memory.installed_bytes)
            ));
        }
        advice
    }

    /// Lines of it.
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
            missing => format!("; the CPU lacks {}", missing.join(", ")),
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
        let threads = human::plural(self.threads, "thread");
        Ok(writeln!(out, "CPUs          {threads}{allowed}{online}")?)
    }
}

/// How many numbers a list of the kernel has: 6 in `0-3,8,10`.
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
        let (free, total) = (human::bytes(self.free_bytes), human::bytes(self.total_bytes));
        let lockable = self.lockable_bytes.map_or_else(String::new, |n| {
            format!("; --mlock can keep {} (ulimit -l)", human::bytes(n))
        });
        match self.total_bytes {
            0 => writeln!(out, "memory        not known{lockable}")?,
            _ => writeln!(out, "memory        {free} of {total} free{lockable}")?,
        }
        Ok(())
    }
}

/// The soft limit of locked memory in `/proc/self/limits`.
fn lockable(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Speed {
    fn measure(n_threads: usize) -> Speed {
        let limits = Limits::measure(n_threads);
        Speed {
            read_bytes: limits.read,
            f32_multiply_adds: limits.f32,
            i16_multiply_adds: limits.i16,
            i8_multiply_adds: limits.i8,
            bf16_multiply_adds: limits.bf16,
        }
    }

    fn print(&self, out: &mut dyn Write) -> Outcome {
        writeln!(out, "reads         {:.1} GB/s from memory", self.read_bytes * 1e-9)?;
        let rates = [
            ("f32", Some(self.f32_multiply_adds)),
            ("i16", self.i16_multiply_adds),
            ("i8", self.i8_multiply_adds),
            ("bf16 in tiles", self.bf16_multiply_adds),
        ];
        let rates = rates.iter().filter_map(|(name, rate)| Some((name, (*rate)?)));
        let rates: Vec<_> = rates.map(|(name, rate)| format!("{:.0} {name}", rate * 1e-9)).collect();
        Ok(writeln!(out, "multiply-adds {} (billions a second)", rates.join(", "))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        for (list, n) in [("0\n", 1), ("0-1", 2), ("\t0-3,8,10\n", 6)] {
            assert_eq!(n_listed(list), Some(n), "{list:?}");
        }
        for list in ["", "a", "3-1", "1-", "0-18446744073709551615"] {
            assert_eq!(n_listed(list), None, "{list:?}");
        }
    }

    #[test]
    fn the_limit_of_locked_memory_is_the_soft_one() {
        let limits =
            |soft: &str| format!("Limit  Soft Limit  Hard Limit  Units\nMax locked memory   {soft}  900   bytes\n");
        assert_eq!(lockable(&limits("800")), Some(800));
        assert_eq!(lockable(&limits("unlimited")), None);
        assert_eq!(lockable(""), None);
    }

    #[test]
    fn what_holds_the_machine_back_is_said() {
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
            devices: devices::Report::look(),
        };
        assert_eq!(machine.advice(), Vec::<String>::new());
        machine.isa.in_use = "scalar";
        machine.cpus.allowed = Some(3);
        machine.cpus.threads = 1;
        machine.memory.total_bytes = 2 << 30;
        let advice = machine.advice().join("\n");
        for part in ["LLAMA_CPU_ISA", "3 of 4 CPUs", "time of 1 CPU", "2.00 GiB of 4.00 GiB"] {
            assert!(advice.contains(part), "{part:?} in {advice}");
        }
    }
}
