//! Gemma 3n: four states per token (AltUp); one state passes through the layer and corrects the others. A
//! low-rank bypass of attention (LAuReL), sparse gates in the first layers, per-layer token embeddings, and
//! shared keys and values in the last layers.

arch_macros::arch! {
    name: "gemma3n";
    rope: neox;

    hparams {
        swa_pattern: pattern = "attention.sliding_window_pattern" or 5;
        // Constants of the published models, not stored in files.
        let n_state = 4;
        let n_pl = 256;
        let is_sparse = il < 10;
        let n_sharing = n_layer - min(n_layer, 20);
    }

    tensors {
        use tied_output, per_layer_embeddings, altup_states;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            attn_post_norm, ffn_post_norm: vector "post_attention_norm", "post_ffw_norm" [n_embd];
            use shared_kv_attention;
            laurel_l: linear [n_embd -> 64];
            laurel_r: linear [64 -> n_embd];
            laurel_norm: vector "laurel_post_norm" [n_embd];
            use gated_ffn, per_layer_input, altup;
        }
    }

    fn rotate(x) {
        rope(x, base = rope_base, scale = rope_scale)
    }

    // Layers that share keys and values also omit the query bias.
    fn query(x) {
        if own_kv { wq(x) } else { linear_without_bias(wq, x) }
    }

    // Learned augmented residual layer (LAuReL, arXiv 2411.07501): the input of attention plus a low-rank
    // projection of that input.
    fn laurel(x: [n_embd, T]) {
        x + rms_norm(laurel_r(laurel_l(x)), laurel_norm)
    }

    // Keeps the excess over mean + 1.645 standard deviations: 5 % of the values of a normal distribution.
    fn gaussian_topk(x) {
        let centered = x - sum_rows(x) / n_ff;
        let deviation = sqrt(sum_rows(sqr(centered)) / (n_ff - 1));
        relu(centered - deviation * 1.6448536)
    }

    graph {
        let x = with_media(token_embd[tokens] * sqrt(n_embd));
        let per_layer = per_layer_embeddings(x);
        let states = altup_states(x);
        for layer {
            let prediction = altup_predict(states);
            let active = merge(prediction)[..n_embd];
            let h = rms_norm(active, attn_norm);
            let x = (active + rms_norm(attend(h), attn_post_norm) + laurel(h)) / sqrt(2);
            let h = rms_norm(x, ffn_norm);
            let g = if is_sparse { gaussian_topk(gate(h)) } else { gate(h) };
            let x = x + rms_norm(down(gelu(g) * up(h)), ffn_post_norm);
            let corrections = altup_correct(prediction, x);
            let active = merge(corrections)[..n_embd];
            let more = per_layer_input(active * correct_scale, per_layer);
            let others = merge(corrections)[n_embd..] + merge(repeat_heads(heads(more, 1), n_state - 1));
            states = heads(concat(active, others), n_state);
        }
        softcap(output(rms_norm(altup_mean(states), output_norm)), 30.0)
    }

    test { n_embd: 64, n_head: 1, n_layer: 22, n_ff: 96, n_vocab: 128, n_swa: 32 }
}
