//! What the kernel counts for this process and machine: memory held at most, and energy. Nothing where it does not tell.

use std::fs;
use std::path::{Path, PathBuf};

/// Most memory that the process has held, in bytes; mapped files count as far as they were touched.
pub fn peak_memory() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    peak_of_status(&status)
}

/// Counts from what is held now.
pub fn reset_peak_memory() {
    // Where this is not possible, the peak is that of the process.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn peak_of_status(status: &str) -> Option<usize> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Counters of the energy that the processors have taken (RAPL, by way of powercap).
pub struct Energy {
    packages: Vec<Package>,
}

struct Package {
    folder: PathBuf,
    /// Microjoules.
    count: u64,
}

impl Energy {
    /// The counters now; `None` where none can be read.
    pub fn read() -> Option<Energy> {
        Energy::read_in(Path::new("/sys/class/powercap"))
    }

    fn read_in(folder: &Path) -> Option<Energy> {
        let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let read = |folder: PathBuf| number(&folder.join("energy_uj")).map(|count| Package { folder, count });
        let packages: Vec<_> = entries.filter(|path| is_package(path)).filter_map(read).collect();
        (!packages.is_empty()).then_some(Energy { packages })
    }

    /// Joules since the counters were read.
    pub fn joules_since(&self) -> Option<f64> {
        let mut total = 0;
        for package in &self.packages {
            let now = number(&package.folder.join("energy_uj"))?;
            // The counter starts again from 0.
            let round = match now < package.count {
                true => number(&package.folder.join("max_energy_range_uj"))?,
                false => 0,
            };
            total += (now + round).saturating_sub(package.count);
        }
        Some(total as f64 * 1e-6)
    }
}

/// `intel-rapl:0` is a package, `intel-rapl:0:1` a part of one.
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
    fn the_peak_is_a_line_of_the_status() {
        let status = "Name:\tllama\nVmPeak:\t  9000 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 1000 kB\n";
        assert_eq!(peak_of_status(status), Some(1234 * 1024));
        assert_eq!(peak_of_status("VmHWM:\tmuch\n"), None);
    }

    #[test]
    fn energy_is_that_of_packages_and_survives_a_counter_that_starts_again() {
        let folder = tempfile::tempdir().unwrap();
        let set = |name: &str, file: &str, n: u64| {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join(file), format!("{n}\n")).unwrap();
        };
        assert!(Energy::read_in(folder.path()).is_none());
        for (name, n) in [
            ("intel-rapl:0", 5_000_000),
            ("intel-rapl:1", 900),
            ("intel-rapl:0:0", 77),
        ] {
            set(name, "energy_uj", n);
            set(name, "max_energy_range_uj", 1_000_000_000);
        }
        let before = Energy::read_in(folder.path()).unwrap();
        set("intel-rapl:0", "energy_uj", 7_000_000);
        set("intel-rapl:1", "energy_uj", 400);
        let joules = before.joules_since().unwrap();
        assert!((joules - (2.0 + 999.9995)).abs() < 1e-6, "{joules}");
    }
}
