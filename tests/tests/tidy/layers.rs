//! Layers of the kernels: no module uses a later layer.

use std::collections::{BTreeMap, BTreeSet};

use super::{cycles, root};

/// Reads the numbered list in the documentation of a crate: the layer of each module, the lowest first.
fn layers(lib: &str) -> BTreeMap<&str, usize> {
    let mut layers = BTreeMap::new();
    for line in lib.lines().filter_map(|line| line.strip_prefix("//! ")) {
        let Some((number, item)) = line.split_once(". ") else {
            continue;
        };
        if let Ok(number) = number.parse() {
            let modules = item.split(':').next().unwrap_or_default();
            for module in modules.split('`').skip(1).step_by(2) {
                let earlier = layers.insert(module, number);
                assert_eq!(earlier, None, "{module} is in two layers");
            }
        }
    }
    layers
}

/// Returns the top-level module of a source file.
fn module(file: &str) -> &str {
    let in_src = file.split_once("/src/").map_or(file, |(_, in_src)| in_src);
    in_src.split(['/', '.']).next().unwrap_or_default()
}

/// Returns `file -> file` for every use of a module that is not in an earlier layer.
fn violations(files: &BTreeMap<&str, BTreeSet<&str>>, layers: &BTreeMap<&str, usize>) -> Vec<String> {
    let mut found = Vec::new();
    for (file, others) in files {
        for other in others {
            let (from, to) = (module(file), module(other));
            // Items defined in `lib.rs` have no layer, so no module may use them.
            if from != "lib" && from != to && layers.get(to).is_none_or(|to| *to >= layers[from]) {
                found.push(format!("{file} -> {other}"));
            }
        }
    }
    found
}

#[test]
fn modules_of_kernels_use_only_earlier_layers() {
    let lib = std::fs::read_to_string(root().join("kernels/src/lib.rs")).expect("the source is readable");
    let (layers, crates) = (layers(&lib), cycles::crates());
    let files = crates["kernels"].dependencies();
    let modules: BTreeSet<&str> = files.keys().map(|file| module(file)).filter(|m| *m != "lib").collect();
    assert_eq!(
        modules,
        layers.keys().copied().collect(),
        "kernels/src/lib.rs lists every module in a layer"
    );
    let n_uses: usize = files.values().map(BTreeSet::len).sum();
    assert!(n_uses > 300, "the walk found only {n_uses} uses");
    let found = violations(&files, &layers);
    assert!(
        found.is_empty(),
        "uses of modules that are not in an earlier layer: {found:#?}"
    );
}

#[test]
fn uses_of_later_layers_are_found() {
    let layers = layers("//! 1. `a`: base\n//! 2. [`b`], `c`: middle, as `x`\n//! 3. `d`: top");
    assert_eq!(layers, BTreeMap::from([("a", 1), ("b", 2), ("c", 2), ("d", 3)]));
    let files = BTreeMap::from([
        ("k/src/lib.rs", BTreeSet::from(["k/src/d.rs"])),
        ("k/src/a.rs", BTreeSet::from(["k/src/d.rs"])),
        (
            "k/src/b/x.rs",
            BTreeSet::from(["k/src/a.rs", "k/src/b/y.rs", "k/src/c.rs"]),
        ),
        ("k/src/d.rs", BTreeSet::from(["k/src/b/x.rs", "k/src/lib.rs"])),
    ]);
    assert_eq!(
        violations(&files, &layers),
        [
            "k/src/a.rs -> k/src/d.rs",
            "k/src/b/x.rs -> k/src/c.rs",
            "k/src/d.rs -> k/src/lib.rs"
        ]
    );
}
