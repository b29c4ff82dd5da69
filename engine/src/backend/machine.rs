//! Memory available to the process: the machine's memory, limited by control groups (cgroups) as in a
//! container.

use std::path::{Component, Path, PathBuf};

/// Returns the free and total memory in bytes that the process may use, or (0, 0) if unknown.
pub fn machine_memory() -> (usize, usize) {
    memory_in(Path::new("/"))
}

/// Returns the machine's memory in bytes regardless of control groups, or 0 if unknown.
pub fn installed_memory() -> usize {
    parse_meminfo(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()).1
}

/// Computes [`machine_memory`] from the files below `root`.
fn memory_in(root: &Path) -> (usize, usize) {
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let machine = parse_meminfo(&meminfo);
    if machine.1 == 0 {
        return machine;
    }
    let limits = group_dirs(root)
        .into_iter()
        .filter_map(|(dir, files)| files.limit(&dir));
    limits.fold(machine, |(free, total), (left, limit)| {
        (free.min(left), total.min(limit))
    })
}

fn parse_meminfo(text: &str) -> (usize, usize) {
    let field = |name: &str| {
        let line = text.lines().find(|l| l.split(':').next() == Some(name))?;
        let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let total = field("MemTotal").unwrap_or(0);
    let free = field("MemAvailable").or_else(|| field("MemFree")).unwrap_or(0);
    (free, total)
}

/// Names of the files with the memory limit and usage of a control group, for one version of cgroups.
#[derive(Clone, Copy)]
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat` with the page cache, which the kernel reclaims before it fails an allocation.
    cached: [&'static str; 2],
}

const V1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: ["total_active_file", "total_inactive_file"],
};

const V2: GroupFiles = GroupFiles {
    limit: "memory.max",
    usage: "memory.current",
    cached: ["active_file", "inactive_file"],
};

impl GroupFiles {
    /// Returns the available memory and the limit of a group in bytes, or `None` without a limit. Version 1
    /// stores a huge number instead of no limit.
    fn limit(self, dir: &Path) -> Option<(usize, usize)> {
        let read = |file| std::fs::read_to_string(dir.join(file)).ok();
        let number = |file| read(file)?.trim().parse::<usize>().ok();
        let (limit, used) = (number(self.limit)?, number(self.usage)?);
        let stat = read("memory.stat").unwrap_or_default();
        let fields = stat.lines().filter_map(|line| line.split_once(' '));
        let cached = fields.filter(|(name, _)| self.cached.contains(name));
        let cached: usize = cached.filter_map(|(_, bytes)| bytes.trim().parse::<usize>().ok()).sum();
        Some((limit.saturating_sub(used.saturating_sub(cached)), limit))
    }
}

/// Returns the directories of the groups that may limit the process's memory, up to the topmost mounted
/// group.
fn group_dirs(root: &Path) -> Vec<(PathBuf, GroupFiles)> {
    let read = |file: &str| std::fs::read_to_string(root.join("proc/self").join(file)).unwrap_or_default();
    let (groups, mounts) = (read("cgroup"), read("mountinfo"));
    let mut dirs = Vec::new();
    for line in groups.lines() {
        // `4:memory:/a/b` in version 1, `0::/a/b` in version 2.
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (ty, files) = match controllers {
            "" if id == "0" => ("cgroup2", V2),
            _ if controllers.split(',').any(|c| c == "memory") => ("cgroup", V1),
            _ => continue,
        };
        for (mount, dir) in mounts.lines().filter_map(|mount| mounted_group(mount, ty, group)) {
            let mount = root.join(mount.trim_start_matches('/'));
            let dir = mount.join(dir);
            let up = dir.ancestors().take_while(|dir| dir.starts_with(&mount));
            dirs.extend(up.map(|dir| (dir.to_owned(), files)));
        }
    }
    dirs
}

/// Parses a line of `mountinfo`. If it mounts groups of the given file system type, returns the mount point
/// and the path of a group below it.
///
/// A container may see only its own group, as the root of the mount.
fn mounted_group<'a>(line: &'a str, ty: &str, group: &'a str) -> Option<(&'a str, &'a Path)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let is_wanted = system.next() == Some(ty);
    let options = system.nth(1).unwrap_or_default();
    let has_memory = ty == "cgroup2" || options.split(',').any(|option| option == "memory");
    let mut mount = mount.split(' ').skip(3);
    let (top, at) = (mount.next()?, mount.next()?);
    let is_above = |group: &&Path| group.components().any(|part| part == Component::ParentDir);
    let below = Path::new(group).strip_prefix(top).ok().filter(|group| !is_above(group));
    if !is_wanted || !has_memory {
        return None;
    }
    Some((at, below.unwrap_or(Path::new(""))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a machine with 1000 KiB of memory, 900 KiB of it available, and with these files.
    fn machine(files: &[(&str, &str)]) -> (usize, usize) {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        memory_in(root.path())
    }

    const MACHINE: (usize, usize) = (900 << 10, 1000 << 10);

    #[test]
    fn meminfo_is_read_in_bytes() {
        assert_eq!(
            parse_meminfo("MemTotal:  10 kB\nMemFree: 3 kB\nMemAvailable:  4 kB\n"),
            (4096, 10240)
        );
        assert_eq!(parse_meminfo("MemTotal: 10 kB\nMemFree: 3 kB\n"), (3072, 10240));
        assert_eq!(parse_meminfo("nonsense"), (0, 0));
    }

    #[test]
    fn cgroup_v2_limits_memory() {
        let of = |max, current| {
            machine(&[
                ("proc/self/cgroup", "0::/a/b\n"),
                (
                    "proc/self/mountinfo",
                    "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
                ),
                ("sys/fs/cgroup/a/b/memory.max", max),
                ("sys/fs/cgroup/a/b/memory.current", current),
                (
                    "sys/fs/cgroup/a/b/memory.stat",
                    "anon 7\nfile 30000\ninactive_file 10000\nactive_file 20000\n",
                ),
            ])
        };
        assert_eq!(
            of("100000\n", "70000\n"),
            (60000, 100_000),
            "page cache counts as available"
        );
        assert_eq!(of("100000\n", "20000\n"), (100_000, 100_000));
        assert_eq!(of("100000\n", "140000\n"), (0, 100_000));
        assert_eq!(of("max\n", "70000\n"), MACHINE);
        assert_eq!(of("9000000000\n", "70000\n"), MACHINE);
    }

    #[test]
    fn tightest_parent_cgroup_limits_memory() {
        let files = [
            ("proc/self/cgroup", "0::/a/b\n"),
            (
                "proc/self/mountinfo",
                "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/a/memory.max", "50000"),
            ("sys/fs/cgroup/a/memory.current", "10000"),
            ("sys/fs/cgroup/a/b/memory.max", "80000"),
            ("sys/fs/cgroup/a/b/memory.current", "5000"),
        ];
        assert_eq!(machine(&files), (40000, 50000));
    }

    #[test]
    fn cgroup_v1_limits_memory() {
        let of = |limit| {
            machine(&[
                ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/7\n0::/\n"),
                (
                    "proc/self/mountinfo",
                    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
                ),
                ("sys/fs/cgroup/memory/docker/7/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/docker/7/memory.usage_in_bytes", "30000\n"),
                (
                    "sys/fs/cgroup/memory/docker/7/memory.stat",
                    "active_file 1\ntotal_inactive_file 4000\ntotal_active_file 6000\n",
                ),
            ])
        };
        assert_eq!(of("100000\n"), (80000, 100_000));
        assert_eq!(of("9223372036854771712\n"), MACHINE, "no limit");
    }

    #[test]
    fn container_group_at_mount_root_limits_memory() {
        for group in ["/docker/7", "/", "/docker/77", "/../8"] {
            let cgroup = format!("4:memory:{group}\n");
            let files = [
                ("proc/self/cgroup", cgroup.as_str()),
                (
                    "proc/self/mountinfo",
                    "35 31 0:32 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
                ),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "100000"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "30000"),
            ];
            assert_eq!(machine(&files), (70000, 100_000), "{group}");
        }
    }

    #[test]
    fn machine_without_cgroups_has_no_other_limit() {
        assert_eq!(machine(&[]), MACHINE);
        assert_eq!(machine(&[("proc/self/cgroup", "0::/\nnonsense\n")]), MACHINE);
        assert_eq!(memory_in(Path::new("/nowhere")), (0, 0));
    }
}
