//! Tests of downloads from unreliable hubs: stalls, truncation, wrong data, and redirects.

#[path = "../../../cli/tests/common/server.rs"]
mod server;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;
use server::{COMMIT, Reply, Request, Server, file, listing, range_start, redirection, response};

/// Returns contents that are large enough to need several reads.
fn content(seed: u8) -> Vec<u8> {
    (0..300_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed)
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    blob::hexadecimal(&Sha256::digest(bytes))
}

fn hub_at(address: &str, dir: &TempDir) -> Hub {
    let retry = RetryPolicy {
        connect: Duration::from_secs(5),
        read: Duration::from_millis(300),
        trickle: Duration::from_millis(400),
        attempts: 3,
        pause: Duration::from_millis(1),
        longest_pause: Duration::from_secs(5),
    };
    Hub {
        client: Client::new(address, Some("secret".into()), retry).expect("an address"),
        cache: Cache::new(dir.path().join("hub"), Some(dir.path().join("verified"))),
        offline: false,
        observer: Observer::default(),
        cancel: CancelHandle::new(),
    }
}

/// Starts a hub with one file, m-Q8_0.gguf, served by `answer`.
fn hub_of(dir: &TempDir, answer: impl Fn(&Request, &[u8]) -> Reply + Send + Sync + 'static) -> (Server, Hub) {
    let bytes = content(0);
    let server = Server::start(move |request| {
        if request.path.starts_with("/api/") {
            Reply::Bytes(listing(&[("m-Q8_0.gguf", &bytes, &sha256(&bytes))]))
        } else {
            answer(request, &bytes)
        }
    });
    let hub = hub_at(&server.address, dir);
    (server, hub)
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn message<T>(result: HubResult<T>) -> String {
    match result {
        Err(error) if error != HubError::Cancelled => error.to_string(),
        Err(other) => panic!("expected a message, got {other:?}"),
        Ok(_) => panic!("expected a message"),
    }
}

/// Returns the names of all files in a directory tree.
fn files_in(dir: &TempDir) -> Vec<String> {
    let (mut found, mut directories) = (Vec::new(), vec![dir.path().to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path())
            } else {
                found.push(entry.path().strip_prefix(dir.path()).unwrap().display().to_string())
            }
        }
    }
    found.sort();
    found
}

#[track_caller]
fn assert_no_usable_files(hub: &Hub, dir: &TempDir) {
    assert!(hub.cache.list().is_empty());
    let odd: Vec<_> = files_in(dir)
        .into_iter()
        .filter(|f| !f.contains(".locks") && !f.ends_with(".incomplete"))
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
}

#[test]
fn model_is_downloaded_once_into_shared_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |request, bytes| Reply::Bytes(file(request, bytes)));
    let path = hub.model(&name("u/r")).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), content(0));
    let hash = sha256(&content(0));
    let expected = [
        format!("hub/.locks/models--u--r/{hash}.lock"),
        format!("hub/models--u--r/blobs/{hash}"),
        "hub/models--u--r/refs/main".to_owned(),
        format!("hub/models--u--r/snapshots/{COMMIT}/m-Q8_0.gguf"),
        format!("verified/{hash}"),
    ];
    assert_eq!(files_in(&dir), expected);
    assert_eq!(
        std::fs::read_to_string(dir.path().join("hub/models--u--r/refs/main")).unwrap(),
        COMMIT
    );
    let n = server.requests("").len();
    assert_eq!(hub.model(&name("u/r:q8_0")).unwrap(), path);
    assert_eq!(server.requests("").len(), n, "a cached model needs no requests");
    let offline = Hub { offline: true, ..hub };
    assert_eq!(offline.model(&name("u/r")).unwrap(), path);
    assert!(message(offline.model(&name("u/other"))).contains("offline mode is on"));
    assert!(message(offline.pull(&name("u/r"))).contains("offline mode is on"));
}

#[test]
fn interrupted_download_resumes() {
    for stalls in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (server, hub) = hub_of(&dir, move |request, bytes| {
            let mut whole = file(request, bytes);
            if request.n_before < 2 {
                whole.truncate(whole.len().min(120_000));
                return if stalls {
                    Reply::Silence(whole)
                } else {
                    Reply::Bytes(whole)
                };
            }
            Reply::Bytes(whole)
        });
        let path = hub.model(&name("u/r")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content(0), "stalls: {stalls}");
        let starts: Vec<_> = server.requests("resolve").iter().map(range_start).collect();
        assert_eq!(starts.len(), 3, "{starts:?}");
        assert!(
            starts[0].is_none() && starts[1] > Some(100_000) && starts[2] > Some(200_000),
            "{starts:?}"
        );
    }
}

#[test]
fn partial_download_of_earlier_run_is_resumed_or_discarded() {
    for (beginning, verify) in [
        (content(0)[..1000].to_vec(), true),
        (vec![7; 1000], false),
        (vec![7; 400_000], false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (server, hub) = hub_of(&dir, |request, bytes| Reply::Bytes(file(request, bytes)));
        let blobs = dir.path().join("hub/models--u--r/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(format!("{}.incomplete", sha256(&content(0)))), &beginning).unwrap();
        assert_eq!(std::fs::read(hub.model(&name("u/r")).unwrap()).unwrap(), content(0));
        let requests = server.requests("resolve");
        assert_eq!(requests.len(), if beginning.len() == 1000 && !verify { 2 } else { 1 });
        assert_eq!(range_start(&requests[0]), (beginning.len() == 1000).then_some(1000));
    }
}

#[cfg(unix)]
#[test]
fn partial_download_that_is_a_link_or_a_pipe_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, hub) = hub_of(&dir, |request, bytes| Reply::Bytes(file(request, bytes)));
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let blobs = dir.path().join("hub/models--u--r/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.incomplete", sha256(&content(0))));
    std::os::unix::fs::symlink(&victim, part).unwrap();
    assert_eq!(std::fs::read(hub.model(&name("u/r")).unwrap()).unwrap(), content(0));
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    let dir = tempfile::tempdir().unwrap();
    let (_server, hub) = hub_of(&dir, |request, bytes| Reply::Bytes(file(request, bytes)));
    let locks = dir.path().join("hub/.locks/models--u--r");
    std::fs::create_dir_all(&locks).unwrap();
    let lock = locks.join(format!("{}.lock", sha256(&content(0))));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &lock,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(message(hub.model(&name("u/r"))).contains("cannot lock"));
}

#[test]
fn slow_download_is_aborted() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, hub) = hub_of(&dir, |request, bytes| {
        Reply::Trickle(file(request, bytes), 1000, Duration::from_millis(20))
    });
    let start = std::time::Instant::now();
    let text = message(hub.model(&name("u/r")));
    assert!(text.contains("received only"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn download_larger_than_free_space_is_rejected_before_start() {
    let dir = tempfile::tempdir().unwrap();
    let hash = "a".repeat(64);
    let server = Server::start(move |_| {
        let large = format!(
            r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "m.gguf", "lfs": {{"sha256": "{hash}", "size": {}}}}}]}}"#,
            1_u64 << 60
        );
        Reply::Bytes(response("200 OK", &[], large.as_bytes()))
    });
    let text = message(hub_at(&server.address, &dir).model(&name("u/r")));
    assert!(text.contains("free bytes"), "{text}");
    assert_eq!(server.requests("resolve").len(), 0);
}

#[test]
fn download_gives_up_after_retries() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |request, bytes| {
        let mut whole = file(request, bytes);
        whole.truncate(200);
        Reply::Bytes(whole)
    });
    let text = message(hub.model(&name("u/r")));
    assert!(text.contains("gave up after 3 attempts"), "{text}");
    assert_eq!(server.requests("resolve").len(), 3);
    assert_no_usable_files(&hub, &dir);
}

#[test]
fn download_restarts_without_range_support() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |request, bytes| {
        let mut whole = response("200 OK", &[], bytes);
        if request.n_before == 0 {
            whole.truncate(200_000);
        }
        Reply::Bytes(whole)
    });
    assert_eq!(std::fs::read(hub.model(&name("u/r")).unwrap()).unwrap(), content(0));
    assert!(range_start(&server.requests("resolve")[1]).is_some());
}

#[test]
fn download_rejects_wrong_range() {
    for wrong in ["bytes 5-299999/300000", "bytes */300000", "nonsense", "416"] {
        let dir = tempfile::tempdir().unwrap();
        let (_server, hub) = hub_of(&dir, move |request, bytes| {
            let mut whole = file(request, bytes);
            match request.n_before {
                0 => whole.truncate(150_000),
                1 if wrong == "416" => whole = response("416 Range Not Satisfiable", &[], b""),
                1 => whole = response("206 Partial Content", &[("Content-Range", wrong)], &bytes[5..]),
                _ => {}
            }
            Reply::Bytes(whole)
        });
        assert_eq!(
            std::fs::read(hub.model(&name("u/r")).unwrap()).unwrap(),
            content(0),
            "{wrong}"
        );
    }
}

#[test]
fn download_with_wrong_length_or_checksum_fails() {
    type Answer = fn(&[u8]) -> Vec<u8>;
    let cases: [(Answer, &str); 5] = [
        (
            |bytes| response("200 OK", &[], &bytes[1..]),
            "expected 300000 bytes, found 299999",
        ),
        (
            |bytes| response("200 OK", &[], &[bytes, b"x"].concat()),
            "expected 300000 bytes, found 300001",
        ),
        (
            |bytes| [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", bytes, b"xyz"].concat(),
            "more than the expected 300000 bytes",
        ),
        (|_| response("200 OK", &[], &content(1)), "expected SHA-256"),
        (
            |_| {
                response(
                    "206 Partial Content",
                    &[("Content-Range", "bytes 0-9/10")],
                    b"0123456789",
                )
            },
            "status 206",
        ),
    ];
    for (answer, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (_server, hub) = hub_of(&dir, move |_, bytes| Reply::Bytes(answer(bytes)));
        let text = message(hub.model(&name("u/r")));
        assert!(text.contains(expected), "{expected:?} in {text:?}");
        assert_no_usable_files(&hub, &dir);
    }
}

#[test]
fn token_is_not_sent_to_redirect_target() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content(0);
    let elsewhere = Server::start(move |request| Reply::Bytes(file(request, &bytes)));
    let to = elsewhere.address.clone();
    let (server, hub) = hub_of(&dir, move |request, _| {
        let path = &request.path;
        Reply::Bytes(if path.starts_with("/moved") {
            redirection(&format!("{to}/cdn"))
        } else {
            redirection("/moved")
        })
    });
    hub.model(&name("u/r")).unwrap();
    let token = |request: &Request| request.headers.get("authorization").cloned();
    for own in server.requests("") {
        assert_eq!(token(&own).as_deref(), Some("Bearer secret"), "{}", own.path);
    }
    assert_eq!(elsewhere.requests("/cdn").iter().map(token).collect::<Vec<_>>(), [None]);
}

#[test]
fn too_many_redirects_fail() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |_, _| Reply::Bytes(redirection("/again")));
    assert!(message(hub.model(&name("u/r"))).contains("too many redirects"));
    assert!(server.requests("/again").len() < 20);
    let (_server, hub) = hub_of(&dir, |_, _| Reply::Bytes(redirection("file:///etc/passwd")));
    assert!(message(hub.model(&name("u/r"))).contains("invalid redirect to"));
}

#[test]
fn rejected_request_error_suggests_remedy() {
    for (status, expected) in [
        ("404 Not Found", "model or file not found"),
        ("401 Unauthorized", "the token has no access"),
        ("403 Forbidden", "license"),
        ("418 I'm a teapot", "unexpected status 418"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(move |_| Reply::Bytes(response(status, &[], b"no")));
        let text = message(hub_at(&server.address, &dir).model(&name("u/r")));
        assert!(text.contains(expected), "{expected:?} in {text:?}");
        assert_eq!(server.requests("").len(), 1, "{status}");
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|_| Reply::Bytes(response("200 OK", &[], b"<html>please log in</html>")));
    assert!(message(hub_at(&server.address, &dir).model(&name("u/r"))).contains("unexpected response from the hub"));
}

#[test]
fn retry_after_header_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |request, bytes| {
        Reply::Bytes(match request.n_before {
            0 => response("429 Too Many Requests", &[("Retry-After", "0")], b""),
            1 => response("503 Service Unavailable", &[], b""),
            _ => file(request, bytes),
        })
    });
    hub.model(&name("u/r")).unwrap();
    assert_eq!(server.requests("resolve").len(), 3);
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |_, _| {
        Reply::Bytes(response("429 Too Many Requests", &[("Retry-After", "9999")], b""))
    });
    let text = message(hub.model(&name("u/r")));
    assert!(text.contains("429") && text.contains("9999 s"), "{text}");
    assert_eq!(server.requests("resolve").len(), 1);
}

#[test]
fn file_names_outside_of_directory_are_rejected() {
    for evil in [
        "../../evil.gguf",
        "/tmp/evil.gguf",
        "a/../../evil.gguf",
        "..\\\\evil.gguf",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let bytes = content(0);
        let server = Server::start(move |request| {
            if request.path.starts_with("/api/") {
                Reply::Bytes(listing(&[(evil, &bytes, &sha256(&bytes))]))
            } else {
                Reply::Bytes(file(request, &bytes))
            }
        });
        let text = message(hub_at(&server.address, &dir).model(&name("u/r")));
        assert!(text.contains("the path leaves the model directory"), "{text}");
        assert!(files_in(&dir).is_empty());
    }
    for invalid in [
        "../r", "u/..", "u/.r", "a/b/c", "u/r:..", "u/r:a/b", "u--x/r", "u/", "/r", "u", "u/r?x", "u/r%2e",
    ] {
        assert_eq!(Name::parse(invalid), None, "{invalid}");
    }
}

#[test]
fn sharded_model_is_complete_or_missing() {
    let dir = tempfile::tempdir().unwrap();
    let parts: Vec<(String, Vec<u8>)> = (1..=5)
        .map(|i| (format!("q/m-Q4_0-{i:05}-of-00005.gguf"), content(i)))
        .collect();
    let server = Server::start(move |request| {
        let files: Vec<_> = parts
            .iter()
            .map(|(p, b)| (p.as_str(), b.as_slice(), sha256(b)))
            .collect();
        let files: Vec<_> = files.iter().map(|(p, b, h)| (*p, *b, h.as_str())).collect();
        match files.iter().find(|(path, ..)| request.path.ends_with(path)) {
            // The last shard is missing on the first request.
            Some((path, ..)) if path.contains("00005-of") && request.n_before == 0 => {
                Reply::Bytes(response("404 Not Found", &[], b""))
            }
            Some((_, bytes, _)) => Reply::Bytes(file(request, bytes)),
            None => Reply::Bytes(listing(&files)),
        }
    });
    let hub = hub_at(&server.address, &dir);
    message(hub.model(&name("u/r")));
    assert!(hub.cache.list().is_empty(), "four of five shards are not a model");
    let path = hub.model(&name("u/r:Q4_0")).unwrap();
    assert!(path.ends_with("q/m-Q4_0-00001-of-00005.gguf"));
    let all = hub.cache.list();
    assert_eq!(
        all.iter()
            .map(|e| (e.name.to_string(), e.files.len(), e.bytes))
            .collect::<Vec<_>>(),
        [("u/r:Q4_0".into(), 5, 1_500_000)]
    );
    for (i, file) in all[0].files.iter().enumerate() {
        assert_eq!(std::fs::read(file).unwrap(), content(i as u8 + 1));
        assert_eq!(
            server.requests(file.file_name().unwrap().to_str().unwrap()).len(),
            if i == 4 { 2 } else { 1 }
        );
    }
}

#[test]
fn concurrent_downloads_share_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |request, bytes| Reply::Bytes(file(request, bytes)));
    let address = Arc::new(server.address.clone());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (address, dir) = (address.clone(), &dir);
            scope.spawn(move || {
                let path = hub_at(&address, dir).pull(&name("u/r")).unwrap();
                assert_eq!(std::fs::read(path).unwrap(), content(0));
            });
        }
    });
    assert_eq!(
        server.requests("resolve").len(),
        1,
        "one process downloads the file for all"
    );
    assert_eq!(hub.cache.list().len(), 1);
}

#[test]
fn modified_cache_file_is_downloaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |request, bytes| Reply::Bytes(file(request, bytes)));
    let path = hub.model(&name("u/r")).unwrap();
    let blob = path.canonicalize().unwrap();
    for wrong in [content(9), content(0)[..200_000].to_vec()] {
        std::fs::write(&blob, wrong).unwrap();
        assert_eq!(std::fs::read(hub.model(&name("u/r")).unwrap()).unwrap(), content(0));
    }
    assert_eq!(server.requests("resolve").len(), 3);
    // Files created by other programs are verified once.
    std::fs::remove_dir_all(dir.path().join("verified")).unwrap();
    hub.model(&name("u/r")).unwrap();
    assert_eq!(server.requests("resolve").len(), 3);
    assert!(dir.path().join("verified").join(sha256(&content(0))).exists());
}

#[test]
fn remove_keeps_blobs_of_other_models() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|request| {
        let (a, b) = (content(1), content(2));
        match &request.path {
            path if path.ends_with("m-Q8_0.gguf") => Reply::Bytes(file(request, &a)),
            path if path.ends_with("m-Q4_0.gguf") => Reply::Bytes(file(request, &b)),
            _ => Reply::Bytes(listing(&[
                ("m-Q8_0.gguf", &a, &sha256(&a)),
                ("m-Q4_0.gguf", &b, &sha256(&b)),
                ("same/odd.gguf", &b, &sha256(&b)),
            ])),
        }
    });
    let hub = hub_at(&server.address, &dir);
    hub.model(&name("u/r:Q8_0")).unwrap();
    hub.model(&name("u/r:Q4_0")).unwrap();
    hub.model(&name("u/r").with_file("same/odd.gguf")).unwrap();
    let names = || hub.cache.list().iter().map(|e| e.name.to_string()).collect::<Vec<_>>();
    assert_eq!(
        server.requests("resolve").len(),
        2,
        "identical content is stored in one blob"
    );
    assert_eq!(names().len(), 2);
    assert_eq!(hub.cache.remove(&name("u/r:Q5_0")).unwrap(), None);
    assert_eq!(
        hub.cache.remove(&name("u/r:q4_0")).unwrap(),
        Some(0),
        "the blob is still used under another name"
    );
    assert_eq!(names(), ["u/r same/odd.gguf", "u/r:Q8_0"]);
    assert_eq!(hub.cache.remove(&name("u/r")).unwrap(), Some(600_000));
    assert_eq!(hub.cache.remove(&name("u/r")).unwrap(), None);
    assert!(
        files_in(&dir).iter().all(|f| f.contains(".locks")),
        "{:?}",
        files_in(&dir)
    );
}

#[test]
fn short_names_parse_and_are_unique() {
    for (i, short) in SHORT_NAMES.iter().enumerate() {
        let means = Name::parse(short.means).unwrap_or_else(|| panic!("{}", short.name));
        assert_eq!(Name::parse(&short.name.to_ascii_uppercase()), Some(means));
        assert!(
            !SHORT_NAMES[..i].iter().any(|other| other.is(short.name)),
            "{} is a duplicate",
            short.name
        );
        assert_eq!(short.name, short.name.to_ascii_lowercase());
    }
}

#[test]
fn projector_is_downloaded_and_removed_with_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        ("m-Q8_0.gguf", content(0)),
        ("m-Q4_0.gguf", content(1)),
        ("mmproj-F16.gguf", content(2)),
        ("mmproj-F32.gguf", content(3)),
    ];
    let server = Server::start(move |request| {
        if request.path.starts_with("/api/") {
            let hashes: Vec<String> = files.iter().map(|(_, bytes)| sha256(bytes)).collect();
            let listed: Vec<_> = files
                .iter()
                .zip(&hashes)
                .map(|((name, bytes), hash)| (*name, &bytes[..], hash.as_str()))
                .collect();
            return Reply::Bytes(listing(&listed));
        }
        let found = files
            .iter()
            .find(|(name, _)| request.path.ends_with(name))
            .expect("a listed file");
        Reply::Bytes(file(request, &found.1))
    });
    let hub = hub_at(&server.address, &dir);
    // The projector alone.
    let alone = hub.projector(&name("u/r:Q8_0")).unwrap();
    assert_eq!(std::fs::read(&alone).unwrap(), content(2));
    assert!(hub.cache.find(&name("u/r:Q8_0")).is_none());
    let path = hub.pull(&name("u/r:Q8_0")).unwrap();
    assert_eq!(hub.projector(&name("u/r:Q8_0")).unwrap(), alone);
    let projector = path.with_file_name("mmproj-F16.gguf");
    assert_eq!(std::fs::read(&projector).unwrap(), content(2));
    assert!(!path.with_file_name("mmproj-F32.gguf").exists());
    assert_eq!(
        hub.cache.find(&name("u/r:Q8_0")).unwrap().projector,
        Some(projector.clone())
    );
    let listed: Vec<String> = hub
        .cache
        .list()
        .iter()
        .map(|entry| entry.path.file_name().unwrap().display().to_string())
        .collect();
    assert_eq!(listed.len(), 2, "{listed:?}");
    // A corrupt projector is downloaded again.
    let blob = std::fs::canonicalize(&projector).unwrap();
    std::fs::write(&blob, content(9)).unwrap();
    hub.model(&name("u/r:Q8_0")).unwrap();
    assert_eq!(std::fs::read(&projector).unwrap(), content(2));
    hub.pull(&name("u/r:Q4_0")).unwrap();
    hub.cache.remove(&name("u/r:Q8_0")).unwrap().unwrap();
    assert!(projector.exists());
    hub.cache.remove(&name("u/r:Q4_0")).unwrap().unwrap();
    assert!(hub.cache.list().is_empty() && !projector.exists());
}
