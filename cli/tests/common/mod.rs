//! Helpers of the tests of the binary: running it, tiny models, a terminal.

#[allow(dead_code, reason = "the tests of hubs in the crate use the rest")]
pub mod server;
#[cfg(unix)]
pub mod terminal;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use engine::gguf::{Gguf, seeded};
use tempfile::TempDir;

/// Where the headers and recorded logits are.
pub fn fixtures() -> PathBuf {
    root().join("tests/data/archs")
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A folder that a test owns: files, cache and history go there and nowhere else.
pub struct Home(TempDir);

impl Home {
    pub fn new() -> Home {
        Home(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The binary, with everything that it would look for in the user's home folder looked for here. No host can be
    /// reached.
    pub fn llama(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llama"));
        command
            .args(args)
            .stdin(Stdio::null())
            .env("HOME", self.0.path())
            .env("TERM", "xterm");
        for name in [
            "LLAMA_CACHE",
            "XDG_CACHE_HOME",
            "XDG_STATE_HOME",
            "HF_HOME",
            "HF_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HF_ENDPOINT",
            "SSL_CERT_FILE",
            "NO_PROXY",
            "no_proxy",
        ] {
            command.env_remove(name);
        }
        for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
            command.env(name, "http://127.0.0.1:1");
        }
        command
    }

    /// Writes the seeded model of a recorded configuration, and returns its path. `template`: its chat template.
    pub fn model(&self, config: &str, template: Option<&str>) -> String {
        let mut header = Gguf::open_header(fixtures().join(format!("{config}.header.gguf"))).expect("a header");
        if let Some(template) = template {
            header.metadata.insert("tokenizer.chat_template", template);
        }
        let path = self.path(&format!("{config}.gguf"));
        std::fs::write(&path, seeded::seeded_model(&header, 1).expect("a tiny model")).expect("writing a model");
        path.into_os_string().into_string().expect("a UTF-8 path")
    }

    /// The same with a vocabulary of characters, of 128 tokens, for `model` "llama" or "gpt2": 0 to 2 are no text, 2 is the end, and the
    /// last two are tags of reasoning, as control tokens.
    pub fn model_with_text(&self, model: &str, template: Option<&str>) -> String {
        let path = self.path(&format!("{model}-text.gguf"));
        std::fs::write(&path, ::tests::text_model(model, template)).expect("writing a model");
        path.into_os_string().into_string().expect("a UTF-8 path")
    }
}

/// What a run printed and how it ended.
pub struct Ended {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// Asserts a failure of status 1 that says one sentence holding each part; nothing is on standard output.
    #[track_caller]
    pub fn fails_saying(&self, parts: &[&str]) {
        assert_eq!((self.status, self.out.as_str()), (1, ""), "{}", self.err);
        assert!(
            self.err.starts_with("error: ") && self.err.trim_end().lines().count() == 1,
            "{}",
            self.err
        );
        for part in parts {
            assert!(self.err.contains(part), "{part:?} in {:?}", self.err);
        }
    }

    /// Asserts success, and returns standard output.
    #[track_caller]
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.status, 0, "{}", self.err);
        &self.out
    }
}

/// Runs to the end.
pub fn ended(mut command: Command) -> Ended {
    finished(command.output().expect("the binary runs"))
}

/// Runs to the end with this on standard input.
pub fn ended_with_input(mut command: Command, input: &str) -> Ended {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may end without reading all, or anything.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    finished(child.wait_with_output().expect("the binary ends"))
}

fn finished(output: Output) -> Ended {
    Ended {
        status: output.status.code().expect("no signal"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}
