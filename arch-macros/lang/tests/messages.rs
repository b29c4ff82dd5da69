//! What the compiler says: for each slip the whole list of messages and the text under which each stands.

use std::str::FromStr;

use proc_macro2::TokenStream;

/// A declaration without faults, with most of the language in it. Each case below replaces one part.
const BASE: &str = r#"
name: "base";
rope: neox;
hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    n_swa: usize = "attention.sliding_window" or 0;
    is_swa: pattern = "attention.sliding_window_pattern" or 6;
    n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff;
    let kq_scale = 1.0 / sqrt(head_dim);
    check n_swa > 0 || n_layer < 100, "a window or few layers";
}
tensors {
    token_embd: embed "token_embd" [n_embd, n_vocab];
    output_norm: vector "output_norm" [n_embd];
    output: linear "output" [n_embd -> n_vocab] or token_embd;
    rope_freqs?: vector "rope_freqs" [n_rot / 2];
    ignore "cls.output";
    layer {
        attn_norm: vector "attn_norm" [n_embd];
        wq: linear "attn_q" [n_embd -> n_head * head_dim];
        wk: linear "attn_k" [n_embd -> n_head_kv * head_dim];
        wv: linear "attn_v" [n_embd -> n_head_kv * head_dim];
        q_norm?: vector "attn_q_norm" [head_dim];
        wo: linear "attn_output" [n_head * head_dim -> n_embd];
        ffn_norm: norm "ffn_norm" [n_embd];
        if n_expert == 0 {
            gate: linear "ffn_gate" [n_embd -> n_ff];
            up: linear "ffn_up" [n_embd -> n_ff];
            down: linear "ffn_down" [n_ff -> n_embd];
        } else {
            router: linear "ffn_gate_inp" [n_embd -> n_expert];
            up_exps: experts "ffn_up_exps" [n_embd -> n_ff_exp; n_expert];
            down_exps: experts "ffn_down_exps" [n_ff_exp -> n_embd; n_expert];
        }
    }
}
graph {
    let x = token_embd[tokens] * sqrt(n_embd);
    for layer {
        let h = rms_norm(x, attn_norm, eps);
        let q = heads(wq(h), n_head);
        let q = if has(q_norm) { rms_norm(q, q_norm, eps) } else { q };
        let q = rope(q, factors = rope_freqs);
        let k = rope(heads(wk(h), n_head_kv), factors = rope_freqs);
        let v = heads(wv(h), n_head_kv);
        x += wo(attention(q, k, v, scale = kq_scale, window = standard(n_swa, is_swa)));
        let h = layer_norm(x, ffn_norm, eps);
        if n_expert > 0 {
            x += moe(h, router = router(h), up = up_exps, down = down_exps, act = gelu, gating = softmax,
                     n_used = n_expert_used, norm_weights = true);
        } else {
            x += down(silu(gate(h)) * up(h));
        }
    }
    output(rms_norm(x, output_norm, eps))
}
test { n_embd: 256, n_head: 4, n_layer: 2, n_ff: 384, n_vocab: 128 }
"#;

/// `text under the message: message` for each fault, in the order of the source.
fn faults(source: &str) -> Vec<String> {
    let tokens = TokenStream::from_str(source).unwrap();
    match arch_lang::compile(tokens) {
        Ok(_) => Vec::new(),
        Err(list) => list
            .iter()
            .map(|d| {
                let span = d.start.join(d.end).unwrap_or(d.start);
                format!("{}: {}", span.source_text().unwrap_or_default(), d.message)
            })
            .collect(),
    }
}

/// Replaces `from`, which stands once in the base, and compares what is said.
#[track_caller]
fn case(from: &str, to: &str, expected: &[&str]) {
    assert_eq!(
        BASE.matches(from).count(),
        1,
        "{from:?} does not stand once in the base"
    );
    assert_eq!(faults(&BASE.replace(from, to)), expected, "{from:?} -> {to:?}");
}

#[test]
fn the_base_is_without_fault() {
    assert_eq!(faults(BASE), Vec::<String>::new());
}

#[test]
fn sections() {
    case(
        "n_layer: 2, n_ff: 384,",
        "n_layer: 2,",
        &["test: the test model has no size for `n_ff`"],
    );
    case(
        "n_vocab: 128",
        "n_vocab: 128, n_heads: 2",
        &["n_heads: no hyper-parameter is called `n_heads`; did you mean `n_head`?"],
    );
    case(
        "n_vocab: 128",
        "n_vocab: 128, eps: 1",
        &["eps: a test model has sizes and switches; `eps` is `f32`"],
    );
    case(
        "n_vocab: 128",
        "n_vocab: true",
        &["true: expected a `usize` for `n_vocab`"],
    );
    case(
        "rope: neox;",
        "rope: none;",
        &["rope: `rope` needs the pairing of positions: declare `rope: norm;` or `rope: neox;`"],
    );
    case(
        "rope: neox;",
        "rope: newox;",
        &["newox: expected `norm`, `neox` or `none`, found `newox`; did you mean `neox`?"],
    );
    case(
        "rope: neox;",
        "rope: mrope;",
        &["mrope: `rope: mrope` is not supported yet"],
    );
    case(
        "rope: neox;",
        "",
        &["\"base\": the declaration does not say how positions rotate: `rope: norm;`, `rope: neox;` or `rope: none;`"],
    );
    case("name: \"base\";", "", &[": the declaration has no `name: \"…\";`"]);
    case(
        "name: \"base\";",
        "name: \"a b\";",
        &["\"a b\": a name consists of letters, digits, `-`, `_` and `.`"],
    );
    case(
        "test { n_embd",
        "tests { n_embd",
        &[
            "tests: expected `name`, `rope`, `hparams`, `tensors`, `graph` or `test`, found `tests`; did you mean `test`?",
        ],
    );
    case(
        "test { n_embd: 256,",
        "test { n_embd: 256, n_embd: 256,",
        &["n_embd: `n_embd` is given twice"],
    );
    case(
        "test { n_embd: 256,",
        "name: \"twice\"; test { n_embd: 256,",
        &["name: `name` stands here for the second time"],
    );
    case(
        "test { n_embd: 256,",
        "like: \"llama\"; test { n_embd: 256,",
        &["\"llama\": an architecture that is `like` another is not supported yet"],
    );
    case(
        "test { n_embd: 256,",
        "graph encoder { let x = 1; x } test { n_embd: 256,",
        &["encoder: a second, named graph is not supported yet"],
    );
}

#[test]
fn hyper_parameters() {
    case(
        "eps: f32 = \"attention.layer_norm_rms_epsilon\";",
        "eps: f32;",
        &["eps: `eps` has no key: write `eps: f32 = \"key.in.the.file\";`, or `let eps = …;` for a derived value"],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa: usize = \"attention.sliding_window\" or 0; n_odd: usize = \"odd\";",
        &[
            "n_odd: `n_odd` is read and never used",
            "test: the test model has no size for `n_odd`",
        ],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa: int = \"attention.sliding_window\" or 0;",
        &["int: expected `usize`, `f32`, `bool`, `string`, `pattern` or a list such as `[usize]`, found `int`"],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa: usize = \"attention.sliding_window\" or 0.5;",
        &["0.5: expected `usize`, found `f32`"],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa: usize = \"attention.sliding_window\" or n_ff;",
        &["n_ff: the default differs by layer, but the value does not: declare it `[usize]`"],
    );
    case(
        "n_ff_exp: [usize] = \"expert_feed_forward_length\" or n_ff;",
        "n_ff: [usize] = \"expert_feed_forward_length\" or 0;",
        &[
            "n_ff: `n_ff` is built in",
            "n_ff_exp: no hyper-parameter is called `n_ff_exp`",
        ],
    );
    case(
        "n_ff_exp: [usize] =",
        "n_ff_exp: [usize; 4] =",
        &["4: a list of fixed length is not supported yet"],
    );
    case(
        "let kq_scale = 1.0 / sqrt(head_dim);",
        "let kq_scale = 1.0 / sqrt(head_dims);",
        &["head_dims: no hyper-parameter is called `head_dims`; did you mean `head_dim`?"],
    );
    case(
        "let kq_scale = 1.0 / sqrt(head_dim);",
        "let kq_scale = 1.0 / sqroot(head_dim);",
        &["sqroot: no function of numbers is called `sqroot`; did you mean `sqrt`?"],
    );
    case(
        "let kq_scale = 1.0 / sqrt(head_dim);",
        "let kq_scale = 1.0 / sqrt(head_dim, 2);",
        &["sqrt: `sqrt` takes 1 argument of numbers, 2 given"],
    );
    case(
        "check n_swa > 0 || n_layer < 100,",
        "check n_swa + n_layer,",
        &["n_swa + n_layer: expected `bool`, found `usize`"],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa: usize = \"attention.sliding_window\" or zero;",
        &["zero: no hyper-parameter is called `zero`"],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa: usize = sliding_window or 0;",
        &["sliding_window: expected the key in the file, in quotes"],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa: usize = \"attention.layer_norm_rms_epsilon\" or 0;",
        &["\"attention.layer_norm_rms_epsilon\": the key \"attention.layer_norm_rms_epsilon\" is read twice"],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa = \"attention.sliding_window\" or 0;",
        &["=: expected `:`"],
    );
    case(
        "n_swa: usize = \"attention.sliding_window\" or 0;",
        "n_swa: [string] = \"attention.sliding_window\";",
        &["string: a list of strings is not supported yet"],
    );
    case(
        "let kq_scale = 1.0 / sqrt(head_dim);",
        "let kq_scale = if n_layer { 1.0 } else { 2.0 };",
        &["n_layer: expected `bool`, found `usize`"],
    );
    case(
        "let kq_scale = 1.0 / sqrt(head_dim);",
        "let kq_scale = if n_layer == 1 { 1.0 } else { true };",
        &["if: the branches have different types: `f32` and `bool`"],
    );
    case(
        "let kq_scale = 1.0 / sqrt(head_dim);",
        "let kq_scale = 1.0 / sqrt(head_dim) * has(q_norm);",
        &["has: `has` asks about the file's tensors, which are known in the graph only"],
    );
    case(
        "let kq_scale = 1.0 / sqrt(head_dim);",
        "let kq_scale = 1u32;",
        &["1u32: expected a plain integer"],
    );
    case(
        "check n_swa > 0 || n_layer < 100,",
        "check n_swa > 0 || n_layer,",
        &["n_layer: expected `bool`, found `usize`"],
    );
}

#[test]
fn tensors() {
    case(
        "\"attn_output\" [n_head * head_dim -> n_embd]",
        "\"attn_output\" [n_embd -> n_head * head_dim]",
        &[
            "wo: `wo` takes n_embd, got n_head * head_dim (declared [n_embd -> n_head * head_dim], applied to [n_head * head_dim, T])",
        ],
    );
    case(
        "wq: linear \"attn_q\" [n_embd -> n_head * head_dim]",
        "wq: linear \"attn_q\" [n_embd -> n_embd]",
        &["n_head: `heads` cuts dimension 0 into n_head equal heads, but n_embd is not n_head times something"],
    );
    case(
        "ffn_norm: norm \"ffn_norm\" [n_embd];",
        "ffn_norm: norm \"ffn_norm\" [n_embd]; extra: vector \"extra\" [n_embd];",
        &[
            "extra: `extra` is declared and never used (a file's tensor that the graph does not need: `ignore \"extra\";`)",
        ],
    );
    case(
        "[n_embd -> n_vocab] or token_embd",
        "[n_embd -> n_embd] or token_embd",
        &[
            "token_embd: `token_embd` has the shape [n_embd, n_vocab], `output` has [n_embd -> n_embd]: they cannot stand for each other",
        ],
    );
    case(
        "or token_embd;",
        "or output_norm;",
        &["output_norm: `or` lets an `embed` stand in for a `linear`"],
    );
    case(
        "\"output_norm\" [n_embd]",
        "\"output_norm\" [n_head]",
        &["n_head: `n_head` differs by layer: per-layer value outside the `layer` block"],
    );
    case(
        "\"attn_k\" [",
        "\"attn_q\" [",
        &["\"attn_q\": the GGUF name \"attn_q\" is declared twice: `wq` has it too"],
    );
    case(
        "rope_freqs?: vector \"rope_freqs\" [n_rot / 2];",
        "rope_freqs?: vector \"rope_freqs\" [n_rot -> 2];",
        &["[n_rot -> 2]: `vector` takes one to four sizes, [a, b, …]"],
    );
    case(
        "rope_freqs?: vector \"rope_freqs\" [n_rot / 2];",
        "rope_freqs?: tensor \"rope_freqs\" [n_rot / 2];",
        &["tensor: expected `embed`, `vector`, `norm`, `linear`, `experts` or `raw`, found `tensor`"],
    );
    case(
        "rope_freqs?: vector \"rope_freqs\" [n_rot / 2];",
        "rope_freqs: vector \"rope_freqs\" [n_rot / 2]; has_it?: vector \"has_it\" [n_embd];",
        &[
            "has_it: `has_it` is declared and never used (a file's tensor that the graph does not need: `ignore \"has_it\";`)",
        ],
    );
    case(
        "wq: linear \"attn_q\" [n_embd -> n_head * head_dim];",
        "wq: linear \"attn_q\" [n_embd, n_head * head_dim];",
        &["[n_embd, n_head * head_dim]: `linear` takes [in -> out]"],
    );
    case(
        "ignore \"cls.output\";",
        "ignore \"output_norm\";",
        &["\"output_norm\": \"output_norm\" is ignored here and declared as `output_norm`"],
    );
    case(
        "ignore \"cls.output\";",
        "state { conv: [n_embd, 4]; }",
        &["state: recurrent `state` is not supported yet"],
    );
    case(
        "ignore \"cls.output\";",
        "layer enc \"enc.blk\" n_layer { a: vector \"a\" [n_embd]; }",
        &["enc: a named group of layers is not supported yet"],
    );
    case(
        "wk: linear \"attn_k\"",
        "wk: \"attn_k\"",
        &["\"attn_k\": expected the kind of the tensor, such as `linear`"],
    );
    case(
        "up_exps: experts \"ffn_up_exps\" [n_embd -> n_ff_exp; n_expert]",
        "up_exps: experts \"ffn_up_exps\" [n_embd -> n_ff; n_expert]",
        &[
            "down_exps: `moe`: dimension 0 of `down` must be n_ff (the width of `up`), got n_ff_exp in [n_ff_exp, n_embd, n_expert]",
        ],
    );
    case(
        "\"ffn_gate_inp\" [n_embd -> n_expert]",
        "\"ffn_gate_inp\" [n_embd -> n_expert_used]",
        &[
            "router(h): `moe`: dimension 0 of `router` must be n_expert (the experts of `up`), got n_expert_used in [n_expert_used, T]",
        ],
    );
    case(
        "\"attn_q_norm\" [head_dim]",
        "\"attn_q_norm\" [n_embd]",
        &["q_norm: `rms_norm`: dimension 0 of `w` must be head_dim (dimension 0 of `x`), got n_embd in [n_embd]"],
    );
    case(
        "wk: linear \"attn_k\"",
        "wq: linear \"attn_k\"",
        &[
            "wq: `wq` is already the name of a tensor",
            "wk: no operation or tensor is called `wk`",
        ],
    );
    case(
        "wk: linear \"attn_k\"",
        "rope: linear \"attn_k\"",
        &[
            "rope: `rope` is the name of an operation",
            "wk: no operation or tensor is called `wk`",
        ],
    );
    case(
        "rope_freqs?: vector \"rope_freqs\" [n_rot / 2];",
        "rope_freqs?: vector \"rope_freqs\" [1.5];",
        &["1.5: expected `usize`, found `f32`"],
    );
    case(
        "rope_freqs?: vector \"rope_freqs\" [n_rot / 2];",
        "rope_freqs?: vector \"rope_freqs\" [];",
        &["[]: expected a size"],
    );
    case(
        "rope_freqs?: vector \"rope_freqs\" [n_rot / 2];",
        "rope_freqs?: vector rope_freqs [n_rot / 2];",
        &["rope_freqs: expected the tensor's GGUF name in quotes"],
    );
    case(
        "output: linear \"output\" [n_embd -> n_vocab] or token_embd;",
        "output?: linear \"output\" [n_embd -> n_vocab] or token_embd;",
        &["token_embd: `output` is optional already by `or token_embd`: drop the `?`"],
    );
    case(
        "output: linear \"output\" [n_embd -> n_vocab] or token_embd;",
        "output: linear \"output\" [n_embd -> n_vocab] or tok_embd;",
        &["tok_embd: no tensor above this line is called `tok_embd`; did you mean `token_embd`?"],
    );
    case(
        "output: linear \"output\" [n_embd -> n_vocab] or token_embd;",
        "output?: linear \"output\" [n_embd -> n_vocab];",
        &["output: `output` is optional: say what happens without it: `if has(output) { … }`"],
    );
    case(
        "if n_expert == 0 {",
        "if n_experts == 0 {",
        &["n_experts: no hyper-parameter is called `n_experts`; did you mean `n_expert`?"],
    );
}

#[test]
fn values_and_shapes() {
    case(
        "token_embd[tokens] * sqrt(n_embd)",
        "token_embd[tokens] * sqrt(n_head)",
        &["n_head: `n_head` differs by layer: per-layer value outside the layer loop (`for layer`)"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = token_embd[positions] *",
        &["positions: rows chosen by `positions` are not supported yet"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = output_norm[tokens] *",
        &[
            "token_embd: `token_embd` is declared and never used (a file's tensor that the graph does not need: `ignore \"token_embd\";`)",
            "output_norm: rows can be read from an `embed` only, `output_norm` is `vector`",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = attn_norm *",
        &[
            "token_embd: `token_embd` is declared and never used (a file's tensor that the graph does not need: `ignore \"token_embd\";`)",
            "attn_norm: `attn_norm` belongs to a layer: it can be used inside `for layer` only",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let y = attention(x, x, x); let x = token_embd[tokens] *",
        &[
            "attention: `attention` stores into the memory of a layer: it belongs inside `for layer`",
            "x: no value, tensor or hyper-parameter is called `x`",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = rust!([n_embd, T] = b.embed(m.w.token_embd)) *",
        &["rust!([n_embd, T] = b.embed(m.w.token_embd)): expected `rust!([dims] => expression)`: expected `=>`"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = tokens *",
        &[
            "token_embd: `token_embd` is declared and never used (a file's tensor that the graph does not need: `ignore \"token_embd\";`)",
            "tokens: `tokens` can only choose rows of an `embed`: `token_embd[tokens]`",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = wq *",
        &[
            "token_embd: `token_embd` is declared and never used (a file's tensor that the graph does not need: `ignore \"token_embd\";`)",
            "wq: `wq` belongs to a layer: it can be used inside `for layer` only",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = token_embd *",
        &["token_embd: `token_embd` is `embed`: its rows are read as `token_embd[tokens]`"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = token_embd(1.0) *",
        &[
            "token_embd: `token_embd` is `embed`, not a projection: its rows are read as `token_embd[tokens]`",
            "1.0: expected a tensor, found a number or condition",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let n = 2; n = 3; let x = token_embd[tokens] *",
        &["n: `n` is a number: bind a new one with `let`"],
    );
    case(
        "let x = token_embd[tokens] *",
        "output = x; let x = token_embd[tokens] *",
        &[
            "output: `output` is a tensor of the file and cannot be assigned to",
            "x: no value, tensor or hyper-parameter is called `x`",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = concat(token_embd[tokens], output_norm) *",
        &["output_norm: `concat`: dimension 1 of `b` must be T (as in `a`), got 1 in [n_embd]"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = token_embd[tokens] % 2 *",
        &["token_embd[tokens] % 2: `%` is not defined between a tensor and a number"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = (token_embd[tokens] < 2) *",
        &["token_embd[tokens] < 2: `<` is not defined between a tensor and a number"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = token_embd[tokens][1..=2] *",
        &["1..=2: write the end of the slice exclusively: `a..b`"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = token_embd[tokens].abs() *",
        &["token_embd[tokens].abs(): this form of expression has no meaning in an architecture"],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = vec![1] *",
        &[
            "token_embd: `token_embd` is declared and never used (a file's tensor that the graph does not need: `ignore \"token_embd\";`)",
            "vec: the only macro here is `rust!([dims] => expression)`",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = silu(eps) *",
        &[
            "token_embd: `token_embd` is declared and never used (a file's tensor that the graph does not need: `ignore \"token_embd\";`)",
            "eps: expected a tensor, found a number or condition",
        ],
    );
    case(
        "let x = token_embd[tokens] *",
        "let x = merge(token_embd[tokens]) *",
        &["token_embd[tokens]: `merge` takes `x` as [d, n, T], got [n_embd, T]"],
    );
    case(
        "let x = token_embd[tokens] *",
        "for layer { x += x; } let x = token_embd[tokens] *",
        &["x: no value, tensor or hyper-parameter is called `x`"],
    );
}

#[test]
fn calls() {
    case(
        "scale = kq_scale",
        "scal = kq_scale",
        &[
            "scal: `attention` has no argument `scal`; did you mean `scale`? (by name it takes `scale`, `softcap`, `alibi`, `causal`, `sinks`, `window`)",
        ],
    );
    case(
        "scale = kq_scale",
        "scale = kq_scale, scale = 1.0",
        &["scale: `scale` is given twice"],
    );
    case(
        "gating = softmax,",
        "gating = softmx,",
        &["softmx: `gating` takes a gating: `softmax`, `sigmoid`, `softmax_weight`; did you mean `softmax`?"],
    );
    case(
        "act = gelu,",
        "act = gelo,",
        &["gelo: expected the name of an activation, such as `silu` or `gelu`; did you mean `gelu`?"],
    );
    case("act = gelu,", "", &["moe: `moe` needs `act = …`: an activation"]);
    case(
        "window = standard(n_swa, is_swa)",
        "window = sliding(n_swa, is_swa)",
        &["sliding: expected a window: `standard(n, condition)`, `chunked(n, condition)` or `symmetric(n, condition)`"],
    );
    case(
        "window = standard(n_swa, is_swa)",
        "window = standard(n_swa, n_swa)",
        &[
            "is_swa: `is_swa` is read and never used",
            "n_swa: expected `bool`, found `usize`",
        ],
    );
    case(
        "down(silu(gate(h)) * up(h))",
        "down(silu(gate(h)) * h)",
        &[
            "up: `up` is declared and never used (a file's tensor that the graph does not need: `ignore \"ffn_up\";`)",
            "silu(gate(h)) * h: `*`: the shapes [n_ff, T] and [n_embd, T] do not agree (the right one may have fewer dimensions, or some of size 1)",
        ],
    );
    case(
        "down(silu(gate(h)) * up(h))",
        "down(silu(gate) * up(h))",
        &["gate: `gate` is `linear`: it is applied as `gate(x)`"],
    );
    case(
        "down(silu(gate(h)) * up(h))",
        "down(silu(gate(h)) * up(h), h)",
        &["down: `down` is applied to one tensor, 2 arguments given"],
    );
    case(
        "down(silu(gate(h)) * up(h))",
        "down(attn_norm(gate(h)) * up(h))",
        &[
            "attn_norm: `attn_norm` is `vector`, not a projection: it is an operand (`x * attn_norm`) or the weight of a norm (`rms_norm(x, attn_norm, eps)`)",
        ],
    );
    case(
        "down(silu(gate(h)) * up(h))",
        "down(1.0 / gate(h) * up(h))",
        &["1.0 / gate(h): a number cannot be divided by a tensor"],
    );
    case(
        "down(silu(gate(h)) * up(h))",
        "down(gate(h) * up(h))[..7]",
        &[
            "down(gate(h) * up(h))[..7]: `+`: the shapes [n_embd, T] and [7, T] do not agree (the right one may have fewer dimensions, or some of size 1)",
        ],
    );
    case(
        "heads(wk(h), n_head_kv)",
        "heads(wk(h), n_head)",
        &[
            "n_head: `heads` cuts dimension 0 into n_head equal heads, but n_head_kv * head_dim is not n_head times something",
        ],
    );
    case(
        "heads(wk(h), n_head_kv)",
        "wk(h)",
        &["wk(h): `rope` takes `x` as [d, n, T], got [n_head_kv * head_dim, T]; cut it first: `heads(x, n)`"],
    );
    case(
        "rope(q, factors = rope_freqs)",
        "rope(q, rope_freqs)",
        &["rope: `rope` takes 1 argument, 2 given: `rope(x)` (by name: `factors`, `base`, `scale`, `dims`)"],
    );
    case(
        "rope(q, factors = rope_freqs)",
        "rope(factors = rope_freqs, q)",
        &["q: arguments by position come before `name = value` ones"],
    );
    case(
        "rope(q, factors = rope_freqs)",
        "rope(q, factors = q)",
        &["q: `rope` takes a declared vector as `factors`"],
    );
    case(
        "rope(q, factors = rope_freqs)",
        "rope(q, factors = h * 2)",
        &["h * 2: `rope` takes a declared vector as `factors`"],
    );
    case(
        "rope(q, factors = rope_freqs)",
        "rope(q, factors = rope_freqs, dims = 2.5)",
        &["2.5: expected `usize`, found `f32`"],
    );
    case(
        "router = router(h)",
        "router = h",
        &["h: `moe`: dimension 0 of `router` must be n_expert (the experts of `up`), got n_embd in [n_embd, T]"],
    );
    case(
        "let k = rope(heads(wk(h), n_head_kv), factors = rope_freqs);",
        "let k = rope(heads(wk(h), n_head_kv), factors = rope_freqs)[0..4];",
        &["k: `attention`: dimension 0 of `k` must be head_dim (dimension 0 of `q`), got 4 in [4, n_head_kv, T]"],
    );
}

#[test]
fn statements() {
    case(
        "let v = heads(wv(h), n_head_kv);",
        "let v = heads(wvv(h), n_head_kv);",
        &["wvv: no operation or tensor is called `wvv`; did you mean `wv`?"],
    );
    case(
        "rms_norm(x, attn_norm, eps);",
        "rms_norm(x, attn_norms, eps);",
        &["attn_norms: no tensor is called `attn_norms`; did you mean `attn_norm`?"],
    );
    case(
        "let q = if has(q_norm) { rms_norm(q, q_norm, eps) } else { q };",
        "let q = rms_norm(q, q_norm, eps);",
        &["q_norm: `q_norm` is optional: say what happens without it: `if has(q_norm) { … }`"],
    );
    case(
        "let h = layer_norm(x, ffn_norm, eps);",
        "let h = layernorm(x, ffn_norm, eps);",
        &["layernorm: no operation or tensor is called `layernorm`; did you mean `layer_norm`?"],
    );
    case(
        "let h = layer_norm(x, ffn_norm, eps);",
        "let h = layer_norm(x);",
        &[
            "ffn_norm: `ffn_norm` is declared and never used (a file's tensor that the graph does not need: `ignore \"ffn_norm\";`)",
            "layer_norm: `layer_norm` takes 2 or 3 arguments, 1 given: `layer_norm(x[, w], eps)`",
        ],
    );
    case(
        "if n_expert > 0 {",
        "if n_expert_used > 0 {",
        &[
            "router: `router` exists only if not `n_expert == 0`: use it under the same `if`",
            "gate: `gate` exists only if `n_expert == 0`: use it under the same `if`",
        ],
    );
    case(
        "if n_expert > 0 {",
        "if n_expert {",
        &["n_expert: expected `bool`, found `usize`"],
    );
    case("for layer {", "{", &["output: expected `;`"]);
    case(
        "output(rms_norm(x, output_norm, eps))",
        "x",
        &[
            "output_norm: `output_norm` is declared and never used (a file's tensor that the graph does not need: `ignore \"output_norm\";`)",
            "output: `output` is declared and never used (a file's tensor that the graph does not need: `ignore \"output\";`)",
        ],
    );
    case(
        "output(rms_norm(x, output_norm, eps))",
        "heads(x, 1)",
        &[
            "output_norm: `output_norm` is declared and never used (a file's tensor that the graph does not need: `ignore \"output_norm\";`)",
            "output: `output` is declared and never used (a file's tensor that the graph does not need: `ignore \"output\";`)",
            "heads(x, 1): the result must be [n_vocab, T] (logits) or [n_embd, T] (embeddings), got [n_embd, 1, T]",
        ],
    );
    case(
        "output(rms_norm(x, output_norm, eps))",
        "output(rms_norm(x, output_norm, eps));",
        &[
            "output(rms_norm(x, output_norm, eps)): the value of this statement is not used: bind it with `let`, or drop the `;` if it is the result",
        ],
    );
    case(
        "let h = rms_norm(x, attn_norm, eps);",
        "let h = rms_norm(x, attn_norm, eps); x = heads(x, 1);",
        &["x: `x` keeps its shape [n_embd, T], got [n_embd, 1, T] (use `let` for a new shape)"],
    );
    case(
        "let h = rms_norm(x, attn_norm, eps);",
        "let h = rms_norm(x, attn_norm, eps); let z = h + h;",
        &["z: `z` is computed and never used"],
    );
    case(
        "let h = rms_norm(x, attn_norm, eps);",
        "let h = rms_norm(x, attn_norm, eps); let b = h;",
        &["b: `b` is reserved: it names the graph builder in `rust!` expressions"],
    );
    case(
        "let h = rms_norm(x, attn_norm, eps);",
        "let eps = rms_norm(x, attn_norm, eps); let h = eps;",
        &["eps: `eps` is already the name of a hyper-parameter"],
    );
    case(
        "x += wo(attention(q, k, v",
        "y += wo(attention(q, k, v",
        &["y: no value is called `y`"],
    );
    case(
        "x += wo(attention(q, k, v",
        "let y = wo(attention(q, k, v",
        &["y: `y` is computed and never used"],
    );
    case(
        "x += wo(attention(q, k, v",
        "x += wo(attention(q, k, h",
        &[
            "v: `v` is computed and never used",
            "h: `attention` takes `v` as [dv, m, T], got [n_embd, T]; cut it first: `heads(x, n)`",
        ],
    );
    case(
        "if has(q_norm) { rms_norm(q, q_norm, eps) } else { q }",
        "if has(attn_norm) { q } else { q }",
        &[
            "q_norm: `q_norm` is declared and never used (a file's tensor that the graph does not need: `ignore \"attn_q_norm\";`)",
            "attn_norm: `attn_norm` is always there: declare it `attn_norm?:` if files may lack it",
        ],
    );
    case(
        "if has(q_norm) { rms_norm(q, q_norm, eps) } else { q }",
        "if has(q_norm) { rms_norm(q, q_norm, eps) } else { h }",
        &["if: the branches have different shapes: [head_dim, n_head, T] and [n_embd, T]"],
    );
    case(
        "if has(q_norm) { rms_norm(q, q_norm, eps) } else { q }",
        "if has(q_norm) { rms_norm(q, q_norm, eps) }",
        &["if: an `if` that gives a value needs an `else`"],
    );
    case(
        "if has(q_norm) { rms_norm(q, q_norm, eps) } else { q }",
        "if has(q_norm) { q } else { rms_norm(q, q_norm, eps) }",
        &["q_norm: `q_norm` is optional: say what happens without it: `if has(q_norm) { … }`"],
    );
    case(
        "if has(q_norm) { rms_norm(q, q_norm, eps) } else { q }",
        "if has(q_norm) { rms_norm(q, q_norm, eps) } else { 1.0 }",
        &["if: both branches must give a tensor, or both a plain number"],
    );
    case(
        "let q = heads(wq(h), n_head);",
        "let q = heads(wq(h) n_head);",
        &["n_head: expected `,`"],
    );
    case(
        "let q = heads(wq(h), n_head);",
        "let q = heads(wq(h), n_head)",
        &["let: expected `;`"],
    );
    case(
        "    for layer {",
        "    for enc {",
        &["enc: a loop over a named group of layers is not supported yet"],
    );
    case(
        "    output(rms_norm(x, output_norm, eps))",
        "    for layer { x += x; } output(rms_norm(x, output_norm, eps))",
        &["for layer: a second layer loop is not supported yet"],
    );
    case(
        "    output(rms_norm(x, output_norm, eps))",
        "    let y = if has(rope_freqs) { 1 } else { x }; output(rms_norm(x, output_norm, eps))",
        &["if: both branches must give a tensor, or both a plain number"],
    );
}

#[test]
fn all_faults_are_reported_at_once_in_the_order_of_the_source() {
    let source = BASE
        .replace("wo(attention(", "wx(attention(")
        .replace("scale = kq_scale", "scal = kq_scale")
        .replace("n_layer: 2, ", "");
    let list = arch_lang::compile(TokenStream::from_str(&source).unwrap()).unwrap_err();
    let places: Vec<_> = list.iter().map(|d| d.line_column()).collect();
    assert_eq!(list.len(), 4, "{list:?}");
    assert!(places.is_sorted(), "{places:?}");
    let line = 1 + source.lines().position(|l| l.contains("wx(attention(")).unwrap();
    let column = 1 + source.lines().nth(line - 1).unwrap().find("wx").unwrap();
    assert!(places.contains(&(line, column)), "{places:?} lacks {line}:{column}");
}

#[test]
fn a_faulty_declaration_still_expands_to_an_arch_of_the_right_type() {
    let tokens =
        arch_lang::expand(TokenStream::from_str(&BASE.replace("rms_norm(x, attn", "rmsnorm(x, attn")).unwrap());
    let text = tokens.to_string();
    assert_eq!(text.matches("compile_error").count(), 1, "{text}");
    assert!(
        text.contains("pub static ARCH : :: engine :: arch :: Architecture"),
        "{text}"
    );
}
