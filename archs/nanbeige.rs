//! Nanbeige, looped: the layers of Llama run several times over with the same weights, each pass with keys and values of its own, and
//! the output norm stands between passes.

arch_macros::arch! {
    name: "nanbeige";
    like: "llama";

    hparams {
        n_loops: usize = "num_loops" or 1;
        skip_norm: bool = "skip_loop_final_norm" or false;
        check n_loops > 0, "num_loops is 0";
    }

    tensors {
        without rope_short, rope_long;
        layer {
            without router, gate_exps, up_exps, down_exps;
            gate: linear "ffn_gate" [n_embd -> n_ff];
            up:   linear "ffn_up"   [n_embd -> n_ff];
            down: linear "ffn_down" [n_ff -> n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for pass in 0..n_loops {
            for layer {
                let h = rms_norm(x, attn_norm, eps);
                let q = rope(heads(wq(h), n_head), factors = rope_freqs);
                let k = rope(heads(wk(h), n_head_kv), factors = rope_freqs);
                let v = heads(wv(h), n_head_kv);
                x += wo(attention(q, k, v, scale = kq_scale));
                let h = rms_norm(x, ffn_norm, eps);
                x += down(silu(gate(h)) * up(h));
            }
            if pass + 1 < n_loops && !skip_norm {
                x = rms_norm(x, output_norm, eps);
            }
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, n_loops: 2 }
}
