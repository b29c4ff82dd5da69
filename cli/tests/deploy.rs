//! Tests of the files in `deploy/` with the programs that consume them.

use std::path::PathBuf;
use std::process::Command;

use crate::common::root;

fn tool(name: &str) -> PathBuf {
    root().join("tests/tools").join(name)
}

#[test]
#[ignore = "installs Ray from PyPI (750 MB), downloads a model, and kills nodes of a cluster: 5 to 10 minutes"]
fn cluster_only_loses_running_requests() {
    let status = Command::new("python3")
        .arg(tool("ray_cluster.py"))
        .arg(env!("CARGO_BIN_EXE_llama"))
        .arg(tests::published::path(tests::published::SMOLLM2))
        .status()
        .expect("this test needs `python3` in PATH");
    assert!(status.success());
}

#[test]
#[ignore = "installs Kubernetes schemas and a PromQL parser from npm"]
fn manifests_match_their_schemas() {
    let status = Command::new("python3")
        .arg(tool("manifests.py"))
        .status()
        .expect("this test needs `python3` in PATH");
    assert!(status.success());
}
