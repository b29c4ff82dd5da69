//! Falcon H1: in every layer, attention and a Mamba 2 mixer run in parallel on the same normalized input, and
//! their outputs are added. The Mamba norm is optional and follows the gate: published models set
//! `mamba_norm_before_gate` to false, and files have no key for the other order.

arch_macros::arch! {
    name: "falcon-h1";
    like: "mamba2";
    rope: neox;

    tensors {
        ignore "rope_freqs"; // the graph uses no frequency factors

        layer {
            conv_b?:   raw    "ssm_conv1d.bias" [d_conv_in];
            ssm_norm?: vector "ssm_norm"        [d_inner / n_group, n_group];
            use self_attention, gated_ffn;
            ignore "attn_output.bias"; // optional in files; not used by the model
            ffn_norm: raw "ffn_norm" [n_embd];
        }
    }

    graph {
        let x = token_embd[tokens];
        for layer {
            let h = rms_norm(x, attn_norm);
            x += attend(h) + mixer(h);
            x += ffn(rms_norm(x) * ffn_norm);
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_head_kv: 2, n_layer: 2, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 128,
        n_ssm: 2, n_group: 2
    }
}
