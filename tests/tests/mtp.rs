//! Multi-token prediction (MTP) layers: their outputs and drafts.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::checkpoint::open_model;
use engine::context::{Batch, Context, DecodeError, SeqSet};
use engine::gguf::logits::Logits;
use engine::gguf::{Value, seeded};
use engine::model::{LoadParams, Model};
use engine::sample::{SamplerChain, SamplerParams};
use engine::speculate::{Decoded, DraftController, Drafted, Drafter, Mtp, Speculator, Step};
use engine::vocab::Token;
use tests::mtp::{ModelFile, architectures, follower, speculating};
use tests::{context, exact, nmse};

const N_PROMPT: usize = 8;
const N_TEXT: usize = 72;

/// Returns rows of random values.
fn random_rows(n: usize, n_embd: usize) -> Vec<f32> {
    let mut rows = vec![0.0; n * n_embd];
    seeded::fill_f32("rows.weight", 7, &mut rows);
    rows
}

fn tokens(n: usize, n_vocab: usize) -> Vec<Token> {
    (0..n).map(|i| ((i * 37 + 11) % n_vocab) as Token).collect()
}

/// Creates a batch with output for every token.
fn all_wanted(tokens: &[Token]) -> Batch {
    let mut batch = Batch::new();
    for (i, &token) in tokens.iter().enumerate() {
        batch.push(token, i, SeqSet::one(0), true);
    }
    batch
}

fn logits(context: &Context, n: usize) -> Vec<f32> {
    (0..n).flat_map(|i| context.logits(i).unwrap()).copied().collect()
}

/// Computes `x / rms(x) * weight`.
fn rms_norm(x: &[f32], weight: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter()
        .zip(weight)
        .map(|(&x, &w)| f64::from(x) * scale * f64::from(w))
        .collect()
}

/// Returns the residual stream at the MTP layer's input, computed in f64 from the definition.
fn projected(file: &ModelFile, tokens: &[Token], hidden: &[f32]) -> Vec<f32> {
    let n = file.n_embd();
    let eps = file.metadata.iter().find(|(key, _)| key.ends_with("rms_epsilon"));
    let eps = eps.and_then(|(_, v)| v.as_f32()).map_or(1e-5, f64::from);
    let (embd, projection) = (
        file.tensor("nextn.embed_tokens.weight"),
        file.tensor("nextn.eh_proj.weight"),
    );
    let mut out = Vec::new();
    for (&token, h) in tokens.iter().zip(hidden.chunks_exact(n)) {
        let e = &embd[token as usize * n..][..n];
        let e = rms_norm(e, file.tensor("nextn.enorm.weight"), eps);
        let joined = [e, rms_norm(h, file.tensor("nextn.hnorm.weight"), eps)].concat();
        let product = |row: &[f32]| row.iter().zip(&joined).map(|(&w, x)| f64::from(w) * x).sum::<f64>();
        out.extend(projection.chunks_exact(2 * n).map(|row| product(row) as f32));
    }
    out
}

/// Creates an ordinary model from the MTP layer, with `rows` as its first token embeddings.
fn layer_as_model(file: &ModelFile, rows: &[f32]) -> ModelFile {
    let mut alone = file.clone();
    let arch: String = file.metadata.require("general.architecture").unwrap();
    let mut set = |key: &str, value: Value| {
        let key = format!("{arch}.{key}");
        if key.ends_with("block_count") || alone.metadata.contains(&key) {
            alone.metadata.insert(key, value);
        }
    };
    set("nextn_predict_layers", Value::U32(0));
    set("leading_dense_block_count", Value::U32(0));
    set("full_attention_interval", Value::U32(1));
    set("block_count", Value::U32(1));
    let n_layer = file.metadata.require::<u32>(&format!("{arch}.block_count")).unwrap() - 1;
    let of_mtp = format!("blk.{n_layer}.");
    alone.tensors.retain(|name, _| !name.starts_with("blk."));
    for (name, tensor) in &file.tensors {
        match name.strip_prefix(&of_mtp) {
            Some(name) if !name.starts_with("nextn.") => {
                alone.tensors.insert(format!("blk.0.{name}"), tensor.clone());
            }
            _ => {}
        }
    }
    let mut replace = |name: &str, by: &[f32]| {
        let values = &mut alone.tensors.get_mut(name).unwrap().1;
        values[..by.len()].copy_from_slice(by);
    };
    replace("token_embd.weight", rows);
    replace("output_norm.weight", file.tensor("nextn.shared_head_norm.weight"));
    replace("output.weight", file.tensor("nextn.shared_head_head.weight"));
    alone
}

#[test]
fn mtp_layer_equals_projection_and_layer() {
    const N: usize = 12;
    let mut n_architectures = 0;
    for registered in architectures() {
        let (name, file) = (registered.arch.name, ModelFile::seeded(registered));
        let (tokens, hidden) = (tokens(N, file.n_vocab()), random_rows(N, file.n_embd()));
        let mut layer = context(&file.load(true), |p| (p.mtp, p.n_outputs_max) = (true, N));
        layer.decode_after(&all_wanted(&tokens), &hidden).unwrap();
        let alone = layer_as_model(&file, &projected(&file, &tokens, &hidden));
        let mut expected = context(&alone.load(false), |p| p.n_outputs_max = N);
        let rows: Vec<Token> = (0..N as Token).collect();
        expected.decode(&all_wanted(&rows)).unwrap();
        let error = nmse(&logits(&layer, N), &logits(&expected, N));
        assert!(error < 1e-9, "{name}: {error}");
        n_architectures += 1;
    }
    assert!(n_architectures > 0);
}

/// The layers of two checkpoints, named by layer number or separately, against decoder layers of transformers in 64
/// bits.
#[test]
fn mtp_layers_of_checkpoints_match_recorded_results() {
    for name in ["glm4_moe", "qwen3_next"] {
        let checkpoint = tests::root().join("tests/data/mtp_checkpoints").join(name);
        let read = |file: &str| Logits::read(checkpoint.join(file)).unwrap();
        let (hidden, recorded, whole) = (read("mtp.hidden"), read("mtp.logits"), read("logits"));
        let load = |mtp: bool| {
            let set = open_model(&checkpoint, archs::ALL).unwrap_or_else(|e| panic!("{name}: {e}"));
            let params = LoadParams { mtp, ..exact().load };
            Arc::new(Model::from_set(set, archs::ALL, &params).unwrap_or_else(|e| panic!("{name}: {e}")))
        };
        let model = load(true);
        assert!(model.has_mtp(), "{name}");
        let tokens = engine::conformance::tokens(&recorded);
        let mut layer = context(&model, |p| (p.mtp, p.n_outputs_max) = (true, tokens.len()));
        layer.decode_after(&all_wanted(&tokens), hidden.values()).unwrap();
        let error = nmse(recorded.values(), &logits(&layer, tokens.len()));
        println!("{name}: {error:.1e}");
        assert!(error < 1e-11, "{name}: {error:.1e}");
        // Other results do not depend on the layer.
        let tokens = engine::conformance::tokens(&whole);
        for mtp in [false, true] {
            let mut context = context(&load(mtp), |p| p.n_outputs_max = tokens.len());
            context.decode(&all_wanted(&tokens)).unwrap();
            let error = nmse(whole.values(), &logits(&context, tokens.len()));
            assert!(error < 1e-11, "{name}: {error:.1e}");
        }
    }
}

#[test]
fn mtp_layer_is_independent_of_batches() {
    const N: usize = 12;
    for registered in architectures() {
        let (name, file) = (registered.arch.name, ModelFile::seeded(registered));
        let (tokens, hidden) = (tokens(N, file.n_vocab()), random_rows(N, file.n_embd()));
        let model = file.load(true);
        let open = || context(&model, |p| (p.mtp, p.n_outputs_max) = (true, N));
        let mut whole = open();
        whole.decode_after(&all_wanted(&tokens), &hidden).unwrap();
        let mut one = open();
        for (i, row) in hidden.chunks_exact(file.n_embd()).enumerate() {
            let mut batch = Batch::new();
            batch.push(tokens[i], i, SeqSet::one(0), true);
            one.decode_after(&batch, row).unwrap();
            let rows = [
                (one.logits(0), whole.logits(i), "logits"),
                (one.hidden(0), whole.hidden(i), "hidden row"),
            ];
            for (found, expected, what) in rows {
                let error = nmse(found.unwrap(), expected.unwrap());
                assert!(error < 1e-9, "{name}, {what} of token {i}: {error}");
            }
        }
    }
}

/// Logits are the output matrix times the hidden rows, which do not depend on the selected outputs.
#[test]
fn hidden_rows_times_output_matrix_are_logits() {
    const N: usize = 12;
    for name in ["llama-dense", "qwen3-dense", "mamba-dense", "qwen3next-moe"] {
        let model = tests::model(name);
        let tokens = &tests::tokens(name)[..N];
        // The batch takes two ubatches.
        let mut all = context(&model, |p| (p.hidden, p.n_outputs_max, p.n_ubatch) = (true, N, 8));
        all.decode(&all_wanted(tokens)).unwrap();
        let output = model.tensors().iter().rposition(|t| t.name == "output.weight");
        let output = output.or_else(|| model.tensors().iter().rposition(|t| t.name == "token_embd.weight"));
        let bytes = model.tensor_data(output.unwrap()).unwrap();
        let matrix: Vec<f32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect();
        let mut last = context(&model, |p| (p.hidden, p.n_ubatch) = (true, 8));
        let mut batch = Batch::new();
        batch.push_prompt(tokens, 0, 0);
        last.decode(&batch).unwrap();
        let mut plain = context(&model, |p| p.n_ubatch = 8);
        plain.decode(&batch).unwrap();
        assert!(plain.hidden(0).is_none());
        assert!(nmse(last.logits(N - 1).unwrap(), plain.logits(N - 1).unwrap()) < 1e-10);
        for i in 0..N {
            let row = all.hidden(i).unwrap();
            let product = |w: &[f32]| row.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum::<f64>() as f32;
            let products: Vec<f32> = matrix.chunks_exact(row.len()).map(product).collect();
            assert!(nmse(all.logits(i).unwrap(), &products) < 1e-9, "{name}, token {i}");
            assert!(nmse(last.hidden(i).unwrap(), row) < 1e-10, "{name}, token {i}");
        }
    }
}

/// Generates after a prompt, optionally with MTP drafts.
fn generate(context: &mut Context, params: &SamplerParams, prompt: &[Token], mtp: bool) -> (Vec<Token>, Drafted) {
    let drafter = mtp.then(|| Mtp::new(context).unwrap());
    let mut speculator = drafter.map(|drafter| Speculator::new(DraftController::fixed(7)).with(0, Box::new(drafter)));
    context.clear();
    let mut text = Vec::new();
    let row = follow_prompt(context, speculator.as_mut(), prompt, &mut text);
    let mut chain = SamplerChain::new(params, context.model().base().n_vocab(), None).unwrap();
    go_on(context, speculator.as_mut(), &mut chain, &mut text, row);
    (text, speculator.map(|s| s.drafted()).unwrap_or_default())
}

/// Decodes a prompt in batches and returns the index of its last logits.
fn follow_prompt(
    context: &mut Context,
    mut speculator: Option<&mut Speculator>,
    prompt: &[Token],
    text: &mut Vec<Token>,
) -> usize {
    let mut batch = Batch::new();
    for tokens in prompt.chunks(context.params().n_batch) {
        batch.clear();
        batch.push_prompt(tokens, text.len(), 0);
        context.decode(&batch).unwrap();
        if let Some(speculator) = &mut speculator {
            let decoded = Decoded {
                context,
                first: 0,
                n_before: text.len(),
                tokens,
            };
            speculator.follow(0, decoded).unwrap();
        }
        text.extend_from_slice(tokens);
    }
    batch.len() - 1
}

/// Generates up to [`N_TEXT`] tokens in total.
fn go_on(
    context: &mut Context,
    mut speculator: Option<&mut Speculator>,
    chain: &mut SamplerChain,
    text: &mut Vec<Token>,
    mut row: usize,
) {
    let mut batch = Batch::new();
    while text.len() < N_TEXT {
        let token = chain.sample(context.logits(row).unwrap()).unwrap();
        chain.accept(token);
        row = match &mut speculator {
            Some(speculator) => speculator.advance(context, Step::new(0, text, token)).unwrap(),
            None => {
                batch.clear();
                batch.push_prompt(&[token], text.len(), 0);
                context.decode(&batch).unwrap();
                0
            }
        };
        text.push(token);
    }
    if let Some(speculator) = speculator {
        speculator.forget_drafts(context, 0, text.len()).unwrap();
    }
    assert_eq!(
        context.n_past(0),
        text.len(),
        "the cache contains the text without drafts"
    );
}

fn sampled(seed: u64) -> SamplerParams {
    SamplerParams {
        seed: Some(seed),
        temp: 0.7,
        ..SamplerParams::default()
    }
}

#[test]
fn mtp_text_matches_plain_run() {
    for registered in architectures() {
        let (name, file) = (registered.arch.name, ModelFile::seeded(registered));
        let prompt = tokens(N_PROMPT, file.n_vocab());
        let mut context = speculating(&file.load(true), |_| {});
        for params in [SamplerParams::greedy(), sampled(1), sampled(2)] {
            let (plain, _) = generate(&mut context, &params, &prompt, false);
            let (found, _) = generate(&mut context, &params, &prompt, true);
            assert_eq!(found, plain, "{name}");
        }
    }
}

#[test]
fn perfect_layer_drafts_everything() {
    for registered in architectures() {
        let (name, file) = (registered.arch.name, ModelFile::predictable(registered, false));
        let prompt = tokens(N_PROMPT, file.n_vocab());
        let mut context = speculating(&file.load(true), |_| {});
        for params in [SamplerParams::greedy(), sampled(3)] {
            let (plain, _) = generate(&mut context, &params, &prompt, false);
            let (found, drafted) = generate(&mut context, &params, &prompt, true);
            assert_eq!(found, plain, "{name}");
            assert_eq!(follower(file.n_vocab(), found[N_TEXT - 2]), found[N_TEXT - 1], "{name}");
            // Seven of eight tokens are drafted, except in the last batch.
            assert!(
                drafted.n_right >= (N_TEXT - N_PROMPT) * 7 / 8 - 7,
                "{name}: {drafted:?}"
            );
            assert!(drafted.n_right + 7 >= drafted.n_drafts, "{name}: {drafted:?}");
        }
    }
}

/// The first draft uses the hidden row of the previous token and is correct. The second uses the layer's own
/// row for the same token and is wrong.
#[test]
fn drafts_use_preceding_hidden_row() {
    for registered in architectures() {
        let (name, file) = (registered.arch.name, ModelFile::predictable(registered, true));
        // The results do not depend on batch and ubatch sizes.
        for (n_batch, n_ubatch) in [(64, 64), (16, 4), (5, 5)] {
            let prompt = tokens(3 * N_PROMPT, file.n_vocab());
            let mut context = speculating(&file.load(true), |p| {
                (p.n_batch, p.n_ubatch) = (n_batch.max(16), n_ubatch)
            });
            let greedy = SamplerParams::greedy();
            let (plain, _) = generate(&mut context, &greedy, &prompt, false);
            let (found, drafted) = generate(&mut context, &greedy, &prompt, true);
            assert_eq!(found, plain, "{name}");
            let n = N_TEXT - prompt.len();
            assert!(drafted.n_right >= n / 2 - 1, "{name}: {drafted:?} of {n} tokens");
        }
    }
}

fn most_likely(logits: &[f32]) -> Token {
    (0..logits.len())
        .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
        .unwrap() as Token
}

/// Computes drafts as in the publication: the layer runs over the whole text with the hidden row preceding
/// each token, then over its own drafts.
fn drafts_as_published(model: &Arc<Model>, text: &[Token], token: Token, n: usize) -> Vec<Token> {
    let mut target = speculating(model, |_| {});
    let mut batch = Batch::new();
    batch.push_prompt(text, 0, 0);
    target.decode(&batch).unwrap();
    let mut rows: Vec<f32> = (0..text.len())
        .flat_map(|i| target.hidden(i).unwrap())
        .copied()
        .collect();
    let mut tokens = [&text[1..], &[token]].concat();
    let mut drafts = Vec::new();
    for _ in 0..n {
        let mut layer = context(model, |p| (p.mtp, p.n_outputs_max) = (true, 1));
        batch.clear();
        batch.push_prompt(&tokens, 0, 0);
        layer.decode_after(&batch, &rows).unwrap();
        let draft = most_likely(layer.logits(tokens.len() - 1).unwrap());
        rows.extend_from_slice(layer.hidden(tokens.len() - 1).unwrap());
        tokens.push(draft);
        drafts.push(draft);
    }
    drafts
}

#[test]
fn drafts_are_independent_of_batches() {
    const N: usize = 40;
    for registered in architectures() {
        let name = registered.arch.name;
        let mut file = ModelFile::seeded(registered);
        // Scaling the head makes the layer's predictions confident.
        let head = file
            .tensors
            .iter_mut()
            .find(|(name, _)| name.contains("shared_head_head"));
        head.unwrap().1.1.iter_mut().for_each(|w| *w *= 1000.0);
        let model = file.load(true);
        let text = tokens(N + 1, file.n_vocab());
        let expected = drafts_as_published(&model, &text[..N], text[N], 7);
        // Pairs of batch size and ubatch size.
        for (n_batch, n_ubatch) in [(N, N), (N, 7), (16, 4), (1, 64)] {
            let mut context = speculating(&model, |p| p.n_ubatch = n_ubatch);
            let mut drafter = Mtp::new(&context).unwrap();
            let mut batch = Batch::new();
            for (i, tokens) in text[..N].chunks(n_batch).enumerate() {
                batch.clear();
                batch.push_prompt(tokens, i * n_batch, 0);
                context.decode(&batch).unwrap();
                let decoded = Decoded {
                    context: &context,
                    first: 0,
                    n_before: i * n_batch,
                    tokens,
                };
                drafter.follow(decoded).unwrap();
                // Intermediate drafts have no side effects.
                let mut drafts = Vec::new();
                let n_text = i * n_batch + tokens.len();
                drafter.draft(&text[..n_text], 1, 3, &mut drafts).unwrap();
            }
            let mut drafts = Vec::new();
            drafter.draft(&text[..N], text[N], 7, &mut drafts).unwrap();
            assert_eq!(drafts, expected, "{name}, {n_batch} tokens in ubatches of {n_ubatch}");
        }
    }
}

/// After a cancelled decode, results are unchanged and drafts stay correct.
#[test]
fn cancelled_decode_changes_nothing() {
    for registered in architectures() {
        let (name, file) = (registered.arch.name, ModelFile::predictable(registered, false));
        let prompt = tokens(N_PROMPT, file.n_vocab());
        let mut context = speculating(&file.load(true), |_| {});
        let (plain, _) = generate(&mut context, &SamplerParams::greedy(), &prompt, false);
        context.clear();
        let mut speculator = Speculator::new(DraftController::fixed(7)).with(0, Box::new(Mtp::new(&context).unwrap()));
        let mut text = Vec::new();
        follow_prompt(&mut context, Some(&mut speculator), &prompt, &mut text);
        let mut n_failed = 0;
        while text.len() < N_TEXT {
            let token = plain[text.len()];
            if text.len() % 5 == 0 {
                context.set_cancel(Some(Arc::new(AtomicBool::new(true))));
                match speculator.advance(&mut context, Step::new(0, &text, token)) {
                    // The token was an accepted draft, so nothing was computed.
                    Ok(_) => {
                        context.set_cancel(None);
                        text.push(token);
                        continue;
                    }
                    Err(e) => assert!(matches!(e, DecodeError::Cancelled), "{e}"),
                }
                n_failed += 1;
                context.set_cancel(None);
                assert_eq!(context.n_past(0), text.len(), "{name}");
            }
            speculator.advance(&mut context, Step::new(0, &text, token)).unwrap();
            text.push(token);
        }
        let drafted = speculator.drafted();
        assert!(n_failed > 0, "{name}");
        assert!(drafted.n_right >= (N_TEXT - N_PROMPT) * 3 / 4, "{name}: {drafted:?}");
    }
}

/// A sequence may be truncated, continued without the drafter, or restarted.
#[test]
fn drafts_follow_changed_text() {
    let registered = architectures().next().unwrap();
    let file = ModelFile::predictable(registered, false);
    let prompt = tokens(N_PROMPT, file.n_vocab());
    let mut context = speculating(&file.load(true), |_| {});
    let mut speculator = Speculator::new(DraftController::fixed(7)).with(0, Box::new(Mtp::new(&context).unwrap()));
    let chain = || SamplerChain::new(&SamplerParams::greedy(), file.n_vocab(), None).unwrap();
    for keep in [0, 4, 40] {
        let mut text: Vec<Token> = Vec::new();
        if keep > 0 {
            context.seq_rm(0, keep..).unwrap();
            text = (0..keep as Token).collect();
        }
        let before = speculator.drafted().n_right;
        let row = follow_prompt(&mut context, Some(&mut speculator), &prompt, &mut text);
        go_on(&mut context, Some(&mut speculator), &mut chain(), &mut text, row);
        let n_right = speculator.drafted().n_right - before;
        assert!(
            n_right >= (N_TEXT - N_PROMPT - keep) / 2,
            "{n_right} correct drafts after {keep}"
        );
    }
}

fn refusal(model: &Arc<Model>, hidden: bool) -> String {
    let context = context(model, |p| p.hidden = hidden);
    Mtp::new(&context).err().expect("the model is rejected").to_string()
}

#[test]
fn models_without_mtp_layers_are_rejected() {
    let registered = architectures().next().unwrap();
    let file = ModelFile::seeded(registered);
    assert!(refusal(&tests::model("llama-dense"), true).contains("has no `mtp` block"));
    assert!(refusal(&file.load(false), true).contains("without its multi-token prediction layers"));
    assert!(refusal(&file.load(true), false).contains("hidden states"));
    let mut none = file.clone();
    none.tensors.retain(|name, _| !name.contains("nextn"));
    let arch = registered.arch.name;
    none.metadata
        .insert(format!("{arch}.nextn_predict_layers"), Value::U32(0));
    let plain = none.load(true);
    assert!(refusal(&plain, true).contains("the file has no"));
    // The batch lacks the required hidden rows.
    let mut layer = context(&file.load(true), |p| p.mtp = true);
    let mut batch = Batch::new();
    batch.push_prompt(&[1, 2], 0, 0);
    assert!(matches!(layer.decode(&batch), Err(DecodeError::Hidden { .. })));
    assert_eq!(layer.n_past(0), 0);
}
