//! Symbolic shapes computed by the macro match the shapes inferred by the engine. A declaration that uses
//! every operation is built, and each named value is compared, so the operation table and the builder stay
//! consistent.

use std::collections::HashMap;
use std::path::Path;

use arch_lang::FlowNode;
use engine::builder::BuildGraph;
use engine::builder::{
    BuildParams, BuildTables, Builder, GraphOutput, GraphPart, HiddenRows, Inputs, MemorySpecs, WeightLeaf,
};
use engine::gguf::{Gguf, GgufWriter};
use engine::graph::{BufferId, BufferSlice, Graph, Name, TensorId};
use engine::model::{Base, TableRow, declare_header};
use kernels::GgmlType;

arch_macros::arch! {
    name: "all-ops";
    rope: neox;

    hparams {
        eps: f32 = "attention.layer_norm_rms_epsilon" or 1e-5;
        n_part: usize = "part" or 16;
        widths: [usize] = "widths" or n_ff;
        is_swa: pattern = "attention.sliding_window_pattern" or 2;
        act: string = "activation" or "gelu";
        numbers: [usize; 0..] = "numbers";
        let n_numbers = rust!(usize => numbers.iter().filter(|&&n| n > 0).count());
        check n_numbers < 3, "numbers has at most two above 0";
        factors: [usize; 2..] = "factors";
        starts: [usize; 1..] = "starts";
        counts: [usize; 1..] = "counts";
        let n_hashed = max_sum(starts, counts, 1);
        let n_windows = count(is_swa);
        check n_hashed <= n_vocab && n_windows < n_layer, "hashes are tokens, and not all layers have a window";
        let kq_scale = if n_layer > 40 { 1.0 / sqrt(1.0 * n_embd / n_head) } else { pow(head_dim, -0.5) };
        let half = max((if n_layer > 40 { 4 } else { 1 }) * n_rot / 2, 1);
        check widths % 2 == 0 && eps > 0.0, "widths are even";
        check min(if n_layer > 40 { 2 } else { 1 }, n_part) > 0, "parts have values";
    }

    tensors {
        token_embd: embed "token_embd" [n_embd, n_vocab];
        output_norm: norm "output_norm" [n_embd];
        output: linear "output" [n_embd -> n_vocab] or token_embd;
        more_embd: embed "more_embd" [n_embd, n_vocab..];
        rope_freqs?: vector "rope_freqs" [n_rot / 2];
        ignore "unneeded";
        layer {
            attn_norm: vector "attn_norm" [n_embd];
            wq: linear "attn_q" [n_embd -> n_head * head_dim];
            wk: linear "attn_k" [n_embd -> n_head_kv * head_dim];
            wv: linear "attn_v" [n_embd -> n_head_kv * head_dim_v];
            q_norm?: vector "attn_q_norm" [head_dim];
            sinks: vector "attn_sinks" [n_head];
            wo: linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm: norm "ffn_norm" [n_embd];
            gate: linear "ffn_gate" [n_embd -> widths];
            up: linear "ffn_up" [n_embd -> widths];
            down: linear "ffn_down" [widths -> n_embd];
            a: raw "ssm_a" [n_embd];
            conv: vector "ssm_conv1d" [4, n_embd];
            dt: linear "ssm_dt" [n_embd -> n_head];
            decay: raw "ssm_decay" [1, n_head];
            dt_bias: raw "ssm_dt_bias" [n_head];
            bonus: raw "bonus" [head_dim, n_head];
            planes: vector "planes" [n_embd, n_part, 3];
            places: vector "places" [n_embd, 4];
            mixer_in: linear "mixer_in" [n_embd -> 2 * n_embd + 2 * n_part + n_head];
            mixer_conv: vector "mixer_conv" [4, n_embd + 2 * n_part];
            mixing: linear "mixing" [n_embd -> n_head * n_head];
            if n_expert == 0 {
                dense: linear "dense" [n_embd -> n_embd];
            } else {
                router: linear "ffn_gate_inp" [n_embd -> n_expert];
                probs_b?: vector "exp_probs_b" [n_expert];
                gate_exps: experts "ffn_gate_exps" [n_embd -> n_ff; n_expert];
                up_exps: experts "ffn_up_exps" [n_embd -> n_ff; n_expert];
                down_exps: experts "ffn_down_exps" [n_ff -> n_embd; n_expert];
            }
        }
    }

    encoder {
        let early = token_embd[tokens] * 1.0;
        for layer {
            early += rms_norm(early, eps);
        }
        early
    }

    graph {
        let x = token_embd[tokens] * sqrt(n_embd) + more_embd[tokens];
        for layer {
            let normed = rms_norm(x, attn_norm, eps);
            let plain = rms_norm(x, eps) - 0.5;
            let layered = layer_norm(x, ffn_norm, eps) + 1.0;
            let bare = layer_norm(2.0 - layered, eps);
            let unit = l2_norm(x / 3.0, eps);
            let mixed = (normed + plain) * (bare - unit) / (exp(unit) + 2.0);
            let scaled = attn_norm * mixed * a;
            let q = heads(wq(normed), n_head);
            let normed_q = if has(q_norm) { rms_norm(q, q_norm, eps) } else { q };
            let rotated = rope(normed_q, factors = rope_freqs, base = 5000.0, scale = 0.5, dims = half * 2);
            let k = rope(heads(wk(normed), n_head_kv));
            let v = heads(wv(normed), n_head_kv);
            // A view keeps the name of its source; multiplying by 1.0 creates a new value.
            let flat = merge(k) * 1.0;
            let key = heads(rms_norm(wq(normed), eps)[..n_part], 1);
            let chosen = index_cells(repeat_heads(key, n_head), key, dt(normed), 4);
            let attn = attention(rotated, k, v, scale = kq_scale, softcap = 30.0, alibi = 0.0, causal = true, sinks = sinks,
                                 selection = chosen, window = sliding(8, is_swa && il > 0)) * 1.0;
            let recent = last_tokens(wk(normed), 3) * 1.0;
            let turned = rope(heads(sum_heads(recent * softmax_heads(recent)), n_head_kv), lag = 2);
            let blocks = index_blocks(turned, heads(merge(turned)[..head_dim], 1), 2, 2, 1);
            let few = attention(rotated, k, v, selection = blocks) * 1.0;
            let pools = index_pools(repeat_heads(key, n_head), key, dt(normed), 4, 2, false);
            let fewer = attention(rotated, k, v, selection = pools) * 1.0;
            let seen = attention(rotated, k, v, selection = shared_selection(4)) * 1.0;
            let again = attention_over(rotated, il, head_dim_v, window = sliding(8, is_swa && il > 0)) * 1.0;
            let far_k = heads(wk(encoded), n_head_kv);
            let far = cross_attention(q, far_k, heads(wv(encoded), n_head_kv), scale = kq_scale) * 1.0;
            let projected = wo(attn + again + far + few + fewer + seen);
            let unbiased = linear_without_bias(wo, attn) * first_layer(attn_norm);
            let capped = softcap(clamp(projected + unbiased, -8.0, 8.0), 5.0);
            let probs = softmax(capped) * top_mask(capped, 2);
            let sum = sum_rows(probs);
            let shared = probs / sum;
            let left = shared[..n_part] * 1.0;
            let right = shared[n_part..] * 1.0;
            let middle = shared[n_part..2 * n_part] * 1.0;
            let repeated = repeat_heads(heads(left, 1), n_head) * 1.0;
            let convolved = short_conv(normed, conv, a);
            let means = compress(normed, convolved, places, n_embd) * 1.0;
            let halves = compress(normed, convolved, places, n_embd / 2) * 1.0;
            let groups = rope(heads(wk(means), n_head_kv), stride = 4, inverse = true);
            let grouped = attention(rotated, k, v_in_k = head_dim, compressed = groups, ratio = 4) * 1.0;
            let step = softplus(dt(convolved));
            let scanned = ssm_scan(heads(wq(convolved), n_head), step, decay, heads(left, 1), heads(middle, 1), decay) * 1.0;
            let cooled = q * attention_temperature(0.1, 8, 1.0);
            let six = wkv6(rotated, rotated, rotated, cooled, bonus) * 1.0;
            let tap = row(conv, 0) * 1.0;
            let seven = wkv7(six, q, q, six, q, q) * 1.0;
            let planar = matmul(part(planes, 1), token_shift(convolved)) * 1.0;
            let mixed_in_time = mamba2(mixer_in(convolved), inner = n_embd, n_state = n_part, n_group = 1, conv = mixer_conv,
                                       dt_bias = dt_bias, a = decay, d = dt_bias, eps = eps) * 1.0;
            let remembered = linear_attention(k, k, heads(wq(convolved), n_head), decay = heads(step, n_head),
                                              beta = heads(sigmoid(step), n_head), delta = true) * 1.0;
            let balanced = sinkhorn(mixing(normed), n_head, 3, 0.001);
            let streams = mix_heads(remembered, balanced);
            let added_up = sum_heads(streams);
            let joined = concat(left, right) + sum_rows(flat) + sum_rows(merge(repeated));
            let longer = concat(joined, middle);
            let act_unary = silu(gelu(gelu_erf(gelu_quick(relu(relu_sqr(sigmoid(tanh(softplus(neg(sqr(sqrt(abs(x)))))))))))));
            let gated = if act == "gelu" { gelu(gate(scaled)) * up(scaled) } else { silu(gate(scaled)) * up(scaled) };
            let dilated = dilated_conv(normed, conv, 2) * 1.0;
            let hashed = ngram_embed(token_embd, longest = 2, per_length = 1, multipliers = factors, offsets = starts,
                                     sizes = counts, end = 0) * 1.0;
            let earlier = bank(x, bank(normed));
            let recalled = recall(x, earlier, attn_norm, eps);
            let padded = pad_logits(left, n_embd) * 1.0;
            let tied = token_embd(x) * 1.0;
            let only = if n_windows > 0 { x * 2.0 };
            if n_windows > 0 {
                x += only;
            }
            x += dilated + hashed + recalled + padded + sum_rows(tied);
            let written = rust!([n_embd, T] => b.scale(unit, 1.0));
            x += down(gated) + act_unary + joined + longer[..n_embd] + written;
            x += sum * 0.0 + sum_rows(merge(scanned)) + mixed_in_time + sum_rows(merge(seven)) + sum_rows(planar)
                 + sum_rows(merge(streams)) + sum_rows(added_up) + sum_rows(tap)
                 + sum_rows(halves) + sum_rows(grouped);
            if n_expert > 0 {
                x += moe(layered, router = router(layered), gate = gate_exps, up = up_exps, down = down_exps, act = silu,
                         gating = sigmoid, n_used = n_expert_used, norm_weights = true, scale = 2.5, selection_bias = probs_b);
            } else {
                x += dense(layered);
            }
        }
        output(layer_norm(x, output_norm, eps))
    }

    test { n_embd: 48, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 40, n_vocab: 24, n_expert: 3, n_expert_used: 2 }
}

const N_TOKENS: usize = 5;

/// Values of shape symbols.
type Sizes = HashMap<&'static str, usize>;

/// A size expression printed by the macro: symbols, integers, `+ - * /`, and parentheses.
struct Formula<'a> {
    tokens: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
    sizes: &'a Sizes,
}

impl Formula<'_> {
    fn value(text: &str, sizes: &Sizes) -> usize {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let tokens = spaced.split_whitespace().collect::<Vec<_>>().into_iter().peekable();
        let mut f = Formula { tokens, sizes };
        let value = f.sum();
        assert!(f.tokens.next().is_none(), "{text}");
        value
    }

    fn sum(&mut self) -> usize {
        let mut value = self.product();
        while let Some(op) = self.tokens.next_if(|t| ["+", "-"].contains(t)) {
            let next = self.product();
            value = if op == "+" { value + next } else { value - next };
        }
        value
    }

    fn product(&mut self) -> usize {
        let mut value = self.factor();
        while let Some(op) = self.tokens.next_if(|t| ["*", "/"].contains(t)) {
            let next = self.factor();
            value = if op == "*" { value * next } else { value / next };
        }
        value
    }

    fn factor(&mut self) -> usize {
        let token = self.tokens.next().expect("a size");
        if token == "(" {
            let value = self.sum();
            assert_eq!(self.tokens.next(), Some(")"));
            return value;
        }
        token
            .parse()
            .unwrap_or_else(|_| *self.sizes.get(token).unwrap_or_else(|| panic!("no size for `{token}`")))
    }
}

/// Evaluates `[a, b]`, `[a -> b]`, or `[a -> b; c]`.
fn dims(shape: &str, sizes: &Sizes) -> Vec<usize> {
    let inner = shape
        .trim_start_matches('[')
        .trim_end_matches(']')
        .replace("->", ",")
        .replace(';', ",");
    inner.split(',').map(|part| Formula::value(part, sizes)).collect()
}

/// Returns the sizes of the declaration's test model, and derived sizes.
fn sizes() -> Sizes {
    let mut sizes: Sizes = ARCH.test.iter().map(|&(name, n)| (name, n as usize)).collect();
    let head_dim = sizes["n_embd"] / sizes["n_head"];
    for name in ["head_dim", "head_dim_v", "n_rot"] {
        sizes.insert(name, head_dim);
    }
    sizes.extend([
        ("widths", sizes["n_ff"]),
        ("n_part", 16),
        ("T", N_TOKENS),
        ("T_encoded", 3),
        ("n_banked", 2),
    ]);
    sizes
}

/// Returns a header with every tensor of the declaration, including optional ones, for an MoE or dense model.
fn header(sizes: &Sizes, moe: bool) -> Gguf {
    header_with(sizes, moe, |_, shape| shape)
}

/// Like [`header`], with shapes modified by `change(name, declared_shape)`.
fn header_with(sizes: &Sizes, moe: bool, change: impl Fn(&str, Vec<usize>) -> Vec<usize>) -> Gguf {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "all-ops");
    for (key, size) in [
        ("vocab_size", sizes["n_vocab"]),
        ("context_length", 64),
        ("embedding_length", sizes["n_embd"]),
        ("block_count", sizes["n_layer"]),
        ("feed_forward_length", sizes["n_ff"]),
        ("attention.head_count", sizes["n_head"]),
        ("attention.head_count_kv", sizes["n_head_kv"]),
        ("expert_count", if moe { sizes["n_expert"] } else { 0 }),
        ("expert_used_count", if moe { sizes["n_expert_used"] } else { 0 }),
    ] {
        w.set(format!("all-ops.{key}"), size as u32);
    }
    for (key, list) in [("factors", vec![3, 5]), ("starts", vec![2]), ("counts", vec![20])] {
        w.set(format!("all-ops.{key}"), list);
    }
    for t in ARCH.tensors {
        if t.condition.is_some_and(|c| (c == "n_expert == 0") == moe) {
            continue;
        }
        let suffix = if t.kind == "raw" { "" } else { ".weight" };
        let layers = if t.group.is_some() { sizes["n_layer"] } else { 1 };
        for il in 0..layers {
            let prefix = t.group.map_or_else(String::new, |group| format!("{group}.{il}."));
            let name = format!("{prefix}{}{suffix}", t.gguf);
            let shape = change(t.field, dims(t.shape, sizes));
            w.add_tensor_with(name, GgmlType::F32, &shape, |_| Ok(())).unwrap();
        }
    }
    Gguf::parse_header(&w.header().unwrap()).unwrap()
}

fn declared(header: &Gguf) -> (Base, Box<dyn BuildGraph>, Vec<TableRow>) {
    declare_header(header, Path::new("all-ops.gguf"), &ARCH, "all-ops").unwrap_or_else(|e| panic!("{e}"))
}

/// Builds the graph of a header, or of its encoder, without memory.
fn graph(header: &Gguf, encoder: bool) -> Graph {
    let (base, model, rows) = declared(header);
    let home = BufferSlice {
        buffer: BufferId(0),
        offset: 0,
    };
    let leaf = |row: &TableRow| WeightLeaf {
        ty: row.ty,
        ne: row.ne,
        home,
        layout: engine::graph::Layout::Plain,
        name: Name {
            base: row.base,
            layer: row.layer,
        },
        parts: Vec::new(),
        value: None,
    };
    let leafs: Vec<_> = rows.iter().map(leaf).collect();
    let mut g = Graph::new();
    let (mut tables, mut inputs, mut specs) = (BuildTables::default(), Inputs::default(), MemorySpecs::default());
    let params = BuildParams {
        n_tokens: N_TOKENS,
        n_seq_max: 1,
        n_outputs: N_TOKENS,
        part: GraphPart::Graph,
        hidden: HiddenRows::None,
        n_encoded: 3,
        n_embd: base.n_embd(),
        rope_sections: base.rope_sections,
        n_ctx: 0,
        rope_kind: ARCH.rope,
        rope: base.rope,
        n_rot: base.n_rot(),
        causal: true,
        output: GraphOutput::Result,
        media: engine::builder::BatchMedia::Some,
        grid: engine::builder::PatchGrid::default(),
    };
    let mut b = Builder::probe(&mut g, &leafs, &mut tables, &mut inputs, params, &mut specs);
    let result = if encoder {
        model.encode(&mut b).expect("the architecture has an encoder")
    } else {
        model.build(&mut b)
    };
    b.output(result);
    b.finish().unwrap_or_else(|e| panic!("{e}"));
    g
}

/// Tables may have extra rows, and multi-dimensional vectors may be flat; other shapes are rejected.
#[test]
fn alternative_shapes_are_accepted() {
    let declared = |field: &'static str, shape: &[usize]| {
        let header = header_with(
            &sizes(),
            true,
            |name, declared| if name == field { shape.to_vec() } else { declared },
        );
        declare_header(&header, Path::new("all-ops.gguf"), &ARCH, "all-ops").map(|(_, _, rows)| rows)
    };
    let rows = declared("more_embd", &[48, 30]).expect("tables may have more rows than tokens");
    assert!(rows.iter().any(|r| r.base == "more_embd" && r.ne == [48, 30, 1, 1]));
    assert!(declared("more_embd", &[48, 23]).is_err());
    assert!(declared("token_embd", &[48, 30]).is_err());
    let rows = declared("planes", &[48 * 16 * 3]).expect("one list");
    assert!(rows.iter().any(|r| r.base == "planes" && r.ne == [48, 16, 3, 1]));
    assert!(declared("planes", &[16 * 3, 48]).is_err());
}

/// Returns the values of the graph that this file declares.
fn declared_values() -> Vec<FlowNode> {
    let text = include_str!("arch_shapes.rs");
    let start = text.find("arch_macros::arch! {").expect("a declaration");
    let end = start + text[start..].find("\n}\n").expect("the end of the declaration") + 2;
    let compiled = arch_lang::compile_file("arch_shapes.rs", &text[start..end], &());
    arch_lang::flow(&compiled.expect("a valid declaration").expect("an architecture"))
}

#[test]
fn symbolic_shapes_match_engine() {
    let sizes = sizes();
    let nodes = declared_values();
    for moe in [true, false] {
        let header = header(&sizes, moe);
        let graphs = [graph(&header, true), graph(&header, false)];
        let mut compared = 0;
        for node in &nodes {
            let Some((name, _)) = node.label.split_once(" = ") else {
                continue;
            };
            // A value assigned twice has two nodes with the same name and shape.
            let layer = node.in_layer.then_some(0);
            let named = |g: &Graph, t: TensorId| g.tensor(t).name.base == name && g.tensor(t).name.layer == layer;
            let found = graphs.iter().find_map(|g| Some((g, g.ids().find(|&t| named(g, t))?)));
            let Some((g, id)) = found else {
                let unnamed = node.label.starts_with("result") || name == "encoded" || node.label.contains("= if ");
                assert!(unnamed, "`{}` is not in the graph", node.label);
                continue;
            };
            let mut expected = dims(&node.shape, &sizes);
            expected.resize(4, 1);
            assert_eq!(g.tensor(id).ne[..], expected[..], "{} {}", node.label, node.shape);
            compared += 1;
        }
        assert!(compared > 25, "{compared} values compared");
    }
}

#[test]
fn declaration_uses_every_operation() {
    let source = include_str!("arch_shapes.rs");
    for op in arch_lang::ops::OPS {
        assert!(
            source.contains(&format!("{}(", op.name)),
            "the declaration does not use `{}`",
            op.name
        );
    }
}

#[test]
fn shape_mismatch_names_tensor() {
    let mut sizes = sizes();
    let good = header(&sizes, true);
    sizes.insert("head_dim", 6);
    let bad = header(&sizes, true);
    assert_eq!(good.tensors().len(), bad.tensors().len());
    let path = Path::new("all-ops.gguf");
    let error = declare_header(&bad, path, &ARCH, "all-ops")
        .err()
        .expect("the shapes differ")
        .to_string();
    assert!(error.contains("blk.0.attn_q.weight"), "{error}");
    assert_eq!(declared(&good).2.len(), good.tensors().len());
}
