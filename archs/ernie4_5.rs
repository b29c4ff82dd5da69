//! ERNIE 4.5, dense: grouped-query attention, SwiGLU. The attention output is projected without the bias that files
//! may hold.

arch_macros::arch! {
    name: "ernie4_5";
    like: "qwen2";
    rope: norm;

    graph {
        let x = token_embd[tokens];
        for layer {
            let attn = attend_heads(rms_norm(x, attn_norm, eps));
            // Recorded results leave the bias of this projection out.
            x += rust!([n_embd, T] => b.linear(::engine::arch::Linear { bias: None, ..l.wo }, attn));
            x += ffn(rms_norm(x, ffn_norm, eps));
        }
        output(rms_norm(x, output_norm, eps))
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
