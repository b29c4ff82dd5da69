//! Tests of `deploy/` that need neither Ray nor a cluster: prefix routing and its simulation.

use std::process::Command;

#[test]
fn routing_simulation_passes() {
    let directory = tests::root().join("deploy/tests");
    let ended = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s"])
        .arg(&directory)
        .output()
        .expect("this test needs `python3` in PATH");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("Ran ") && !said.contains("Ran 0 tests"), "{said}");
}
