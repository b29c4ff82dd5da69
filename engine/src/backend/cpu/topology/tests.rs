use super::super::groups::{Groups, MAX_MEMBERS};
use super::*;

/// A simulated machine.
#[derive(Clone, Copy)]
struct Machine {
    sockets: usize,
    /// Physical cores per socket, and logical CPUs per core.
    cores: usize,
    threads: usize,
    /// Physical cores per last-level cache.
    cores_per_cache: usize,
    /// NUMA nodes per socket.
    nodes_per_socket: usize,
}

impl Machine {
    /// Writes the files of the machine. As on servers, the first CPU of all cores is numbered before any second one.
    fn write(self, root: &Path) {
        let n_cores = self.sockets * self.cores;
        let cpus_of = |cores: std::ops::Range<usize>| {
            let numbers = (0..self.threads).flat_map(|thread| cores.clone().map(move |core| thread * n_cores + core));
            numbers.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(",")
        };
        file(
            root,
            "sys/devices/system/cpu/online",
            &format!("0-{}", n_cores * self.threads - 1),
        );
        for cpu in 0..n_cores * self.threads {
            let core = cpu % n_cores;
            let dir = format!("sys/devices/system/cpu/cpu{cpu}");
            file(
                root,
                &format!("{dir}/topology/thread_siblings_list"),
                &cpus_of(core..core + 1),
            );
            file(root, &format!("{dir}/cache/index0/level"), "1");
            file(
                root,
                &format!("{dir}/cache/index0/shared_cpu_list"),
                &cpus_of(core..core + 1),
            );
            let first = core / self.cores_per_cache * self.cores_per_cache;
            file(root, &format!("{dir}/cache/index3/level"), "3");
            let shared = cpus_of(first..first + self.cores_per_cache);
            file(root, &format!("{dir}/cache/index3/shared_cpu_list"), &shared);
        }
        let per_node = self.cores / self.nodes_per_socket;
        for node in 0..n_cores / per_node {
            let path = format!("sys/devices/system/node/node{node}/cpulist");
            file(root, &path, &cpus_of(node * per_node..(node + 1) * per_node));
        }
    }

    fn topology(self) -> Topology {
        let root = tempfile::tempdir().unwrap();
        self.write(root.path());
        Topology::below(root.path())
    }
}

fn file(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{text}\n")).unwrap();
}

const DESKTOP: Machine = Machine {
    sockets: 1,
    cores: 16,
    threads: 2,
    cores_per_cache: 8,
    nodes_per_socket: 1,
};

const SERVER: Machine = Machine {
    sockets: 1,
    cores: 64,
    threads: 2,
    cores_per_cache: 8,
    nodes_per_socket: 1,
};

const TWO_SOCKETS: Machine = Machine {
    sockets: 2,
    cores: 96,
    threads: 2,
    cores_per_cache: 8,
    nodes_per_socket: 1,
};

/// A machine with a single cache per socket.
const MONOLITHIC: Machine = Machine {
    sockets: 2,
    cores: 48,
    threads: 2,
    cores_per_cache: 48,
    nodes_per_socket: 1,
};

#[test]
fn physical_cores_and_nodes_are_counted() {
    for (machine, n_cores, n_nodes) in [
        (DESKTOP, 16, 1),
        (SERVER, 64, 1),
        (TWO_SOCKETS, 192, 2),
        (MONOLITHIC, 96, 2),
    ] {
        let topology = machine.topology();
        assert_eq!((topology.n_cores(), topology.nodes().len()), (n_cores, n_nodes));
        assert_eq!(topology.cpus().len(), 2 * n_cores);
    }
}

#[test]
fn threads_use_one_cpu_per_core_and_group_by_cache() {
    for (machine, groups) in [
        (DESKTOP, vec![8; 2]),
        (SERVER, vec![8; 8]),
        (TWO_SOCKETS, vec![8; 24]),
        (MONOLITHIC, vec![16; 6]),
    ] {
        let topology = machine.topology();
        let placement = topology.placement(topology.n_cores());
        assert!(placement.iter().all(|cpu| cpu.sibling == 0));
        assert!(placement.is_sorted_by_key(|cpu| (cpu.node, cpu.cache)));
        assert_eq!(cache_groups(&placement, MAX_MEMBERS), groups);
        assert_eq!(Groups::new(&groups).n_workers(), topology.n_cores());
    }
}

#[test]
fn few_threads_share_a_cache_and_many_use_all_cpus() {
    let topology = TWO_SOCKETS.topology();
    assert_eq!(cache_groups(&topology.placement(8), MAX_MEMBERS), [8]);
    assert_eq!(cache_groups(&topology.placement(12), MAX_MEMBERS), [8, 4]);
    let all = topology.placement(384);
    let mut ids: Vec<usize> = all.iter().map(|cpu| cpu.id).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..384));
    assert_eq!(cache_groups(&all, MAX_MEMBERS), [16; 24]);
    // More threads than CPUs.
    assert_eq!(topology.placement(400).len(), 400);
    assert!(Topology::default().placement(4).is_empty());
}

#[test]
fn only_allowed_cpus_are_used() {
    let root = tempfile::tempdir().unwrap();
    SERVER.write(root.path());
    let status = "Name:\tllama\nCpus_allowed:\tff\nCpus_allowed_list:\t4-11,70\n";
    file(root.path(), "proc/self/status", status);
    let topology = Topology::below(root.path());
    // CPU 70 is the second CPU of core 6.
    let ids: Vec<usize> = topology.cpus().iter().map(|cpu| cpu.id).collect();
    assert_eq!(ids, [4, 5, 6, 7, 8, 9, 10, 11, 70]);
    assert_eq!((topology.n_cores(), topology.cpus()[8].sibling), (8, 1));
    // Four threads on each of two caches.
    assert_eq!(cache_groups(&topology.placement(8), MAX_MEMBERS), [8]);
}

/// Virtual machines have one socket per CPU. For some ARM servers, Linux does not list the last-level cache.
#[test]
fn small_caches_of_a_node_form_groups() {
    let machine = Machine {
        sockets: 2,
        cores: 32,
        threads: 1,
        cores_per_cache: 1,
        nodes_per_socket: 1,
    };
    let topology = machine.topology();
    assert_eq!(cache_groups(&topology.placement(64), MAX_MEMBERS), [8; 8]);
    assert_eq!(cache_groups(&topology.placement(2), MAX_MEMBERS), [2]);
    assert_eq!(cache_groups(&topology.spread(2), MAX_MEMBERS), [1, 1]);
    let of_four = Machine {
        cores_per_cache: 4,
        ..machine
    };
    assert_eq!(cache_groups(&of_four.topology().placement(64), MAX_MEMBERS), [8; 8]);
}

#[test]
fn nodes_can_be_isolated() {
    let topology = TWO_SOCKETS.topology().on_node(1);
    assert_eq!((topology.n_cores(), topology.nodes().len()), (96, 1));
    assert!(topology.cpus().iter().all(|cpu| cpu.node == 1));
}

/// 8 performance cores with two CPUs each, and 16 efficiency cores.
#[test]
fn efficiency_cores_are_used_last() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    file(root, "sys/devices/system/cpu/online", "0-31");
    file(root, "sys/devices/cpu_core/cpus", "0-15");
    file(root, "sys/devices/cpu_atom/cpus", "16-31");
    for cpu in 0..32 {
        let dir = format!("sys/devices/system/cpu/cpu{cpu}");
        let siblings = if cpu < 16 {
            format!("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1)
        } else {
            cpu.to_string()
        };
        file(root, &format!("{dir}/topology/thread_siblings_list"), &siblings);
        file(root, &format!("{dir}/cache/index3/level"), "3");
        file(root, &format!("{dir}/cache/index3/shared_cpu_list"), "0-31");
    }
    let topology = Topology::below(root);
    assert_eq!(topology.n_cores(), 8);
    let ids = |n: usize| topology.placement(n).iter().map(|cpu| cpu.id).collect::<Vec<_>>();
    assert_eq!(ids(8), [0, 2, 4, 6, 8, 10, 12, 14]);
    assert!(ids(16).iter().all(|&id| id < 16));
    assert_eq!(ids(32).len(), 32);
}

/// An ARM machine with four cores of each capacity.
#[test]
fn cores_with_less_capacity_are_efficiency_cores() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    file(root, "sys/devices/system/cpu/online", "0-7");
    for cpu in 0..8 {
        let capacity = if cpu < 4 { "512" } else { "1024" };
        file(root, &format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), capacity);
    }
    let topology = Topology::below(root);
    assert_eq!(topology.n_cores(), 4);
    assert!(topology.placement(4).iter().all(|cpu| cpu.id >= 4));
}

#[test]
fn damaged_files_are_ignored() {
    assert_eq!(cpu_list("0-3,8,x,9-,5-4,2,70000-80000,-1\n"), [0, 1, 2, 3, 8]);
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Topology::below(root.path()), Topology::default());
    file(root.path(), "sys/devices/system/cpu/online", "0-1");
    let topology = Topology::below(root.path());
    assert_eq!(topology.n_cores(), 2);
    assert_eq!(cache_groups(&topology.placement(2), MAX_MEMBERS), [2]);
}

#[test]
fn topology_of_this_machine_has_a_core() {
    let topology = Topology::of_machine();
    assert!(topology.n_cores() >= 1);
    assert!(topology.cpus().len() >= topology.n_cores());
}
