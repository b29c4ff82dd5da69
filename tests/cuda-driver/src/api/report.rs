//! Reports of errors and leaks, and counters as JSON.

use super::state::Driver;
use super::work::KernelCounts;
use crate::exec::env::Count;
use std::fmt::Write;

/// Prints a line to standard error and appends it to the file in `LLAMA_CUDA_EMU_REPORT`.
pub fn log(line: &str) {
    eprintln!("emulated CUDA device: {line}");
    let Some(path) = std::env::var_os("LLAMA_CUDA_EMU_REPORT") else {
        return;
    };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Ok(mut file) = file {
        use std::io::Write;
        // A failed write is ignored because the line was already printed to standard error.
        let _ = writeln!(file, "{line}");
    }
}

impl Driver {
    /// Returns all counters as a JSON object.
    pub fn counters(&self) -> String {
        let [to, from, within] = self.counts.copied;
        let [n_to, n_from, n_within] = self.counts.copies;
        let mut json = String::from("{\n");
        let alive: usize = self.devices.iter().map(|d| d.memory.regions().len()).sum();
        let modules: usize = self.modules.values().map(|m| m.variables.len()).sum();
        let _ = writeln!(
            json,
            "  \"faults\": {}, \"leaks\": {},",
            self.counts.faults, self.counts.leaks
        );
        let _ = writeln!(
            json,
            "  \"allocations\": {}, \"pinned\": {},",
            alive - modules,
            self.pinned.len()
        );
        let _ = writeln!(
            json,
            "  \"streams\": {}, \"events\": {},",
            self.streams.len(),
            self.events.len()
        );
        let _ = writeln!(
            json,
            "  \"modules\": {}, \"graphs\": {},",
            self.modules.len(),
            self.executables.len()
        );
        let _ = writeln!(
            json,
            "  \"launches\": {}, \"early_launches\": {}, \"graph_launches\": {}, \"broken_captures\": {},",
            self.launches, self.counts.early_launches, self.counts.graph_launches, self.counts.broken_captures
        );
        let _ = writeln!(
            json,
            "  \"copied_to\": {to}, \"copied_from\": {from}, \"copied_within\": {within},"
        );
        let _ = writeln!(
            json,
            "  \"copies_to\": {n_to}, \"copies_from\": {n_from}, \"copies_within\": {n_within},"
        );
        let kernels = self
            .counts
            .kernels
            .iter()
            .map(|(name, counts)| format!("    {name:?}: {}", kernel(counts)));
        let _ = write!(
            json,
            "  \"kernels\": {{\n{}\n  }}\n}}\n",
            kernels.collect::<Vec<_>>().join(",\n")
        );
        json
    }
}

fn kernel(counts: &KernelCounts) -> String {
    let classes = counts.classes.iter().map(|(class, c)| {
        let name = format!("{class:?}").to_lowercase();
        format!(
            "{name:?}: {{\"warps\": {}, \"lanes\": {}, \"bytes\": {}, \"moved\": {}, \"waves\": {}, \"diverged\": {}}}",
            c.warps, c.lanes, c.bytes, c.moved, c.waves, c.diverged
        )
    });
    let traffic = |c: &Count| {
        format!(
            "{{\"bytes\": {}, \"sectors\": {}, \"warps\": {}}}",
            c.bytes, c.moved, c.warps
        )
    };
    format!(
        "{{\"launches\": {}, \"blocks\": {}, \"threads\": {}, \"shared\": {}, \"matrix_operations\": {}, \"half_operations\": {}, \"integer_operations\": {}, \"group_operations\": {}, \"loads\": {}, \"stores\": {}, \"copies\": {}, \"footprint\": [{}, {}], \"latency\": [{}, {}], \"instructions\": {{{}}}}}",
        counts.launches,
        counts.blocks,
        counts.threads,
        counts.shared_max,
        counts.matrix_operations,
        counts.half_operations,
        counts.integer_operations,
        counts.group_operations,
        traffic(&counts.loads),
        traffic(&counts.stores),
        traffic(&counts.copies),
        counts.footprint[0],
        counts.footprint[1],
        counts.latency[0],
        counts.latency[1],
        classes.collect::<Vec<_>>().join(", ")
    )
}
