//! `checkpoint` sections: their resolution with fragments and inheritance, and the errors reported for them.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use arch_lang::model::checkpoint::{Checkpoint, NamedSource, Term};
use arch_lang::{Directory, Library, Source, compile_file};
use proc_macro2::TokenStream;

const BASE: &str = r#"
name: "base";
rope: neox;
hparams { n_swa: usize = "attention.sliding_window"; cap: f32 = "cap" or 1.0; check cap > 0.0, "cap"; }
tensors {
    use head;
    layer {
        attn_norm: vector [n_embd];
        use ffn;
    }
}
graph {
    let x = token_embd[tokens];
    for layer {
        let h = rms_norm(x, attn_norm, cap) * n_swa;
        x += down(silu(gate(h)) * up(h));
    }
    output(rms_norm(x, output_norm))
}
CHECKPOINT
test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32, n_swa: 4 }
"#;

struct Memory(BTreeMap<&'static str, &'static str>);

impl Library for Memory {
    fn find(&self, _: &str) -> Option<Source> {
        None
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        let text = format!("//! About.\nfragment! {{ {} }}", self.0.get(name)?);
        let file = format!("fragments/{name}.rs");
        Some(Source { file, text })
    }

    fn fragments(&self) -> Vec<String> {
        self.0.keys().map(ToString::to_string).collect()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        Box::new(std::iter::empty())
    }
}

fn compiled(section: &str) -> Result<Vec<Checkpoint>, Vec<String>> {
    let library = Memory(BTreeMap::from([
        (
            "head",
            r#"tensors {
                token_embd: embed [n_embd, n_vocab];
                output_norm: vector [n_embd];
                output: linear [n_embd -> n_vocab] or token_embd;
            }
            checkpoint {
                token_embd <- "model.embed_tokens";
                output_norm <- "model.norm";
                output <- "lm_head";
            }"#,
        ),
        (
            "ffn",
            r#"options(width = n_ff); tensors {
                gate, up: linear "ffn_gate", "ffn_up" [n_embd -> width];
                down: linear "ffn_down" [width -> n_embd];
            }
            checkpoint {
                gate <- ".mlp.gate_proj" or ".mlp.gate_up_proj" rows 0..width;
                up <- ".mlp.up_proj" or ".mlp.gate_up_proj" split 1/2;
                down <- ".mlp.down_proj";
            }"#,
        ),
    ]));
    let text = BASE.replace("CHECKPOINT", section);
    let arch = arch_lang::compile_with(TokenStream::from_str(&text).unwrap(), &library);
    let shown = |faults: Vec<arch_lang::Diagnostic>| faults.iter().map(common::shown).collect();
    arch.map(|arch| arch.checkpoints).map_err(shown)
}

fn faults(section: &str) -> Vec<String> {
    compiled(section).err().unwrap_or_default()
}

const WHOLE: &str = r#"checkpoint "AForCausalLM", "BForCausalLM" {
    n_swa = "window" or "windows.full" or 16;
    "extra.key" = if "kind" == text("x") { 1 } else { 2 };
    check "hidden_act" == text("silu"), "hidden_act must be silu";
    attn_norm <- ".input_layernorm" rows (n_ff - n_embd)..2 * n_ff plus 1;
}"#;

const JOINED: &str = r#"checkpoint "A" {
    n_swa = 1;
    attn_norm <- ".a" rows 0..n_ff and ".a" rows n_ff..2 * n_ff tile n_head times 2 or ".b";
}"#;

#[test]
fn origins_joined_by_and_are_one_alternative() {
    let sections = compiled(JOINED).unwrap();
    let source = sections[0].sources.iter().find(|s| s.gguf == "attn_norm").unwrap();
    let [first, second] = &source.origins[..] else {
        panic!("{} alternatives", source.origins.len())
    };
    let steps = |o: &NamedSource| o.steps.iter().map(|(word, _)| *word).collect::<Vec<_>>();
    assert_eq!((first.name.as_str(), steps(first)), ("model.layers.{}.a", vec!["rows"]));
    let next = first.and.as_deref().unwrap();
    assert_eq!(
        (next.name.as_str(), steps(next)),
        ("model.layers.{}.a", vec!["rows", "tile", "times"])
    );
    assert!(next.and.is_none() && second.and.is_none());
}

#[test]
fn section_is_completed_by_fragments_and_common_settings() {
    let sections = compiled(WHOLE).unwrap();
    let [section] = &sections[..] else {
        panic!("{} sections", sections.len())
    };
    assert_eq!(section.classes, ["AForCausalLM", "BForCausalLM"]);
    let setting = |key: &str| section.settings.iter().find(|s| s.key == key).unwrap();
    assert_eq!(setting("attention.sliding_window").value.len(), 3);
    assert!(setting("attention.sliding_window").required);
    assert!(matches!(&setting("embedding_length").value[..], [Term::Path(p)] if p == "hidden_size"));
    assert!(matches!(setting("extra.key").value[0], Term::Call("if", _)));
    assert!(setting("attention.layer_norm_rms_epsilon").required);
    // The declaration reads no epsilon of this kind.
    assert!(section.settings.iter().all(|s| s.key != "attention.layer_norm_epsilon"));
    assert_eq!(section.checks.len(), 1);
    let shown: Vec<String> = section
        .sources
        .iter()
        .map(|s| {
            let names: Vec<&str> = s.origins.iter().map(|o| o.name.as_str()).collect();
            let steps: Vec<&str> = s.origins.iter().flat_map(|o| &o.steps).map(|(w, _)| *w).collect();
            let group = s.group.as_deref().unwrap_or("");
            format!("{group} {} {} {}", s.gguf, names.join(","), steps.join(","))
        })
        .collect();
    assert_eq!(
        shown,
        [
            " token_embd model.embed_tokens ",
            " output_norm model.norm ",
            " output lm_head ",
            "blk attn_norm model.layers.{}.input_layernorm rows,plus",
            "blk ffn_gate model.layers.{}.mlp.gate_proj,model.layers.{}.mlp.gate_up_proj rows",
            "blk ffn_up model.layers.{}.mlp.up_proj,model.layers.{}.mlp.gate_up_proj split",
            "blk ffn_down model.layers.{}.mlp.down_proj ",
        ]
    );
    assert!(section.sources[2].tied);
}

#[test]
fn like_inherits_items_of_another_section() {
    let both =
        format!("{WHOLE} checkpoint \"C\" like \"BForCausalLM\" {{ layer \"h.{{}}\" {{ attn_norm <- \".ln\"; }} }}");
    let sections = compiled(&both).unwrap();
    let c = &sections[1];
    assert!(c.settings.iter().any(|s| s.key == "attention.sliding_window"));
    let of = |gguf: &str| &c.sources.iter().find(|s| s.gguf == gguf).unwrap().origins[0];
    assert_eq!(of("attn_norm").name, "h.{}.ln");
    assert!(of("attn_norm").steps.is_empty());
    assert_eq!(of("ffn_down").name, "h.{}.mlp.down_proj");
}

/// Sections, with the faults of each.
const FAULTS: &[(&str, &[&str])] = &[
    (
        r#"checkpoint "A" { n_swa = 1; }"#,
        &[
            "\"A\": `attn_norm` has no source in this section; write `name <- \"name.in.the.checkpoint\";` or `without name \"reason\";`",
        ],
    ),
    (
        r#"checkpoint "A" { attn_norm <- ".n"; }"#,
        &["\"A\": `n_swa` has no setting in this section; write `name = \"path.in.config.json\";` or a constant"],
    ),
    (
        r#"checkpoint "A" { n_swa = 1; n_sva = 2; atn_norm <- ".n"; attn_norm <- ".n"; }"#,
        &[
            "atn_norm: no tensor named `atn_norm`; did you mean `attn_norm`?",
            "n_sva: no hyperparameter with a key is named `n_sva`; did you mean `n_swa`?",
        ],
    ),
    (
        r#"checkpoint "A" { n_swa = 1; n_swa = 2; attn_norm <- ".n"; without attn_norm "none"; }"#,
        &[
            "n_swa: `n_swa` has two settings",
            "attn_norm: `attn_norm` has two sources",
        ],
    ),
    (
        r#"checkpoint "A" { n_swa = 1; attn_norm <- "norm"; output <- ".head"; }"#,
        &[
            "\"norm\": \"norm\" has 0 `{}`, expected 1: one for the layer, and one for a stack",
            "\".head\": a name that begins with a dot belongs to a layer",
        ],
    ),
    (
        r#"checkpoint "A" { n_swa = 1; attn_norm <- ".n" split 2/2; }"#,
        &["split: parts are counted from 0, so part 2 of 2 does not exist"],
    ),
    (
        r#"checkpoint "A" { n_swa = 1; attn_norm <- ".n" rotate; }"#,
        &[
            "rotate: expected `split`, `every`, `rows`, `pairs`, `heads`, `tile`, `plus`, `times`, `merge`, `squeeze`, `exp`, `neg`, or `transpose`, found `rotate`",
        ],
    ),
    (
        r#"checkpoint "A" { n_swa = size("x"); attn_norm <- ".n"; }"#,
        &[
            "size: expected a function: `text`, `first`, `given`, `length`, `int`, `min`, `max`, `sqrt`, `ln`, `at`, `contains`, or `each_layer`",
        ],
    ),
    (
        r#"checkpoint "A" { n_swa = 1; attn_norm.weight <- ".n"; attn_norm <- ".n"; }"#,
        &["weight: expected `bias` or `scale` after the dot"],
    ),
    (
        r#"checkpoint "A" like "B" { n_swa = 1; attn_norm <- ".n"; }"#,
        &["\"B\": no checkpoint section for \"B\""],
    ),
    (
        r#"checkpoint "A" like "A" { n_swa = 1; attn_norm <- ".n"; } checkpoint "A" { n_swa = 1; attn_norm <- ".n"; }"#,
        &[
            "\"A\": class \"A\" has two sections",
            "\"A\": the section for \"A\" inherits from itself",
        ],
    ),
];

#[test]
fn section_errors_are_reported_at_their_tokens() {
    for (section, expected) in FAULTS {
        let mut found = faults(section);
        let mut expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{section}");
    }
}

#[test]
fn formatted_section_keeps_its_meaning() {
    let text = format!("arch! {{\n{}\n}}\n", BASE.replace("CHECKPOINT", WHOLE));
    let formatted = arch_lang::format::format("base.rs", &text).unwrap();
    assert!(
        formatted.contains("    checkpoint \"AForCausalLM\", \"BForCausalLM\" {\n        n_swa = \"window\" or"),
        "{formatted}"
    );
    assert!(
        formatted.contains("        attn_norm <- \".input_layernorm\" rows (n_ff - n_embd)..2 * n_ff plus 1;\n"),
        "{formatted}"
    );
    assert_eq!(arch_lang::format::format("base.rs", &formatted).unwrap(), formatted);
}

#[test]
fn mtp_layers_have_separate_names() {
    let archs = Directory(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs"));
    let text = std::fs::read_to_string(archs.0.join("qwen3next.rs")).unwrap();
    let compiled = |text: &str| compile_file("qwen3next.rs", text, &archs).map(Option::unwrap);
    let arch = compiled(&text).unwrap();
    let section = &arch.checkpoints[0];
    assert_eq!(
        section.mtp,
        Some(["model.layers.{}", "mtp.layers.{}"].map(str::to_owned))
    );
    let source = |field: &str| section.sources.iter().find(|s| s.field == field).unwrap();
    assert_eq!(
        (source("eh_proj").origins[0].name.as_str(), source("eh_proj").mtp),
        ("mtp.fc", true)
    );
    assert_eq!(
        (source("attn_norm").origins[0].name.as_str(), source("attn_norm").mtp),
        ("model.layers.{}.input_layernorm", false)
    );
    let of_layer = "attn_norm <- \".input_layernorm\" plus 1;";
    let of_mtp = "eh_proj <- \"mtp.fc\";";
    for (changes, expected) in [
        (
            [(of_layer, ""), (of_mtp, "attn_norm <- \"mtp.fc\";")],
            "attn_norm: `attn_norm` also exists outside multi-token prediction layers; sources in `mtp` must exist only in these layers",
        ),
        (
            [(of_layer, of_layer), (of_mtp, "eh_proj <- \"mtp.fc.{}\";")],
            "\"mtp.fc.{}\": \"mtp.fc.{}\" has 1 `{}`, expected 0: one for the layer, and one for a stack",
        ),
    ] {
        let changed = changes
            .iter()
            .fold(text.clone(), |text, (from, to)| text.replacen(from, to, 1));
        let faults = compiled(&changed).unwrap_err();
        let shown: Vec<String> = faults.iter().map(common::shown).collect();
        assert!(shown.iter().any(|fault| fault == expected), "{shown:?}");
    }
}

/// Library with one parent, whose children may inherit `checkpoint` sections.
struct OneParent {
    text: &'static str,
    inherits: bool,
}

impl Library for OneParent {
    fn find(&self, name: &str) -> Option<Source> {
        let file = || "base.rs".to_owned();
        (name == "base").then(|| Source {
            file: file(),
            text: format!("arch! {{ {} }}", self.text),
        })
    }

    fn names(&self) -> Vec<String> {
        vec!["base".to_owned()]
    }

    fn fragment(&self, _: &str) -> Option<Source> {
        None
    }

    fn fragments(&self) -> Vec<String> {
        Vec::new()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        Box::new(std::iter::empty())
    }

    fn inherits_checkpoints(&self) -> bool {
        self.inherits
    }
}

const PARENT: &str = r#"
name: "base";
rope: neox;
tensors {
    token_embd: embed [n_embd, n_vocab];
    output: linear [n_embd -> n_vocab] or token_embd;
    layer { attn_norm: vector [n_embd]; up: linear [n_embd -> n_embd]; }
}
graph {
    let x = token_embd[tokens];
    for layer { x += up(rms_norm(x, attn_norm)); }
    output(x)
}
checkpoint "A", "B" { token_embd <- "embed"; output <- "head"; attn_norm <- ".norm"; up <- ".up"; }
checkpoint "C" like "A" { up <- ".other"; }
test { n_embd: 64, n_head: 2, n_layer: 2, n_ff: 96, n_vocab: 32 }
"#;

/// Returns the classes of a child, and the names of the source of `up` in each section.
fn inherited(child: &str, inherits: bool) -> Result<Vec<(Vec<String>, String)>, Vec<String>> {
    let library = OneParent { text: PARENT, inherits };
    let text = format!("name: \"child\"; like: \"base\"; {child}");
    let arch = arch_lang::compile_with(TokenStream::from_str(&text).unwrap(), &library);
    let arch = arch.map_err(|faults| faults.iter().map(common::shown).collect::<Vec<_>>())?;
    let source = |c: &Checkpoint| {
        let up = c.sources.iter().find(|s| s.field == "up").expect("a source");
        up.origins[0].name.clone()
    };
    Ok(arch
        .checkpoints
        .iter()
        .map(|c| (c.classes.clone(), source(c)))
        .collect())
}

#[test]
fn sections_of_parent_are_inherited_if_they_fit() {
    let section = |classes: &[&str], up: &str| {
        let classes = classes.iter().map(ToString::to_string).collect::<Vec<_>>();
        (classes, format!("model.layers.{{}}.{up}"))
    };
    assert_eq!(inherited("", false), Ok(Vec::new()));
    let both = vec![section(&["A", "B"], "up"), section(&["C"], "other")];
    assert_eq!(inherited("", true), Ok(both));
    // Own sections replace those of their classes, and continue the section of the same class.
    let own = r#"checkpoint "A" like "A" { up <- ".mine"; }"#;
    let expected = [section(&["A"], "mine"), section(&["B"], "up"), section(&["C"], "mine")];
    let found = inherited(own, true).unwrap();
    assert_eq!(found[..2], expected[..2]);
    assert_eq!(found.len(), 3);
    assert_eq!(inherited(own, false), Ok(expected[..1].to_vec()));
    // A section that lacks a source does not fit.
    let changed = "tensors { layer { down: linear [n_embd -> n_embd]; } }
        graph { let x = token_embd[tokens]; for layer { x += down(up(rms_norm(x, attn_norm))); } output(x) }";
    assert_eq!(inherited(changed, true), Ok(Vec::new()));
    let mapped = format!("{changed} checkpoint \"A\" like \"A\" {{ down <- \".down\"; }}");
    let found = inherited(&mapped, true).unwrap();
    assert_eq!(found[0], section(&["A"], "up"));
    let unknown = inherited("checkpoint \"D\" like \"D\" {}", true).unwrap_err();
    assert_eq!(unknown, ["\"D\": the section for \"D\" inherits from itself"]);
}
