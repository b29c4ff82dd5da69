//! A gate on what delta attention reads, by a projection of low rank. Goes with `delta_attention`.

fragment! {
    tensors {
        gate_a: linear "ssm_g_a" [n_embd -> d_kda];
        gate_b: linear "ssm_g_b" [d_kda -> n_head_max * d_kda];
    }

    fn opened(x) {
        sigmoid(gate_b(gate_a(x)))
    }
}
