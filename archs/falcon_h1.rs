//! Falcon H1: in every layer attention and a Mamba 2 mixer side by side on the same normed input, their sum added; the groups'
//! norm may be absent.

arch_macros::arch! {
    name: "falcon-h1";
    like: "mamba2";
    rope: neox;

    tensors {
        ignore "rope_freqs"; // the graph rotates without factors

        layer {
            conv_b?:   raw    "ssm_conv1d.bias" [d_mixed];
            ssm_norm?: vector "ssm_norm"    [d_inner / n_group, n_group];
            ignore "attn_output.bias"; // may be in a file; the model does not add it
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm:  raw    "ffn_norm"    [n_embd];
            gate:      linear "ffn_gate"    [n_embd -> n_ff];
            up:        linear "ffn_up"      [n_embd -> n_ff];
            down:      linear "ffn_down"    [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm, eps);
            let q = rope(heads(wq(h), n_head));
            let k = rope(heads(wk(h), n_head_kv));
            let attended = wo(attention(q, k, heads(wv(h), n_head_kv)));
            let mixed = mamba2(ssm_in(h), inner = d_inner, n_state = d_state, n_group = n_group, conv = conv,
                               conv_bias = conv_b, dt_bias = dt_b, a = ssm_a, d = ssm_d, norm = ssm_norm, eps = eps);
            x += attended + ssm_out(mixed);
            let h = rms_norm(x, eps) * ffn_norm;
            x += down(silu(gate(h)) * up(h));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test {
        n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 128,
        n_ssm: 2, n_group: 2
    }
}
