//! Pocket TTS text-to-latent decoder: layer norms, adjacent-pair rotary positions, and a GELU feed-forward
//! network without a gate.

arch_macros::arch! {
    name: "pockettts";
    like: "starcoder2";
    rope: norm;
}
