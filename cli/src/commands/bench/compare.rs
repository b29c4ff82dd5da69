//! Another engine's figures: a command is run, and what it prints is read as JSON.

use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::failure::{Failure, Outcome};

use super::case::Test;
use super::samples::median;

/// A command that measures another engine.
pub struct Rival {
    command: String,
}

/// What it printed in one run.
#[derive(Debug)]
pub struct Figures {
    command: String,
    figures: Vec<Figure>,
}

/// What an object of the output tells.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Printed {
    Batched(Batched),
    Single(Figure),
}

/// A prompt of several sequences and what they generate after it, by the names of `llama-batched-bench --output-format jsonl`.
#[derive(Debug, Deserialize)]
struct Batched {
    pp: usize,
    tg: usize,
    pl: usize,
    speed_pp: f64,
    speed_tg: f64,
}

impl Batched {
    /// The prompt, and the generation at its depth.
    fn figures(&self) -> [Figure; 2] {
        let figure = |n_prompt, n_gen, n_depth, speed| Figure {
            n_prompt,
            n_gen,
            n_depth,
            n_parallel: self.pl,
            samples_ts: Vec::new(),
            avg_ts: Some(speed),
        };
        [
            figure(self.pp, 0, 0, self.speed_pp),
            figure(0, self.tg, self.pp, self.speed_tg),
        ]
    }
}

/// One test, by the names of `llama-bench -o json`, which are also this program's.
#[derive(Debug, Deserialize)]
struct Figure {
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

impl Rival {
    /// A command for the shell.
    pub fn new(command: &str) -> Rival {
        Rival {
            command: command.to_owned(),
        }
    }

    /// Runs it once.
    pub fn run(&self) -> Outcome<Figures> {
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
        let figures = figures(&text).ok_or_else(|| {
            failed(
                "it printed no JSON of tests with n_prompt, n_gen and avg_ts, as `llama-bench -o json` does, or as \
                 `llama-batched-bench --output-format jsonl`"
                    .to_owned(),
            )
        })?;
        Ok(Figures {
            command: self.command.clone(),
            figures,
        })
    }
}

impl Figures {
    /// Tokens per second in a test.
    pub fn speed(&self, test: &Test) -> Outcome<f64> {
        let is_same = |f: &&Figure| {
            (f.n_prompt, f.n_gen, f.n_depth, f.n_parallel) == (test.n_prompt, test.n_gen, test.n_depth, test.n_parallel)
        };
        let speed = |f: &Figure| median(&f.samples_ts).or(f.avg_ts).filter(|speed| *speed > 0.0);
        let found = self.figures.iter().find(is_same).and_then(speed);
        found.ok_or_else(|| {
            Failure::new(format_args!(
                "--compare `{}`: it printed no speed for n_prompt {}, n_gen {}, n_depth {} and n_parallel {}",
                self.command, test.n_prompt, test.n_gen, test.n_depth, test.n_parallel
            ))
        })
    }
}

/// An array of tests, or one test in each line.
fn figures(text: &str) -> Option<Vec<Figure>> {
    let printed: Vec<Printed> = serde_json::from_str(text).unwrap_or_else(|_| {
        let lines = text.lines();
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    });
    let mut figures = Vec::new();
    for printed in printed {
        match printed {
            Printed::Batched(batched) => figures.extend(batched.figures()),
            Printed::Single(figure) => figures.push(figure),
        }
    }
    (!figures.is_empty()).then_some(figures)
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
    fn arrays_and_lines_are_read() {
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
            let found = figures(text);
            assert_eq!(found.is_some(), ok, "{text}");
            let Some(figures) = found else { continue };
            let figures = Figures {
                command: "x".to_owned(),
                figures,
            };
            assert_eq!(figures.speed(&test(512, 0)).unwrap(), 9.5);
            assert_eq!(figures.speed(&test(0, 64)).unwrap(), 4.0);
            assert!(figures.speed(&test(0, 32)).is_err());
        }
    }

    #[test]
    fn sequences_computed_together_are_read() {
        let text = r#"{"n_kv_max":4096,"pp":128,"tg":32,"pl":8,"n_kv":1280,"t_pp":2.0,"speed_pp":512.0,"t_tg":4.0,"speed_tg":64.0}"#;
        let figures = Figures {
            command: "x".to_owned(),
            figures: figures(&format!("main: n_kv_max = 4096\n{text}\n")).unwrap(),
        };
        let test = |n_prompt, n_gen, n_depth| Test {
            n_depth,
            n_parallel: 8,
            ..test(n_prompt, n_gen)
        };
        assert_eq!(figures.speed(&test(128, 0, 0)).unwrap(), 512.0);
        assert_eq!(figures.speed(&test(0, 32, 128)).unwrap(), 64.0);
        assert!(figures.speed(&test(0, 32, 0)).is_err());
    }

    #[test]
    fn a_command_that_fails_is_told_with_its_last_words() {
        let told = |command: &str| match Rival::new(command).run() {
            Err(Failure::Message(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(told("echo one >&2; echo two >&2; exit 3").ends_with("two"));
        assert!(told("echo hello").contains("n_prompt"));
    }
}
