//! Names of public types: one meaning per crate.

use std::collections::BTreeMap;

use super::{root, sources};

/// Collects the names of the `pub` types of a file, inline modules included.
fn public_types(items: &[syn::Item], found: &mut Vec<String>) {
    for item in items {
        let (vis, ident) = match item {
            syn::Item::Struct(i) => (&i.vis, &i.ident),
            syn::Item::Enum(i) => (&i.vis, &i.ident),
            syn::Item::Trait(i) => (&i.vis, &i.ident),
            syn::Item::Union(i) => (&i.vis, &i.ident),
            syn::Item::Type(i) => (&i.vis, &i.ident),
            syn::Item::Mod(m) => {
                if let Some((_, items)) = &m.content {
                    public_types(items, found);
                }
                continue;
            }
            _ => continue,
        };
        if matches!(vis, syn::Visibility::Public(_)) {
            found.push(ident.to_string());
        }
    }
}

#[test]
fn public_types_have_one_meaning_per_crate() {
    let mut crates: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for path in sources() {
        let relative = path.strip_prefix(root()).expect("the source is in the workspace");
        let relative = relative.to_string_lossy().into_owned();
        // Tests and benchmarks are separate crates with private helpers.
        let Some((package, _)) = relative.split_once("/src/") else {
            continue;
        };
        let text = std::fs::read_to_string(&path).expect("the source is readable");
        let Ok(file) = syn::parse_file(&text) else { continue };
        let mut names = Vec::new();
        public_types(&file.items, &mut names);
        for name in names {
            let types = crates.entry(package.to_owned()).or_default();
            types.entry(name).or_default().push(relative.clone());
        }
    }
    assert!(crates.len() > 5, "the walk found only {:?}", crates.keys());
    let types = crates.into_values().flatten();
    let ambiguous: Vec<_> = types.filter(|(_, files)| files.len() > 1).collect();
    assert!(
        ambiguous.is_empty(),
        "public types of one name in one crate: {ambiguous:#?}"
    );
}
