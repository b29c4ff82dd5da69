//! Tests that kill processes and fill disks while files are written, and tests of an idle server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Home, ended};
use crate::serve::Serving;

/// Effect of exceeding the file size limit.
#[derive(Clone, Copy, PartialEq)]
pub enum Full {
    /// The write fails, as on a full disk.
    Fails,
    /// The process is killed.
    Kills,
}

/// Limits the size of files that the command can write.
pub fn limited(mut command: Command, bytes: u64, full: Full) -> Command {
    let set = move || {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        let action = match full {
            Full::Fails => libc::SIG_IGN,
            Full::Kills => libc::SIG_DFL,
        };
        // SAFETY: `signal` and `setrlimit` are async-signal-safe and only change the state of the child
        // process.
        match unsafe {
            (
                libc::signal(libc::SIGXFSZ, action),
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit),
            )
        } {
            (libc::SIG_ERR, _) | (_, -1) => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure does not allocate or lock.
    unsafe { command.pre_exec(set) };
    command
}

/// A model, a directory for slots, and a server command.
struct Slots {
    home: Home,
    model: String,
    directory: PathBuf,
}

impl Slots {
    fn new() -> Slots {
        let home = Home::new();
        let directory = home.path("slots");
        std::fs::create_dir(&directory).expect("a directory");
        Slots {
            model: home.model_with_text("llama", None),
            directory,
            home,
        }
    }

    fn command(&self) -> Command {
        let directory = self.directory.to_str().expect("UTF-8");
        let base = [
            "serve",
            &self.model,
            "--port",
            "0",
            "-c",
            "4096",
            "-np",
            "1",
            "--no-webui",
        ];
        self.home.llama(&[&base[..], &["--slot-save-path", directory]].concat())
    }

    /// Fills slot 0 with a long prompt.
    fn fill(server: &Serving) {
        let body = format!(
            "{{\"prompt\": \"{}\", \"max_tokens\": 1}}",
            "once upon a time ".repeat(200)
        );
        let response = server.request("POST /v1/completions", &body);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }

    fn ask(server: &Serving, action: &str, name: &str) -> String {
        let head = format!("POST /slots/0?action={action}");
        server.request(&head, &format!("{{\"filename\": \"{name}\"}}"))
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.directory).expect("a directory");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }

    fn len(&self, name: &str) -> u64 {
        std::fs::metadata(self.directory.join(name)).map_or(0, |file| file.len())
    }
}

/// A killed save leaves the previous slot file intact; a new file is either complete or absent.
#[test]
fn slot_file_is_complete_or_absent_after_kill() {
    let slots = Slots::new();
    let server = Serving::start(slots.command());
    Slots::fill(&server);
    assert!(Slots::ask(&server, "save", "first").starts_with("HTTP/1.1 200"));
    let whole = std::fs::read(slots.directory.join("first")).expect("a file");
    assert!(
        whole.len() > 100_000,
        "{} bytes are enough to interrupt the write",
        whole.len()
    );
    server.signal(libc::SIGKILL);
    assert_eq!(server.end().0, None);
    // The limit interrupts the write in the middle of an existing file and of a new one.
    for name in ["first", "second"] {
        let server = Serving::start(limited(slots.command(), whole.len() as u64 / 2, Full::Kills));
        Slots::fill(&server);
        let mut stream = TcpStream::connect(&server.address).expect("a connection");
        let body = format!("{{\"filename\": \"{name}\"}}");
        write!(
            stream,
            "POST /slots/0?action=save HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("the server reads");
        let mut response = String::new();
        // The server dies before it responds.
        let _ = stream.read_to_string(&mut response);
        assert_eq!((response.as_str(), server.end().0), ("", None));
    }
    assert!(std::fs::read(slots.directory.join("first")).expect("a file") == whole);
    assert_eq!(slots.len("second"), 0);
    let n_left = || slots.names().iter().filter(|name| name.ends_with(".tmp")).count();
    assert_eq!(n_left(), 2, "{:?}", slots.names());
    let server = Serving::start(slots.command());
    assert!(Slots::ask(&server, "restore", "first").starts_with("HTTP/1.1 200"));
    assert!(Slots::ask(&server, "restore", "second").starts_with("HTTP/1.1 4"));
    // The next save removes leftover temporary files.
    Slots::fill(&server);
    for (name, n) in [("first", 1), ("second", 0)] {
        assert!(Slots::ask(&server, "save", name).starts_with("HTTP/1.1 200"));
        assert_eq!(n_left(), n, "{:?}", slots.names());
    }
    assert_eq!(slots.names(), ["first", "second"]);
}

/// Slot files are complete or absent after SIGKILL at random times.
#[test]
fn slot_file_is_complete_or_absent_after_random_kills() {
    let slots = Slots::new();
    let server = Serving::start(slots.command());
    Slots::fill(&server);
    assert!(Slots::ask(&server, "save", "first").starts_with("HTTP/1.1 200"));
    server.signal(libc::SIGKILL);
    for round in 0..6 {
        let server = Serving::start(slots.command());
        assert!(Slots::ask(&server, "restore", "first").starts_with("HTTP/1.1 200"));
        let before = slots.names();
        let mut stream = TcpStream::connect(&server.address).expect("a connection");
        let head = "POST /slots/0?action=save HTTP/1.1\r\nHost: localhost\r\nContent-Length: 21";
        write!(stream, "{head}\r\n\r\n{{\"filename\": \"other\"}}").expect("the server reads");
        // Kill the server when a new file appears, or slightly later.
        let start = Instant::now();
        while slots.names().iter().all(|name| before.contains(name)) && start.elapsed() < Duration::from_secs(10) {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_micros(100 * round));
        server.signal(libc::SIGKILL);
        assert_eq!(server.end().0, None);
        let found = slots.len("other");
        assert!([0, slots.len("first")].contains(&found), "{found} bytes");
        if found > 0 {
            let server = Serving::start(slots.command());
            assert!(Slots::ask(&server, "restore", "other").starts_with("HTTP/1.1 200"));
            std::fs::remove_file(slots.directory.join("other")).expect("a file");
        }
    }
}

#[test]
fn full_disk_only_fails_slot_save() {
    let slots = Slots::new();
    let server = Serving::start(limited(slots.command(), 50_000, Full::Fails));
    Slots::fill(&server);
    let refused = Slots::ask(&server, "save", "first");
    assert!(
        refused.starts_with("HTTP/1.1 4") && refused.contains("first") && refused.contains("too large"),
        "{refused}"
    );
    assert_eq!(slots.names(), [""; 0], "no file remains");
    // The server keeps responding, and a smaller slot can be saved.
    Slots::fill(&server);
    assert!(
        server
            .request("POST /slots/0?action=erase", "")
            .starts_with("HTTP/1.1 200")
    );
    let short = server.request("POST /v1/completions", "{\"prompt\": \"once\", \"max_tokens\": 2}");
    assert!(short.starts_with("HTTP/1.1 200"), "{short}");
    let saved = Slots::ask(&server, "save", "short");
    assert!(saved.starts_with("HTTP/1.1 200"), "{saved}");
    assert_eq!(slots.names(), ["short"]);
}

#[test]
fn full_disk_leaves_no_synthetic_model() {
    let home = Home::new();
    let output = home.path("out.gguf").to_str().expect("UTF-8").to_owned();
    let command = || home.llama(&["synth", "--shape", "tiny", "--type", "q8_0", "-o", &output]);
    let names = || {
        let files = std::fs::read_dir(home.path("")).expect("a directory").flatten();
        files.map(|file| file.file_name()).collect::<Vec<_>>()
    };
    let before = names();
    ended(limited(command(), 100_000, Full::Fails)).fails_saying(&["out.gguf", "too large"]);
    assert_eq!(names(), before);
    ended(command()).succeeds();
    assert!(Path::new(&output).exists());
}

/// Signals of service managers and of closed terminals leave no incomplete file. The status is that of the signal.
#[test]
fn signals_leave_no_incomplete_model() {
    let home = Home::new();
    let model = home.path("large.gguf").to_str().expect("UTF-8").to_owned();
    let shape = ["--shape", "135m", "--set", "n_layer=6", "--type", "f16"];
    ended(home.llama(&[&["synth"], &shape[..], &["-o", &model]].concat())).succeeds();
    let directory = home.path("outputs");
    std::fs::create_dir(&directory).expect("a directory");
    let output = directory.join("out.gguf").to_str().expect("UTF-8").to_owned();
    let is_empty = || std::fs::read_dir(&directory).expect("a directory").next().is_none();
    for (signal, code) in [
        (libc::SIGINT, Some(130)),
        (libc::SIGTERM, None),
        (libc::SIGHUP, None),
        (libc::SIGQUIT, None),
    ] {
        let mut command = home.llama(&["quantize", &model, &output, "iq3_s", "-t", "1"]);
        with_default_signals(&mut command);
        let mut child = command.stderr(Stdio::null()).spawn().expect("llama");
        while is_empty() {
            assert!(child.try_wait().expect("a status").is_none(), "the process ended early");
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: `kill` has no preconditions.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        let status = child.wait().expect("a status");
        let expected = code.map_or(Some(signal), |_| None);
        assert_eq!((status.code(), status.signal()), (code, expected));
        assert!(is_empty(), "signal {signal} leaves an incomplete file");
    }
}

/// Disables core dumps, and resets signals that `nohup` and background jobs of shells ignore.
fn with_default_signals(command: &mut Command) {
    let set = || {
        let limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the functions are async-signal-safe and only change the state of the child process.
        unsafe {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            libc::signal(libc::SIGQUIT, libc::SIG_DFL);
            libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
        }
        Ok(())
    };
    // SAFETY: the closure does not allocate or lock.
    unsafe { command.pre_exec(set) };
}

/// A batch stops on a full disk with at most one partial line, and resumes from there.
#[test]
fn batch_resumes_after_full_disk() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let (input, output) = (home.path("in.jsonl"), home.path("out.jsonl"));
    let line = |i: usize| {
        format!(
            "{{\"custom_id\": \"c{i}\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {{\"prompt\": \"hello\", \"max_tokens\": 3}}}}\n"
        )
    };
    std::fs::write(&input, (0..30).map(line).collect::<String>()).expect("a file");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (from, to) = (text(&input), text(&output));
    let command = || home.llama(&["batch", "-m", &model, &from, &to, "-c", "256"]);
    let full = ended(limited(command(), 5_000, Full::Fails));
    assert!(
        full.status == 1 && full.err.contains("out.jsonl") && full.err.contains("too large"),
        "{}",
        full.err
    );
    let written = std::fs::read_to_string(&output).expect("a file");
    assert_eq!(written.len(), 5_000);
    let n_whole = written.matches('\n').count();
    assert!(n_whole > 2);
    ended(command()).succeeds();
    let all = std::fs::read_to_string(&output).expect("a file");
    let whole = written.rsplit_once('\n').expect("a line").0;
    assert!(all.starts_with(whole), "finished requests are not repeated");
    let mut ids: Vec<String> = all
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["custom_id"].to_string())
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), all.lines().count()), (30, 30));
    // Devices cannot be resumed and may be endless.
    for device in ["/dev/full", "/dev/zero"] {
        let refused = ended(home.llama(&["batch", "-m", &model, &from, device]));
        refused.fails_saying(&[device, "expected a regular file"]);
    }
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "observes a server for ten seconds"]
fn idle_server_uses_no_cpu_time() {
    let home = Home::new();
    let model = home.model_with_text("llama", None);
    let mut command = home.llama(&["serve", &model, "--port", "0", "-c", "256", "--prompt-lookup"]);
    command.stdin(Stdio::null());
    let server = Serving::start(command);
    // An open connection and an earlier request must not keep the server busy.
    let _open = TcpStream::connect(&server.address).expect("a connection");
    let answer = server.request("POST /v1/completions", "{\"prompt\": \"once\", \"max_tokens\": 8}");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    std::thread::sleep(Duration::from_secs(1));
    // User and system time in hundredths of a second.
    let time = || {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", server.child.id())).expect("the process runs");
        let (_, rest) = text.rsplit_once(')').expect("the process name is in parentheses");
        let fields: Vec<i64> = rest.split(' ').filter_map(|field| field.parse().ok()).collect();
        // Numeric fields after the state: utime and stime, fields 14 and 15 of the file.
        fields[10] + fields[11]
    };
    let before = time();
    std::thread::sleep(Duration::from_secs(10));
    let used = time() - before;
    assert!(used <= 1, "used {used} hundredths of a second in ten seconds");
}
