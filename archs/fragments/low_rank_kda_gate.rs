//! Output gate for `kimi_delta_attention`: a low-rank projection with a sigmoid.

fragment! {
    needs(d_kda: usize);

    tensors {
        gate_a: linear "ssm_g_a" [n_embd -> d_kda];
        gate_b: linear "ssm_g_b" [d_kda -> n_head_max * d_kda];
    }

    fn kda_gate(x: [n_embd, T]) {
        sigmoid(gate_b(gate_a(x)))
    }
}
