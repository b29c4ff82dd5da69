//! Parakeet, as in Nemotron 3 Omni: a conformer of NeMo, which reduces the frames to an eighth. A network with squared
//! ReLUs projects the normalized outputs.

arch_macros::encoder! {
    name: "parakeet";
    like: "lfm2a";

    tensors {
        without norm, fc1, fc2;
        norm_pre: vector "mm.a.norm_pre" [n_embd];
        up_out:   linear "mm.a.mlp.1"    [n_embd -> n_mid];
        down_out: linear "mm.a.mlp.2"    [n_mid -> n_out];
        ignore "a.mel_filters", "a.window";
    }

    graph {
        let x = embedded_frames();
        let distances = sinusoids_of(x, n_embd);
        for layer {
            x = conformer(x, distances);
        }
        down_out(relu_sqr(up_out(rms_norm(x, norm_pre, 0.000001))))
    }
}
