//! Qwen3-VL dense language model: the graph of Qwen3 with interleaved positions in time, height, and width. The first
//! layers add features of images (DeepStack, arXiv 2406.04334).

arch_macros::arch! {
    name: "qwen3vl";
    like: "qwen3";
    rope: imrope;

    hparams {
        n_deep: usize = "n_deepstack_layers" or 0;
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            let q = rope(rms_norm(heads(wq(h), n_head), q_norm));
            let k = rope(rms_norm(heads(wk(h), n_head_kv), k_norm));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm);
            x += down(silu(gate(h)) * up(h));
            if il < n_deep {
                x = deepstack(x);
            }
        }
        output(rms_norm(x, output_norm))
    }
}
