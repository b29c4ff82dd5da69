//! Adding a file to `archs/` registers its architecture; tested in a copy of the workspace.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Copies the sources of a directory, without build output and version control.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "target" {
            copy(&path, &to.join(name));
        } else if path.is_file() {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

const LIST: &str = "fn main() { for r in archs::ALL { println!(\"{}: {}\", r.arch.name, r.about); } }\n";

#[test]
#[ignore = "builds the libraries in a temporary directory: several minutes"]
fn new_architecture_file_is_registered() {
    let root = tests::root();
    let dir = tempfile::tempdir().unwrap();
    for directory in ["kernels", "engine", "arch-macros", "archs"] {
        copy(&root.join(directory), &dir.path().join(directory));
    }
    fs::copy(root.join("Cargo.lock"), dir.path().join("Cargo.lock")).unwrap();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let lines = manifest.lines().map(|line| match line.split(" = ").next() {
        Some("members") => r#"members = ["kernels", "engine", "arch-macros", "arch-macros/lang", "archs"]"#,
        Some("default-members") => "",
        _ => line,
    });
    let manifest = lines.collect::<Vec<_>>().join("\n");
    fs::write(dir.path().join("Cargo.toml"), manifest).unwrap();
    fs::create_dir(dir.path().join("archs/examples")).unwrap();
    fs::write(dir.path().join("archs/examples/list.rs"), LIST).unwrap();

    let list = || {
        let out = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--offline", "-p", "llama-archs", "--example", "list"])
            .current_dir(dir.path())
            .env("CARGO_TARGET_DIR", dir.path().join("target"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        (
            out.status.success(),
            text,
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    let (ok, before, errors) = list();
    assert!(
        ok && before.contains("qwen3: ") && !before.contains("my-model"),
        "{before}{errors}"
    );

    let qwen3 = fs::read_to_string(root.join("archs/qwen3.rs")).unwrap();
    let mine = qwen3
        .replacen("//! ", "//! Mine. ", 1)
        .replace("\"qwen3\"", "\"my-model\"");
    fs::write(dir.path().join("archs/dropped.rs"), &mine).unwrap();
    let (ok, after, errors) = list();
    assert!(ok && after.contains("my-model: Mine. "), "{after}{errors}");
    assert_eq!(after.lines().count(), before.lines().count() + 1);

    fs::write(dir.path().join("archs/again.rs"), &mine).unwrap();
    let (ok, _, errors) = list();
    assert!(
        !ok && errors.contains("two files declare the architecture `my-model`"),
        "{errors}"
    );
}
