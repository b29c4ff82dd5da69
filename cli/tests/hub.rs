//! Tests of models by name with a fake hub: pull, run, list, show, and remove.

use std::process::Command;

use sha2::{Digest, Sha256};

use crate::common::server::{COMMIT, Reply, Server, file, listing, response};
use crate::common::{Ended, Home, ended};

const SHORT: [&str; 5] = ["--temp", "0", "-n", "4", "--no-stats"];

/// A hub that serves a tiny model as m-Q8_0.gguf in every repository.
struct TinyHub {
    home: Home,
    server: Server,
    /// Path of the same model as a local file.
    model: String,
}

impl TinyHub {
    fn new() -> TinyHub {
        let home = Home::new();
        let model = home.model("llama-dense", None);
        let bytes = std::fs::read(&model).unwrap();
        let sha256: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        let server = Server::start(move |request| match request.path.as_str() {
            path if path.contains("/none/") => Reply::Bytes(response("404 Not Found", &[], b"")),
            path if path.starts_with("/api/") => Reply::Bytes(listing(&[("m-Q8_0.gguf", &bytes, &sha256)])),
            path if path.ends_with("slow.gguf") => {
                std::thread::sleep(std::time::Duration::from_millis(300));
                Reply::Bytes(file(request, &bytes))
            }
            path if path.ends_with("torn.gguf") => Reply::Bytes(file(request, &bytes[..bytes.len() - 7])),
            _ => Reply::Bytes(file(request, &bytes)),
        });
        TinyHub { home, server, model }
    }

    fn llama(&self, args: &[&str]) -> Command {
        let mut command = self.home.llama(args);
        command.env("HF_ENDPOINT", &self.server.address);
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        ended(self.llama(&[args, &SHORT].concat()))
    }
}

#[test]
fn model_name_replaces_file_in_all_commands() {
    let hub = TinyHub::new();
    let expected = ended(hub.home.llama(&[&["run", &hub.model, "abc"], &SHORT[..]].concat()))
        .succeeds()
        .to_owned();
    for args in [
        &["run", "user/repo", "abc"][..],
        &["run", "user/repo:Q8_0", "abc"],
        &["run", "-m", "user/repo", "-p", "abc"],
        &["-hf", "user/repo", "-p", "abc"],
        &["run", "-hf", "user/repo:q8_0", "abc"],
        &["run", "-hf", "user/repo", "-hff", "m-Q8_0.gguf", "abc"],
        &["run", "qwen3:0.6b", "abc"],
        &["run", "--offline", "user/repo", "abc"],
        &["run", "-mu", &format!("{}/elsewhere/m.gguf", hub.server.address), "abc"],
        &[
            "run",
            "-mu",
            &format!("{}/user/repo/resolve/main/m-Q8_0.gguf", hub.server.address),
            "abc",
        ],
    ] {
        assert_eq!(hub.run(args).succeeds(), expected, "{args:?}");
    }
    assert_eq!(hub.server.requests("/user/repo/resolve/").len(), 1);
    assert_eq!(
        hub.server
            .requests("/Qwen/")
            .iter()
            .filter(|r| r.path.contains("resolve"))
            .count(),
        1
    );
    let ids = |model: &str| {
        ended(hub.llama(&["tokenize", "--ids", "-m", model, "abc"]))
            .succeeds()
            .to_owned()
    };
    assert_eq!(ids("user/repo"), ids(&hub.model));
    let shown = ended(hub.llama(&["show", "user/repo"]));
    assert!(shown.succeeds().contains(COMMIT), "{}", shown.out);
}

#[test]
fn concurrent_downloads_of_a_url_share_one_file() {
    let hub = TinyHub::new();
    let url = format!("{}/slow.gguf", hub.server.address);
    let start = || {
        let mut command = hub.llama(&["pull", "-mu", &url]);
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    for process in [start(), start()] {
        let output = process.wait_with_output().unwrap();
        let path = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            std::fs::read(path.trim_end()).unwrap(),
            std::fs::read(&hub.model).unwrap()
        );
    }
    // The first process requests the length and the data, and the second one waits.
    assert_eq!(hub.server.requests("/slow.gguf").len(), 2);
    let named = ended(hub.llama(&["pull", &url]));
    named.fails_saying(&["pass a URL with -mu"]);
}

#[test]
fn pulled_model_is_listed_and_removed() {
    let hub = TinyHub::new();
    let pulled = ended(hub.llama(&["pull", "user/repo", "smollm2:360m"]));
    assert_eq!(pulled.succeeds().lines().count(), 2);
    let first = pulled.out.lines().next().unwrap();
    assert_eq!(std::fs::read(first).unwrap(), std::fs::read(&hub.model).unwrap());
    assert!(pulled.err.contains("downloading user/repo"), "{}", pulled.err);
    let list = ended(hub.llama(&["list"]));
    assert!(
        list.succeeds()
            .contains("HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0")
            && list.out.contains("user/repo:Q8_0"),
        "{}",
        list.out
    );
    let json = ended(hub.llama(&["ls", "--json"]));
    let rows: serde_json::Value = serde_json::from_str(json.succeeds()).unwrap();
    assert_eq!(
        (rows[1]["name"].as_str(), rows[1]["path"].as_str()),
        (Some("user/repo:Q8_0"), Some(first))
    );
    let removed = ended(hub.llama(&["rm", "user/repo:Q8_0"]));
    assert!(removed.err.contains("removed user/repo:Q8_0"), "{}", removed.err);
    assert!(!ended(hub.llama(&["list"])).succeeds().contains("user/repo"));
    for name in ["user/repo", "file.txt"] {
        ended(hub.llama(&["rm", name])).fails_saying(&["cannot remove", name, "not a downloaded model"]);
    }
    hub.run(&["run", "--offline", "user/repo", "abc"])
        .fails_saying(&["--offline"]);
}

#[test]
fn failed_downloads_print_one_error() {
    let hub = TinyHub::new();
    for (args, told) in [
        (&["run", "none/none", "abc"][..], "404"),
        (&["run", "user/repo:Q2_K", "abc"], "has no Q2_K; available: Q8_0"),
        (
            &["run", "-hf", "user/repo", "-hff", "x.gguf", "abc"],
            "available: m-Q8_0.gguf",
        ),
        (&["run", "-hf", "no name", "abc"], "user/repo:QUANT"),
        (&["run", "qwen3:06b", "abc"], "qwen3:0.6b"),
        (
            &["run", "-m", "user/repo", "-hf", "user/repo", "abc"],
            "only one model can be loaded",
        ),
        (
            &["run", "-mu", &format!("{}/torn.gguf", hub.server.address), "abc"],
            "not a complete model",
        ),
        (
            &["run", "-mu", &format!("{}/x.zip", hub.server.address), "abc"],
            "ends in the name of a GGUF file",
        ),
    ] {
        let refused = hub.run(args);
        assert_eq!(
            (refused.status, refused.out.as_str()),
            (1, ""),
            "{args:?}: {}",
            refused.err
        );
        let error = refused.err.lines().find(|line| line.starts_with("error: "));
        assert!(error.is_some_and(|e| e.contains(told)), "{told:?} in {}", refused.err);
    }
    let list = ended(hub.llama(&["list"]));
    assert_eq!(list.succeeds().lines().count(), 1, "nothing is cached: {}", list.out);
}

/// A hub model of a preset file is downloaded on first use. A missing model only fails its own requests.
#[cfg(target_os = "linux")]
#[test]
fn preset_hub_model_is_downloaded_on_first_use() {
    use crate::serve::Serving;
    let hub = TinyHub::new();
    let presets = hub.home.path("models.ini");
    std::fs::write(
        &presets,
        "[*]\nc = 64\n[far]\nhf-repo = user/repo:Q8_0\n[gone]\nhf-repo = none/repo\n",
    )
    .unwrap();
    let args = [
        "serve",
        "--models-preset",
        presets.to_str().unwrap(),
        "--port",
        "0",
        "-n",
        "3",
    ];
    let answer = |server: &Serving, model: &str| {
        server.request(
            "POST /v1/completions",
            &format!("{{\"model\": \"{model}\", \"prompt\": [5, 6]}}"),
        )
    };
    let server = Serving::start(hub.llama(&args));
    let listed = server.request("GET /v1/models", "");
    assert!(listed.contains("\"far\"") && listed.contains("\"gone\""), "{listed}");
    assert_eq!(hub.server.requests("").len(), 0, "listing models downloads nothing");
    let gone = answer(&server, "gone");
    assert!(gone.starts_with("HTTP/1.1 422") && gone.contains("none/repo"), "{gone}");
    let answered = answer(&server, "far");
    assert!(
        answered.starts_with("HTTP/1.1 200") && answered.contains("\"model\":\"far\""),
        "{answered}"
    );
    assert_eq!(hub.server.requests("m-Q8_0.gguf").len(), 1);
    server.signal(libc::SIGTERM);
    assert_eq!(server.end().0, Some(0));
    // The downloaded model works without the hub.
    let offline = Serving::start(hub.llama(&[&args[..], &["--offline"]].concat()));
    assert!(answer(&offline, "far").starts_with("HTTP/1.1 200"));
    offline.signal(libc::SIGTERM);
    assert_eq!(offline.end().0, Some(0));
    assert_eq!(hub.server.requests("m-Q8_0.gguf").len(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn ps_lists_processes_with_models() {
    use crate::common::terminal::Terminal;
    let hub = TinyHub::new();
    let mut chat = Terminal::start(hub.llama(&["run", "user/repo"]));
    chat.wait_for("Type /help for commands");
    let ps = ended(hub.llama(&["ps", "--json"]));
    let rows: serde_json::Value = serde_json::from_str(ps.succeeds()).unwrap();
    let is_ours = |row: &serde_json::Value| {
        row["pid"] == chat.id() && row["command"] == "run" && row["model"] == "user/repo:Q8_0"
    };
    assert!(rows.as_array().unwrap().iter().any(is_ours), "{rows}");
    assert!(ended(hub.llama(&["ps"])).succeeds().contains("user/repo:Q8_0"));
    chat.press("/exit\r");
    assert!(chat.end().success());
}
