//! Invariants of ARCHITECTURE.md that no other test covers. Most are checked by searching the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::context::Batch;
use engine::graph::{Graph, Op, TensorId};
use engine::sched::Observer;
use tests::{context, decode_last, model, root, tokens};

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the Rust sources in a directory of the project, without test modules. The directory must contain at least
/// one source.
fn sources(directory: &str) -> Vec<PathBuf> {
    let (mut files, mut directories) = (Vec::new(), vec![root().join(directory)]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .expect("the directory is readable")
            .flatten()
        {
            let path = entry.path();
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
            if path.is_dir() && !is_test {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !is_test {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "{directory} contains no sources");
    files
}

/// Returns the code of a source file without comments and without the unit test module at its end.
fn code(path: &Path) -> String {
    let text = text(path);
    let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or(&text);
    let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

fn refuse(directory: &str, words: &[&str]) {
    for path in sources(directory) {
        let code = code(&path);
        for word in words {
            assert!(!code.contains(word), "{} contains `{word}`", path.display());
        }
    }
}

/// Returns the workspace packages that a package depends on outside of tests.
fn dependencies(package: &str) -> Vec<String> {
    let manifest = text(&root().join(package).join("Cargo.toml"));
    let table = manifest.split("[dependencies]").nth(1).unwrap_or("");
    let lines = table.lines().skip(1).take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
    let ours = [
        "kernels",
        "engine",
        "arch-macros",
        "arch-lang",
        "arch-runtime",
        "archs",
        "media",
        "llama",
        "server",
        "tests",
    ];
    names.filter(|name| ours.contains(name)).map(str::to_owned).collect()
}

#[test]
fn crates_only_depend_downwards() {
    assert_eq!(dependencies("kernels"), [""; 0]);
    assert_eq!(dependencies("engine"), ["kernels"]);
    assert_eq!(dependencies("arch-macros/lang"), [""; 0]);
    assert_eq!(dependencies("arch-macros"), ["arch-lang"]);
    assert_eq!(dependencies("archs"), ["arch-macros", "engine"]);
    assert_eq!(dependencies("arch-macros/runtime"), ["arch-lang", "engine"]);
    assert_eq!(dependencies("llama"), ["archs", "engine", "kernels", "media"]);
    assert_eq!(dependencies("media"), [""; 0]);
    assert_eq!(dependencies("server"), ["engine", "llama", "media"]);
    refuse("kernels/src", &["std::thread", "rayon"]);
    refuse("archs", &["backend"]);
}

/// Loops of intrinsics are several times too slow in these crates, because their optimization level is lower.
#[test]
fn only_kernels_use_intrinsics() {
    for directory in ["archs", "arch-macros/runtime", "cli/app/src", "llama/src", "server/src"] {
        refuse(directory, &["std::arch::", "core::arch::", "target_feature"]);
    }
}

/// No binary depends on the emulated driver.
#[test]
fn no_crate_depends_on_emulated_driver() {
    for package in [
        "kernels",
        "engine",
        "arch-macros",
        "arch-macros/lang",
        "archs",
        "arch-macros/runtime",
        "llama",
        "server",
        "cli",
        "cli/app",
        "tests",
    ] {
        let manifest = text(&root().join(package).join("Cargo.toml"));
        assert!(
            !manifest.contains("cuda-driver"),
            "{package} depends on the emulated driver"
        );
    }
}

/// Returns the top-level engine modules that each of them uses, found by paths that start with `crate`.
fn uses_of_engine_modules() -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let directory = root().join("engine/src");
    for path in sources("engine/src") {
        let module = path
            .strip_prefix(&directory)
            .expect("the path is in this directory")
            .components()
            .next();
        let module = Path::new(module.expect("the path has a first component").as_os_str()).file_stem();
        let module = module.expect("the path has a file name").to_string_lossy().into_owned();
        let code = code(&path);
        let used = code.split("crate::").skip(1);
        let used = used.map(|rest| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or("")
        });
        uses.entry(module.clone())
            .or_default()
            .extend(used.filter(|name| *name != module).map(str::to_owned));
    }
    uses.remove("lib");
    uses
}

#[test]
fn engine_modules_are_acyclic() {
    let mut uses = uses_of_engine_modules();
    assert!(uses["context"].contains("model") && uses["model"].contains("gguf"));
    // Repeatedly remove modules without remaining dependencies. Cycles and their users remain.
    loop {
        let left: BTreeSet<String> = uses.keys().cloned().collect();
        uses.retain(|_, used| !used.is_disjoint(&left));
        if uses.len() == left.len() {
            break;
        }
    }
    assert!(uses.is_empty(), "cyclic modules or their users: {uses:?}");
}

#[test]
fn graph_building_does_no_io() {
    for directory in ["engine/src/graph", "engine/src/builder"] {
        refuse(directory, &["std::fs", "std::io", "dyn Buffer", "MemoryMap", "unsafe"]);
    }
}

#[test]
fn libraries_neither_print_nor_exit() {
    let words = ["println!", "eprintln!", "print!(", "eprint!(", "process::exit"];
    for directory in ["engine/src", "kernels/src", "llama/src", "server/src"] {
        refuse(directory, &words);
    }
}

/// Observes every node of a graph without stopping it.
struct Look {
    check: fn(&Graph, TensorId) -> usize,
    found: Arc<AtomicUsize>,
}

impl Observer for Look {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        self.found.fetch_add((self.check)(graph, node), Ordering::Relaxed);
        false
    }

    fn show(&mut self, _: &Graph, _: TensorId, _: &[u8]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Returns the sum of `check` over the nodes of a fixture's graphs.
fn look(name: &str, check: fn(&Graph, TensorId) -> usize) -> usize {
    let (m, t) = (model(name), tokens(name));
    let mut ctx = context(&m, |p| p.n_ubatch = 8);
    let found = Arc::new(AtomicUsize::new(0));
    ctx.set_observer(Some(Box::new(Look {
        check,
        found: found.clone(),
    })));
    decode_last(&mut ctx, &t[..12], 0, 0);
    found.load(Ordering::Relaxed)
}

const FIXTURES: [&str; 5] = [
    "qwen3-dense",
    "gemma3-dense",
    "deepseek2-moe",
    "falcon-h1-dense",
    "deepseek4-moe",
];

#[test]
fn node_sources_precede_node() {
    for name in FIXTURES {
        let n_nodes = look(name, |graph, node| {
            assert!(graph.tensor(node).sources().all(|source| source < node));
            1
        });
        assert!(n_nodes > 20, "{name}: {n_nodes} nodes");
    }
}

#[test]
fn cross_keys_are_computed_once_per_encoded_prompt() {
    let (m, t) = (model("t5-dense"), tokens("t5-dense"));
    let mut ctx = context(&m, |_| {});
    let found = Arc::new(AtomicUsize::new(0));
    let check = |graph: &Graph, node: TensorId| {
        let t = graph.tensor(node);
        let is_write = matches!(t.op, Op::SetRows) && graph.tensor(t.source(1)).name.base == "cross_k";
        usize::from(is_write)
    };
    ctx.set_observer(Some(Box::new(Look {
        check,
        found: found.clone(),
    })));
    let n_layer = m.memory_specs().cross.len();
    for encoded in 1..=2 {
        let mut batch = Batch::new();
        batch.push_prompt(&t[..11], 0, 0);
        ctx.encode(&batch).unwrap();
        ctx.seq_rm(0, ..).unwrap();
        (0..3).for_each(|pos| drop(tests::decode_one(&mut ctx, t[20 + pos], pos, 0)));
        assert_eq!(found.load(Ordering::Relaxed), encoded * n_layer);
    }
    assert!(n_layer > 0);
}

/// Returns true if `id` depends on a write to the memory it reads.
fn follows_its_write(graph: &Graph, id: TensorId) -> bool {
    let t = graph.tensor(id);
    let is_write = matches!(t.op, Op::SetRows);
    is_write || (t.op.is_view() && t.sources().any(|source| follows_its_write(graph, source)))
}

#[test]
fn cache_reads_follow_cache_writes() {
    for name in FIXTURES {
        let n_reads = look(name, |graph, node| {
            let t = graph.tensor(node);
            if !matches!(t.op, Op::Attention(_)) {
                return 0;
            }
            assert!(follows_its_write(graph, t.source(1)), "keys of {}", t.name);
            1
        });
        assert!(n_reads > 0, "{name} has attention");
    }
}

#[test]
fn attention_stores_no_scores() {
    let m = model("llama-dense");
    let n_tokens = 64;
    let compute = |n_ctx: usize| {
        let ctx = context(&m, |p| (p.n_ctx, p.n_batch, p.n_ubatch) = (n_ctx, n_tokens, n_tokens));
        ctx.sizes().compute
    };
    let (short, long) = (compute(1024), compute(8192));
    let scores_of_a_head = (8192 - 1024) * n_tokens * size_of::<f32>();
    assert!(
        long - short < scores_of_a_head,
        "{short} bytes for 1024 cells, {long} for 8192"
    );
}

/// Returns the tests that a line names as `path::function`, or as `::function` for the previous path.
fn named_tests(line: &str, path: &mut String) -> Vec<(String, String)> {
    let quoted = line.split('`').skip(1).step_by(2);
    let mut named = Vec::new();
    for name in quoted.filter(|name| name.contains("::")) {
        let Some((file, function)) = name.rsplit_once("::") else {
            continue;
        };
        if file.ends_with(".rs") {
            *path = file.to_owned();
        }
        if file.is_empty() || file.ends_with(".rs") {
            named.push((path.clone(), function.to_owned()));
        }
    }
    named
}

#[test]
fn invariants_name_existing_tests() {
    let map = text(&root().join("ARCHITECTURE.md"));
    let section = map.split("## Invariants").nth(1).expect("the section exists");
    let section = section.split("\n## ").next().expect("a first part");
    let invariants: Vec<&str> = section.split("\n- ").skip(1).collect();
    assert!(invariants.len() > 10);
    for invariant in invariants {
        let named = named_tests(invariant, &mut String::new());
        assert!(!named.is_empty(), "no test is named by: {invariant}");
        for (file, function) in named {
            let source = text(&root().join(&file));
            assert!(source.contains(&format!("fn {function}(")), "{file} has no {function}");
        }
    }
}
