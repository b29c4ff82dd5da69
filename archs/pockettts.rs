//! Pocket TTS: its text-to-latent decoder, with layer norms, rotary positions on neighbours and a plain GELU feed-forward.

arch_macros::arch! {
    name: "pockettts";
    like: "starcoder2";
    rope: norm;
}
