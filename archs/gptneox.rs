//! GPT-NeoX and Pythia: layer norms and biases in all projections. The file selects whether attention and the
//! feed-forward network run in parallel or in sequence.

arch_macros::arch! {
    name: "gptneox";
    rope: neox;

    models {
        "20B": n_layer == 44 && n_embd == 6144;
    }

    hparams {
        parallel: bool = "use_parallel_residual";
    }

    tensors {
        use untied_output(kind = norm);

        layer {
            attn_norm, ffn_norm: norm [n_embd];
            use self_attention;
            use plain_ffn;
        }
    }

    // The 20B model approximates GELU by tanh, which its files do not record.
    fn ffn(x) { down(if model_is("20B") { gelu(up(x)) } else { gelu_erf(up(x)) }) }

    graph {
        let x = token_embd[tokens];
        for layer {
            let a = attend(layer_norm(x, attn_norm));
            x += a + ffn(layer_norm(if parallel { x } else { x + a }, ffn_norm));
        }
        output(layer_norm(x, output_norm))
    }

    test { n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, parallel: true }
}
