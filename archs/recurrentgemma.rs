//! RecurrentGemma (Griffin, arXiv 2402.19427): layers with a real-gated linear recurrent unit (RG-LRU),
//! interleaved with layers of windowed attention.

arch_macros::arch! {
    name: "recurrentgemma";
    rope: neox;

    hparams {
        // Published models round the square root of the width to BF16.
        embed_scale: f32 = "embedding_scale";
        // A cap of 0 disables it.
        logit_cap: f32 = "final_logit_softcapping";
        n_swa: usize = "attention.sliding_window";
        d_conv: usize = "ssm.conv_kernel";
        lru_width: usize = "ssm.inner_size";
        recurrent: [bool] = "recurrent_layers";
        // The gates of the recurrent unit are block-diagonal.
        let block = lru_width / n_head;
    }

    tensors {
        use tied_output;

        layer {
            attn_norm, ffn_norm: vector [n_embd];
            if recurrent {
                lru_in:       linear   "ssm_in"              [n_embd -> n_head * block];
                lru_gate:     linear   "ssm_gate"            [n_embd -> n_head * block];
                conv:         vector   "ssm_conv1d"          [d_conv, n_head * block];
                conv_b:       raw      "ssm_conv1d.bias"     [n_head * block];
                input_gate:   per_head "ssm_input_gate"      [block -> block; n_head];
                input_gate_b: raw      "ssm_input_gate.bias" [block, n_head];
                decay_gate:   per_head "ssm_decay_gate"      [block -> block; n_head];
                decay_gate_b: raw      "ssm_decay_gate.bias" [block, n_head];
                decay:        raw      "ssm_decay"           [n_head * block];
                lru_out:      linear   "ssm_out"             [n_head * block -> n_embd];
            } else {
                use self_attention;
            }
            use gated_ffn;
        }
    }

    fn recurrent_unit(x: [n_embd, T]) {
        let u = short_conv(lru_in(x), conv, conv_b);
        let blocks = heads(u, n_head);
        let opened = merge(sigmoid(decay_gate(blocks) + decay_gate_b));
        let log_decay = opened * softplus(decay) * -8.0;
        let kept = exp(log_decay * 2.0) * after_first();
        let admitted = u * merge(sigmoid(input_gate(blocks) + input_gate_b)) * sqrt(1.0 - kept);
        // The state of a channel is the decayed sum of its inputs: linear attention with queries and keys of 1.
        let one = attention_temperature(0.0, 1, 0.0);
        let channels = n_head * block;
        let y = linear_attention(one, one, heads(admitted, channels), decay = heads(log_decay, channels), scale = 1.0);
        lru_out(gelu(lru_gate(x)) * merge(y))
    }

    // Returns 0 at position 0 and 1 at later positions, `[1, T]`.
    fn after_first() {
        merge(clamp(attention_temperature(2.0, 1, 0.0) - 1.0, 0.0, 1.0))
    }

    graph {
        let x = token_embd[tokens] * embed_scale;
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if recurrent { recurrent_unit(h) } else { attend(h, window = sliding(n_swa)) };
            x += ffn(rms_norm(x, ffn_norm), act = gelu);
        }
        let logits = output(rms_norm(x, output_norm));
        if logit_cap > 0.0 { softcap(logits, logit_cap) } else { logits }
    }

    test {
        n_embd: 192, n_head: 6, n_head_kv: 1, n_rot: 16, n_layer: 2, n_ff: 192, n_vocab: 128, n_swa: 32, d_conv: 4, lru_width: 192,
        embed_scale: 13.875, logit_cap: 30.0
    }
}
