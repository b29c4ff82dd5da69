//! Maincoder: grouped-query attention and SwiGLU. RMS norms per query and key head follow the rotation.

arch_macros::arch! {
    name: "maincoder";
    like: "hunyuan-dense";
    rope: norm;

    hparams {
        without alpha, stretch;
        let rope_base = rope_freq_base;
    }
}
