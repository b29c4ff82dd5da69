//! Files of the web UI and their headers. Its behavior is tested by `server/web/tests` and, in a browser, by
//! `cli/tests/serve.rs`.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use server::web::{FILES, File};
use sha2::{Digest, Sha256};

use crate::common::{Options, Server, head};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("web")
}

/// Returns the text files that are not third-party.
fn ours() -> impl Iterator<Item = (&'static str, &'static str)> {
    let text = |file: &'static File| (file.path, std::str::from_utf8(file.bytes).expect("UTF-8"));
    FILES.iter().filter(|file| !file.path.starts_with("vendor/")).map(text)
}

#[test]
fn web_files_are_served_unchanged() {
    let server = Server::new();
    let service = |path: &str| {
        let mut stream = server.connect();
        stream.write_all(&head("GET", path, &[], 0)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let at = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let (head, body) = (
            String::from_utf8(bytes[..at].to_vec()).unwrap(),
            bytes[at + 4..].to_vec(),
        );
        (head.to_ascii_lowercase(), body)
    };
    for file in FILES {
        let (head, body) = service(&format!("/web/{}", file.path));
        assert!(head.starts_with("http/1.1 200"), "{}: {head}", file.path);
        assert_eq!(body, file.bytes, "{}", file.path);
        let content_type = match file.path.rsplit_once('.').unwrap().1 {
            "html" => "text/html",
            "css" => "text/css",
            "js" => "text/javascript",
            "svg" => "image/svg+xml",
            "woff2" => "font/woff2",
            _ => "text/plain",
        };
        assert!(head.contains(&format!("content-type: {content_type}")), "{head}");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-cache",
        ] {
            assert!(head.contains(header), "{}: {header}: {head}", file.path);
        }
        assert!(!head.contains("unsafe"), "{head}");
    }
    let index = server.get("/web/index.html").body;
    assert_eq!(
        [server.get("/").body, server.get("/index.html").body],
        [index.clone(), index]
    );
    for missing in [
        "/web/",
        "/web/no.js",
        "/web/vendor",
        "/web/../Cargo.toml",
        "/web/vendor%2Fmarked.esm.js",
    ] {
        assert_eq!(server.get(missing).status, 404, "{missing}");
    }
    assert_eq!(server.request("POST", "/", &[], b"").status, 405);
}

#[test]
fn matching_etag_returns_304() {
    let server = Server::new();
    let get = |path: &str, tag: &str| server.request("GET", path, &[("If-None-Match", tag)], b"");
    let tag = server.get("/").header("etag").expect("a tag").to_owned();
    for same in [tag.clone(), format!("\"x\", W/{tag}"), "*".to_owned()] {
        let response = get("/", &same);
        assert_eq!((response.status, response.body.len()), (304, 0), "{same}");
        assert_eq!(response.header("etag"), Some(tag.as_str()));
    }
    assert_eq!(get("/", "\"x\"").status, 200);
    assert_eq!(get("/web/main.js", &tag).status, 200, "each file has its own tag");
}

#[test]
fn web_ui_can_be_disabled() {
    let server = Server::with(Options {
        page: false,
        ..Options::default()
    });
    for path in ["/", "/index.html", "/web/main.js"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(server.get("/v1/models").status, 200);
}

#[test]
fn web_ui_needs_no_key_but_api_does() {
    let server = Server::with(Options {
        keys: vec!["one".to_owned()],
        ..Options::default()
    });
    assert_eq!(["/", "/web/main.js"].map(|path| server.get(path).status), [200; 2]);
    for path in ["/v1/models", "/props", "/web/no.js", "/web/../props", "//"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
}

#[test]
fn every_web_file_is_embedded() {
    let mut found = BTreeSet::new();
    for of in ["", "vendor"] {
        for entry in std::fs::read_dir(folder().join(of)).unwrap().flatten() {
            let name = Path::new(of).join(entry.file_name());
            if entry.path().is_file() && entry.file_name() != "README.md" && entry.file_name() != "package.json" {
                found.insert(name.to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    let listed: BTreeSet<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
    assert_eq!(listed, found);
    assert_eq!(listed.len(), FILES.len(), "a file is listed twice");
}

#[test]
fn web_ui_has_no_external_urls_or_inline_scripts() {
    for (path, text) in ours() {
        // XML namespaces, which are never requested.
        let text = text
            .replace("http://www.w3.org/2000/svg", "")
            .replace("http://www.w3.org/1998/Math/MathML", "");
        assert!(!text.contains("://"), "{path} contains an address");
        for mark in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ] {
            assert!(!text.contains(mark), "{path}: {mark}");
        }
    }
    let index = File::at("/").unwrap();
    let index = std::str::from_utf8(index.bytes).unwrap();
    for mark in ["<style", "style=", " onclick", " onload", "javascript:"] {
        assert!(!index.contains(mark), "{mark}");
    }
    assert!(
        index.matches("<script").count() == index.matches("></script>").count(),
        "all scripts are files"
    );
    let names = index.split(['"', '\'']).filter_map(|part| part.strip_prefix("web/"));
    for name in names {
        assert!(File::at(&format!("/web/{name}")).is_some(), "{name}");
    }
}

#[test]
fn web_ui_stays_small() {
    let size = |files: &mut dyn Iterator<Item = usize>| files.sum::<usize>();
    let all = size(&mut FILES.iter().map(|file| file.bytes.len()));
    let of_ours = size(&mut ours().map(|(_, text)| text.len()));
    assert!(
        all < 450_000 && of_ours < 130_000,
        "the web UI is too large: {all} bytes, {of_ours} of them own code"
    );
    for (path, text) in ours() {
        let n = text.lines().count();
        assert!(n <= 800, "{path} has {n} lines");
    }
}

#[test]
fn vendored_files_match_checksums() {
    let table = std::fs::read_to_string(folder().join("vendor/README.md")).unwrap();
    for file in FILES {
        let Some(name) = file.path.strip_prefix("vendor/") else {
            continue;
        };
        let digest = Sha256::digest(file.bytes);
        let sum: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let row = table.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("vendor/README.md has no entry for {name}"));
        assert!(
            row.contains(&sum),
            "{name} does not match the checksum in vendor/README.md: {sum}"
        );
    }
}

#[test]
fn web_modules_pass_node_tests() {
    let tests = std::fs::read_dir(folder().join("tests")).unwrap().flatten();
    let output = Command::new("node")
        .arg("--test")
        .args(tests.map(|entry| entry.path()))
        .output()
        .expect("this test needs Node.js 20 or later (`node`) in PATH");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}");
    // Node.js also succeeds if it finds no tests.
    let passed = report
        .lines()
        .find_map(|line| line.rsplit_once("pass ")?.1.parse::<usize>().ok());
    assert!(passed.is_some_and(|n| n >= 29), "{report}");
}

/// Static files need no API key; files outside the directory and paths of routes are not served.
#[test]
fn static_directory_replaces_web_ui() {
    let outside = tempfile::tempdir().expect("a temporary directory");
    let folder = outside.path().join("public");
    std::fs::create_dir_all(folder.join("sub dir")).expect("a folder");
    std::fs::create_dir_all(folder.join("v1")).expect("a folder");
    let write = |path: std::path::PathBuf, text: &str| std::fs::write(path, text).expect("a file");
    write(outside.path().join("secret"), "secret");
    write(folder.join("index.html"), "<p>home");
    write(folder.join("sub dir/a.js"), "let a;");
    write(folder.join("v1/models"), "not a list");
    let server = Server::with(Options {
        page: false,
        folder: Some(folder),
        keys: vec!["key".to_owned()],
        ..Options::default()
    });
    for (path, text, kind) in [
        ("/", "<p>home", "text/html"),
        ("/index.html", "<p>home", "text/html"),
        ("/sub%20dir/a.js", "let a;", "text/javascript"),
    ] {
        let response = server.get(path);
        assert_eq!((response.status, response.body.as_str()), (200, text), "{path}");
        assert_eq!(response.header("content-type"), Some(kind), "{path}");
    }
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/sub%20dir/../../secret",
        "/sub%20dir/%2e%2e%2fsecret",
        "/none",
    ] {
        let response = server.get(path);
        assert!(
            response.status == 401 && !response.body.contains("secret"),
            "{path}: {}",
            response.body
        );
        let with_key = server.request("GET", path, &[("Authorization", "Bearer key")], b"");
        assert!(
            with_key.status == 404 && with_key.json()["error"].is_object(),
            "{path}: {}",
            with_key.body
        );
    }
    assert_eq!(server.get("/v1/models").status, 401, "a file does not open a route");
    let models = server.request("GET", "/v1/models", &[("Authorization", "Bearer key")], b"");
    assert_eq!(models.json()["data"][0]["id"], "tiny");
    assert_eq!(server.request("POST", "/sub%20dir/a.js", &[], b"{}").status, 401);
}

#[test]
fn api_prefix_applies_to_all_paths() {
    let server = Server::with(Options {
        prefix: "/a/llama".to_owned(),
        keys: vec!["key".to_owned()],
        ..Options::default()
    });
    let key = [("Authorization", "Bearer key")];
    let ask = |method: &str, path: &str, body: &str| server.request(method, path, &key, body.as_bytes());
    let body = r#"{"prompt": "once", "max_tokens": 2}"#;
    assert_eq!(ask("POST", "/a/llama/v1/completions", body).status, 200);
    assert_eq!(ask("GET", "/a/llama/v1/models?x=1", "").json()["data"][0]["id"], "tiny");
    assert_eq!(
        ask("POST", "/a/llama/slots/0?action=erase", "").status,
        200,
        "the query is passed on"
    );
    assert_eq!(
        [
            server.get("/a/llama/health").status,
            server.get("/a/llama/v1/models").status
        ],
        [200, 401]
    );
    assert!(server.get("/a/llama/").body.contains("<!doctype html>"));
    assert_eq!(server.get("/a/llama/web/main.js").status, 200);
    let moved = server.get("/a/llama");
    assert_eq!((moved.status, moved.header("location")), (307, Some("/a/llama/")));
    for path in ["/v1/models", "/", "/a/llamas/v1/models", "/a", "/health"] {
        assert_eq!(ask("GET", path, "").status, 404, "{path}");
    }
    assert!(
        ask("GET", "/a/llama/api/nothing", "").json()["error"].is_string(),
        "errors use the format of Ollama's API"
    );
}
