//! Checks that the metrics used by the files in `deploy/` exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::Server;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Returns the metric names in a text: words with a known prefix.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !is_part(c))
        .filter(|word| word.starts_with("vllm:") || word.starts_with("llamacpp:"))
        .map(|word| word.trim_end_matches(':'))
        .collect()
}

/// Returns the names of the samples in an exposition.
fn samples(page: &str) -> BTreeSet<&str> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).collect()
}

/// Files with queries: the dashboard and the monitoring and scaling manifests.
const QUERIES: [&str; 4] = [
    "grafana/llama.json",
    "kubernetes/monitoring.yaml",
    "kubernetes/autoscaling.yaml",
    "kubernetes/inference-gateway.yaml",
];

#[test]
fn queries_use_existing_metrics() {
    let page = Server::new().get("/metrics").body;
    let existing = samples(&page);
    for file in QUERIES {
        let text = std::fs::read_to_string(deploy().join(file)).expect("the file is readable");
        let used = names(&text);
        assert!(!used.is_empty(), "{file} contains no metric names");
        let missing: Vec<_> = used.difference(&existing).collect();
        assert!(missing.is_empty(), "{file} uses unknown metrics {missing:?}");
    }
}

#[test]
fn dashboard_panels_have_queries() {
    let text = std::fs::read_to_string(deploy().join(QUERIES[0])).expect("the file is readable");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    assert!(panels.len() > 10);
    for panel in panels {
        for target in panel["targets"].as_array().expect("a list") {
            let query = target["expr"].as_str().expect("a string");
            assert!(!names(query).is_empty(), "{}: {query}", panel["title"]);
        }
    }
}
