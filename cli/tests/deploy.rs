//! What stands in `deploy/`, tried with the programs that it is for.

use std::path::PathBuf;
use std::process::Command;

use crate::common::root;

fn tool(name: &str) -> PathBuf {
    root().join("tests/tools").join(name)
}

#[test]
#[ignore = "installs Ray from PyPI (750 MB), takes a published model and kills parts of a cluster: five minutes or ten"]
fn a_cluster_loses_nothing_but_what_was_under_way() {
    let status = Command::new("python3")
        .arg(tool("ray_cluster.py"))
        .arg(env!("CARGO_BIN_EXE_llama"))
        .arg(tests::published::path(tests::published::SMOLLM2))
        .status()
        .expect("python3 runs");
    assert!(status.success());
}

#[test]
#[ignore = "installs the schemas of Kubernetes' objects and the grammar of PromQL from npm"]
fn manifests_keep_to_their_schemas() {
    let status = Command::new("python3")
        .arg(tool("manifests.py"))
        .status()
        .expect("python3 runs");
    assert!(status.success());
}
