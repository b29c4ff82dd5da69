//! What `deploy/` asks of the server: metrics that it looks at are there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::Server;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Names of metrics in a text: words that begin with one of the two prefixes.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !is_part(c))
        .filter(|word| word.starts_with("vllm:") || word.starts_with("llamacpp:"))
        .map(|word| word.trim_end_matches(':'))
        .collect()
}

/// What a page of metrics has samples of.
fn samples(page: &str) -> BTreeSet<&str> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).collect()
}

/// The files with queries: the dashboard, and the manifests that scale and warn.
const QUERIES: [&str; 4] = [
    "grafana/llama.json",
    "kubernetes/monitoring.yaml",
    "kubernetes/autoscaling.yaml",
    "kubernetes/inference-gateway.yaml",
];

#[test]
fn queries_ask_for_metrics_that_there_are() {
    let page = Server::new().get("/metrics").body;
    let there = samples(&page);
    for file in QUERIES {
        let text = std::fs::read_to_string(deploy().join(file)).expect("the file is readable");
        let asked = names(&text);
        assert!(!asked.is_empty(), "{file} asks for nothing");
        let missing: Vec<_> = asked.difference(&there).collect();
        assert!(
            missing.is_empty(),
            "{file} asks for {missing:?}, which /metrics has not"
        );
    }
}

#[test]
fn each_panel_of_the_dashboard_has_a_query() {
    let text = std::fs::read_to_string(deploy().join(QUERIES[0])).expect("the file is readable");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    assert!(panels.len() > 10);
    for panel in panels {
        for target in panel["targets"].as_array().expect("a list") {
            let query = target["expr"].as_str().expect("a text");
            assert!(!names(query).is_empty(), "{}: {query}", panel["title"]);
        }
    }
}
