//! The CPUs of the machine: physical cores, shared caches, and NUMA nodes, as Linux describes them in sysfs.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::OnceLock;

/// Largest CPU number that lists of CPUs may contain.
const MAX_CPU: usize = 1 << 16;

/// A logical CPU that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Number of the CPU in Linux.
    pub id: usize,
    /// Index among the logical CPUs of its physical core.
    pub sibling: usize,
    /// The lowest CPU number among the CPUs with the same last-level cache.
    pub cache: usize,
    /// NUMA node.
    pub node: usize,
    /// True for an efficiency core of a CPU that also has performance cores.
    pub is_efficient: bool,
}

/// The logical CPUs that the process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Sorted by preference for threads: performance cores first, and one CPU per physical core before any second CPU.
    /// CPUs with the same node and cache are adjacent.
    cpus: Vec<Cpu>,
}

impl Topology {
    /// Returns the topology of this machine at the time of the first call. Empty if sysfs is unavailable.
    pub fn of_machine() -> &'static Topology {
        static TOPOLOGY: OnceLock<Topology> = OnceLock::new();
        TOPOLOGY.get_or_init(|| Topology::below(Path::new("/")))
    }

    /// Reads the topology from the `proc` and `sys` directories below `root`.
    fn below(root: &Path) -> Topology {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let status = read("proc/self/status");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let online = cpu_list(&read("sys/devices/system/cpu/online"));
        let mut ids = allowed.map_or_else(|| online.clone(), cpu_list);
        ids.retain(|id| online.binary_search(id).is_ok());
        let nodes = nodes(&root.join("sys/devices/system/node"));
        let efficient = efficient_cpus(root, &ids);
        let mut siblings = BTreeMap::new();
        let mut cpus: Vec<Cpu> = ids
            .iter()
            .map(|&id| {
                let dir = format!("sys/devices/system/cpu/cpu{id}");
                let core = cpu_list(&read(&format!("{dir}/topology/thread_siblings_list")));
                let n_siblings: &mut usize = siblings.entry(core.first().copied().unwrap_or(id)).or_default();
                *n_siblings += 1;
                Cpu {
                    id,
                    sibling: *n_siblings - 1,
                    cache: last_cache(root, &dir).unwrap_or(0),
                    node: nodes.get(&id).copied().unwrap_or(0),
                    is_efficient: efficient.contains(&id),
                }
            })
            .collect();
        cpus.sort_by_key(|cpu| (cpu.is_efficient, cpu.sibling, cpu.node, cpu.cache, cpu.id));
        Topology { cpus }
    }

    /// Returns the CPUs, sorted by preference for threads.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Returns the number of physical performance cores, or 0 if unknown.
    pub fn n_cores(&self) -> usize {
        let is_core = |cpu: &&Cpu| cpu.sibling == 0 && !cpu.is_efficient;
        self.cpus.iter().filter(is_core).count()
    }

    /// Returns the CPU numbers of each NUMA node, by ascending node.
    pub fn nodes(&self) -> Vec<Vec<usize>> {
        let mut nodes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for cpu in &self.cpus {
            nodes.entry(cpu.node).or_default().push(cpu.id);
        }
        nodes.into_values().collect()
    }

    /// Keeps only the CPUs of `node`.
    pub fn on_node(mut self, node: usize) -> Topology {
        self.cpus.retain(|cpu| cpu.node == node);
        self
    }

    /// Returns the CPUs of `n` threads. Several threads share a CPU if there are more threads than CPUs. Empty if
    /// the topology is unknown.
    pub fn placement(&self, n: usize) -> Vec<Cpu> {
        let mut placement: Vec<Cpu> = self.cpus.iter().cycle().take(n).copied().collect();
        placement.sort_by_key(by_place);
        placement
    }

    /// Returns the CPUs of `n` threads, like [`Topology::placement`], with threads on [all nodes](Topology::divide).
    pub(super) fn spread(&self, n: usize) -> Vec<Cpu> {
        let mut placement = Vec::with_capacity(n);
        for (node, threads) in self.nodes().iter().zip(self.divide(n)) {
            let of_node = self.cpus.iter().filter(|cpu| node.contains(&cpu.id));
            placement.extend(of_node.cycle().take(threads.len()));
        }
        placement.sort_by_key(by_place);
        placement
    }

    /// Divides `0..n` among the NUMA nodes, in proportion to their physical cores.
    pub(super) fn divide(&self, n: usize) -> Vec<Range<usize>> {
        let mut n_cores: BTreeMap<usize, usize> = BTreeMap::new();
        for cpu in &self.cpus {
            *n_cores.entry(cpu.node).or_default() += usize::from(cpu.sibling == 0);
        }
        let total: usize = n_cores.values().sum();
        let at = |n_before: usize| (n as u128 * n_before as u128 / total.max(1) as u128) as usize;
        let divide = |n_before: &mut usize, n_cores: usize| {
            let start = *n_before;
            *n_before += n_cores;
            Some(at(start)..at(*n_before))
        };
        n_cores.into_values().scan(0, divide).collect()
    }
}

/// Orders CPUs so that CPUs with the same node and cache are adjacent.
fn by_place(cpu: &Cpu) -> (usize, usize, usize, usize) {
    (cpu.node, cpu.cache, cpu.sibling, cpu.id)
}

/// Returns a machine with `n_nodes` nodes of `n_cores` cores each, with a cache for every eight cores.
#[cfg(test)]
pub(super) fn simulated_nodes(n_nodes: usize, n_cores: usize) -> Topology {
    let cpu = |id: usize| Cpu {
        id,
        sibling: 0,
        cache: id / 8 * 8,
        node: id / n_cores,
        is_efficient: false,
    };
    Topology {
        cpus: (0..n_nodes * n_cores).map(cpu).collect(),
    }
}

#[cfg(test)]
impl Topology {
    /// Removes the CPUs `ids`.
    pub(super) fn without(mut self, ids: Range<usize>) -> Topology {
        self.cpus.retain(|cpu| !ids.contains(&cpu.id));
        self
    }
}

/// Returns the sizes of groups of adjacent threads whose CPUs share a cache. `placement` has the CPU of each thread.
///
/// Groups of more than `most` threads are divided. Caches of one node with at most `most / 2` threads in all form one
/// group. A small group costs more than it saves.
pub(super) fn cache_groups(placement: &[Cpu], most: usize) -> Vec<usize> {
    let same = |a: &Cpu, b: &Cpu| (a.node, a.cache) == (b.node, b.cache);
    let mut sizes: Vec<usize> = Vec::new();
    for node in placement.chunk_by(|a, b| a.node == b.node) {
        let first = sizes.len();
        for shared in node.chunk_by(same) {
            match sizes[first..].last_mut() {
                Some(size) if *size + shared.len() <= most / 2 => *size += shared.len(),
                _ => {
                    let n_groups = shared.len().div_ceil(most);
                    let (each, rest) = (shared.len() / n_groups, shared.len() % n_groups);
                    sizes.extend((0..n_groups).map(|i| each + usize::from(i < rest)));
                }
            }
        }
    }
    sizes
}

/// Parses a list of CPUs such as `0-3,8`, in ascending order. Malformed parts are ignored.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < MAX_CPU { Some(first..=last) } else { None }
    };
    let mut list: Vec<usize> = text.split(',').filter_map(range).flatten().collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// Returns the NUMA node of each CPU.
fn nodes(dir: &Path) -> BTreeMap<usize, usize> {
    let mut nodes = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(dir) else {
        return nodes;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        let Some(node) = number.and_then(|number| number.parse::<usize>().ok()) else {
            continue;
        };
        let list = std::fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default();
        nodes.extend(cpu_list(&list).into_iter().map(|cpu| (cpu, node)));
    }
    nodes
}

/// Returns the first CPU of those that share the last-level cache of the CPU in `dir`.
fn last_cache(root: &Path, dir: &str) -> Option<usize> {
    let read = |index: usize, file: &str| {
        let path = root.join(format!("{dir}/cache/index{index}/{file}"));
        std::fs::read_to_string(path).ok()
    };
    let levels = (0..8).filter_map(|index| {
        let level: usize = read(index, "level")?.trim().parse().ok()?;
        let shared = cpu_list(&read(index, "shared_cpu_list")?);
        Some((level, *shared.first()?))
    });
    levels.max_by_key(|&(level, _)| level).map(|(_, first)| first)
}

/// Returns the efficiency cores: those of `cpu_atom` on x86, and elsewhere those with less than the largest
/// capacity.
fn efficient_cpus(root: &Path, ids: &[usize]) -> Vec<usize> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let performance = read("sys/devices/cpu_core/cpus").map(|list| cpu_list(&list));
    if let (Some(performance), Some(atom)) = (performance, read("sys/devices/cpu_atom/cpus")) {
        let has_both = ids.iter().any(|id| performance.contains(id));
        return if has_both { cpu_list(&atom) } else { Vec::new() };
    }
    let capacity = |id: &usize| -> Option<(usize, u64)> {
        let text = read(&format!("sys/devices/system/cpu/cpu{id}/cpu_capacity"))?;
        Some((*id, text.trim().parse().ok()?))
    };
    let capacities: Vec<(usize, u64)> = ids.iter().filter_map(capacity).collect();
    let largest = capacities.iter().map(|&(_, capacity)| capacity).max();
    let is_less = |&(_, capacity): &(usize, u64)| Some(capacity) < largest;
    capacities.into_iter().filter(is_less).map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests;
