//! LoRA adapters and control vectors: a model with an adapter matches a model with the adapter merged into
//! its weights.

use std::sync::Arc;

use engine::adapter::{AdapterError, ControlVector, LoraAdapter};
use engine::context::{Batch, Context, SeqSet};
use engine::gguf::{Gguf, GgufFile, GgufWriter, seeded};
use engine::model::{LoadParams, Model};
use engine::vocab::Token;
use kernels::GgmlType;
use tests::{context, decode_last, decode_one, exact, fixture, nmse, tokens};

const ALPHA: f32 = 12.0;

/// A modifiable model file.
#[derive(Clone)]
struct File {
    bytes: Vec<u8>,
    header: Gguf,
}

impl File {
    fn of(name: &str) -> File {
        let header = Gguf::open_header(fixture(name).header).unwrap();
        File::new(seeded::seeded_model(&header, 1).unwrap())
    }

    fn new(bytes: Vec<u8>) -> File {
        let header = Gguf::parse_header(&bytes).unwrap();
        File { bytes, header }
    }

    fn model(&self, load: &LoadParams) -> Arc<Model> {
        let file = GgufFile::from_bytes("model.gguf", &self.bytes).unwrap();
        Arc::new(Model::from_file(file, archs::ALL, load).unwrap())
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let t = self
            .header
            .tensor(name)
            .unwrap_or_else(|| panic!("the file contains {name}"));
        assert_eq!(t.ty, GgmlType::F32);
        let start = self.header.data_offset() + t.offset;
        self.bytes[start..start + t.bytes]
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect()
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        let t = self.header.tensor(name).unwrap();
        let start = self.header.data_offset() + t.offset;
        self.bytes[start..start + t.bytes].copy_from_slice(&bytes_of(values));
    }

    /// Adds `scale * B A` to the adapted weights.
    fn merge(&mut self, adapter: &[Pair], scale: f32) {
        for pair in adapter {
            let mut w = self.floats(&pair.weight);
            let [n_in, n_out, n_expert] = pair.ne;
            let (rank, factor) = (pair.rank, scale * ALPHA / pair.rank as f32);
            for e in 0..n_expert {
                let (a, b) = (&pair.a[e * n_in * rank..], &pair.b[e * n_out * rank..]);
                for o in 0..n_out {
                    for i in 0..n_in {
                        // Adapters of embedding tables are transposed: `a` has one row per table row.
                        let sum: f32 = (0..rank)
                            .map(|r| {
                                if pair.is_table {
                                    a[o * rank + r] * b[i * rank + r]
                                } else {
                                    a[r * n_in + i] * b[o * rank + r]
                                }
                            })
                            .sum();
                        w[(e * n_out + o) * n_in + i] += factor * sum;
                    }
                }
            }
            self.set(&pair.weight, &w);
        }
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// LoRA factors of one weight with shape `[n_in, n_out, n_expert]`.
struct Pair {
    weight: String,
    ne: [usize; 3],
    rank: usize,
    is_table: bool,
    a: Vec<f32>,
    b: Vec<f32>,
}

/// Creates random factors for some weights of a file.
fn factors(file: &File, weights: &[&str], rank: usize, seed: u64) -> Vec<Pair> {
    let pair = |weight: &&str| {
        let t = file
            .header
            .tensor(weight)
            .unwrap_or_else(|| panic!("the file contains {weight}"));
        let ne = [t.ne[0], t.ne[1], t.ne[2]];
        let is_table = *weight == "token_embd.weight";
        let mut a = vec![0.0; rank * ne[2] * if is_table { ne[1] } else { ne[0] }];
        let mut b = vec![0.0; rank * ne[2] * if is_table { ne[0] } else { ne[1] }];
        seeded::fill_f32(&format!("{weight}.lora_a"), seed, &mut a);
        seeded::fill_f32(&format!("{weight}.lora_b"), seed, &mut b);
        Pair {
            weight: weight.to_string(),
            ne,
            rank,
            is_table,
            a,
            b,
        }
    };
    weights.iter().map(pair).collect()
}

/// Writes the adapter file and rounds the rows of the factors to `ty`.
fn adapter_file(arch: &str, pairs: &mut [Pair], ty: GgmlType) -> Vec<u8> {
    let mut out = GgufWriter::new();
    out.set("general.type", "adapter")
        .set("adapter.type", "lora")
        .set("general.architecture", arch)
        .set("adapter.lora.alpha", ALPHA);
    for pair in pairs {
        let [n_in, n_out, n_expert] = pair.ne;
        let (a_ne, b_ne) = if pair.is_table {
            ([pair.rank, n_out, 1], [pair.rank, n_in, 1])
        } else {
            ([n_in, pair.rank, n_expert], [pair.rank, n_out, n_expert])
        };
        for (values, ne, suffix) in [(&mut pair.a, a_ne, "lora_a"), (&mut pair.b, b_ne, "lora_b")] {
            let ne = &ne[..if n_expert > 1 { 3 } else { 2 }];
            let (n, row_bytes) = (ne[0], ty.row_bytes(ne[0]).unwrap());
            let mut data = vec![0; values.len() / n * row_bytes];
            for (row, values) in data.chunks_exact_mut(row_bytes).zip(values.chunks_exact_mut(n)) {
                kernels::encode_row(ty, values, None, row);
                kernels::dequantize_row(ty, row, values);
            }
            out.add_tensor(format!("{}.{suffix}", pair.weight), ty, ne, data)
                .unwrap();
        }
    }
    out.to_bytes().unwrap()
}

fn lora(bytes: &[u8], model: &Arc<Model>) -> Result<Arc<LoraAdapter>, AdapterError> {
    let file = GgufFile::from_bytes("adapter.gguf", bytes)?;
    LoraAdapter::from_file(&file, model).map(Arc::new)
}

/// Clears the context and returns the logits after a prompt, and of the token decoded after it.
fn logits(ctx: &mut Context, t: &[Token]) -> Vec<f32> {
    ctx.clear();
    let mut logits = decode_last(ctx, &t[..t.len() - 1], 0, 0);
    logits.extend(decode_one(ctx, t[t.len() - 1], t.len() - 1, 0));
    logits
}

fn assert_close(expected: &[f32], found: &[f32], what: &str) {
    let error = nmse(expected, found);
    assert!(error < 1e-9, "{what}: NMSE {error:.3e}");
}

fn assert_differs(a: &[f32], b: &[f32], what: &str) {
    let error = nmse(a, b);
    assert!(
        error > 1e-4,
        "{what}: NMSE {error:.3e} is too small for a meaningful test"
    );
}

const DENSE: [&str; 8] = [
    "token_embd.weight",
    "blk.0.attn_q.weight",
    "blk.0.attn_v.weight",
    "blk.0.ffn_down.weight",
    "blk.1.attn_k.weight",
    "blk.1.attn_output.weight",
    "blk.1.ffn_gate.weight",
    "output.weight",
];

const MOE: [&str; 6] = [
    "blk.0.attn_q.weight",
    "blk.0.ffn_gate_inp.weight",
    "blk.0.ffn_gate_exps.weight",
    "blk.0.ffn_down_exps.weight",
    "blk.1.ffn_up_exps.weight",
    "blk.1.ffn_down_exps.weight",
];

#[test]
fn adapter_equals_merged_weights() {
    let rest = &DENSE[1..7];
    let cases: [(&str, &[&str]); 5] = [
        ("llama-dense", &DENSE),
        ("llama-moe", &MOE),
        ("qwen3-dense", rest),
        ("qwen2-dense", rest),
        ("gemma3-dense", rest),
    ];
    for (name, weights) in cases {
        let t = &tokens(name)[..40];
        let file = File::of(name);
        let m = file.model(&exact().load);
        // Rank 32 makes rows of `b` whole blocks.
        for (ty, rank) in [(GgmlType::F32, 3), (GgmlType::F16, 8), (GgmlType::Q8_0, 32)] {
            let mut pairs = factors(&file, weights, rank, 5);
            let bytes = adapter_file(m.arch().name, &mut pairs, ty);
            let adapter = lora(&bytes, &m).unwrap();
            assert_eq!((adapter.n_weights(), adapter.alpha()), (weights.len(), ALPHA));
            let mut ctx = context(&m, |_| {});
            let plain = logits(&mut ctx, t);
            for scale in [1.0, -0.25] {
                ctx.set_adapters(&[(adapter.clone(), scale)]).unwrap();
                let found = logits(&mut ctx, t);
                let mut merged = file.clone();
                merged.merge(&pairs, scale);
                let expected = logits(&mut context(&merged.model(&exact().load), |_| {}), t);
                assert_close(&expected, &found, &format!("{name} {ty} scale {scale}"));
                assert_differs(&plain, &found, name);
            }
            ctx.set_adapters(&[]).unwrap();
            assert_eq!(logits(&mut ctx, t), plain, "{name}: without adapters");
        }
    }
}

/// Rows that start with a scale are converted as those of weights. Rank 256 makes rows of `b` whole blocks.
#[test]
fn adapter_with_row_headers_equals_merged_weights() {
    let (name, weights) = ("llama-dense", [DENSE[0], DENSE[1], DENSE[2], DENSE[5], DENSE[6]]);
    let (t, file) = (&tokens(name)[..40], File::of(name));
    let m = file.model(&exact().load);
    let mut pairs = factors(&file, &weights, 256, 5);
    let adapter = lora(&adapter_file(m.arch().name, &mut pairs, GgmlType::IQ4_KS), &m).unwrap();
    let mut ctx = context(&m, |_| {});
    let plain = logits(&mut ctx, t);
    ctx.set_adapters(&[(adapter, 0.5)]).unwrap();
    let found = logits(&mut ctx, t);
    let mut merged = file.clone();
    merged.merge(&pairs, 0.5);
    let expected = logits(&mut context(&merged.model(&exact().load), |_| {}), t);
    assert_close(&expected, &found, "IQ4_KS");
    assert_differs(&plain, &found, "IQ4_KS");
}

#[test]
fn adapters_add_up_and_can_be_replaced() {
    let t = &tokens("llama-dense")[..30];
    let file = File::of("llama-dense");
    let m = file.model(&exact().load);
    let mut first = factors(&file, &DENSE[..5], 4, 1);
    let mut second = factors(&file, &DENSE[3..], 6, 2);
    let a = lora(&adapter_file("llama", &mut first, GgmlType::F32), &m).unwrap();
    let b = lora(&adapter_file("llama", &mut second, GgmlType::F32), &m).unwrap();
    let merged = |a: f32, b: f32| {
        let mut file = file.clone();
        file.merge(&first, a);
        file.merge(&second, b);
        logits(&mut context(&file.model(&exact().load), |_| {}), t)
    };
    let mut ctx = context(&m, |p| p.n_ubatch = 8);
    let plain = logits(&mut ctx, t);
    for (x, y) in [(1.0, 0.5), (0.5, -1.0), (0.0, 1.0), (0.75, 0.0)] {
        ctx.set_adapters(&[(a.clone(), x), (b.clone(), y)]).unwrap();
        assert_close(&merged(x, y), &logits(&mut ctx, t), &format!("{x} and {y}"));
    }
    // Applying an adapter twice doubles its effect.
    ctx.set_adapters(&[(a.clone(), 0.25), (a.clone(), 0.25)]).unwrap();
    assert_close(&merged(0.5, 0.0), &logits(&mut ctx, t), "twice");
    ctx.set_adapters(&[(a.clone(), 0.0)]).unwrap();
    assert_eq!(logits(&mut ctx, t), plain, "scale 0");

    // Only a change of adapters rebuilds the graph.
    ctx.set_adapters(&[(a.clone(), 0.5)]).unwrap();
    decode_one(&mut ctx, t[0], t.len(), 0);
    let built = ctx.perf().n_built;
    ctx.set_adapters(&[(a.clone(), 0.5)]).unwrap();
    decode_one(&mut ctx, t[0], t.len() + 1, 0);
    assert_eq!(ctx.perf().n_built, built);
    ctx.set_adapters(&[(a.clone(), 0.6)]).unwrap();
    decode_one(&mut ctx, t[0], t.len() + 2, 0);
    assert_eq!(ctx.perf().n_built, built + 1);
    assert_eq!(ctx.adapters().len(), 1);
}

/// Returns the logits of every token of three interleaved sequences, and of one token decoded after each.
fn of_three(ctx: &mut Context, t: &[Token]) -> [Vec<f32>; 3] {
    ctx.clear();
    let mut batch = Batch::new();
    let n = t.len() - 1;
    for (pos, &token) in t[..n].iter().enumerate() {
        (0..3).for_each(|seq| batch.push(token, pos, SeqSet::one(seq), pos + 1 == n));
    }
    ctx.decode(&batch).unwrap();
    let mut all = [0, 1, 2].map(|seq| ctx.logits(3 * (n - 1) + seq).unwrap().to_vec());
    for (seq, all) in all.iter_mut().enumerate() {
        all.extend(decode_one(ctx, t[n], n, seq));
    }
    all
}

#[test]
fn sequences_have_separate_adapters() {
    let cases: [(&str, &[&str]); 3] = [
        ("llama-dense", &DENSE),
        ("llama-moe", &MOE),
        ("gemma3-dense", &DENSE[1..7]),
    ];
    for (name, weights) in cases {
        let t = &tokens(name)[..20];
        let file = File::of(name);
        let m = file.model(&exact().load);
        let arch = m.arch().name;
        let mut first = factors(&file, weights, 4, 1);
        let mut second = factors(&file, &weights[2..], 1, 2);
        let a = lora(&adapter_file(arch, &mut first, GgmlType::F32), &m).unwrap();
        let b = lora(&adapter_file(arch, &mut second, GgmlType::F32), &m).unwrap();
        let merged = |a: f32, b: f32| {
            let mut file = file.clone();
            file.merge(&first, a);
            file.merge(&second, b);
            logits(&mut context(&file.model(&exact().load), |_| {}), t)
        };
        let mut ctx = context(&m, |p| (p.n_seq_max, p.n_ubatch, p.n_outputs_max) = (3, 16, 3));
        let plain = of_three(&mut ctx, t);
        ctx.set_adapters(&[(b.clone(), 0.5)]).unwrap();
        ctx.set_seq_adapters(0, Some(&[(a.clone(), 1.0), (b.clone(), -0.25)]))
            .unwrap();
        ctx.set_seq_adapters(2, Some(&[])).unwrap();
        let found = of_three(&mut ctx, t);
        assert_close(&merged(1.0, -0.25), &found[0], &format!("{name}, two adapters"));
        assert_close(
            &merged(0.0, 0.5),
            &found[1],
            &format!("{name}, adapters of the context"),
        );
        assert_eq!(found[2], plain[2], "{name}, none");

        // Changing only scales does not rebuild the graph.
        let built = ctx.perf().n_built;
        ctx.set_seq_adapters(0, Some(&[(a.clone(), -0.5), (b.clone(), 0.0)]))
            .unwrap();
        ctx.set_adapters(&[(b.clone(), 1.0)]).unwrap();
        decode_one(&mut ctx, t[0], t.len(), 0);
        assert_eq!(ctx.perf().n_built, built);
        let found = of_three(&mut ctx, t);
        assert_close(&merged(-0.5, 0.0), &found[0], &format!("{name}, changed"));
        assert_close(
            &merged(0.0, 1.0),
            &found[1],
            &format!("{name}, changed adapters of the context"),
        );
        assert_eq!(ctx.seq_adapters(0).len(), 2);

        // A token shared by sequences has only one output.
        ctx.clear();
        let mut batch = Batch::new();
        batch.push(t[0], 0, SeqSet::of([0, 1]), true);
        let error = ctx.decode(&batch).unwrap_err().to_string();
        assert_eq!(error, "token at index 0 belongs to sequences with different adapters");
        let error = ctx.set_seq_adapters(3, None).unwrap_err().to_string();
        assert_eq!(error, "cannot set adapters for sequence 3: the context has 3 sequences");

        (0..3).for_each(|seq| ctx.set_seq_adapters(seq, None).unwrap());
        ctx.set_adapters(&[]).unwrap();
        assert_eq!(of_three(&mut ctx, t), plain, "{name}: without adapters");
    }
}

/// Weights of a decoder's cross attention, which does not compute its keys and values for every token.
const CROSS: [&str; 3] = [
    "dec.blk.0.cross_attn_k.weight",
    "dec.blk.1.cross_attn_v.weight",
    "dec.blk.1.cross_attn_o.weight",
];

/// Encodes the prompt of each sequence.
fn encode(ctx: &mut Context, t: &[Token], n_seqs: usize) {
    let mut batch = Batch::new();
    (0..n_seqs).for_each(|seq| batch.push_prompt(&t[seq..seq + 8], 0, seq));
    ctx.encode(&batch).unwrap();
}

/// Returns the logits of two tokens of a sequence, decoded one after the other from the start.
fn decoded(ctx: &mut Context, t: &[Token], seq: usize) -> Vec<f32> {
    ctx.seq_rm(seq, ..).unwrap();
    let mut logits = decode_one(ctx, t[20], 0, seq);
    logits.extend(decode_one(ctx, t[21], 1, seq));
    logits
}

#[test]
fn adapters_of_cross_attention_apply_to_encoded_prompts() {
    let t = tokens("t5-dense");
    let file = File::of("t5-dense");
    let m = file.model(&exact().load);
    let mut pairs = factors(&file, &CROSS, 4, 5);
    let adapter = lora(&adapter_file("t5", &mut pairs, GgmlType::F32), &m).unwrap();
    let mut ctx = context(&m, |p| p.n_seq_max = 3);
    encode(&mut ctx, &t, 3);
    let plain = [0, 1, 2].map(|seq| decoded(&mut ctx, &t, seq));
    let merged = |scale: f32| {
        let mut merged = file.clone();
        merged.merge(&pairs, scale);
        let mut ctx = context(&merged.model(&exact().load), |p| p.n_seq_max = 3);
        encode(&mut ctx, &t, 3);
        [0, 1, 2].map(|seq| decoded(&mut ctx, &t, seq))
    };
    // The prompts stay encoded while the adapter and its scale change.
    for scale in [1.0, -0.5] {
        ctx.set_adapters(&[(adapter.clone(), scale)]).unwrap();
        let (expected, found) = (merged(scale), [0, 1, 2].map(|seq| decoded(&mut ctx, &t, seq)));
        for seq in 0..3 {
            assert_close(&expected[seq], &found[seq], &format!("sequence {seq}, scale {scale}"));
            assert_differs(&plain[seq], &found[seq], &format!("sequence {seq}, scale {scale}"));
        }
    }
    ctx.set_seq_adapters(0, Some(&[(adapter.clone(), 1.0)])).unwrap();
    ctx.set_seq_adapters(2, Some(&[])).unwrap();
    let found = [0, 1, 2].map(|seq| decoded(&mut ctx, &t, seq));
    assert_close(&merged(1.0)[0], &found[0], "adapter of a sequence");
    assert_close(&merged(-0.5)[1], &found[1], "adapter of the context");
    assert_close(&plain[2], &found[2], "no adapter");
}

/// A saved state can only be restored with the same adapters.
#[test]
fn state_requires_same_adapters() {
    let t = &tokens("llama-dense")[..12];
    let file = File::of("llama-dense");
    let m = file.model(&exact().load);
    let mut first = factors(&file, &DENSE[..3], 4, 1);
    let mut second = factors(&file, &DENSE[..3], 4, 2);
    let a = lora(&adapter_file("llama", &mut first, GgmlType::F32), &m).unwrap();
    let b = lora(&adapter_file("llama", &mut second, GgmlType::F32), &m).unwrap();
    let vector = control(&directions(&file, 1, 1), &m).unwrap();
    let mut ctx = context(&m, |p| p.n_seq_max = 2);
    ctx.set_adapters(&[(a.clone(), 0.5)]).unwrap();
    decode_last(&mut ctx, t, 0, 0);
    let (mut state, mut seq) = (Vec::new(), Vec::new());
    ctx.save_state(&mut state).unwrap();
    ctx.save_seq(0, &mut seq).unwrap();
    let mut other = context(&m, |p| p.n_seq_max = 2);
    let mut refused = |change: &dyn Fn(&mut Context)| {
        change(&mut other);
        let error = other.load_state(&state).unwrap_err().to_string();
        assert!(
            error.starts_with("the state was saved with different settings: adapters"),
            "{error}"
        );
        assert!(other.load_seq(1, &seq).is_err());
        error
    };
    assert!(refused(&|_| ()).contains("adapters: expected none, found "));
    refused(&|ctx| ctx.set_adapters(&[(a.clone(), 0.25)]).unwrap());
    refused(&|ctx| ctx.set_adapters(&[(b.clone(), 0.5)]).unwrap());
    refused(&|ctx| {
        ctx.set_adapters(&[(a.clone(), 0.5)]).unwrap();
        ctx.set_control_vectors(&[(&vector, 1.0)], 0..=1).unwrap();
    });
    other.set_control_vectors(&[], 0..=1).unwrap();
    other.load_state(&state).unwrap();
    // The adapters of the restored sequence are compared.
    other.set_adapters(&[]).unwrap();
    other.set_seq_adapters(1, Some(&[(a.clone(), 0.5)])).unwrap();
    other.load_seq(1, &seq).unwrap();
    assert!(other.load_seq(0, &seq).is_err());
    assert!(other.load_state(&state).is_err());
}

/// Each projection of a fused QKV tensor uses its rows of the adapter's factor.
#[test]
fn fused_qkv_is_adapted() {
    let t = &tokens("llama-dense")[..24];
    let split = File::of("llama-dense");
    let mut out = GgufWriter::with_metadata(split.header.metadata.clone());
    for info in split.header.tensors() {
        let Some(q) = info.name.find("attn_q.") else {
            if !info.name.contains("attn_k.") && !info.name.contains("attn_v.") {
                let data = bytes_of(&split.floats(&info.name));
                out.add_tensor(&info.name, info.ty, info.shape(), data).unwrap();
            }
            continue;
        };
        let (layer, suffix) = (&info.name[..q], &info.name[q + "attn_q".len()..]);
        let parts = ["attn_q", "attn_k", "attn_v"].map(|p| split.floats(&format!("{layer}{p}{suffix}")));
        let data = bytes_of(&parts.concat());
        let mut ne = info.shape().to_vec();
        *ne.last_mut().unwrap() *= 3;
        out.add_tensor(format!("{layer}attn_qkv{suffix}"), info.ty, &ne, data)
            .unwrap();
    }
    let fused = File::new(out.to_bytes().unwrap());
    let m = fused.model(&exact().load);
    let weights = ["blk.0.attn_qkv.weight", "blk.1.attn_qkv.weight"];
    let mut pairs = factors(&fused, &weights, 5, 3);
    let adapter = lora(&adapter_file("llama", &mut pairs, GgmlType::F32), &m).unwrap();
    assert_eq!(adapter.n_weights(), 6);
    let mut ctx = context(&m, |_| {});
    let plain = logits(&mut ctx, t);
    ctx.set_adapters(&[(adapter, 0.5)]).unwrap();
    let found = logits(&mut ctx, t);
    let mut merged = fused.clone();
    merged.merge(&pairs, 0.5);
    assert_close(
        &logits(&mut context(&merged.model(&exact().load), |_| {}), t),
        &found,
        "fused",
    );
    assert_differs(&plain, &found, "fused");
}

/// Adapters are stored on the device of the weights; the CPU cannot access the reference device's memory.
#[test]
fn adapters_are_on_device_of_weights() {
    let t = &tokens("llama-moe")[..16];
    let file = File::of("llama-moe");
    let mut pairs = factors(&file, &MOE, 4, 7);
    let bytes = adapter_file("llama", &mut pairs, GgmlType::F32);
    let vector = directions(&file, 1, 9);
    let on = |device: &str| {
        let mut load = exact().load;
        tests::place_on(&mut load, device, usize::MAX);
        let m = file.model(&load);
        let mut ctx = context(&m, |_| {});
        ctx.set_adapters(&[(lora(&bytes, &m).unwrap(), 0.7)]).unwrap();
        ctx.set_control_vectors(&[(&control(&vector, &m).unwrap(), 0.5)], 0..=1)
            .unwrap();
        logits(&mut ctx, t)
    };
    assert_close(&on("cpu"), &on("reference"), "devices");
}

/// Writes a control vector file with a random direction for one layer.
fn directions(file: &File, layer: usize, seed: u64) -> Vec<u8> {
    let n_embd = file.header.tensor("output_norm.weight").unwrap().ne[0];
    let mut values = vec![0.0; n_embd];
    seeded::fill_f32(&format!("direction.{layer}"), seed, &mut values);
    let mut out = GgufWriter::new();
    out.set("general.architecture", "controlvector");
    let data = bytes_of(&values);
    out.add_tensor(format!("direction.{layer}"), GgmlType::F32, &[n_embd], data)
        .unwrap();
    out.to_bytes().unwrap()
}

fn control(bytes: &[u8], model: &Model) -> Result<ControlVector, AdapterError> {
    ControlVector::from_file(&GgufFile::from_bytes("control.gguf", bytes)?, model)
}

/// The last op of a layer adds a bias, so a control vector is equivalent to a changed bias.
#[test]
fn control_vector_equals_output_bias() {
    let t = &tokens("llama-dense")[..30];
    let file = File::of("llama-dense");
    let m = file.model(&exact().load);
    let a = control(&directions(&file, 1, 1), &m).unwrap();
    let b = control(&directions(&file, 1, 2), &m).unwrap();
    let mut ctx = context(&m, |_| {});
    let plain = logits(&mut ctx, t);
    for (x, y) in [(1.0, 0.0), (2.0, -0.5)] {
        ctx.set_control_vectors(&[(&a, x), (&b, y)], 1..=1).unwrap();
        let found = logits(&mut ctx, t);
        let mut merged = file.clone();
        let mut bias = merged.floats("blk.1.ffn_down.bias");
        for (i, bias) in bias.iter_mut().enumerate() {
            *bias += x * a.direction(1).unwrap()[i] + y * b.direction(1).unwrap()[i];
        }
        merged.set("blk.1.ffn_down.bias", &bias);
        assert_close(
            &logits(&mut context(&merged.model(&exact().load), |_| {}), t),
            &found,
            "direction",
        );
        assert_differs(&plain, &found, "direction");
    }
    // Adapters can change while a control vector is active.
    let with_direction = logits(&mut ctx, t);
    let mut pairs = factors(&file, &DENSE, 4, 1);
    let adapter = lora(&adapter_file("llama", &mut pairs, GgmlType::F32), &m).unwrap();
    ctx.set_adapters(&[(adapter, 1.0)]).unwrap();
    assert_differs(&with_direction, &logits(&mut ctx, t), "adapter and control vector");
    ctx.set_adapters(&[]).unwrap();
    assert_eq!(logits(&mut ctx, t), with_direction);

    ctx.set_control_vectors(&[(&a, 1.0)], 0..=0).unwrap();
    assert_eq!(logits(&mut ctx, t), plain, "out of range");
    ctx.set_control_vectors(&[(&a, 1.0)], 0..=usize::MAX).unwrap();
    ctx.set_control_vectors(&[], 0..=1).unwrap();
    assert_eq!(logits(&mut ctx, t), plain, "removed");
}

#[test]
fn lora_with_nan_or_infinity_is_rejected() {
    let file = File::of("llama-dense");
    let m = file.model(&exact().load);
    for (value, ty) in [
        (f32::NAN, GgmlType::F32),
        (f32::INFINITY, GgmlType::F16),
        (f32::NEG_INFINITY, GgmlType::BF16),
    ] {
        let mut pairs = factors(&file, &DENSE[..2], 4, 1);
        pairs[1].b[70] = value;
        let bytes = adapter_file("llama", &mut pairs, ty);
        let error = lora(&bytes, &m).unwrap_err().to_string();
        let expected = format!("value 70 of tensor `{}.lora_b` is not a finite number", DENSE[1]);
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn control_vector_with_nan_is_rejected() {
    let file = File::of("llama-dense");
    let mut bytes = directions(&file, 1, 1);
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = control(&bytes, &file.model(&exact().load)).unwrap_err().to_string();
    assert!(
        error.contains("of tensor `direction.1` is not a finite number"),
        "{error}"
    );
}

/// Returns the error for an all-zero adapter with this type, kind, and architecture.
fn refused(m: &Arc<Model>, keys: [&str; 3], tensors: &[(&str, &[usize])]) -> String {
    let mut out = GgufWriter::new();
    let names = ["general.type", "adapter.type", "general.architecture"];
    for (key, value) in names.iter().zip(keys) {
        out.set(*key, value);
    }
    out.set("adapter.lora.alpha", 1.0f32);
    for (name, ne) in tensors {
        let data = vec![0; 4 * ne.iter().product::<usize>()];
        out.add_tensor(*name, GgmlType::F32, ne, data).unwrap();
    }
    lora(&out.to_bytes().unwrap(), m).unwrap_err().to_string()
}

#[test]
fn mismatched_lora_is_rejected_by_name() {
    let file = File::of("llama-dense");
    let m = file.model(&exact().load);
    let with = |keys: [&str; 3], tensors: &[(&str, &[usize])]| refused(&m, keys, tensors);
    let good = ["adapter", "lora", "llama"];
    let q: [(&str, &[usize]); 2] = [
        ("blk.0.attn_q.weight.lora_a", &[256, 4]),
        ("blk.0.attn_q.weight.lora_b", &[4, 256]),
    ];
    for (keys, failure) in [
        (["model", "lora", "llama"], "the file is a model, not a LoRA adapter"),
        (
            ["adapter", "other", "llama"],
            "key `adapter.type`: expected `lora`, found `other`",
        ),
        (
            ["adapter", "lora", "qwen3"],
            "key `general.architecture`: expected `llama`, found `qwen3`",
        ),
    ] {
        assert_eq!(with(keys, &q), format!("adapter.gguf: {failure}"));
    }
    assert_eq!(
        with(good, &[]),
        "adapter.gguf: no adapter tensors found; expected *.lora_a and *.lora_b"
    );
    assert_eq!(
        with(good, &[("blk.0.attn_norm.weight", &[256])]),
        "adapter.gguf: no adapter tensors found; expected *.lora_a and *.lora_b"
    );
    let all = with(
        good,
        &[
            ("blk.0.attn_q.weight.lora_a", &[128, 4]),
            ("blk.0.attn_q.weight.lora_b", &[4, 256]),
            ("blk.0.attn_k.weight.lora_a", &[256, 4]),
            ("blk.0.attn_k.weight.lora_b", &[5, 256]),
            ("blk.0.attn_v.weight.lora_b", &[4, 256]),
            ("blk.9.attn_v.weight.lora_a", &[256, 4]),
            ("blk.9.attn_v.weight.lora_b", &[4, 256]),
            ("blk.0.ffn_norm.weight.lora_a", &[256, 4]),
            ("blk.0.ffn_norm.weight.lora_b", &[4, 1]),
            ("token_embd.weight.lora_a", &[256, 4]),
            ("token_embd.weight.lora_b", &[4, 128]),
            ("something", &[4]),
        ],
    );
    for part in [
        "tensor `blk.0.attn_q.weight.lora_a` has shape [128, 4], expected [256, rank]",
        "tensor `blk.0.attn_k.weight.lora_b` has shape [5, 256], expected [4, 256]",
        "tensor `blk.0.attn_v.weight.lora_a` is missing",
        "tensor `blk.9.attn_v.weight.lora_a`: the model has no weight `blk.9.attn_v.weight`",
        "cannot adapt `blk.0.ffn_norm.weight`: the weight is used elementwise",
        "tensor `token_embd.weight.lora_a` has shape [256, 4], expected [rank, 128]",
        "unexpected name of tensor `something`; expected `<weight>.lora_a` or `<weight>.lora_b`",
    ] {
        assert!(all.contains(part), "{all}\nexpected {part}");
    }
}

#[test]
fn adapter_of_other_model_or_nan_scale_is_rejected() {
    let file = File::of("llama-dense");
    let m = file.model(&exact().load);
    let mut pairs = factors(&file, &DENSE[1..2], 4, 1);
    let bytes = adapter_file("llama", &mut pairs, GgmlType::F32);
    let other = lora(&bytes, &file.model(&exact().load)).unwrap();
    let own = lora(&bytes, &m).unwrap();
    let mut ctx = context(&m, |_| {});
    let error = ctx.set_adapters(&[(other, 1.0)]).unwrap_err().to_string();
    assert_eq!(error, "adapter.gguf: the adapter was loaded for a different model");
    let error = ctx.set_adapters(&[(own, f32::NAN)]).unwrap_err().to_string();
    assert_eq!(error, "adapter.gguf: scale: expected a finite number, found NaN");
    assert!(ctx.adapters().is_empty());
}

#[test]
fn mismatched_control_vector_is_rejected_by_name() {
    let m = File::of("llama-dense").model(&exact().load);
    let with = |tensors: &[(&str, GgmlType, &[usize])]| {
        let mut out = GgufWriter::new();
        out.set("general.architecture", "controlvector");
        for (name, ty, ne) in tensors {
            let data = vec![0; ty.row_bytes(ne.iter().product()).unwrap()];
            out.add_tensor(*name, *ty, ne, data).unwrap();
        }
        control(&out.to_bytes().unwrap(), &m).unwrap_err().to_string()
    };
    assert_eq!(
        with(&[]),
        "control.gguf: no adapter tensors found; expected direction.*"
    );
    assert!(with(&[("direction.1", GgmlType::F32, &[128])]).contains("has shape [128], expected [256]"));
    let all = with(&[
        ("direction.0", GgmlType::F32, &[256]),
        ("direction.2", GgmlType::F32, &[256]),
        ("direction.+1", GgmlType::F32, &[256]),
        ("direction.1", GgmlType::F16, &[256]),
        ("direction.01", GgmlType::F32, &[256]),
        ("other.1", GgmlType::F32, &[256]),
    ]);
    for part in [
        "tensor `direction.0`: the model has no layer 0 for control vectors (expected 1 to 1)",
        "tensor `direction.2`: the model has no layer 2",
        "unexpected name of tensor `direction.+1`; expected `direction.<layer>`",
        "tensor `direction.1` has type f16, expected f32",
        "unexpected name of tensor `direction.01`; expected `direction.<layer>`",
        "unexpected name of tensor `other.1`; expected `direction.<layer>`",
    ] {
        assert!(all.contains(part), "{all}\nexpected {part}");
    }
}

/// Corrupting any byte of an adapter's header either has no effect or is rejected.
#[test]
fn damaged_adapter_is_rejected_or_harmless() {
    let file = File::of("llama-dense");
    let m = file.model(&exact().load);
    let mut pairs = factors(&file, &DENSE[..3], 2, 1);
    let whole = adapter_file("llama", &mut pairs, GgmlType::F32);
    let header = Gguf::parse_header(&whole).unwrap().data_offset();
    let mut refused = 0;
    for at in 0..header {
        for value in [0, 0x7f, 0x80, 0xff, whole[at] ^ 1] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            refused += lora(&bytes, &m).is_err() as usize;
        }
    }
    assert!(refused > header, "{refused} of {} headers were rejected", 5 * header);
    for len in (0..whole.len()).step_by(97) {
        assert!(lora(&whole[..len], &m).is_err(), "{len} bytes");
    }
}
