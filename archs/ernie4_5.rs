//! ERNIE 4.5, dense: grouped-query attention and SwiGLU. The bias of the attention output projection is
//! ignored.

arch_macros::arch! {
    name: "ernie4_5";
    like: "decoder";
    rope: norm;

    tensors {
        layer {
            ignore "attn_output.bias"; // the recorded reference results ignore this bias
        }
    }

    checkpoint "Ernie4_5ForCausalLM" {
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 500000.0;
        check first("use_bias", false) == false, "use_bias must be false for this architecture";
    }
}
