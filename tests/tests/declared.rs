//! Declarations that are read at run time: the interpreter and generated code give the same architectures.

use std::path::Path;
use std::time::{Duration, Instant};

use arch_runtime::library::BuiltIn;
use engine::builder::{
    Adaptation, AdaptedUse, AdapterLeaf, BatchMedia, BuildGraph, BuildParams, BuildTables, Builder, GraphOutput,
    GraphPart, HiddenRows, Inputs, LowRankTerm, MemoryParams, MemorySpecs, PatchGrid, WeightId, WeightLeaf,
};
use engine::conformance::{Draft, Fixture, all_logits, fixtures, tokens};
use engine::context::StateError;
use engine::gguf::{Gguf, GgufWriter, Metadata, Value};
use engine::graph::{BufferId, BufferSlice, Graph, Layout, Name, Tensor, TensorId};
use engine::model::{
    Architecture, Base, Consumer, LoadParams, Registered, TableRow, declare_header, declare_mtp_header, plan,
};
use kernels::GgmlType;
use tests::declared::{DECLARED, DECLARED_ENCODERS, interpreted, interpreted_encoders};
use tests::{exact, fixture};

/// Numbers of tokens of the compared graphs.
const N_TOKENS: [usize; 3] = [1, 7, 512];

/// A header with its architecture as generated code and as a program.
struct Pair {
    name: String,
    header: Gguf,
    archs: [&'static Architecture; 2],
}

/// Returns all fixtures, and the configurations with recorded logits.
fn all_fixtures() -> Vec<Fixture> {
    let directories = ["archs", "recorded"].map(|name| tests::data_dir().join(name));
    let all = directories.map(|directory| fixtures(&directory).expect("the directory is readable"));
    all.concat()
}

/// Returns the headers of all fixtures.
fn pairs() -> Vec<Pair> {
    let programs = interpreted();
    let pair = |Fixture { name, header, .. }| {
        let header = Gguf::open_header(header).expect("a fixture");
        let arch: String = header.metadata.require("general.architecture").expect("a fixture");
        let program = programs.iter().find(|r| r.arch.name == arch).expect("a program").arch;
        let generated = archs::find(&arch).expect("a fixture").arch;
        Pair {
            name,
            header,
            archs: [generated, program],
        }
    };
    all_fixtures().into_iter().map(pair).collect()
}

/// Returns the test models of all declarations, encoders included.
fn test_models() -> Vec<Pair> {
    let programs = [interpreted(), interpreted_encoders()].concat();
    let pair = |program: &Registered| {
        let name = program.arch.name;
        let (found, all) = match program.arch.media {
            Some(_) => (archs::find_encoder(name), archs::ENCODERS),
            None => (archs::find(name), archs::ALL),
        };
        let generated = found.expect("a built-in name").arch;
        let n_mtp: &[(&str, f64)] = if generated.mtp { &[("n_mtp", 1.0)] } else { &[] };
        let sizes = [generated.test, n_mtp].concat();
        let draft = Draft::of_sizes(generated, all, &sizes, |_| true).unwrap_or_else(|e| panic!("{name}: {e}"));
        Pair {
            name: format!("test model of {name}"),
            header: draft.header().expect("a header"),
            archs: [generated, program.arch],
        }
    };
    programs.iter().map(pair).collect()
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
        media,
        media_use,
    );
    format!("{kinds:#?} {lists:#?} {}", r.about)
}

#[test]
fn all_declarations_have_equal_descriptions() {
    for (file, declared) in DECLARED.iter().chain(DECLARED_ENCODERS.iter()) {
        let program = declared.as_ref().unwrap_or_else(|e| panic!("{file}: {e}"));
        let generated = match program.arch.media {
            Some(_) => archs::find_encoder(program.arch.name),
            None => archs::find(program.arch.name),
        };
        assert_eq!(
            description(program),
            description(generated.expect("a built-in name")),
            "{file}"
        );
    }
    assert_eq!(DECLARED.len(), archs::ALL.len());
    assert_eq!(DECLARED_ENCODERS.len(), archs::ENCODERS.len());
}

#[test]
fn built_in_declarations_contain_no_rust() {
    for (file, text) in BuiltIn.all() {
        assert!(!text.contains("rust!"), "{file}");
    }
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

/// Graph to build for a loaded architecture.
#[derive(Clone, Copy)]
struct Wanted {
    n_tokens: usize,
    part: Part,
    /// The cache exists already, instead of being determined by the graph.
    cached: bool,
    /// Every matrix has an adapter, and every layer of a language model a control vector.
    adapted: bool,
}

/// Part of an architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Graph,
    Encoder,
    Mtp,
    /// The projections of pooled rows.
    Heads,
}

impl Wanted {
    /// Returns the graphs of all parts for each number of tokens, without adapters.
    fn plain(n_tokens: &[usize]) -> Vec<Wanted> {
        let mut all = Wanted::all(n_tokens);
        all.retain(|wanted| !wanted.adapted);
        all
    }

    /// Returns the graphs of all parts for each number of tokens.
    fn all(n_tokens: &[usize]) -> Vec<Wanted> {
        n_tokens.iter().flat_map(|&n| Wanted::all_of(n)).collect()
    }

    fn all_of(n_tokens: usize) -> Vec<Wanted> {
        let mut all = Vec::new();
        for part in [Part::Graph, Part::Encoder, Part::Mtp, Part::Heads] {
            for (cached, adapted) in [(false, false), (true, false), (true, true)] {
                all.push(Wanted {
                    n_tokens,
                    part,
                    cached,
                    adapted,
                });
            }
        }
        all
    }
}

const HOME: BufferSlice = BufferSlice {
    buffer: BufferId(0),
    offset: 0,
};

/// Returns an adapter of every matrix and table, and a control vector of every layer of a language model. Encoders have
/// no control vectors.
fn adaptation(base: &Base, rows: &[TableRow], is_encoder: bool) -> Adaptation {
    let leaf = |ne: [usize; 4]| AdapterLeaf {
        ty: GgmlType::F32,
        ne,
        home: HOME,
    };
    let term = |(i, row): (usize, &TableRow)| {
        let [n_in, n_out, n, _] = row.ne;
        let (applies_to, a, b) = match row.consumer {
            Consumer::GetRows => (AdaptedUse::Rows, [2, n_out, 1, 1], [2, n_in, 1, 1]),
            _ => (AdaptedUse::Product, [n_in, 2, n, 1], [2, n_out, n, 1]),
        };
        LowRankTerm {
            weight: WeightId(i as u32),
            applies_to,
            a: leaf(a),
            b: leaf(b),
            scale: 0.5,
            per_token: None,
        }
    };
    let is_matrix = |(_, row): &(usize, &TableRow)| row.consumer != Consumer::Elementwise && row.ty != GgmlType::I32;
    let terms = rows.iter().enumerate().filter(is_matrix).map(term).collect();
    let direction = Some(leaf([base.n_embd(), 1, 1, 1]));
    let n_directions = if is_encoder { 0 } else { base.n_layer() };
    Adaptation::new(terms, vec![direction; n_directions])
}

fn leafs(rows: &[TableRow]) -> Vec<WeightLeaf> {
    let leaf = |row: &TableRow| WeightLeaf {
        ty: row.stored_type(),
        ne: row.ne,
        home: HOME,
        layout: Layout::Plain,
        name: Name {
            base: row.base,
            layer: row.layer,
        },
        parts: Vec::new(),
        value: None,
    };
    rows.iter().map(leaf).collect()
}

/// Builds a graph, which probes the memory that it needs, or uses a cache of such memory.
fn built(arch: &Architecture, base: &Base, graph: &dyn BuildGraph, rows: &[TableRow], wanted: Wanted) -> Built {
    let Wanted { n_tokens, part, .. } = wanted;
    let leafs = &leafs(rows)[..];
    let adaptation = if wanted.adapted {
        adaptation(base, rows, arch.media.is_some())
    } else {
        Adaptation::NONE.clone()
    };
    let is_graph = matches!(part, Part::Graph | Part::Mtp);
    let params = BuildParams {
        // The tokens of an image are its patches, and a learned column in some encoders.
        n_tokens: graph.image().map_or(n_tokens, |rules| rules.n_columns(n_tokens)),
        n_seq_max: 1,
        n_outputs: 1,
        part: match part {
            Part::Graph | Part::Heads => GraphPart::Graph,
            Part::Encoder => GraphPart::Encoder,
            Part::Mtp => GraphPart::Mtp,
        },
        hidden: HiddenRows::None,
        n_encoded: if graph.audio().is_some() { n_tokens } else { 3 },
        n_embd: base.n_embd(),
        rope_sections: base.rope_sections,
        n_ctx: 1024,
        rope_kind: arch.rope_kind(base),
        rope: base.rope,
        n_rot: base.n_rot(),
        causal: !arch.bidirectional && base.causal && is_graph && arch.media.is_none(),
        output: GraphOutput::Result,
        media: BatchMedia::Some,
        grid: match arch.media {
            Some(_) => PatchGrid {
                columns: n_tokens.isqrt(),
                rows: n_tokens.isqrt(),
            },
            None => PatchGrid::default(),
        },
    };
    let (mut g, mut tables, mut inputs) = (Graph::new(), BuildTables::default(), Inputs::default());
    let mut specs = MemorySpecs::default();
    let view = wanted.cached.then(|| {
        let b = Builder::probe(&mut g, leafs, &mut tables, &mut inputs, params, &mut specs);
        let mut b = b.adapted(&adaptation);
        add(&mut b, graph, part);
        let memory = MemoryParams {
            n_ctx: 1024,
            ..MemoryParams::default()
        };
        memory.resolved(1024).cache_view(&specs).0
    });
    let (result, error) = {
        let b = match &view {
            _ if !params.causal => Builder::over_batch(&mut g, leafs, &mut tables, &mut inputs, params),
            Some(view) => Builder::over_cells(&mut g, leafs, &mut tables, &mut inputs, params, view),
            None => Builder::probe(&mut g, leafs, &mut tables, &mut inputs, params, &mut specs),
        };
        let mut b = b.adapted(&adaptation);
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

fn add(b: &mut Builder<'_>, graph: &dyn BuildGraph, part: Part) -> Option<TensorId> {
    let result = match part {
        Part::Encoder => graph.encode(b),
        Part::Graph => Some(graph.build(b)),
        Part::Mtp => graph.mtp(b),
        Part::Heads => {
            let pooled = b.hidden_rows();
            let heads = [graph.embedding(b, pooled), graph.rank(b, pooled)];
            return heads.into_iter().flatten().next_back();
        }
    };
    result.map(|result| b.output(result))
}

/// Keys, table, and graphs of a header; or the error.
fn loaded(header: &Gguf, arch: &'static Architecture, wanted: &[Wanted]) -> Result<Vec<Built>, String> {
    let path = Path::new("a.gguf");
    let prefix = arch.key_prefix(arch.file_arch());
    let (base, graph, rows) = declare_mtp_header(header, path, arch, prefix).map_err(|e| e.to_string())?;
    let wanted = wanted.iter();
    let mut all: Vec<Built> = wanted
        .map(|&wanted| built(arch, &base, graph.as_ref(), &rows, wanted))
        .collect();
    if let Some(first) = all.first_mut() {
        let media = (graph.image(), graph.audio());
        first.inputs += &format!("{rows:?} {base:?} {media:?}");
    }
    Ok(all)
}

/// Compares both architectures on a header. Returns true if the header is valid.
fn is_equal(pair: &Pair, header: &Gguf, wanted: &[Wanted], case: &str) -> bool {
    let [generated, program] = pair.archs.map(|arch| loaded(header, arch, wanted));
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
    assert!(pairs.len() > 180, "{}", pairs.len());
    for pair in &pairs {
        assert!(
            is_equal(pair, &pair.header, &Wanted::all(&N_TOKENS), "unchanged"),
            "{}",
            pair.name
        );
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

/// Tokens of the compared graphs of encoders: squares of blocks.
const N_PATCHES: [usize; 2] = [144, 576];

/// Patches of a tile and of the whole image in the test model of `deepseekocr2`, which has tables of queries for both.
const N_QUERIED_PATCHES: [usize; 2] = [144, 256];

#[test]
fn test_models_have_equal_tables_and_graphs() {
    let (mut n_mtp, mut n_heads) = (0, 0);
    for pair in &test_models() {
        let [generated, _] = pair.archs;
        let is_encoder = generated.media.is_some();
        let n_tokens = match generated.name {
            "deepseekocr2" => &N_QUERIED_PATCHES[..],
            _ if is_encoder => &N_PATCHES[..],
            _ => &N_TOKENS[..],
        };
        let wanted = Wanted::all(n_tokens);
        assert!(is_equal(pair, &pair.header, &wanted, "unchanged"), "{}", pair.name);
        let all = loaded(&pair.header, generated, &wanted).expect("a test model");
        for (part, built) in wanted
            .iter()
            .map(|w| w.part)
            .zip(&all)
            .filter(|(_, built)| built.result.is_some())
        {
            n_mtp += usize::from(part == Part::Mtp);
            n_heads += usize::from(part == Part::Heads);
            assert_eq!(built.error, None, "{}, {part:?}", pair.name);
        }
        // Adapters change the graph.
        assert!(all[1].tensors.len() < all[2].tensors.len(), "{}", pair.name);
    }
    assert!(n_mtp > 0 && n_heads > 0, "{n_mtp} {n_heads}");
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
    let few = Wanted::plain(&[3]);
    let encoders = test_models().into_iter().filter(|pair| pair.archs[0].media.is_some());
    for pair in &pairs().into_iter().chain(encoders).collect::<Vec<_>>() {
        let arch = pair.archs[0];
        let prefix = format!("{}.", arch.key_prefix(arch.file_arch()));
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
                    n_valid += usize::from(is_equal(pair, &header, &few, &case));
                    n_cases += 1;
                }
            }
        }
        let names: Vec<&str> = pair.archs[0].tensors.iter().map(|t| t.gguf).collect();
        for name in names {
            if let Some(header) = changed(&pair.header, pair.header.metadata.clone(), Some(name)) {
                n_valid += usize::from(is_equal(pair, &header, &few, &format!("without {name}")));
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
    for fixture in all_fixtures() {
        let (name, arch) = (&fixture.name, fixture.arch().expect("a fixture"));
        assert!(programs.iter().any(|r| r.arch.name == arch), "{name}");
        let tokens = tokens(&fixture.recorded().expect("sound logits"));
        let logits = |archs: &[Registered]| {
            let model = fixture.recorded_model(archs, &exact()).expect("a fixture");
            all_logits(model, &tokens, &exact().context).expect("the tokens are decoded")
        };
        let (generated, program) = (logits(archs::ALL), logits(&programs));
        let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&generated) == bits(&program), "{name}");
        compared += 1;
    }
    assert!(compared > 180, "{compared}");
}

/// A comment changes the digest of a declaration, but not its graph.
#[test]
fn saved_state_of_another_declaration_is_rejected() {
    let text = BuiltIn.file("llama.rs").expect("a built-in declaration").text;
    let models = [text.clone(), format!("// Another text.\n{text}")].map(|text| {
        let registered = arch_runtime::declare("llama.rs", &text, &BuiltIn).expect("a valid declaration");
        let model = fixture("llama-dense").recorded_model(&[registered], &exact());
        model.expect("a fixture")
    });
    let tokens = tests::tokens("llama-dense");
    let contexts = models.each_ref().map(|model| tests::context(model, |p| p.n_ctx = 64));
    let [mut first, mut second] = contexts;
    let expected = tests::decode_last(&mut first, &tokens[..8], 0, 0);
    let mut state = Vec::new();
    first.save_state(&mut state).expect("the state is saved");
    let mut again = tests::context(&models[0], |p| p.n_ctx = 64);
    again.load_state(&state).expect("the state of the same declaration");
    let error = second.load_state(&state).expect_err("another declaration");
    assert!(matches!(error, StateError::Model { .. }), "{error:?}");
    assert_eq!(tests::decode_last(&mut second, &tokens[..8], 0, 0), expected);
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
            let wanted = Wanted {
                n_tokens: 512,
                part: Part::Graph,
                cached: false,
                adapted: false,
            };
            let time = |_| {
                let start = Instant::now();
                built(arch, &base, graph.as_ref(), &rows, wanted);
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
