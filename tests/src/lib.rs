//! Helpers shared by the integration tests.

pub mod declared;
pub mod emulator;
pub mod images;
pub mod layouts;
pub mod mtp;
pub mod published;
mod root;
pub mod speech;
mod text;
pub mod variation;

use std::path::PathBuf;
use std::sync::Arc;

pub use engine::gguf::logits::nmse;
pub use root::root;
pub use text::{text_model, text_model_with};

use engine::conformance::{CheckParams, Fixture};
use engine::context::{Batch, Context, ContextParams, SeqSet};
use engine::gguf::{Gguf, GgufWriter, seeded};
use engine::model::{DeviceLayers, LoadParams, Model, SplitMode};
use engine::vocab::Token;
use kernels::{GgmlType, Precision};

/// Returns the directory of test data.
pub fn data_dir() -> PathBuf {
    root().join("tests/data")
}

/// Returns a fixture by name.
pub fn fixture(name: &str) -> Fixture {
    let dir = data_dir().join("archs");
    Fixture {
        name: name.to_owned(),
        header: dir.join(format!("{name}.header.gguf")),
        logits: dir.join(format!("{name}.logits")),
    }
}

/// Returns the names of all fixtures.
pub fn fixture_names() -> Vec<String> {
    let all = engine::conformance::fixtures(&data_dir().join("archs")).expect("the data directory is readable");
    all.into_iter().map(|f| f.name).collect()
}

/// Fixtures for slow tests: six with attention, one with recurrent state, one with both.
pub const CORE: [&str; 8] = [
    "falcon-h1-dense",
    "gemma3-dense",
    "internlm2-dense",
    "llama-dense",
    "llama-moe",
    "mamba2-dense",
    "qwen2-dense",
    "qwen3-dense",
];

/// Fixtures with the variants to run for each.
pub type Runs<'a, Way> = Vec<(String, Vec<&'a Way>)>;

/// Returns every fixture with all variants.
pub fn in_every_way<Way>(ways: &[Way]) -> Runs<'_, Way> {
    let names = fixture_names().into_iter();
    names.map(|name| (name, ways.iter().collect())).collect()
}

/// Returns every fixture with one of the variants, in rotation, and the [`CORE`] fixtures with all of them.
pub fn in_one_way_each<Way>(ways: &[Way]) -> Runs<'_, Way> {
    let mut runs = in_every_way(ways);
    for (i, (name, of_fixture)) in runs.iter_mut().enumerate() {
        if !CORE.contains(&name.as_str()) {
            *of_fixture = vec![&ways[i % ways.len()]];
        }
    }
    runs
}

/// Returns the parameters of conformance checks: original weight layout, f32 caches, and a thread pool with
/// two threads.
pub fn exact() -> CheckParams {
    let mut load = LoadParams::default();
    load.placement.repack = false;
    CheckParams {
        seed: 1,
        load,
        context: ContextParams {
            n_threads: 2,
            n_threads_batch: 2,
            precision: Precision::Exact,
            type_k: GgmlType::F32,
            type_v: GgmlType::F32,
            ..ContextParams::default()
        },
    }
}

/// Places the last `n_layers` on a device; the output counts as one layer.
pub fn place_on(load: &mut LoadParams, device: &str, n_layers: usize) {
    load.placement.devices = vec![engine::backend::device(device).expect("the device is compiled in")];
    load.placement.n_layers = DeviceLayers::Count(n_layers);
}

/// Splits the matrices of the last `n_layers` between the CPU and the reference device, which also gets the
/// rest of those layers. The output counts as one layer.
pub fn divide_rows(load: &mut LoadParams, n_layers: usize, shares: &[f32]) {
    place_on(load, "reference", n_layers);
    let cpu = engine::backend::device("cpu").expect("the CPU device always exists");
    load.placement.devices.insert(0, cpu);
    load.placement.split_mode = SplitMode::Row;
    load.placement.tensor_split = shares.to_vec();
}

/// Returns the seeded model of a fixture.
pub fn model(name: &str) -> Arc<Model> {
    fixture(name)
        .model(archs::ALL, &exact())
        .expect("the fixture's model loads")
}

/// Returns the seeded model of a fixture as file bytes. With `ty`, matrices are quantized if their row length
/// allows it.
pub fn seeded_file(name: &str, ty: Option<GgmlType>) -> Vec<u8> {
    let bytes = seeded::seeded_model(&Gguf::open_header(fixture(name).header).unwrap(), 1).unwrap();
    let Some(ty) = ty else { return bytes };
    let header = Gguf::parse_header(&bytes).unwrap();
    let mut writer = GgufWriter::with_metadata(header.metadata.clone());
    for t in header.tensors() {
        let data = &bytes[header.data_offset() + t.offset..][..t.bytes];
        let is_matrix = t.shape().len() > 1 && t.ne[0].is_multiple_of(ty.block_size()) && t.ty == GgmlType::F32;
        let (ty, data) = if is_matrix {
            let floats: Vec<f32> = data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
            let mut blocks = vec![0; ty.row_bytes(floats.len()).unwrap()];
            kernels::quantize_row(ty, &floats, &mut blocks);
            (ty, blocks)
        } else {
            (t.ty, data.to_vec())
        };
        writer.add_tensor(t.name.as_str(), ty, t.shape(), data).unwrap();
    }
    writer.to_bytes().unwrap()
}

/// Like [`model`], with the weights used for recording logits.
pub fn recorded_model(name: &str) -> Arc<Model> {
    fixture(name)
        .recorded_model(archs::ALL, &exact())
        .expect("the fixture's model loads")
}

/// Returns the recorded tokens of a fixture.
pub fn tokens(name: &str) -> Vec<Token> {
    engine::conformance::tokens(&fixture(name).recorded().expect("the logits file is readable"))
}

/// Creates a context of 96 cells with f32 caches.
pub fn context(model: &Arc<Model>, change: impl FnOnce(&mut ContextParams)) -> Context {
    let mut params = exact().context;
    params.n_ctx = 96;
    change(&mut params);
    Context::new(model.clone(), &params).expect("the context parameters are valid")
}

/// Decodes tokens of a sequence from position `pos` in one batch and returns the logits of the last token.
pub fn decode_last(ctx: &mut Context, tokens: &[Token], pos: usize, seq: usize) -> Vec<f32> {
    let mut batch = Batch::new();
    if pos == 0 && seq == 0 {
        encode(ctx, tokens);
    }
    batch.push_prompt(tokens, pos, seq);
    ctx.decode(&batch).expect("the batch is decoded");
    ctx.logits(tokens.len() - 1)
        .expect("the last token has output")
        .to_vec()
}

/// Encodes tokens of sequence 0 if the model has an encoder.
pub fn encode(ctx: &mut Context, tokens: &[Token]) {
    if ctx.model().arch().encoder {
        let mut batch = Batch::new();
        batch.push_prompt(tokens, 0, 0);
        ctx.encode(&batch).expect("the batch is encoded");
    }
}

/// Decodes one token and returns its logits.
pub fn decode_one(ctx: &mut Context, token: Token, pos: usize, seq: usize) -> Vec<f32> {
    let mut batch = Batch::new();
    batch.push(token, pos, SeqSet::one(seq), true);
    ctx.decode(&batch).expect("the token is decoded");
    ctx.logits(0).expect("the token has output").to_vec()
}
