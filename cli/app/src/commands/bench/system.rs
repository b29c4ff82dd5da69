//! Linux counters of peak memory and energy; `None` on other systems.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the peak resident memory of the process in bytes, including touched pages of mapped files.
pub fn peak_memory() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    peak_of_status(&status)
}

/// Resets the peak to the current memory use.
pub fn reset_peak_memory() {
    // If this fails, the peak covers the whole process lifetime.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn peak_of_status(status: &str) -> Option<usize> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// RAPL energy counters of the CPU packages, read through powercap.
pub struct Energy {
    packages: Vec<Package>,
}

struct Package {
    directory: PathBuf,
    /// Value of the energy counter in microjoules.
    count: u64,
}

impl Energy {
    /// Reads the counters; `None` if no counter is readable.
    pub fn read() -> Option<Energy> {
        Energy::read_in(Path::new("/sys/class/powercap"))
    }

    fn read_in(directory: &Path) -> Option<Energy> {
        let entries = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
        let read = |directory: PathBuf| number(&directory.join("energy_uj")).map(|count| Package { directory, count });
        let packages: Vec<_> = entries.filter(|path| is_package(path)).filter_map(read).collect();
        (!packages.is_empty()).then_some(Energy { packages })
    }

    /// Returns the joules consumed since the counters were read.
    pub fn joules_since(&self) -> Option<f64> {
        let mut total = 0;
        for package in &self.packages {
            let now = number(&package.directory.join("energy_uj"))?;
            // The energy counter may have wrapped around.
            let round = if now < package.count {
                number(&package.directory.join("max_energy_range_uj"))?
            } else {
                0
            };
            total += (now + round).saturating_sub(package.count);
        }
        Some(total as f64 * 1e-6)
    }
}

/// Returns true for packages (`intel-rapl:0`), false for their parts (`intel-rapl:0:1`).
fn is_package(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_prefix("intel-rapl:").is_some_and(|rest| !rest.contains(':'))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_parsed_from_status() {
        let status = "Name:\tllama\nVmPeak:\t  9000 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 1000 kB\n";
        assert_eq!(peak_of_status(status), Some(1234 * 1024));
        assert_eq!(peak_of_status("VmHWM:\tmuch\n"), None);
    }

    #[test]
    fn energy_counts_packages_and_handles_wraparound() {
        let directory = tempfile::tempdir().unwrap();
        let set = |name: &str, file: &str, n: u64| {
            fs::create_dir_all(directory.path().join(name)).unwrap();
            fs::write(directory.path().join(name).join(file), format!("{n}\n")).unwrap();
        };
        assert!(Energy::read_in(directory.path()).is_none());
        for (name, n) in [
            ("intel-rapl:0", 5_000_000),
            ("intel-rapl:1", 900),
            ("intel-rapl:0:0", 77),
        ] {
            set(name, "energy_uj", n);
            set(name, "max_energy_range_uj", 1_000_000_000);
        }
        let before = Energy::read_in(directory.path()).unwrap();
        set("intel-rapl:0", "energy_uj", 7_000_000);
        set("intel-rapl:1", "energy_uj", 400);
        let joules = before.joules_since().unwrap();
        assert!((joules - (2.0 + 999.9995)).abs() < 1e-6, "{joules}");
    }
}
