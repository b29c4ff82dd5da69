//! How many threads there are where the process may not use all CPUs: by its affinity, and by the quota of a control group.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{Home, ended};

/// CPUs that this process may run on.
fn allowed() -> Vec<usize> {
    // SAFETY: all bits zero is an empty set; the call writes no more than its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        set
    };
    // SAFETY: the numbers are those of bits of the set.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect()
}

/// The command is to run on these CPUs only.
fn keep_on(command: &mut Command, cpus: &[usize]) {
    // SAFETY: all bits zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: the number is that of a bit of the set, as it came from one.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    let keep = move || {
        // SAFETY: the set is as large as is said.
        match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec nothing is done but one system call.
    unsafe { command.pre_exec(keep) };
}

fn json(command: Command) -> Value {
    serde_json::from_str(ended(command).succeeds()).expect("JSON")
}

#[test]
fn there_are_as_many_threads_as_cpus_that_the_process_may_use() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let allowed = allowed();
    for n in 1..=allowed.len().min(3) {
        // The last ones: the first is no special case.
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

/// Where the control group of this process would be under a folder that has the place of `/sys/fs/cgroup`, by version.
fn groups(folder: &Path) -> [PathBuf; 2] {
    let list = std::fs::read_to_string("/proc/self/cgroup").expect("control groups");
    let path_of = |is_wanted: &dyn Fn(&str) -> bool| {
        let parts = list.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let found = parts.into_iter().find(|(controllers, _)| is_wanted(controllers));
        found.map_or("", |(_, path)| path.trim_start_matches('/')).to_owned()
    };
    let first = path_of(&|controllers| controllers.split(',').any(|name| name == "cpu"));
    [folder.join("cpu").join(first), folder.join(path_of(&str::is_empty))]
}

/// Writes what a control group says of its quota, in the form of both versions. `None`: there is no quota.
fn set_quota(folder: &Path, quota: Option<usize>, period: usize) {
    let [first, second] = groups(folder);
    let write = |group: &Path, name: &str, text: String| {
        std::fs::create_dir_all(group).expect("a folder");
        std::fs::write(group.join(name), text + "\n").expect("a file");
    };
    let or = |none: &str| quota.map_or(none.to_owned(), |n| n.to_string());
    write(&first, "cpu.cfs_quota_us", or("-1"));
    write(&first, "cpu.cfs_period_us", period.to_string());
    write(&second, "cgroup.controllers", "cpu".to_owned());
    write(&second, "cpu.max", format!("{} {period}", or("max")));
}

/// The command where the folder has the place of `/sys/fs/cgroup`.
fn with_groups(command: &Command, folder: &Path) -> Command {
    let mut inside = Command::new("unshare");
    inside.args([
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        r#"mount --bind "$0" /sys/fs/cgroup && exec "$@""#,
    ]);
    inside.arg(folder).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}

/// The program reads the files of a control group that has a quota; the kernel enforces none.
#[test]
#[ignore = "needs two CPUs, and namespaces that this user may make"]
fn there_are_as_many_threads_as_a_quota_gives_time_for() {
    let home = Home::new();
    let folder = home.path("cgroup");
    let n_allowed = allowed().len();
    assert!(n_allowed > 1, "of one CPU a quota leaves no less");
    let report = |quota, period| {
        set_quota(&folder, quota, period);
        json(with_groups(&home.llama(&["doctor", "--json"]), &folder))
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
            .contains("a control group gives the process the time of");
        assert_eq!(is_said, expected < n_allowed, "{report}");
    }
    set_quota(&folder, Some(100_000), 100_000);
    let model = home.model("llama-dense", None);
    let bench = home.llama(&["bench", "-m", &model, "-p", "4", "-n", "0", "-r", "1", "-o", "json"]);
    assert_eq!(json(with_groups(&bench, &folder))[0]["n_threads"], 1);
}
