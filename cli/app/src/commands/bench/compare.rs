//! Runs another engine's benchmark command and parses its JSON output.

use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::failure::{Failure, Outcome};

use super::case::Test;
use super::samples::median;

/// Command that benchmarks another engine.
pub struct Baseline {
    command: String,
}

/// Results of one run of the baseline command.
#[derive(Debug)]
pub struct BaselineRun {
    command: String,
    results: Vec<BaselineResult>,
}

/// A JSON object in the output of the baseline command.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Printed {
    Batched(Batched),
    Single(BaselineResult),
}

/// Prefill and decoding of several sequences, in the format of `llama-batched-bench --output-format jsonl`.
#[derive(Debug, Deserialize)]
struct Batched {
    pp: usize,
    tg: usize,
    pl: usize,
    speed_pp: f64,
    speed_tg: f64,
}

impl Batched {
    /// Returns the prefill result and the decode result at its depth.
    fn results(&self) -> [BaselineResult; 2] {
        let result = |n_prompt, n_gen, n_depth, speed| BaselineResult {
            n_prompt,
            n_gen,
            n_depth,
            n_parallel: self.pl,
            samples_ts: Vec::new(),
            avg_ts: Some(speed),
        };
        [
            result(self.pp, 0, 0, self.speed_pp),
            result(0, self.tg, self.pp, self.speed_tg),
        ]
    }
}

/// Result of a test in the format of `llama-bench -o json`, which `llama bench` also uses.
#[derive(Debug, Deserialize)]
struct BaselineResult {
    #[serde(default)]
    n_prompt: usize,
    #[serde(default)]
    n_gen: usize,
    #[serde(default)]
    n_depth: usize,
    #[serde(default = "one")]
    n_parallel: usize,
    #[serde(default)]
    samples_ts: Vec<f64>,
    avg_ts: Option<f64>,
}

fn one() -> usize {
    1
}

impl Baseline {
    /// Creates a baseline from a shell command.
    pub fn new(command: &str) -> Baseline {
        Baseline {
            command: command.to_owned(),
        }
    }

    /// Runs the command once.
    pub fn run(&self) -> Outcome<BaselineRun> {
        let failed = |why: String| Failure::new(format_args!("--compare `{}`: {why}", self.command));
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(&self.command).stdin(Stdio::null());
        let output = shell.output().map_err(|e| failed(e.to_string()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            return Err(failed(format!("{}: {}", output.status, last.trim())));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let results = results(&text).ok_or_else(|| {
            failed(
                "expected JSON tests with n_prompt, n_gen, and avg_ts, as printed by `llama-bench -o json` or \
                `llama-batched-bench --output-format jsonl`"
                    .to_owned(),
            )
        })?;
        Ok(BaselineRun {
            command: self.command.clone(),
            results,
        })
    }
}

impl BaselineRun {
    /// Returns the speed of a test in tokens per second.
    pub fn speed(&self, test: &Test) -> Outcome<f64> {
        let is_same = |f: &&BaselineResult| {
            (f.n_prompt, f.n_gen, f.n_depth, f.n_parallel) == (test.n_prompt, test.n_gen, test.n_depth, test.n_parallel)
        };
        let speed = |f: &BaselineResult| median(&f.samples_ts).or(f.avg_ts).filter(|speed| *speed > 0.0);
        let found = self.results.iter().find(is_same).and_then(speed);
        found.ok_or_else(|| {
            Failure::new(format_args!(
                "--compare `{}`: no result for n_prompt {}, n_gen {}, n_depth {}, and n_parallel {}",
                self.command, test.n_prompt, test.n_gen, test.n_depth, test.n_parallel
            ))
        })
    }
}

/// Parses an array of tests, or one test per line.
fn results(text: &str) -> Option<Vec<BaselineResult>> {
    let printed: Vec<Printed> = serde_json::from_str(text).unwrap_or_else(|_| {
        let lines = text.lines();
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    });
    let mut results = Vec::new();
    for printed in printed {
        match printed {
            Printed::Batched(batched) => results.extend(batched.results()),
            Printed::Single(result) => results.push(result),
        }
    }
    (!results.is_empty()).then_some(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(n_prompt: usize, n_gen: usize) -> Test {
        Test {
            n_prompt,
            n_gen,
            n_parallel: 1,
            ..Test::default()
        }
    }

    #[test]
    fn results_parse_from_array_and_lines() {
        for (text, ok) in [
            (
                r#"[{"n_prompt":512,"n_gen":0,"avg_ts":9.5,"other":"x"},{"n_gen":64,"samples_ts":[3,5,4]}]"#,
                true,
            ),
            (
                "loading\n{\"n_prompt\":512,\"avg_ts\":9.5}\n{\"n_gen\":64,\"avg_ts\":4}\n",
                true,
            ),
            ("512 tokens at 9.5 tok/s", false),
        ] {
            let found = results(text);
            assert_eq!(found.is_some(), ok, "{text}");
            let Some(results) = found else { continue };
            let results = BaselineRun {
                command: "x".to_owned(),
                results,
            };
            assert_eq!(results.speed(&test(512, 0)).unwrap(), 9.5);
            assert_eq!(results.speed(&test(0, 64)).unwrap(), 4.0);
            assert!(results.speed(&test(0, 32)).is_err());
        }
    }

    #[test]
    fn results_parse_from_batched_bench() {
        let text = r#"{"n_kv_max":4096,"pp":128,"tg":32,"pl":8,"n_kv":1280,"t_pp":2.0,"speed_pp":512.0,"t_tg":4.0,"speed_tg":64.0}"#;
        let results = BaselineRun {
            command: "x".to_owned(),
            results: results(&format!("main: n_kv_max = 4096\n{text}\n")).unwrap(),
        };
        let test = |n_prompt, n_gen, n_depth| Test {
            n_depth,
            n_parallel: 8,
            ..test(n_prompt, n_gen)
        };
        assert_eq!(results.speed(&test(128, 0, 0)).unwrap(), 512.0);
        assert_eq!(results.speed(&test(0, 32, 128)).unwrap(), 64.0);
        assert!(results.speed(&test(0, 32, 0)).is_err());
    }

    #[test]
    fn failed_command_reports_last_stderr_line() {
        let error_of = |command: &str| match Baseline::new(command).run() {
            Err(Failure::Message(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(error_of("echo one >&2; echo two >&2; exit 3").ends_with("two"));
        assert!(error_of("echo hello").contains("n_prompt"));
    }
}
