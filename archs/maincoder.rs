//! Maincoder: grouped-query attention, SwiGLU; RMS norms on each query and key head after the rotation.

arch_macros::arch! {
    name: "maincoder";
    like: "hunyuan-dense";
    rope: norm;

    hparams {
        without alpha, stretch;
        let rope_base = rope_freq_base;
    }
}
