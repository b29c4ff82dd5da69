//! Mamba 2 (arXiv 2405.21060): selective scans with one decay per head. Groups of heads share B and C. A gated norm
//! per group precedes the output projection.

arch_macros::arch! {
    name: "mamba2";
    rope: none;

    tensors {
        use tied_output;

        layer {
            attn_norm: vector [n_embd];
            use mamba2_mixer;
            override conv_b: raw "ssm_conv1d.bias" [d_conv_in];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            x += mixer(rms_norm(x, attn_norm));
        }
        output(rms_norm(x, output_norm))
    }

    checkpoint "Mamba2ForCausalLM" {
        n_ctx_train = 1048576;
        d_conv = "conv_kernel" or 4;
        n_ssm = "num_heads";
        d_inner = n_ssm * "head_dim";
        d_state = "state_size";
        n_group = "n_groups";
        head_dim = 0;
        rms_norm_eps = "layer_norm_epsilon" or 0.00001;
        token_embd <- "backbone.embeddings";
        output_norm <- "backbone.norm_f";
        layer "backbone.layers.{}" {
            attn_norm <- ".norm";
        }
    }

    test {
        n_embd: 64, n_head: 0, n_layer: 2, n_ff: 0, n_vocab: 128, d_conv: 4, d_inner: 128, d_state: 16, n_ssm: 4, n_group: 2
    }
}
