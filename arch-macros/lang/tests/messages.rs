//! Error messages: for each mistake, the complete list of messages with the tokens under which they are
//! shown.

mod common;

use std::path::Path;
use std::str::FromStr;

use proc_macro2::TokenStream;

/// Valid declaration that uses most of the language. Each case replaces one part.
const BASE: &str = r#"
name: "base";
rope: neox;
models { "27B": n_layer == 62; }
hparams {
    eps: f32 = "attention.layer_norm_rms_epsilon";
    n_swa: usize = "attention.sliding_window" or 0;
    is_swa: pattern = "attention.sliding_window_pattern" or 6;
    n_ff_exp: [usize] = "expert_feed_forward_length" or n_ff;
    let kq_scale = 1.0 / sqrt(head_dim);
    check n_swa > 0 || n_layer < 100, "a window or few layers";
    check !model_is("27B") || n_swa > 0, "attention.sliding_window must not be 0";
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
fn values(x: [n_embd, T]) { heads(wv(x), n_head_kv) }
graph {
    let x = token_embd[tokens] * sqrt(n_embd);
    for layer {
        let h = rms_norm(x, attn_norm, eps);
        let q = heads(wq(h), n_head);
        let q = if has(q_norm) { rms_norm(q, q_norm, eps) } else { q };
        let q = rope(q, factors = rope_freqs);
        let k = rope(heads(wk(h), n_head_kv), factors = rope_freqs);
        let v = values(h);
        x += wo(attention(q, k, v, scale = kq_scale, window = sliding(n_swa, is_swa)));
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

/// Returns each error as `tokens: message`, in source order.
fn faults(source: &str) -> Vec<String> {
    let tokens = TokenStream::from_str(source).unwrap();
    match arch_lang::compile(tokens) {
        Ok(_) => Vec::new(),
        Err(list) => list.iter().map(common::shown).collect(),
    }
}

#[test]
fn base_declaration_compiles() {
    assert_eq!(faults(BASE), Vec::<String>::new());
}

/// Each case of `messages.txt` replaces one part of the base declaration and must produce exactly these
/// messages. Set `LLAMA_UPDATE=1` to update the file.
#[test]
fn every_mistake_reports_expected_messages() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messages.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut now = String::new();
    let mut n_cases = 0;
    for block in text.split("\n\n") {
        let part = |mark: &str| block.lines().find_map(|l| l.strip_prefix(mark));
        let (Some(from), Some(to)) = (part("- "), part("+ ").or(part("+"))) else {
            now += &format!("{}\n\n", block.trim_end());
            continue;
        };
        assert_eq!(
            BASE.matches(from).count(),
            1,
            "{from:?} must occur exactly once in the base declaration"
        );
        let found = faults(&BASE.replace(from, to));
        assert!(!found.is_empty(), "{from:?} -> {to:?} should be rejected");
        let lines: String = found.iter().map(|f| format!("> {f}\n")).collect();
        now += format!("- {from}\n+ {to}").trim_end();
        now += &format!("\n{lines}\n");
        n_cases += 1;
    }
    let now = format!("{}\n", now.trim_end());
    assert!(n_cases > 100, "{n_cases} cases");
    if std::env::var_os("LLAMA_UPDATE").is_some() {
        std::fs::write(&path, now).unwrap();
        return;
    }
    for (was, is) in text.lines().zip(now.lines()) {
        assert_eq!(was, is);
    }
    assert_eq!(text.lines().count(), now.lines().count());
}

#[test]
fn lists_and_values_with_conditions_compile() {
    let scale = "let kq_scale = 1.0 / sqrt(head_dim);";
    let norm = "let h = rms_norm(x, attn_norm, eps);";
    let cases = [
        (scale, "let n_long = count(is_swa); check n_long > 0, \"windows\";"),
        (
            scale,
            "sizes: [usize; 2..] = \"sizes\"; let n = max_sum(sizes, sizes, n_layer); check n > 0, \"sizes\";",
        ),
        (
            scale,
            "sizes: [usize; 0..] = \"sizes\"; let n = count(sizes); let f = first(sizes); check n > f, \"sizes\";",
        ),
        (
            norm,
            "let g = if n_swa > 0 { rms_norm(x, eps) }; if n_swa > 0 && il > 2 { x += g; }",
        ),
        (
            norm,
            "let g = if is_swa { let y = x * 2.0; y + x }; if is_swa { g += x; x += g; }",
        ),
        (norm, "let g = bank(x, bank(x)); x += recall(x, g, attn_norm, eps);"),
        (
            norm,
            "x += pad_logits(x[..n_embd - 1], n_embd); let g = token_embd(x); x += sum_rows(g);",
        ),
    ];
    for (line, added) in cases {
        let source = BASE.replace(line, &format!("{added} {line}"));
        assert_eq!(faults(&source), Vec::<String>::new(), "{added}");
    }
}

/// Returns the base declaration with a check and with halves of its heads.
fn with_halves(check: &str, half: &str) -> Vec<String> {
    let checks = format!("{check} check n_swa > 0 || n_layer < 100");
    let halves = format!(
        "let h = layer_norm(x, ffn_norm, eps); let first = wq(h)[..{half} * head_dim];
         x += wo(concat(first, first)); let z = merge(heads(wq(h), 2 * ({half}))); x += wo(z);"
    );
    let source = BASE
        .replace("check n_swa > 0 || n_layer < 100", &checks)
        .replace("let h = layer_norm(x, ffn_norm, eps);", &halves);
    faults(&source)
}

#[test]
fn checked_multiple_divides_sizes_exactly() {
    let check = "check n_head % 2 == 0, \"attention.head_count must be even\";";
    assert_eq!(with_halves(check, "n_head / 2"), Vec::<String>::new());
    let both = "check n_swa > 1 && n_head % 2 == 0, \"attention.head_count must be even\";";
    assert_eq!(with_halves(both, "n_head / 2"), Vec::<String>::new());
    assert!(!with_halves("", "n_head / 2").is_empty());
    // A warning accepts files without the property, and `||` implies neither side.
    let warning = "warn n_head % 2 == 0, \"attention.head_count should be even\";";
    assert!(!with_halves(warning, "n_head / 2").is_empty());
    let either = "check n_swa > 1 || n_head % 2 == 0, \"attention.head_count must be even\";";
    assert!(!with_halves(either, "n_head / 2").is_empty());
    assert!(!with_halves(check, "n_head / 3").is_empty());
}

/// `mtp` can use tensors of multi-token prediction layers, and `layer` runs one iteration of the layer loop.
#[test]
fn mtp_can_call_layer_loop() {
    let source = BASE
        .replace("let h = layer_norm", "x += 0.5 * x; let h = layer_norm")
        .replace(
            "ffn_norm: norm",
            "if is_mtp { eh_proj: linear \"nextn.eh_proj\" [2 * n_embd -> n_embd]; } ffn_norm: norm",
        );
    let with_mtp = |statements: &str| format!("{source} mtp {{ {statements} }}");
    let sound = with_mtp("let x = eh_proj(concat(token_embd[tokens], hidden)); output(layer(x))");
    assert_eq!(faults(&sound), Vec::<String>::new());
    let arch = arch_lang::compile(TokenStream::from_str(&sound).unwrap()).unwrap();
    let flow = arch_lang::describe(&arch).flow;
    let halved = |n: &&arch_lang::FlowNode| n.label.starts_with("scale by 0.5");
    assert_eq!(flow.iter().filter(halved).count(), 2, "in the loop and in the function");
    // With several layer loops, there is no function `layer`.
    let twice = sound.replace(
        "output(rms_norm(x, output_norm, eps))",
        "for layer { x += wo(wq(x)); } output(x)",
    );
    assert!(
        faults(&twice).iter().any(|f| f.starts_with("layer: ")),
        "{:?}",
        faults(&twice)
    );
}

#[test]
fn errors_are_reported_together_in_source_order() {
    let source = BASE
        .replace("wo(attention(", "wx(attention(")
        .replace("scale = kq_scale", "scal = kq_scale")
        .replace("n_layer: 2, ", "");
    let list = arch_lang::compile(TokenStream::from_str(&source).unwrap()).unwrap_err();
    let places: Vec<_> = list.iter().map(|d| d.line_column()).collect();
    assert_eq!(list.len(), 3, "{list:?}");
    assert!(places.is_sorted(), "{places:?}");
    let line = 1 + source.lines().position(|l| l.contains("wx(attention(")).unwrap();
    let column = 1 + source.lines().nth(line - 1).unwrap().find("wx").unwrap();
    assert!(
        places.contains(&(line, column)),
        "{places:?} should contain {line}:{column}"
    );
}

#[test]
fn invalid_declaration_expands_to_typed_placeholder() {
    let tokens =
        arch_lang::expand(TokenStream::from_str(&BASE.replace("rms_norm(x, attn", "rmsnorm(x, attn")).unwrap());
    let text = tokens.to_string();
    assert_eq!(text.matches("compile_error").count(), 1, "{text}");
    assert!(
        text.contains("pub static ARCH : :: engine :: arch :: Architecture"),
        "{text}"
    );
}
