//! Tests of the default thread count under CPU affinity masks and control group quotas.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{Home, ended};

/// Returns the CPUs in the affinity mask of this process.
fn allowed() -> Vec<usize> {
    // SAFETY: a zeroed cpu_set_t is a valid empty set, and the call writes at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        set
    };
    // SAFETY: cpu < CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect()
}

/// Restricts a command to some CPUs.
fn keep_on(command: &mut Command, cpus: &[usize]) {
    // SAFETY: a zeroed cpu_set_t is a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: cpu < CPU_SETSIZE, because the number comes from another set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    let keep = move || {
        // SAFETY: the pointer and size describe `set`.
        match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes a single system call, which is async-signal-safe.
    unsafe { command.pre_exec(keep) };
}

fn json(command: Command) -> Value {
    serde_json::from_str(ended(command).succeeds()).expect("JSON")
}

#[test]
fn threads_default_to_allowed_cpus() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let allowed = allowed();
    for n in 1..=allowed.len().min(3) {
        // Use the last CPUs, because CPU 0 would also be the default.
        let cpus = &allowed[allowed.len() - n..];
        let mut doctor = home.llama(&["doctor", "--json"]);
        keep_on(&mut doctor, cpus);
        let report = json(doctor);
        let told = &report["machine"]["cpus"];
        assert_eq!((&told["threads"], &told["allowed"]), (&n.into(), &n.into()), "{report}");
        let mut bench = home.llama(&["bench", "-m", &model, "-p", "4", "-n", "0", "-r", "1", "-o", "json"]);
        keep_on(&mut bench, cpus);
        assert_eq!(json(bench)[0]["n_threads"], n);
    }
}

/// Returns the directories of this process's control group in a replacement of `/sys/fs/cgroup`, for versions
/// 1 and 2.
fn groups(directory: &Path) -> [PathBuf; 2] {
    let list = std::fs::read_to_string("/proc/self/cgroup").expect("control groups");
    let path_of = |is_wanted: &dyn Fn(&str) -> bool| {
        let parts = list.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let found = parts.into_iter().find(|(controllers, _)| is_wanted(controllers));
        found.map_or("", |(_, path)| path.trim_start_matches('/')).to_owned()
    };
    let first = path_of(&|controllers| controllers.split(',').any(|name| name == "cpu"));
    [
        directory.join("cpu").join(first),
        directory.join(path_of(&str::is_empty)),
    ]
}

/// Writes a CPU quota in the format of both versions; `None` means no quota.
fn set_quota(directory: &Path, quota: Option<usize>, period: usize) {
    let [first, second] = groups(directory);
    let write = |group: &Path, name: &str, text: String| {
        std::fs::create_dir_all(group).expect("a directory");
        std::fs::write(group.join(name), text + "\n").expect("a file");
    };
    let or = |none: &str| quota.map_or(none.to_owned(), |n| n.to_string());
    write(&first, "cpu.cfs_quota_us", or("-1"));
    write(&first, "cpu.cfs_period_us", period.to_string());
    write(&second, "cgroup.controllers", "cpu".to_owned());
    write(&second, "cpu.max", format!("{} {period}", or("max")));
}

/// Runs a command with `directory` mounted at `/sys/fs/cgroup`.
fn with_groups(command: &Command, directory: &Path) -> Command {
    let mut inside = Command::new("unshare");
    inside.args([
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        r#"mount --bind "$0" /sys/fs/cgroup && exec "$@""#,
    ]);
    inside
        .arg(directory)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}

/// The program reads quota files of a fake control group; the kernel does not enforce the quota.
#[test]
#[ignore = "needs two CPUs and unprivileged user namespaces"]
fn threads_default_to_cpu_quota() {
    let home = Home::new();
    let directory = home.path("cgroup");
    let n_allowed = allowed().len();
    assert!(n_allowed > 1, "a quota needs at least two CPUs to make a difference");
    let report = |quota, period| {
        set_quota(&directory, quota, period);
        json(with_groups(&home.llama(&["doctor", "--json"]), &directory))
    };
    for (quota, period, expected) in [
        (Some(100_000), 100_000, 1),
        (Some(50_000), 100_000, 1),
        (Some(75_000), 50_000, 1),
        (Some(100_000), 50_000, 2),
        (Some(900_000_000), 100_000, n_allowed),
        (None, 100_000, n_allowed),
    ] {
        let report = report(quota, period);
        let told = &report["machine"]["cpus"];
        assert_eq!(told["threads"], expected, "{quota:?} of {period}: {report}");
        assert_eq!(told["allowed"], n_allowed);
        let is_said = report["advice"]
            .to_string()
            .contains("a control group limits the process to");
        assert_eq!(is_said, expected < n_allowed, "{report}");
    }
    set_quota(&directory, Some(100_000), 100_000);
    let model = home.model("llama-dense", None);
    let bench = home.llama(&["bench", "-m", &model, "-p", "4", "-n", "0", "-r", "1", "-o", "json"]);
    assert_eq!(json(with_groups(&bench, &directory))[0]["n_threads"], 1);
}
