//! Test helpers: running the binary, tiny models, and a pseudo-terminal.

#[allow(dead_code, reason = "unit tests of the hub use the rest")]
pub mod server;
#[cfg(unix)]
pub mod terminal;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use engine::gguf::{Gguf, seeded};
use tempfile::TempDir;

/// Returns the directory of headers and recorded logits.
pub fn fixtures() -> PathBuf {
    root().join("tests/data/archs")
}

/// Returns the workspace root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A temporary home directory for files, caches, and history.
pub struct Home(TempDir);

impl Home {
    pub fn new() -> Home {
        Home(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a command with this home directory and without network access.
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
            "XDG_CONFIG_HOME",
            "XDG_STATE_HOME",
            "LLAMA_ARCHS",
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

    /// Writes the seeded model of a recorded configuration with an optional chat template, and returns its
    /// path.
    pub fn model(&self, config: &str, template: Option<&str>) -> String {
        let mut header = Gguf::open_header(fixtures().join(format!("{config}.header.gguf"))).expect("a header");
        if let Some(template) = template {
            header.metadata.insert("tokenizer.chat_template", template);
        }
        let path = self.path(&format!("{config}.gguf"));
        std::fs::write(&path, seeded::seeded_model(&header, 1).expect("a tiny model")).expect("writing a model");
        path.into_os_string().into_string().expect("a UTF-8 path")
    }

    /// Like [`Home::model`], with a character vocabulary of 128 tokens for the tokenizer model "llama" or
    /// "gpt2". Tokens 0 to 2 are special, 2 is EOS, and the last two are reasoning tags.
    pub fn model_with_text(&self, model: &str, template: Option<&str>) -> String {
        let path = self.path(&format!("{model}-text.gguf"));
        std::fs::write(&path, ::tests::text_model(model, template)).expect("writing a model");
        path.into_os_string().into_string().expect("a UTF-8 path")
    }
}

/// Exit status and output of a process.
pub struct Ended {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// Asserts exit status 1, empty standard output, and an error message that contains each part.
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

    /// Asserts success and returns standard output.
    #[track_caller]
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.status, 0, "{}", self.err);
        &self.out
    }
}

/// Runs a command to completion.
pub fn ended(mut command: Command) -> Ended {
    finished(command.output().expect("the binary runs"))
}

/// Runs a command to completion with the given standard input.
pub fn ended_with_input(mut command: Command, input: &str) -> Ended {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // The process may exit before reading all input.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    finished(child.wait_with_output().expect("the binary exits"))
}

fn finished(output: Output) -> Ended {
    Ended {
        status: output.status.code().expect("no signal"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}
