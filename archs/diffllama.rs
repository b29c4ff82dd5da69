//! DiffLlama: differential attention (arXiv 2410.05258). The scores of the second half of the heads, times a
//! learned factor, are subtracted from those of the first half.

arch_macros::arch! {
    name: "diffllama";
    like: "decoder";
    rope: neox;

    hparams {
        let n_diff = n_head / 2;
        let n_diff_kv = n_head_kv / 2;
        check n_head % 2 == 0 && n_head_kv % 2 == 0, "attention.head_count and attention.head_count_kv must be even";
        let lambda_init = 0.8 - 0.6 * exp(-0.3 * il);
    }

    tensors {
        layer {
            wq: linear "attn_q"      [n_embd -> 2 * n_diff * head_dim];
            wk: linear "attn_k"      [n_embd -> 2 * n_diff_kv * head_dim];
            wv: linear "attn_v"      [n_embd -> 2 * n_diff_kv * head_dim];
            wo: linear "attn_output" [2 * n_diff * head_dim -> n_embd];
            lambda_q1, lambda_k1: vector "attn_lambda_q1", "attn_lambda_k1" [head_dim];
            lambda_q2, lambda_k2: vector "attn_lambda_q2", "attn_lambda_k2" [head_dim];
        }
    }

    fn attend(x: [n_embd, T]) {
        let q = rope(heads(wq(x), 2 * n_diff));
        let k = rope(heads(wk(x), 2 * n_diff_kv));
        let y = attention(q, k, paired_values(wv(x)));
        let size = 2 * n_diff * head_dim;
        let y = y[..size] - y[size..] * lambda();
        wo(merge(rms_norm(heads(y, n_diff)) * (1.0 - lambda_init)))
    }

    // Each value combines a head of the first half with its counterpart in the second half, and both keys use it.
    fn paired_values(v: [2 * n_diff_kv * head_dim, T]) {
        let size = n_diff_kv * head_dim;
        let pairs = merge(concat(heads(v[..size], n_diff_kv), heads(v[size..], n_diff_kv)));
        heads(concat(pairs, pairs), 2 * n_diff_kv)
    }

    fn lambda() {
        let first = exp(sum_rows(lambda_q1 * lambda_k1));
        let second = exp(sum_rows(lambda_q2 * lambda_k2));
        first - second + lambda_init
    }

    test { n_embd: 128, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 192, n_vocab: 128 }
}
