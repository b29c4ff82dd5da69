//! Fetching from hubs that stall, cut, lie and redirect: what ends in the cache, what does not, and what is said.

#[path = "../../tests/common/server.rs"]
mod server;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;
use server::{COMMIT, Reply, Request, Server, file, listing, range_start, redirection, response};

/// Long enough for several reads.
fn content(seed: u8) -> Vec<u8> {
    (0..300_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed)
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    blob::hexadecimal(&Sha256::digest(bytes))
}

fn hub_at(address: &str, dir: &TempDir) -> Hub {
    let patience = Patience {
        connect: Duration::from_secs(5),
        read: Duration::from_millis(300),
        attempts: 3,
        pause: Duration::from_millis(1),
        longest_pause: Duration::from_secs(5),
    };
    Hub {
        client: Client::new(address, Some("secret".into()), patience).expect("an address"),
        cache: Cache::new(dir.path().join("hub"), Some(dir.path().join("verified"))),
        offline: false,
    }
}

/// A hub with one file, m-Q8_0.gguf, which `answer` gives.
fn hub_of(dir: &TempDir, answer: impl Fn(&Request, &[u8]) -> Reply + Send + Sync + 'static) -> (Server, Hub) {
    let bytes = content(0);
    let server = Server::start(move |request| match request.path.starts_with("/api/") {
        true => Reply::Bytes(listing(&[("m-Q8_0.gguf", &bytes, &sha256(&bytes))])),
        false => answer(request, &bytes),
    });
    let hub = hub_at(&server.address, dir);
    (server, hub)
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn message<T>(result: Outcome<T>) -> String {
    match result {
        Err(Failure::Message(text)) => text,
        Err(other) => panic!("expected a message, got {other:?}"),
        Ok(_) => panic!("expected a message"),
    }
}

/// Names of all files below a folder.
fn files_in(dir: &TempDir) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![dir.path().to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path().strip_prefix(dir.path()).unwrap().display().to_string()),
            }
        }
    }
    found.sort();
    found
}

#[track_caller]
fn assert_nothing_counts(hub: &Hub, dir: &TempDir) {
    assert!(hub.cache.list().is_empty());
    let odd: Vec<_> = files_in(dir)
        .into_iter()
        .filter(|f| !f.contains(".locks") && !f.ends_with(".incomplete"))
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
}

#[test]
fn a_model_is_fetched_once_and_lies_where_other_programs_look() {
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
    assert_eq!(server.requests("").len(), n, "nobody is asked any more");
    let offline = Hub { offline: true, ..hub };
    assert_eq!(offline.model(&name("u/r")).unwrap(), path);
    assert!(message(offline.model(&name("u/other"))).contains("--offline"));
    assert!(message(offline.pull(&name("u/r"))).contains("--offline"));
}

#[test]
fn what_was_cut_or_stalled_goes_on_where_it_ended() {
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
fn an_attempt_of_yesterday_is_gone_on_with_and_thrown_away_if_it_is_wrong() {
    for (beginning, is_right) in [
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
        let asked = server.requests("resolve");
        assert_eq!(asked.len(), if beginning.len() == 1000 && !is_right { 2 } else { 1 });
        assert_eq!(range_start(&asked[0]), (beginning.len() == 1000).then_some(1000));
    }
}

#[test]
fn hosts_that_cut_for_ever_are_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |request, bytes| {
        let mut whole = file(request, bytes);
        whole.truncate(200);
        Reply::Bytes(whole)
    });
    let text = message(hub.model(&name("u/r")));
    assert!(text.contains("3 times in a row"), "{text}");
    assert_eq!(server.requests("resolve").len(), 3);
    assert_nothing_counts(&hub, &dir);
}

#[test]
fn a_host_that_knows_no_ranges_begins_anew() {
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
fn a_wrong_range_is_not_put_together() {
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
fn other_bytes_than_promised_never_count() {
    type Answer = fn(&[u8]) -> Vec<u8>;
    let cases: [(Answer, &str); 5] = [
        (
            |bytes| response("200 OK", &[], &bytes[1..]),
            "a file of 299999 bytes, expected 300000",
        ),
        (
            |bytes| response("200 OK", &[], &[bytes, b"x"].concat()),
            "a file of 300001 bytes",
        ),
        (
            |bytes| [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", bytes, b"xyz"].concat(),
            "more than the 300000 bytes",
        ),
        (|_| response("200 OK", &[], &content(1)), "what came has SHA-256"),
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
    for (answer, told) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (_server, hub) = hub_of(&dir, move |_, bytes| Reply::Bytes(answer(bytes)));
        let text = message(hub.model(&name("u/r")));
        assert!(text.contains(told), "{told:?} in {text:?}");
        assert_nothing_counts(&hub, &dir);
    }
}

#[test]
fn a_token_does_not_follow_a_redirection_to_another_host() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content(0);
    let elsewhere = Server::start(move |request| Reply::Bytes(file(request, &bytes)));
    let to = elsewhere.address.clone();
    let (server, hub) = hub_of(&dir, move |request, _| {
        let path = &request.path;
        Reply::Bytes(match path.starts_with("/moved") {
            true => redirection(&format!("{to}/cdn")),
            false => redirection("/moved"),
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
fn redirections_end() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |_, _| Reply::Bytes(redirection("/again")));
    assert!(message(hub.model(&name("u/r"))).contains("again and again"));
    assert!(server.requests("/again").len() < 20);
    let (_server, hub) = hub_of(&dir, |_, _| Reply::Bytes(redirection("file:///etc/passwd")));
    assert!(message(hub.model(&name("u/r"))).contains("no address to go to"));
}

#[test]
fn refusals_say_what_to_do() {
    for (status, told) in [
        ("404 Not Found", "no such model or file"),
        ("401 Unauthorized", "the token may not read it"),
        ("403 Forbidden", "licence"),
        ("418 I'm a teapot", "unexpected status 418"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(move |_| Reply::Bytes(response(status, &[], b"no")));
        let text = message(hub_at(&server.address, &dir).model(&name("u/r")));
        assert!(text.contains(told), "{told:?} in {text:?}");
        assert_eq!(server.requests("").len(), 1, "{status}");
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|_| Reply::Bytes(response("200 OK", &[], b"<html>please log in</html>")));
    assert!(message(hub_at(&server.address, &dir).model(&name("u/r"))).contains("not what a hub says"));
}

#[test]
fn busy_hosts_are_asked_again_when_they_say() {
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
fn names_lead_nowhere_else() {
    for evil in [
        "../../evil.gguf",
        "/tmp/evil.gguf",
        "a/../../evil.gguf",
        "..\\\\evil.gguf",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let bytes = content(0);
        let server = Server::start(move |request| match request.path.starts_with("/api/") {
            true => Reply::Bytes(listing(&[(evil, &bytes, &sha256(&bytes))])),
            false => Reply::Bytes(file(request, &bytes)),
        });
        let text = message(hub_at(&server.address, &dir).model(&name("u/r")));
        assert!(text.contains("outside of the model's folder"), "{text}");
        assert!(files_in(&dir).is_empty());
    }
    for no_name in [
        "../r", "u/..", "u/.r", "a/b/c", "u/r:..", "u/r:a/b", "u--x/r", "u/", "/r", "u", "u/r?x", "u/r%2e",
    ] {
        assert_eq!(Name::parse(no_name), None, "{no_name}");
    }
}

#[test]
fn all_files_of_a_model_come_together() {
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
            // The last one does not come at first.
            Some((path, ..)) if path.contains("00005-of") && request.n_before == 0 => {
                Reply::Bytes(response("404 Not Found", &[], b""))
            }
            Some((_, bytes, _)) => Reply::Bytes(file(request, bytes)),
            None => Reply::Bytes(listing(&files)),
        }
    });
    let hub = hub_at(&server.address, &dir);
    message(hub.model(&name("u/r")));
    assert!(hub.cache.list().is_empty(), "four of five are no model");
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
fn programs_that_fetch_the_same_file_do_not_get_into_each_others_way() {
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
    assert_eq!(server.requests("resolve").len(), 1, "one has fetched it for all");
    assert_eq!(hub.cache.list().len(), 1);
}

#[test]
fn a_file_that_changed_in_the_cache_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let (server, hub) = hub_of(&dir, |request, bytes| Reply::Bytes(file(request, bytes)));
    let path = hub.model(&name("u/r")).unwrap();
    let blob = path.canonicalize().unwrap();
    for wrong in [content(9), content(0)[..200_000].to_vec()] {
        std::fs::write(&blob, wrong).unwrap();
        assert_eq!(std::fs::read(hub.model(&name("u/r")).unwrap()).unwrap(), content(0));
    }
    assert_eq!(server.requests("resolve").len(), 3);
    // What another program has put there is looked at once.
    std::fs::remove_dir_all(dir.path().join("verified")).unwrap();
    hub.model(&name("u/r")).unwrap();
    assert_eq!(server.requests("resolve").len(), 3);
    assert!(dir.path().join("verified").join(sha256(&content(0))).exists());
}

#[test]
fn models_are_removed_by_name_and_what_others_share_stays() {
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
    assert_eq!(server.requests("resolve").len(), 2, "the same bytes are one blob");
    assert_eq!(names().len(), 2);
    assert_eq!(hub.cache.remove(&name("u/r:Q5_0")).unwrap(), None);
    assert_eq!(
        hub.cache.remove(&name("u/r:q4_0")).unwrap(),
        Some(0),
        "another name still stands for it"
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
fn the_table_of_short_names_means_what_can_be_asked_for() {
    for (i, short) in SHORT_NAMES.iter().enumerate() {
        let means = Name::parse(short.means).unwrap_or_else(|| panic!("{}", short.name));
        assert_eq!(Name::parse(&short.name.to_ascii_uppercase()), Some(means));
        assert!(
            !SHORT_NAMES[..i].iter().any(|other| other.is(short.name)),
            "{} is there twice",
            short.name
        );
        assert_eq!(short.name, short.name.to_ascii_lowercase());
    }
}
