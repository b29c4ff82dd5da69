//! The commands of README.md and docs/guide.md.
//!
//! Every command runs, with tiny models of random weights in place of published ones. The ignored test runs
//! the commands with the published models and compares their output with the documents.

#![cfg(target_os = "linux")]

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::common::server::{Reply, Server, file, listing};
use crate::common::terminal::Terminal;
use crate::common::{Home, ended, root};

const DOCUMENTS: [&str; 2] = ["README.md", "docs/guide.md"];

/// The address that the documents use.
const ADDRESS: &str = "127.0.0.1:8080";

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Seconds after which a command fails.
const TIMEOUT: &str = "300";

/// Reasons why a command is not run.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Skip {
    /// Builds the workspace, which has just been done to run this test.
    Build,
    /// Downloads published models; the ignored test downloads them the same way.
    Download,
    /// Needs an NVIDIA GPU; where there is none, the command must fail.
    Gpu,
}

const SKIPPED: [(&str, Skip); 4] = [
    ("cargo test --release --workspace", Skip::Build),
    ("cargo install --path cli", Skip::Build),
    (
        "LLAMA_CACHE=. python3 tests/tools/fetch_models.py SmolLM2-135M-Instruct.Q4_1.gguf all-MiniLM-L6-v2.gguf",
        Skip::Download,
    ),
    (
        "llama run SmolLM2-135M-Instruct.Q4_1.gguf \"Hello\" --device cuda -ngl all",
        Skip::Gpu,
    ),
];

/// A command of a document and the output shown below it.
struct Example {
    at: String,
    command: String,
    output: Vec<String>,
}

/// Returns the commands in the `sh` and `console` blocks of a document. Blocks of `text` are not run: they show
/// commands with files of the reader.
fn examples(document: &str) -> Vec<Example> {
    let text = std::fs::read_to_string(root().join(document)).expect("the document is readable");
    let (mut found, mut language): (Vec<Example>, _) = (Vec::new(), None);
    for (i, line) in text.lines().enumerate() {
        let at = format!("{document}:{}", i + 1);
        let example = |command: &str| Example {
            at: at.clone(),
            command: command.to_owned(),
            output: Vec::new(),
        };
        match (language, line.strip_prefix("```")) {
            (None, Some(name)) => {
                assert!(
                    ["sh", "console", "rust", "json", "text"].contains(&name),
                    "{at}: unknown language of a block: {name:?}"
                );
                language = Some(name);
            }
            (Some(_), Some(_)) => language = None,
            (Some("sh"), None) => found.push(example(line)),
            (Some("console"), None) => match line.strip_prefix("$ ") {
                Some(command) => found.push(example(command)),
                None => found.last_mut().expect("a command").output.push(line.to_owned()),
            },
            _ => {}
        }
    }
    assert!(!found.is_empty(), "{document} has no commands");
    found
}

fn skip_of(command: &str) -> Option<Skip> {
    SKIPPED.iter().find(|(c, _)| *c == command).map(|(_, skip)| *skip)
}

/// A directory with the files that the documents use, a model hub, and the running server.
struct Session {
    home: Home,
    hub: Server,
    port: u16,
    server: Option<Child>,
    /// Whether the published models are used.
    published: bool,
}

impl Session {
    fn new(published: bool) -> Session {
        let home = Home::new();
        let tiny = home.model_with_text("llama", Some(TEMPLATE));
        let encoder = home.model("bert-dense", None);
        let (smollm2, minilm) = if published {
            let path = |name| tests::published::path(name);
            (path(tests::published::SMOLLM2), path(tests::published::MINILM))
        } else {
            (PathBuf::from(&tiny), PathBuf::from(&encoder))
        };
        link(&smollm2, &home.path(tests::published::SMOLLM2));
        link(&minilm, &home.path(tests::published::MINILM));
        link(Path::new(&encoder), &home.path("reranker.gguf"));
        link(&root().join("tests"), &home.path("tests"));
        std::fs::create_dir(home.path("bin")).expect("the directory is new");
        link(Path::new(env!("CARGO_BIN_EXE_llama")), &home.path("bin/llama"));
        write_program(&home.path("bin/llama-bench"), LLAMA_BENCH);
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        Session {
            hub: hub(&std::fs::read(tiny).expect("the model is readable")),
            home,
            port: port.expect("a free port").port(),
            server: None,
            published,
        }
    }

    /// Returns a shell that runs a command of a document, in the directory and with the environment of this
    /// session.
    fn bash(&self, command: &str) -> Command {
        self.shell(&["bash"], command)
    }

    /// Like [`Session::bash`], for a command that must end.
    fn bash_with_timeout(&self, command: &str) -> Command {
        self.shell(&["timeout", TIMEOUT, "bash"], command)
    }

    fn shell(&self, program: &[&str], command: &str) -> Command {
        let command = match command.strip_prefix("cargo run --release -- ") {
            Some(arguments) => format!("llama {arguments}"),
            None => command.to_owned(),
        };
        let command = command.replace(ADDRESS, &format!("127.0.0.1:{}", self.port));
        let command = command.replace("--port 8080", &format!("--port {}", self.port));
        let mut bash = Command::new(program[0]);
        bash.args(&program[1..]);
        bash.args(["-euo", "pipefail", "-c", &command]);
        for (name, value) in self.home.llama(&[]).get_envs() {
            match value {
                Some(value) => bash.env(name, value),
                None => bash.env_remove(name),
            };
        }
        let path = std::env::var("PATH").expect("PATH is set");
        bash.env("PATH", format!("{}:{path}", self.home.path("bin").display()))
            .env("HF_ENDPOINT", &self.hub.address)
            .env("NO_PROXY", "127.0.0.1")
            .current_dir(self.home.path(""))
            .stdin(Stdio::null());
        if !self.published {
            // A random model rarely ends its answer.
            bash.env("LLAMA_ARG_PREDICT", "32");
        }
        bash
    }

    /// Runs an example, and compares its output if the published models are used.
    fn run(&mut self, example: &Example) {
        let Example { at, command, output } = example;
        if command.starts_with("llama serve ") {
            return self.serve(at, command.trim_end_matches(" &"));
        }
        if output.iter().any(|line| line.starts_with("> ")) {
            return self.chat(example);
        }
        let skip = skip_of(command);
        let has_gpu = || {
            let devices = self
                .bash_with_timeout("llama devices")
                .output()
                .expect("bash runs")
                .stdout;
            String::from_utf8_lossy(&devices).lines().any(|l| l.starts_with("cuda"))
        };
        let must_fail = skip == Some(Skip::Gpu) && !has_gpu();
        if skip.is_some_and(|skip| skip != Skip::Gpu) {
            return;
        }
        let result = self.bash_with_timeout(command).output().expect("bash runs");
        let text = [result.stdout, result.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(
            result.status.success(),
            !must_fail,
            "{at}: {command}\n{}",
            text.concat()
        );
        let is_http_error = command.starts_with("curl ") && text[0].contains("\"error\":{");
        assert!(!is_http_error, "{at}: {command}\n{}", text[0]);
        if self.published {
            assert_shown(at, output, &text.concat());
        }
    }

    /// Stops the previous server, starts a new one, and waits until it accepts connections.
    fn serve(&mut self, at: &str, command: &str) {
        self.stop();
        let mut bash = self.bash(&format!("exec {command}"));
        let mut child = bash.process_group(0).spawn().expect("bash runs");
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let status = child.try_wait().expect("a child");
            assert!(status.is_none(), "{at}: the server ended: {status:?}");
            assert!(
                Instant::now() < deadline,
                "{at}: the server is not ready after a minute"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        self.server = Some(child);
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.server.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Types the lines after `> ` into a chat.
    fn chat(&self, example: &Example) {
        let mut terminal = Terminal::start(self.bash(&example.command));
        let mut seen = terminal.wait_for("> ");
        for line in example.output.iter().filter_map(|line| line.strip_prefix("> ")) {
            terminal.press(&format!("{line}\r"));
            if line == "/exit" {
                break;
            }
            seen += &terminal.wait_for("generated ");
            seen += &terminal.wait_for("> ");
        }
        assert!(terminal.end().success(), "{}", example.at);
        if self.published {
            let shown: Vec<_> = example
                .output
                .iter()
                .filter(|l| !l.starts_with("> "))
                .cloned()
                .collect();
            assert_shown(&example.at, &shown, &seen);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Prints what llama.cpp's `llama-bench -o json` prints for a prompt and a decode test.
const LLAMA_BENCH: &str = r#"#!/bin/sh
echo '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 100.0, "samples_ts": [100.0]},
 {"n_prompt": 0, "n_gen": 48, "avg_ts": 10.0, "samples_ts": [10.0]}]'
"#;

fn write_program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).expect("the directory is writable");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("the file is ours");
}

fn link(to: &Path, at: &Path) {
    let to = to.canonicalize().expect("the target exists");
    std::os::unix::fs::symlink(to, at).expect("the directory is writable");
}

/// Starts a model hub that has `model` in every repository.
fn hub(model: &[u8]) -> Server {
    let model = model.to_owned();
    let sha256: String = Sha256::digest(&model).iter().map(|b| format!("{b:02x}")).collect();
    Server::start(move |request| match request.path.as_str() {
        path if path.starts_with("/api/") => Reply::Bytes(listing(&[("model-Q8_0.gguf", &model, &sha256)])),
        _ => Reply::Bytes(file(request, &model)),
    })
}

/// Asserts that the lines of a document occur in this order in the real output. Every number of a document matches any
/// number, `…` any characters, and a line `…` any lines.
#[track_caller]
fn assert_shown(at: &str, document: &[String], real: &str) {
    let real: Vec<_> = real.lines().map(normalized).collect();
    let mut rest = &real[..];
    for line in document.iter().filter(|line| *line != "…") {
        let line = normalized(line);
        let Some(i) = rest.iter().position(|r| matches(r, &line)) else {
            panic!("{at}: no line {line:?} in the output:\n{}", real.join("\n"));
        };
        rest = &rest[i + 1..];
    }
}

/// Returns a line with `#` for every number, runs of spaces collapsed, and control sequences removed.
fn normalized(line: &str) -> String {
    let controls = regex_lite::Regex::new(r"\x1b\[[?0-9;]*[A-Za-z]|\r").expect("a pattern");
    let numbers = regex_lite::Regex::new(r"\d+(\.\d+)?").expect("a pattern");
    let spaces = regex_lite::Regex::new(r"\s+").expect("a pattern");
    // A progress bar is erased before the next output.
    let line = line.rsplit("\x1b[2K").next().unwrap_or_default();
    let line = controls.replace_all(line, "");
    let line = numbers.replace_all(&line, "#");
    spaces.replace_all(line.trim(), " ").into_owned()
}

fn matches(real: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('…') else {
        return real == pattern;
    };
    let (middle, last) = rest.rsplit_once('…').unwrap_or(("", rest));
    let Some(mut real) = real.strip_prefix(first).and_then(|real| real.strip_suffix(last)) else {
        return false;
    };
    middle.split('…').all(|piece| {
        let found = real.split_once(piece);
        real = found.map_or("", |(_, rest)| rest);
        found.is_some()
    })
}

fn run_all(published: bool) {
    for document in DOCUMENTS {
        let mut session = Session::new(published);
        for example in examples(document) {
            session.run(&example);
        }
    }
}

#[test]
fn commands_of_documents_run() {
    run_all(false);
}

#[test]
#[ignore = "downloads two models, 190 MB"]
fn commands_of_documents_print_the_output_shown() {
    run_all(true);
}

/// Unlike times, the figures of a plan hold on every machine, because the example selects the instruction set.
#[test]
fn plan_of_guide_is_exact() {
    let all = examples("docs/guide.md");
    let example = all.iter().find(|e| e.command.contains("--plan")).expect("a plan");
    let args = example
        .command
        .strip_prefix("LLAMA_CPU_ISA=avx2 llama ")
        .expect("an instruction set");
    let args: Vec<&str> = args.split(' ').collect();
    let mut command = Home::new().llama(&args);
    command.env("LLAMA_CPU_ISA", "avx2").current_dir(root());
    let ended = ended(command);
    let real: Vec<&str> = ended.succeeds().lines().collect();
    let shown: Vec<&str> = example
        .output
        .iter()
        .map(String::as_str)
        .filter(|line| *line != "…")
        .collect();
    assert!(shown.len() > 5 && real.starts_with(&shown), "{shown:#?}\n{real:#?}");
}

#[test]
fn skipped_commands_are_in_a_document() {
    let all: Vec<_> = DOCUMENTS.iter().flat_map(|document| examples(document)).collect();
    for (command, skip) in SKIPPED {
        assert!(all.iter().any(|e| e.command == command), "no document has {command:?}");
        let needs_it = match skip {
            Skip::Build => command.starts_with("cargo "),
            Skip::Download => command.contains("fetch_models.py"),
            Skip::Gpu => command.contains("cuda"),
        };
        assert!(needs_it, "{command:?} could run ({skip:?})");
    }
}
