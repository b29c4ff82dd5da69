//! Declarations that are read at run time: the interpreter and generated code give the same architectures.

use std::path::Path;
use std::time::{Duration, Instant};

use engine::builder::{
    BatchMedia, BuildGraph, BuildParams, BuildTables, Builder, GraphOutput, GraphPart, HiddenRows, Inputs,
    MemoryParams, MemorySpecs, PatchGrid, WeightLeaf,
};
use engine::conformance::all_logits;
use engine::gguf::{Gguf, GgufWriter, Metadata, Value};
use engine::graph::{BufferId, BufferSlice, Graph, Layout, Name, Tensor, TensorId};
use engine::model::{Architecture, Base, LoadParams, Registered, TableRow, declare_header, plan};
use tests::declared::{DECLARED, interpreted};
use tests::{exact, fixture, fixture_names};

/// Declarations that need a build, each with the reason.
const NEED_BUILD: [(&str, &str); 5] = [
    ("gemma4.rs", "`rust!` needs a compiler"),
    ("kimi_k3.rs", "`rust!` needs a compiler"),
    ("qwen3tts.rs", "`rust!` needs a compiler"),
    ("qwen4exp.rs", "`rust!` needs a compiler"),
    ("whisper.rs", "`frames` is not available at run time"),
];

/// Numbers of tokens of the compared graphs.
const N_TOKENS: [usize; 3] = [1, 7, 512];

/// A fixture with its architecture as generated code and as a program.
struct Pair {
    name: String,
    header: Gguf,
    archs: [&'static Architecture; 2],
}

/// Returns all fixtures whose declaration can be read at run time.
fn pairs() -> Vec<Pair> {
    let programs = interpreted();
    let pair = |name: String| {
        let header = Gguf::open_header(fixture(&name).header).expect("a fixture");
        let arch: String = header.metadata.require("general.architecture").expect("a fixture");
        let program = programs.iter().find(|r| r.arch.name == arch)?.arch;
        let generated = archs::find(&arch).expect("a fixture").arch;
        Some(Pair {
            name,
            header,
            archs: [generated, program],
        })
    };
    fixture_names().into_iter().filter_map(pair).collect()
}

/// Describes an architecture except for its loader.
fn description(r: &Registered) -> String {
    let Architecture {
        name,
        like,
        rope,
        rope_with_sections,
        bidirectional,
        encoder,
        mtp,
        embeddings,
        projects,
        rank_pooling,
        models,
        hparams,
        symbols,
        tensors,
        checkpoints,
        test,
        flow,
        media,
        media_use,
        load: _,
    } = r.arch;
    let kinds = (
        name,
        like,
        rope,
        rope_with_sections,
        bidirectional,
        encoder,
        mtp,
        embeddings,
        projects,
    );
    let lists = (
        rank_pooling,
        models,
        hparams,
        symbols,
        tensors,
        checkpoints,
        test,
        flow,
        media,
        media_use,
    );
    format!("{kinds:#?} {lists:#?} {}", r.about)
}

#[test]
fn declarations_without_rust_have_equal_descriptions() {
    let mut refused = Vec::new();
    for (file, declared) in DECLARED.iter() {
        match declared {
            Ok(program) => {
                let generated = archs::find(program.arch.name).expect("a built-in name");
                assert_eq!(description(program), description(generated), "{file}");
            }
            Err(e) => {
                let (place, text) = (format!("{file}:"), e.to_string());
                let (_, reason) = NEED_BUILD.iter().find(|(name, _)| name == file).expect("a reason");
                assert!(text.starts_with(&place) && text.contains(reason), "{text}");
                refused.push(*file);
            }
        }
    }
    assert_eq!(refused, NEED_BUILD.map(|(file, _)| file));
}

/// Graph and the inputs that it needs.
#[derive(PartialEq, Debug)]
struct Built {
    tensors: Vec<Tensor>,
    order: Vec<TensorId>,
    result: Option<TensorId>,
    inputs: String,
    specs: String,
    error: Option<String>,
}

fn leafs(rows: &[TableRow]) -> Vec<WeightLeaf> {
    let home = BufferSlice {
        buffer: BufferId(0),
        offset: 0,
    };
    let leaf = |row: &TableRow| WeightLeaf {
        ty: row.stored_type(),
        ne: row.ne,
        home,
        layout: Layout::Plain,
        name: Name {
            base: row.base,
            layer: row.layer,
        },
        parts: Vec::new(),
    };
    rows.iter().map(leaf).collect()
}

/// Builds a graph, which probes the memory that it needs, or uses a cache of such memory.
fn built(
    arch: &Architecture,
    base: &Base,
    graph: &dyn BuildGraph,
    leafs: &[WeightLeaf],
    (n_tokens, part): (usize, GraphPart),
    cached: bool,
) -> Built {
    let params = BuildParams {
        n_tokens,
        n_seq_max: 1,
        n_outputs: 1,
        part,
        hidden: HiddenRows::None,
        n_encoded: 3,
        n_embd: base.n_embd(),
        rope_sections: base.rope_sections,
        n_ctx: 1024,
        rope_kind: arch.rope_kind(base),
        rope: base.rope,
        n_rot: base.n_rot(),
        causal: !arch.bidirectional && base.causal && part == GraphPart::Graph,
        output: GraphOutput::Result,
        media: BatchMedia::Some,
        grid: PatchGrid::default(),
    };
    let (mut g, mut tables, mut inputs) = (Graph::new(), BuildTables::default(), Inputs::default());
    let mut specs = MemorySpecs::default();
    let view = cached.then(|| {
        let mut b = Builder::probe(&mut g, leafs, &mut tables, &mut inputs, params, &mut specs);
        add(&mut b, graph, part);
        let memory = MemoryParams {
            n_ctx: 1024,
            ..MemoryParams::default()
        };
        memory.resolved(1024).cache_view(&specs).0
    });
    let (result, error) = {
        let mut b = match &view {
            _ if !params.causal => Builder::over_batch(&mut g, leafs, &mut tables, &mut inputs, params),
            Some(view) => Builder::over_cells(&mut g, leafs, &mut tables, &mut inputs, params, view),
            None => Builder::probe(&mut g, leafs, &mut tables, &mut inputs, params, &mut specs),
        };
        let result = add(&mut b, graph, part);
        (result, b.finish().err().map(|e| e.to_string()))
    };
    Built {
        tensors: g.ids().map(|id| g.tensor(id).clone()).collect(),
        order: g.nodes().to_vec(),
        result,
        inputs: format!("{inputs:?}"),
        specs: format!("{specs:?}"),
        error,
    }
}

fn add(b: &mut Builder<'_>, graph: &dyn BuildGraph, part: GraphPart) -> Option<TensorId> {
    let result = match part {
        GraphPart::Encoder => graph.encode(b),
        GraphPart::Graph | GraphPart::Cross => Some(graph.build(b)),
        GraphPart::Mtp => graph.mtp(b),
    };
    result.map(|result| b.output(result))
}

/// Keys, table, and graphs of a header; or the error.
fn loaded(header: &Gguf, arch: &'static Architecture, n_tokens: &[usize]) -> Result<Vec<Built>, String> {
    let path = Path::new("a.gguf");
    let (base, graph, rows) = declare_header(header, path, arch, arch.name).map_err(|e| e.to_string())?;
    let weights = leafs(&rows);
    let mut all = Vec::new();
    for &n in n_tokens {
        for part in [GraphPart::Graph, GraphPart::Encoder] {
            for cached in [false, true] {
                all.push(built(arch, &base, graph.as_ref(), &weights, (n, part), cached));
            }
        }
    }
    if let Some(first) = all.first_mut() {
        first.inputs += &format!("{rows:?} {base:?}");
    }
    Ok(all)
}

/// Compares both architectures on a header. Returns true if the header is valid.
fn is_equal(pair: &Pair, header: &Gguf, n_tokens: &[usize], case: &str) -> bool {
    let [generated, program] = pair.archs.map(|arch| loaded(header, arch, n_tokens));
    let (is_valid, name) = (generated.is_ok(), &pair.name);
    match (generated, program) {
        (Ok(a), Ok(b)) => {
            for (a, b) in a.iter().zip(&b) {
                let differing = a.tensors.iter().zip(&b.tensors).find(|(a, b)| a != b);
                assert_eq!(differing, None, "{name}, {case}");
                assert!(a == b, "{name}, {case}: {:?} {:?}", a.error, b.error);
            }
            assert_eq!(a.len(), b.len());
        }
        (a, b) => assert_eq!(a.err(), b.err(), "{name}, {case}"),
    }
    is_valid
}

#[test]
fn fixtures_have_equal_tables_and_graphs() {
    let pairs = pairs();
    assert!(pairs.len() > 120, "{}", pairs.len());
    for pair in &pairs {
        assert!(is_equal(pair, &pair.header, &N_TOKENS, "unchanged"), "{}", pair.name);
        let with_mtp = LoadParams {
            mtp: true,
            ..LoadParams::default()
        };
        let plans = pair.archs.map(|arch| {
            let archs = [Registered { arch, about: "" }];
            let planned = plan(&pair.header, Path::new("a.gguf"), &archs, &with_mtp);
            planned.map(|plan| format!("{:?}", (plan.rows, plan.specs, plan.summary, plan.compute_bytes)))
        });
        let [generated, program] = plans.map(|plan| plan.unwrap_or_else(|e| e.to_string()));
        assert_eq!(generated, program, "{}", pair.name);
    }
}

/// Returns the header with other metadata, without the tensors whose name contains `without`.
fn changed(header: &Gguf, metadata: Metadata, without: Option<&str>) -> Option<Gguf> {
    let mut writer = GgufWriter::with_metadata(metadata);
    let kept = |name: &str| without.is_none_or(|part| !name.contains(part));
    for t in header.tensors().iter().filter(|t| kept(&t.name)) {
        writer
            .add_tensor_with(t.name.clone(), t.ty, t.shape(), |_| Ok(()))
            .ok()?;
    }
    Gguf::parse_header(&writer.header().ok()?).ok()
}

/// Values that replace the value of a key.
fn replacements(value: &Value) -> Vec<Value> {
    match value {
        Value::F32(_) => vec![Value::F32(0.0), Value::F32(-2.5)],
        Value::Bool(b) => vec![Value::Bool(!b)],
        Value::String(_) => vec![Value::U32(1)],
        Value::Array(_) => vec![Value::U32(2)],
        _ => [0u32, 1, 3, u32::MAX].map(Value::U32).to_vec(),
    }
}

#[test]
fn mutated_headers_have_equal_results() {
    let (mut n_valid, mut n_cases) = (0, 0);
    for pair in &pairs() {
        let prefix = format!("{}.", pair.archs[0].name);
        let is_own = |key: &str| key.starts_with(&prefix);
        let keys: Vec<String> = (pair.header.metadata.iter()).map(|(key, _)| key.to_owned()).collect();
        for key in keys.iter().filter(|key| is_own(key)) {
            let value = pair.header.metadata.get(key).expect("a key of the header");
            let others = |m: &Metadata| -> Metadata {
                let kept = m.iter().filter(|(k, _)| *k != key.as_str());
                kept.map(|(k, v)| (k.to_owned(), v.clone())).collect()
            };
            let mut variants = vec![others(&pair.header.metadata)];
            for replacement in replacements(value) {
                let mut metadata = others(&pair.header.metadata);
                metadata.insert(key.as_str(), replacement);
                variants.push(metadata);
            }
            for metadata in variants {
                let case = format!("{key} = {:?}", metadata.get(key));
                if let Some(header) = changed(&pair.header, metadata, None) {
                    n_valid += usize::from(is_equal(pair, &header, &[3], &case));
                    n_cases += 1;
                }
            }
        }
        let names: Vec<&str> = pair.archs[0].tensors.iter().map(|t| t.gguf).collect();
        for name in names {
            if let Some(header) = changed(&pair.header, pair.header.metadata.clone(), Some(name)) {
                n_valid += usize::from(is_equal(pair, &header, &[3], &format!("without {name}")));
                n_cases += 1;
            }
        }
    }
    assert!(
        n_cases > 5000 && (500..n_cases).contains(&n_valid),
        "{n_valid} of {n_cases}"
    );
}

#[test]
fn interpreted_logits_equal_those_of_generated_code() {
    let programs = interpreted();
    let mut compared = 0;
    for name in fixture_names() {
        let fixture = fixture(&name);
        let arch = fixture.arch().expect("a fixture");
        if !programs.iter().any(|r| r.arch.name == arch) {
            continue;
        }
        let tokens = tests::tokens(&name);
        let logits = |archs: &[Registered]| {
            let model = fixture.recorded_model(archs, &exact()).expect("a fixture");
            all_logits(model, &tokens, &exact().context).expect("the tokens are decoded")
        };
        let (generated, program) = (logits(archs::ALL), logits(&programs));
        let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&generated) == bits(&program), "{name}");
        compared += 1;
    }
    assert!(compared > 120, "{compared}");
}

/// The graph of 512 tokens takes at most 5 ms to build, for every declaration.
#[test]
#[ignore = "measures times; run with --release"]
fn graphs_of_programs_are_built_in_time() {
    let mut slowest = (Duration::ZERO, Duration::ZERO, String::new());
    for pair in &pairs() {
        let times = pair.archs.map(|arch| {
            let (base, graph, rows) =
                declare_header(&pair.header, Path::new("a.gguf"), arch, arch.name).expect("a fixture");
            let weights = leafs(&rows);
            let time = |_| {
                let start = Instant::now();
                built(arch, &base, graph.as_ref(), &weights, (512, GraphPart::Graph), false);
                start.elapsed()
            };
            (0..9).map(time).min().unwrap_or_default()
        });
        if times[1] > slowest.1 {
            slowest = (times[0], times[1], pair.name.clone());
        }
    }
    let (generated, program, name) = slowest;
    println!("{name}: {generated:.1?} as generated code, {program:.1?} as a program");
    assert!(program < Duration::from_millis(5), "{name}: {program:.1?}");
}

/// Every row of the table of operations has a builder with the same parameters, and every keyword a variant.
#[test]
fn operations_have_builders() {
    use arch_lang::ops::{Emit, ParamKind, WINDOWS, all};
    use engine::declared::operations::{OPERATIONS, find, is_word, window};

    for op in all() {
        let found = find(op.name).unwrap_or_else(|| panic!("`{}` has no row in OPERATIONS", op.name));
        let names: Vec<&str> = op.params.iter().map(|p| p.name).collect();
        assert_eq!(found.params, names, "{}", op.name);
        let variant = match op.emit {
            Emit::Unary(variant) => Some(variant.to_owned()),
            _ => None,
        };
        assert_eq!(found.unary.map(|f| format!("{f:?}")), variant, "{}", op.name);
        for param in op.params {
            if let ParamKind::Word(ty, words) = param.kind {
                assert!(words.iter().all(|(_, variant)| is_word(ty, variant)), "{}", op.name);
            }
        }
    }
    assert_eq!(OPERATIONS.len(), all().count());
    assert!(WINDOWS.iter().all(|kind| window(kind).is_some()));
}
